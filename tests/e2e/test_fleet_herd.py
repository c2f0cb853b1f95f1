# SPDX-License-Identifier: Apache-2.0
"""Dozens of servers' threads on one PostgreSQL (tests/fleet/fleet_herd.c): what one says does not have all of
them ask the database at once, and again for what the next one says."""

import importlib.machinery
import importlib.util
from pathlib import Path

import pytest

from conftest import BINARY, ROOT
from test_fleet import database, pg  # noqa: F401 - fixtures

PROGRAM = Path(BINARY).parent / "tests" / "fleet_herd"
SERVERS = 40

pytestmark = [pytest.mark.once, pytest.mark.timing,
              pytest.mark.skipif(not PROGRAM.exists(), reason="sanitized builds have no fleet_herd")]


@pytest.fixture
def herd(pg):  # noqa: F811
    loader = importlib.machinery.SourceFileLoader("bench_fleet_herd", str(ROOT / "scripts" / "bench-fleet-herd"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    one = module.Herd(pg, SERVERS, PROGRAM)
    yield one
    one.close()


def test_what_one_says_does_not_wake_all_of_them_each_time(herd):
    """Forty points a second. When each woke all, who each asked three times, they were 2000 transactions a second
    on a machine that could do them."""
    busy = herd.measure("news 10 1")
    assert busy["heard"] == busy["of"] > 0, busy
    assert busy["transactions_s"] < 1200, busy


def test_a_kernel_that_is_wrong_is_heard_of_without_waiting(herd):
    """Without a notification the last of them would hear after almost five seconds."""
    wrong = herd.measure("wrong 9")
    assert wrong["last_median_s"] < 3, wrong
