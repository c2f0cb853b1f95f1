# SPDX-License-Identifier: Apache-2.0
"""A language model that writes kernels, played by a script: what it gets published, and what not.

The stand-in (agentic.py) hands out the texts below, one after another: mistakes that are repaired, a
kernel that is really faster than eager, cheats, and from then on nothing of use. The server is the
real one, under live load, and every text goes through every stage.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentic import KEY, Load, Model, by_the_agent, get, published, refused, wait_for
from conftest import BINARY, ROOT, Server

# Sanitizers slow eager and the server, not candidates: the search would take minutes, and a faster
# text would not show in whole steps. What reads texts and replies is under them in the unit tests.
pytestmark = pytest.mark.timing

SLOT = "mlp_in/m1"
# One compute thread: on a machine of two cores that does other things too, what a team's hand-over to
# the executor costs is sometimes as much as the text below gains.
ALONE = ["--engine-threads", "1"]

# mlp_in with eight rows of each matrix in flight and what comes next asked for. %(...)s are where
# mistakes and cheats go in.
KERNEL = """
%(top)s
static int64_t scratch_bytes(int32_t m, int32_t size)
{
    return (int64_t)size * m * HIDDEN * (int64_t)sizeof(float);
}

static void run(const void *args, const struct team *team)
{
    enum { UNIT = 16, AT_ONCE = 8, AHEAD = %(ahead)d };
    const struct mlp_in_args *a = args;
    const int64_t sg = HIDDEN / BLOCK * BLOCK_BYTES(WTYPE), su = HIDDEN / BLOCK * BLOCK_BYTES(WTYPE_2);
    float *n = (float *)team->scratch + (int64_t)team->rank * a->m * HIDDEN;
    %(start)s
    for (int t = 0; t < a->m; t++)
        norm_row(n + t * HIDDEN, a->x + t * HIDDEN, a->norm, HIDDEN, a->eps, 0, HIDDEN);
    struct share s = share_groups(team, FFN / UNIT, 0);
    for (int g = s.first; g < s.end; g += s.step)
        for (int t = 0; t < a->m; t++) {
            float gate[UNIT], up[UNIT];
            const uint8_t *wg = (const uint8_t *)a->gate.data + (int64_t)g * UNIT * sg;
            const uint8_t *wu = (const uint8_t *)a->up.data + (int64_t)g * UNIT * su;
            for (int i = 0; i < UNIT; i += AT_ONCE) {
                rows_dot(WTYPE, wg + i * sg, sg, AT_ONCE, n + t * HIDDEN, HIDDEN, 1, HIDDEN, AHEAD,
                         gate + i, 1);
                rows_dot(WTYPE_2, wu + i * su, su, AT_ONCE, n + t * HIDDEN, HIDDEN, 1, HIDDEN, AHEAD,
                         up + i, 1);
            }
            %(inner)s
            vf_store(a->h + (int64_t)t * FFN + g * UNIT, vf_silu_mul(vf_load(gate), vf_load(up)));
        }
    %(end)s
}
"""


def text(**parts):
    return KERNEL % {"top": "", "start": "", "inner": "", "end": "", "ahead": 8192, **parts}


def fast_text():
    """A right text that is faster than eager whatever an executor's hand-over costs: with VNNI one that
    a language model wrote in 2026 (2.4 times eager), elsewhere KERNEL, which gains less."""
    flags = re.search(r"^flags\s*:(.*)", Path("/proc/cpuinfo").read_text(), re.M)
    if flags and "avx512_vnni" in flags.group(1).split():
        return (ROOT / "tests/golden/agentic/mlp_in_vnni.c").read_text()
    return text()


FAST = fast_text()

# (what it is, the text, the stage and words of its refusal or None)
SCRIPT = [
    ("does not compile", text(start="int x = undefined_name;"), "undefined_name"),
    ("is wrong", text(inner="up[3] = gate[3];"), "times eager"),
    ("is right and fast", FAST, None),
    ("assembly", text(start='__asm__ volatile("nop");'), "rule name: __asm__"),
    ("caches by pointer", text(top="static const float *last; static float kept[FFN];",
                               start="if (last == a->x) { for (int i = 0; i < FFN; i++) "
                                     "a->h[i] = kept[i]; return; } last = a->x; "
                                     "for (int i = 0; i < FFN; i++) kept[i] = a->h[i];"),
     "keeps state between calls"),
    ("writes out of bounds", text(end="a->h[(int64_t)a->m * FFN + 40000] = 1.0f;"), "probe"),
    ("includes", text(top="#include <stdio.h>"), "rule directive: #include"),
    ("reads what is there", text(inner="for (int i = 0; i < UNIT; i++) gate[i] = "
                                       "a->h[(int64_t)t * FFN + g * UNIT + i];"), "probe"),
    ("hides a system call", text(start="if (team->size == 77) a->h[0] = (float)(team->rank ^ 0x050f050f);"),
     "system-call instruction"),
    ("constructor", text(top="static __attribute__((constructor)) void f(void) {}"),
     "rule attribute: constructor"),
]


def decided(s):
    """True once the slot has a text's kernel, False once the good text lost on time alone."""
    if by_the_agent(s, SLOT):
        return True
    rows = [r["text"] for r in get(s, f"/admin/trace?slot={SLOT}")["trace"] if r["event"] == "refused"]
    slow = [text for text in rows if text.startswith(("bench:", "canary:"))]
    return False if len(slow) > 1 else None  # one is the seed


@pytest.fixture(scope="module", autouse=True)
def awake():
    """Keeps the spare core from going to sleep, at the priority of an idle loop. A virtual machine needs
    up to 60 us to wake one, and an executor sleeps between two layers: as much as a text gains."""
    idle = subprocess.Popen([sys.executable, "-c", "import os\n"
                             "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\n"
                             "while True: pass"])
    yield
    idle.kill()
    idle.wait()


def until_published(begin):
    """What begin(n) started, once the good text serves. Who is faster is no matter of right and wrong:
    where a busy machine decides against it, everything begins anew."""
    for n in range(8):
        w = begin(n)
        try:
            if wait_for(w["s"], SLOT, "undecided", lambda: decided(w["s"]) is not None) and decided(w["s"]):
                return w
        except BaseException:
            end(w)
            raise
        end(w)
    raise AssertionError("never faster than eager")


def end(w):
    try:
        w["load"].end()
    finally:
        w["s"].stop()
        if "model" in w:
            w["model"].close()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    def begin(_):
        folder = tmp_path_factory.mktemp("agentic")
        (folder / "key").write_text("boss\n")
        model = Model(text for _, text, _ in SCRIPT)
        options = [*ALONE, "--server-admin-key-file", str(folder / "key"),
                   "--specializer-enabled=true", "--store", str(folder / "store.db"),
                   "--specializer-strategy", "agentic", "--adviser-url", model.url,
                   "--adviser-model", "writer", "--adviser-calls-per-hour", "1000",
                   "--agentic-attempts", "40", "--agentic-price-in", "2", "--agentic-price-out", "8"]
        s = Server(*options, "--specializer-agentic", "on")
        return {"s": s, "model": model, "options": options, "load": Load(s, pause=1)}

    w = until_published(begin)
    yield w
    end(w)


def test_a_text_that_was_repaired_twice_is_published_and_shown(world):
    kernel, asked = published(world, SLOT)
    assert kernel["template"] == "agent_mlp_in" and FAST.strip() in kernel["source"]
    assert re.fullmatch("[0-9a-f]{16}", kernel["agent"]["prompts"])
    assert [a["temperature"] for a in asked] == [0.8, 0.1, 0.1, 0.1]
    assert "struct mlp_in_args {" in asked[0]["system"] and "HIDDEN=576" in asked[0]["system"]
    # What the seed measured, also where its weights need not be read from memory.
    assert re.search(r"; on warm weights [0-9.]+ us, the kernel that served then [0-9.]+ us; [-+]",
                     asked[0]["user"])
    assert "undefined_name" in asked[2]["user"]  # the compiler's words
    assert "times eager" in asked[3]["user"]     # the checker's words


def test_cheats_are_refused_with_the_rule_or_check_that_caught_them(world):
    refused(world, SLOT, SCRIPT)


def test_a_model_that_says_nothing_of_use_is_asked_no_more(world):
    s, model = world["s"], world["model"]
    wait_for(s, SLOT, "breaker stays closed", lambda: s.metric("whet_adviser_breaker_state") == 2)
    failed = s.metric("whet_agentic_questions_total")
    assert failed == len(model.asked)
    assert s.metric("whet_agentic_tokens_total") == 1100 * len(model.asked)
    assert s.metric("whet_agentic_cost_total") == pytest.approx(0.0028 * len(model.asked))
    assert "<script>" not in s.get("/admin/slots", headers=KEY).text


def test_an_exported_text_is_proved_again_by_the_server_that_imports_it(world, tmp_path):
    kernel, export = by_the_agent(world["s"], SLOT), tmp_path / "export.json"
    export.write_text(json.dumps(get(world["s"], "/admin/store/export")))
    (tmp_path / "key").write_text("boss\n")
    world["load"].end()  # two servers under load would halve each other

    def begin(n):
        store = str(tmp_path / f"store-{n}.db")
        taken = subprocess.run([BINARY, "kernels", "import", str(export), "--store", store],
                               capture_output=True, text=True)
        assert taken.returncode == 0, taken.stderr
        s = Server(*ALONE, "--server-admin-key-file", str(tmp_path / "key"),
                   "--specializer-enabled=true", "--store", store, "--specializer-strategy", "agentic",
                   "--specializer-agentic", "on")  # and no model to ask
        return {"s": s, "load": Load(s, pause=1)}

    w = until_published(begin)
    try:
        other = w["s"]
        found = by_the_agent(other, SLOT)
        assert found["source"] == kernel["source"] and found["agent"]["label"].startswith("imported: ")
        assert other.metric("whet_agentic_questions_total") == 0
        events = [r["event"] for r in get(other, f"/admin/trace?slot={SLOT}")["trace"]]
        assert {"imported", "built", "probed", "benched", "shadowed", "canary", "active"} <= set(events)
    finally:
        end(w)


def children(pid, word):
    """Processes that `pid` started with `word` on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit():
                continue
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == pid and word in (entry / "cmdline").read_text().split("\0"):
                found.append(int(entry.name))
        except OSError:
            pass  # it ended meanwhile
    return found


def test_it_goes_when_the_option_goes_and_survives_a_restart(world):
    s = world["s"]
    before = by_the_agent(s, SLOT)
    spent = s.metric("whet_agentic_tokens_total")
    world["load"].end()
    s.stop()
    without = Server(*world["options"])
    try:
        rows = wait_for(without, SLOT, "no word on it", lambda: [
            r for r in get(without, "/admin/trace")["trace"]
            if r["event"] == "not_restored" and r["slot"] == SLOT])
        assert "specializer.agentic is off" in rows[0]["text"]
        assert get(without, f"/admin/slots/{SLOT}")["kernel"]["id"] == "eager"
        assert not children(without.process.pid, "executor")
    finally:
        without.stop()
    again = Server(*world["options"], "--specializer-agentic", "on", "--specializer-paused=true")
    try:
        kernel = wait_for(again, SLOT, "not restored", lambda: by_the_agent(again, SLOT))
        assert kernel["id"] == before["id"] and kernel["source"] == before["source"]
        assert again.metric("whet_agentic_tokens_total") == spent
        kill_the_executor(again)
    finally:
        again.stop()


def kill_the_executor(s):
    """Nobody who asks notices, and the kernel is rolled back."""
    asked = {"prompt": "The capital of France is", "max_tokens": 40}
    text = s.complete(**asked)["choices"][0]["text"]
    load = Load(s)
    [executor] = children(s.process.pid, "executor")
    assert "Seccomp:\t2" in Path(f"/proc/{executor}/status").read_text()
    assert not list(Path(f"/proc/{executor}/fd").iterdir())
    os.kill(executor, signal.SIGKILL)
    wait_for(s, SLOT, "not rolled back",
             lambda: get(s, f"/admin/slots/{SLOT}")["kernel"]["id"] == "eager")
    load.end()  # nothing failed
    assert s.complete(**asked)["choices"][0]["text"] == text
    assert 'whet_kernel_rollbacks_total{reason="executor"} 1' in s.get("/metrics").text
    assert any("SIGKILL" in r["text"] for r in get(s, f"/admin/trace?slot={SLOT}")["trace"]
               if r["event"] == "rolled_back")
    assert not children(s.process.pid, "executor")
