# SPDX-License-Identifier: Apache-2.0
"""/dashboard in a real Chromium, on a real server under load, with the adviser that a hostile
endpoint would be. Timing decides nothing here: every wait is for something to be seen."""

import base64
import contextlib
import hashlib
import http.server
import json
import os
import re
import signal
import sqlite3
import subprocess
import threading
import time

import pytest
import requests

from agentic import HELD, SLOT, TOGETHER
from browser import CHROMIUM, Browser
from conftest import BINARY, MODEL, Server
from load import Load

pytestmark = [pytest.mark.once,  # the search has to get somewhere: minutes under sanitizers
              pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed")]

HOSTILE = "<script>hacked = 1</script><img src=x onerror='hacked=1'>"
KEY = {"authorization": "Bearer boss"}


class Adviser:
    """A chat endpoint whose advice is in form, and whose label is an attack."""

    def __init__(self):
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                asked = self.rfile.read(int(self.headers["content-length"])).decode()
                outer.send(self, asked)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/chat/completions"

    def send(self, handler, asked):
        region = re.search(r'\\"region\\":\s*\\"([a-z_]+/m[^"\\]*)\\"', asked)
        advice = {"version": 1, "regions": [
            {"region": region.group(1) if region else "?", "label": HOSTILE, "priority": [],
             "hints": {}, "risks": []}]}
        body = json.dumps({"choices": [{"message": {"content": json.dumps(advice)}}]}).encode()
        handler.send_response(200)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)


class Browsed(Load):
    """Every second request is for eight texts."""

    def ask(self, server):
        n = TOGETHER if len(self.answers) % 2 == 0 else 1
        return server.complete("Once upon a time", max_tokens=40, ignore_eos=True, n=n)


def searched(store):
    """A store in which a kernel was published, which is really faster than eager (agentic.py says where), and
    another refused (nothing is eleven times as fast), by searches without a server. Its own would need
    minutes for that beside load, on a machine that does other things too."""
    for event, *options in (("active", "--slot", SLOT),
                            ("refused", "--slot", "head/m1", "--specializer-min-gain", "10")):
        command = [BINARY, "tune", "--model", MODEL, "--store", str(store), "--seconds", "600", *options]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              env={**os.environ, **HELD}) as process:
            while process.poll() is None and event not in events(store):
                time.sleep(0.2)
            process.send_signal(signal.SIGTERM)


def events(store):
    """Those of its trace; none while it is being made."""
    with contextlib.suppress(sqlite3.OperationalError), \
            contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True, timeout=5)) as db:
        return {row[0] for row in db.execute("SELECT DISTINCT event FROM trace")}
    return set()


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dashboard")
    (folder / "key").write_text("boss\n")
    adviser = Adviser()
    for i in range(10):  # until the kernel comes back: one that is slower beside something else does not
        store = folder / f"{i}.db"
        searched(store)
        # No candidate goes beyond its bench, so slots soon have their second batch, and with it advice.
        s = Server("--specializer-enabled=true", f"--server-admin-key-file={folder}/key", "--store", str(store),
                   "--specializer-restore-s=60", "--specializer-min-gain=10", f"--adviser-url={adviser.url}",
                   "--adviser-model=stand-in", env=HELD)
        if s.get("/specializer").json()["specializer"]["restored"] > 0:
            break
        s.stop()
    with Browsed(s) as load:
        yield s
        assert not load.failed
    s.stop()
    adviser.server.shutdown()


@pytest.fixture(scope="module")
def browser():
    b = Browser()
    yield b
    b.close()


@pytest.fixture
def page(browser, live):
    """The live server's page, freshly opened on a desktop; nothing may go wrong in it."""
    browser.errors.clear()
    browser.resize(1280, 900)
    browser.scheme(False)
    browser.open(live.url + "/dashboard")
    browser.wait("!document.getElementById('main').hidden")
    yield browser
    assert browser.errors == []
    assert browser.value("typeof hacked") == "undefined"


def slot(server, name):
    return server.get(f"/admin/slots/{name}", headers=KEY).json()


def give_key(page, key):
    page.wait("document.getElementById('key-dialog').open")
    page.type(key)
    page.press("Enter", 13)


# ---- the page by itself --------------------------------------------------------------------------


def test_policy_allows_the_pages_own_texts_and_nothing_else(live):
    answer = live.get("/dashboard")
    policy = dict(p.strip().split(" ", 1) for p in
                  answer.headers["content-security-policy"].split(";"))
    html = answer.content.decode()
    for element, directive in (("script", "script-src"), ("style", "style-src")):
        texts = re.findall(rf"<{element}>(.*?)</{element}>", html, re.S)
        hashes = {"'sha256-" + base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() + "'"
                  for t in texts}
        assert texts and set(policy[directive].split()) == hashes
    assert policy["default-src"] == "'none'" and policy["connect-src"] == "'self'"
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", html), "an outside asset"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\(", html)


# ---- under load ----------------------------------------------------------------------------------


def test_shows_live_numbers_and_goes_on_doing_so(page):
    page.wait("parseFloat(document.querySelector('#tiles .big').textContent) > 0")
    first = page.wait("document.querySelector('#rate .rate').getAttribute('d')")
    page.wait(f"document.querySelector('#rate .rate').getAttribute('d') !== {json.dumps(first)}")
    page.wait("/last \\d+.s/.test(document.getElementById('step-note').textContent)")
    assert "mlp_in" in page.text("#step-table") and "%" in page.text("#step-table")
    page.wait("/head\\/m1/.test(document.getElementById('slots-table').textContent)")
    assert page.value("document.querySelectorAll('#funnel tbody tr').length") == 6


def test_opens_with_the_history_that_the_server_kept(live, page):
    page.wait("series.seconds.size > 3")
    uptime = live.get("/specializer").json()["server"]["uptime_s"]
    page.open(live.url + "/dashboard")
    page.wait("series.to > 0")
    kept = page.value("series.seconds.size")
    assert kept >= min(890, uptime - 10)


def test_a_slot_on_eager_says_why(live, page):
    words = (r"eager\s+(not searched yet|nothing was decided yet|a candidate |live steps gave |undecided; |no template takes|"
             r"build: |probe: |load: |bench: |shadow: |canary: |rolled back: )").replace("\\", "\\\\")
    page.wait("[...document.querySelectorAll('#slots-table tbody tr')].some((r) => "
              f"new RegExp('{words}').test(r.cells[1].innerText))")
    slots = live.get("/specializer").json()["specializer"]["slots"]
    assert all(("why" in s) == (s["kernel"]["id"] == "eager") for s in slots)


def test_pins_and_unpins_a_slot_through_the_page(live, page):
    page.wait("document.querySelector('[aria-label=\"Manage mlp_in/m1\"]')")
    page.click('[aria-label="Manage mlp_in/m1"]')
    page.click("tr.more .actions button:nth-child(2)")
    give_key(page, "not the key")
    page.wait("/did not take/.test(document.getElementById('key-why').textContent)")
    page.errors.clear()  # the browser itself reports the 401
    give_key(page, "boss")
    page.wait("/pinned/.test(document.getElementById('slots-table').textContent)")
    assert slot(live, "mlp_in/m1")["pinned"] == "eager"
    page.click("tr.more .actions button:nth-child(3)")
    page.wait("!/pinned/.test(document.getElementById('slots-table').textContent)")
    assert slot(live, "mlp_in/m1")["pinned"] is None
    page.wait("/unpin/.test(document.getElementById('trace').textContent)")
    for storage in ("localStorage", "sessionStorage"):
        assert page.value(f"JSON.stringify({storage})") == "{}"
    assert page.value("document.cookie + location.href").count("boss") == 0


def test_pauses_freezes_and_searches_again(live, page):
    page.click("#key-button")
    give_key(page, "boss")
    page.wait("document.getElementById('key-button').textContent === 'Lock'")
    for button, word, mode in (("pause", "Paused", "pause"), ("freeze", "Frozen", "freeze")):
        page.click(f"#mode-{button}")
        page.wait(f"document.getElementById('state-text').textContent === '{word}'")
        assert not page.value("document.getElementById('notice').hidden")
        assert live.get("/specializer").json()["specializer"]["mode"] == mode
    page.click("#mode-run")
    page.wait("document.getElementById('notice').hidden")
    assert live.get("/specializer").json()["specializer"]["mode"] == "run"


def test_shows_what_was_refused_and_why(live, page):
    page.wait("document.querySelectorAll('#refusals li').length > 0", patience=1200)
    newest = live.get("/specializer").json()["specializer"]["refusals"]
    words = newest[-1]["text"].split(": ", 1)
    page.wait(f"document.getElementById('refusals').textContent.includes({json.dumps(words[1])})")


def test_pins_the_kernel_that_serves_and_shows_its_source_and_build_log(live, page):
    """A kernel that the search found, as soon as there is one."""
    name = page.wait("document.querySelector('#slots-table tr:has(.tag.good:not([hidden]))')"
                     "?.cells[0].innerText.trim()", patience=1200)
    page.click(f'[aria-label="Manage {name}"]')
    button = ("[...document.querySelectorAll('tr.more .actions button')]"
              ".find((b) => b.textContent === '%s' && b.checkVisibility())")
    page.wait(button % "Pin this kernel")
    page.value((button % "Pin this kernel") + ".click()")
    give_key(page, "boss")
    page.wait("/pinned/.test(document.getElementById('slots-table').textContent)")
    end = time.time() + 1200
    while (state := slot(live, name))["pinned"] != state["kernel"]["id"]:
        assert time.time() < end, state  # another had just taken its place: it is brought back
        time.sleep(0.1)
    assert state["state"] == "pinned" and state["pinned"] != "eager"
    page.value((button % "Source and build log") + ".click()")
    page.wait("document.getElementById('kernel-dialog').open")
    assert "whet_kernel" in page.text("#kernel-source")
    assert " -DREGION=" in page.text("#kernel-log")
    page.press("Escape", 27)
    page.value((button % "Unpin") + ".click()")
    page.wait("!/pinned/.test(document.getElementById('slots-table').textContent)")
    assert slot(live, name)["pinned"] is None


def test_shows_hostile_text_as_text(live, page):
    """An adviser's label, its verdict, and an operator's reason."""
    requests.post(live.url + "/admin/kernels/attn/disable", json={"reason": HOSTILE}, headers=KEY)
    label = json.dumps(HOSTILE)
    page.wait(f"document.getElementById('labels').textContent.includes({label})", patience=1200)
    page.wait(f"document.getElementById('verdicts').textContent.includes({label})", patience=1200)
    page.wait(f"document.getElementById('disabled').textContent.includes({label})")
    page.wait(f"document.getElementById('trace').textContent.includes({label})")
    assert page.value("document.querySelectorAll('main script, main img').length") == 0
    requests.post(live.url + "/admin/kernels/attn/enable", headers=KEY)


def test_injected_markup_cannot_run(page):
    """Should text ever become markup after all, the policy stops it."""
    assert page.value("""(() => {
        try { document.body.innerHTML += '<img src=x onerror="hacked = 1">'; return 'parsed'; }
        catch (e) { return e.name; } })()""") == "TypeError"
    assert page.value("""(() => {
        const s = document.createElement('script');
        try { s.append('hacked = 1'); document.body.append(s); } catch (e) { return 'refused'; }
        return typeof hacked; })()""") in ("refused", "undefined")
    page.errors.clear()  # of those two tries


# ---- for everybody -------------------------------------------------------------------------------

CONTRAST = """(() => {
    const rgb = (c) => (c.match(/[\\d.]+/g) || []).map(Number);
    const light = (c) => c.slice(0, 3).map((v) => v / 255).map((v) =>
        v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = (e) => {
        for (; e; e = e.parentElement) {
            const c = rgb(getComputedStyle(e).backgroundColor);
            if (c.length === 3 || c[3] > 0) return c;
        }
        return [255, 255, 255];
    };
    const bad = [];
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let n = walk.nextNode(); n; n = walk.nextNode()) {
        const e = n.parentElement, box = e.getBoundingClientRect();
        const seen = box.width && e.checkVisibility() && !e.closest('svg');
        if (!n.textContent.trim() || !seen) continue;
        const a = light(rgb(getComputedStyle(e).color)), b = light(behind(e));
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) bad.push(e.tagName + '.' + e.className + ' ' + ratio.toFixed(2) + ' '
                                  + n.textContent.trim().slice(0, 30));
    }
    return bad;
})()"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 360, 390, 768, 1440])
def test_is_readable_at_every_width_and_in_both_schemes(page, width, dark):
    page.resize(width, 844)
    page.scheme(dark)
    page.wait("document.querySelector('#slots-table button.bare')")
    page.value("document.querySelector('#slots-table button.bare').click()")
    page.wait("document.querySelector('tr.more')")
    # Why a slot has no kernel is a sentence, and whether one is shown just now is the search's.
    page.value("document.querySelector('#slots-table .kernel').lastChild.textContent ="
               " 'no candidate was better: the best of 24 gained 0.4 %, at least 2 % are wanted; ' +"
               " 'x'.repeat(80)")
    assert page.value("document.documentElement.scrollWidth") <= width
    wide = page.value("""[...document.querySelectorAll('main *')].filter((e) =>
        e.checkVisibility() && !e.closest('svg, .unseen, thead, pre') &&
        e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 120))""")
    assert wide == []
    assert page.value(CONTRAST) == []
    ground = page.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) < 200) == dark


@pytest.mark.parametrize("width", [320, 1280])
def test_a_step_fits_and_a_large_fleet_stays_small(browser, start, tmp_path, width):
    """Lists of hundreds, as the answer has them: the newest of each."""
    s = start("--specializer-enabled=true", "--specializer-paused=true")
    s.complete("Once upon a time", max_tokens=20)
    browser.command("Page.navigate", url="about:blank")  # the page before may miss its server, which is gone
    browser.wait("location.href === 'about:blank'")
    browser.errors.clear()
    browser.resize(width, 844)
    browser.open(s.url + "/dashboard")
    browser.wait("document.querySelectorAll('#step-table tbody tr').length > 3")
    assert browser.value("document.documentElement.scrollWidth") <= width
    rows = lambda words: [dict(words, key=f"{n:016x}", server=f"{n:016x}", slot=f"mlp_out/m{n}") for n in range(20)]
    some = {
        "state": "online", "listed": False, "since_s": 5, "troubled": False, "name": "here", "lease": "", "sent": 1,
        "taken": 2, "refused": 3, "distrusted": ["a"], "read_only": True, "totals": dict.fromkeys(("servers", "leases", "winners", "retractions"), 400),
        "servers": rows({"name": HOSTILE, "version": "1", "device": "Device" * 30, "stopped": False, "seen_s": 1}),
        "leases": rows({"name": HOSTILE, "left_s": 1, "held_s": 1}),
        "winners": rows({"kernel": "KNOB=1 " * 60, "speed": 2, "servers": 3}),
        "retractions": rows({"name": "x", "reason": HOSTILE, "at_s": 1, "confirmed_by": 0, "refuted_by": 0, "heard_by": 3,
                             "heard_of": 4})}
    browser.value("drawFleet({specializer: {fleet: " + json.dumps(some) + "}})")
    assert browser.value("document.getElementById('fleet').offsetHeight") < 2 * 844 + 200
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert "the newest 20 of 400" in browser.text("#fleet") and "not listed there yet" in browser.text("#fleet-note")
    assert "can only be read" in browser.text("#fleet-note") and "heard by 3 of 4" in browser.text("#fleet")
    for name in ("servers", "leases", "winners", "retractions"):
        browser.value(f"document.getElementById('fleet-{name}').focus()")
        assert browser.value("document.activeElement.id") == f"fleet-{name}"  # to be scrolled by keys
    assert browser.errors == [] and browser.value("typeof hacked") == "undefined"


def test_can_be_used_without_eyes_or_a_mouse(page):
    page.wait("document.querySelector('#slots-table button.bare')")
    nameless = page.value("""
        [...document.querySelectorAll('button, input, select, [role=img], dialog')]
        .filter((e) => !(e.textContent.trim() || e.getAttribute('aria-label')
            || e.getAttribute('aria-labelledby') || (e.labels && e.labels.length)))
        .map((e) => e.outerHTML.slice(0, 100))""")
    assert nameless == []
    assert page.value("""[...document.querySelectorAll('table')].filter((t) =>
        !t.caption || [...t.tHead.rows[0].cells].some((c) => c.scope !== 'col')).length""") == 0
    page.value("document.getElementById('chart').focus()")
    before = page.text("#readout")
    page.press("ArrowLeft", 37)
    page.wait(f"document.getElementById('readout').innerText !== {json.dumps(before)}")
    assert "tok/s" in page.text("#readout")
    page.press("Escape", 27)
    page.value("document.getElementById('key-button').focus()")
    page.press("Enter", 13)
    page.wait("document.getElementById('key-dialog').open")
    assert page.value("document.activeElement.id") == "key-input"
    page.press("Escape", 27)
    page.wait("!document.getElementById('key-dialog').open")
    assert page.value("document.activeElement.id") == "key-button"


# ---- states --------------------------------------------------------------------------------------


def state(browser, word):
    browser.wait(f"document.getElementById('state-text').textContent === {json.dumps(word)}")
    return browser.text("#notice")


def test_says_that_the_specializer_is_off_and_the_controls_closed(browser, server):
    browser.errors.clear()
    browser.open(server.url + "/dashboard")
    assert "eager kernels serve" in state(browser, "Off")
    assert browser.value("document.getElementById('key-button').disabled")
    assert "server.admin_key_file" in browser.text("#foot")
    assert browser.errors == []


def test_says_when_nothing_has_happened_yet(browser, start):
    s = start("--specializer-enabled=true", "--specializer-paused=true")
    browser.open(s.url + "/dashboard")
    state(browser, "Paused")
    assert "No step has run yet" in browser.text("#step-note")
    assert "No slot has been used yet" in browser.text("#slots-empty")
    assert "No tokens in this window" in browser.text("#readout")


def test_says_converged_only_of_a_search_that_has_nothing_left(browser, start):
    s = start("--specializer-enabled=true")
    browser.open(s.url + "/dashboard")
    state(browser, "Idle")  # no traffic, and nothing known
    assert s.get("/specializer").json()["specializer"]["converged"] is False
    judged = lambda **facts: browser.value(
        f"judge({{server: {{state: 'ready'}}, specializer: {json.dumps({'mode': 'run', **facts})}}}).slice(0, 3)")
    assert judged(doing="asleep", converged=True)[:2] == ["good", "Converged"]
    assert judged(doing="asleep", converged=False)[:2] == ["good", "Idle"]
    assert judged(doing="builds_spent", converged=False) == ["warn", "Builds used up",
                                                             "The builds of this hour are used up."]


def test_says_how_old_the_numbers_are(browser, server):
    browser.open(server.url + "/dashboard")
    browser.wait("!document.getElementById('main').hidden")
    browser.value("lost({status: 0, message: ''})")
    assert "Shown is what was heard just now." in browser.text("#notice")
    browser.value("heard -= 30000, lost({status: 0, message: ''})")
    assert "Shown is what was heard 30" in browser.text("#notice")


def test_says_that_there_is_no_compiler(browser, start):
    s = start("--specializer-enabled=true", "--specializer-compiler=/nonexistent/cc")
    browser.open(s.url + "/dashboard")
    assert "nothing new can be built" in state(browser, "No compiler")
    assert s.metric("whet_specializer_searching") == 0


def test_asks_for_a_key_where_one_is_needed(browser, start, tmp_path):
    (tmp_path / "keys").write_text("sk-user\n")
    s = start("--server-api-keys", str(tmp_path / "keys"))
    browser.open(s.url + "/dashboard")
    assert "needs a key" in state(browser, "Locked")
    assert browser.value("document.getElementById('main').hidden")
    browser.click("#notice-key")
    give_key(browser, "sk-user")
    browser.wait("!document.getElementById('main').hidden")


def test_says_that_the_server_drains_and_then_that_it_is_gone(browser, start):
    s = start("--server-drain-s=600")
    browser.open(s.url + "/dashboard")
    browser.wait("!document.getElementById('main').hidden")
    running = requests.post(s.url + "/v1/completions", stream=True, timeout=300, json={
        "prompt": "x", "max_tokens": 8000, "ignore_eos": True, "stream": True})
    s.signal(signal.SIGTERM)
    state(browser, "Draining")
    running.close()
    assert "Trying again" in state(browser, "Connection lost")
    assert browser.value("document.body.classList.contains('stale')")
    assert not browser.value("document.getElementById('main').hidden"), "the last numbers stay"
    again = start(f"--port={s.port}")
    state(browser, "Off")
    assert not browser.value("document.body.classList.contains('stale')")
    assert again.port == s.port
