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
from pathlib import Path

import pytest

from agentic import (ALONE, FAST, HELD, KEY, SLOT, TOGETHER, Model, Streams, by_the_agent, end, get, published,
                     refused, text, until_published, wait_for)
from conftest import BINARY, Server

# Sanitizers slow eager and the server, not candidates: the search would take minutes, and a faster
# text would not show in whole steps. What reads texts and replies is under them in the unit tests.
pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("awake")]

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
        s = Server(*options, "--specializer-agentic", "on", env=HELD)
        return {"s": s, "model": model, "options": options, "load": Streams(s, n=TOGETHER)}

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
                   "--specializer-agentic", "on", env=HELD)  # and no model to ask
        return {"s": s, "load": Streams(s, n=TOGETHER)}

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
    without = Server(*world["options"], env=HELD)
    try:
        rows = wait_for(without, SLOT, "no word on it", lambda: [
            r for r in get(without, "/admin/trace")["trace"]
            if r["event"] == "not_restored" and r["slot"] == SLOT])
        assert "specializer.agentic is off" in rows[0]["text"]
        assert get(without, f"/admin/slots/{SLOT}")["kernel"]["id"] == "eager"
        assert not children(without.process.pid, "executor")
    finally:
        without.stop()
    again = Server(*world["options"], "--specializer-agentic", "on", "--specializer-paused=true", env=HELD)
    try:
        kernel = wait_for(again, SLOT, "not restored", lambda: by_the_agent(again, SLOT))
        assert kernel["id"] == before["id"] and kernel["source"] == before["source"]
        assert again.metric("whet_agentic_tokens_total") == spent
        kill_the_executor(again)
    finally:
        again.stop()


def kill_the_executor(s):
    """Nobody who asks notices, and the kernel is rolled back."""
    asked = {"prompt": "The capital of France is", "max_tokens": 40, "n": TOGETHER}
    said = lambda: [choice["text"] for choice in s.complete(**asked)["choices"]]
    before = said()
    load = Streams(s, n=TOGETHER)
    [executor] = children(s.process.pid, "executor")
    assert "Seccomp:\t2" in Path(f"/proc/{executor}/status").read_text()
    assert not list(Path(f"/proc/{executor}/fd").iterdir())
    os.kill(executor, signal.SIGKILL)
    wait_for(s, SLOT, "not rolled back",
             lambda: get(s, f"/admin/slots/{SLOT}")["kernel"]["id"] == "eager")
    load.end()  # nothing failed
    assert said() == before
    assert 'whet_kernel_rollbacks_total{reason="executor"} 1' in s.get("/metrics").text
    assert any("SIGKILL" in r["text"] for r in get(s, f"/admin/trace?slot={SLOT}")["trace"]
               if r["event"] == "rolled_back")
    assert not children(s.process.pid, "executor")
