# SPDX-License-Identifier: Apache-2.0
"""What tests/device/suite.py makes of a sanitizer's words, without a device."""
import importlib.util
import os

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
spec = importlib.util.spec_from_file_location("suite", os.path.join(ROOT, "tests/device/suite.py"))
suite = importlib.util.module_from_spec(spec)
spec.loader.exec_module(suite)

KNOWN = """========= Error: Race reported between Read access at meet(memory &, int)+0x3a20 in wide_end.cuh:142
=========     and Write access at send(const float4 *, int, const float *)+0x2ae0 in wide_end.cuh:102 [64 hazards]
"""
OTHER = """========= Error: Race reported between Read access at take_piece(const uint4 *)+0x120 in wide_gated.cuh:51
=========     and Write access at stage_piece(uint4 *)+0x80 in wide_gated.cuh:40 [64 hazards]
"""
HALF_KNOWN = KNOWN.replace("send(const float4 *", "open_barriers(memory")


def verdict(text, status):
    part = suite.Part("racecheck wide", [], tool="racecheck")
    suite.judge(part, status, "265 checks, 0 failed\n" + text)
    return part.passed, part.failed


def summary(n):
    return f"========= RACECHECK SUMMARY: {n} hazards displayed ({n * 8} errors, 0 warnings)\n"


def test_a_clean_run_has_passed():
    assert verdict(summary(0), 0) == (266, 0)


def test_known_races_alone_are_none():
    assert verdict(KNOWN * 2 + summary(2), 99) == (266, 0)


def test_any_other_race_fails():
    for text, shown in ((KNOWN + OTHER, 2), (OTHER, 1), (HALF_KNOWN, 1)):
        assert verdict(text + summary(shown), 99) == (265, 1)


def test_races_that_were_not_shown_fail():
    assert verdict(KNOWN + summary(2), 99) == (265, 1)
    assert verdict(KNOWN, 99) == (265, 1)


def test_another_end_of_the_program_fails():
    assert verdict(KNOWN + summary(1), 1)[1] == 1
