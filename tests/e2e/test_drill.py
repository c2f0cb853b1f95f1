# SPDX-License-Identifier: Apache-2.0
"""scripts/drill, the quick parts with small counts; the parts, and what they demand, are in
tests/drill/. And a drill that finds something wrong says so."""

import os
import subprocess

import pytest

import conftest

pytestmark = pytest.mark.once  # the search has to get somewhere: minutes under sanitizers

# Those of one server together: what it had touched before is compared with once.
PARTS = {
    "one-server": ["idle-connections", "abandoned-streams", "slow-readers", "slow-writers",
                   "body-storm", "no-descriptors", "store-locked", "file-limit"],
    "own-servers": ["disk-full", "clock-jumps", "full-house"],
}


def drill(*words, **more):
    command = [str(conftest.ROOT / "scripts" / "drill"), "--build",
               os.path.dirname(os.path.abspath(conftest.BINARY)), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_every_quick_part_of_the_drill_passes(parts):
    done = drill("--short", *parts)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    last = done.stdout.splitlines()[-1]
    assert ", 0 failed" in last, done.stdout


def test_every_part_of_the_drill_says_what_it_defends_and_the_quick_ones_are_run_here():
    listed = drill("--list").stdout.splitlines()
    assert all(len(line.split()) > 6 for line in listed)
    quick = {line.split()[0] for line in listed if "(long)" not in line}
    assert quick == {name for names in PARTS.values() for name in names}


def test_a_part_that_does_not_exist_is_an_error():
    done = drill("no-such-part")
    assert done.returncode == 2 and "no-such-part" in done.stderr


def test_a_short_soak_finds_nothing():
    """Everything at once, with a model so small that much happens in a minute."""
    model = conftest.ROOT / "tests" / "golden" / "tiny-llama.gguf"
    done = drill("--soak", "1", "--life", "20", env={**os.environ, "WHET_TEST_MODEL": str(model)})
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    last = done.stdout.splitlines()[-1]
    assert last.endswith(", 0 wrong") and " 0 requests" not in last, done.stdout
