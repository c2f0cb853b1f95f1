# SPDX-License-Identifier: Apache-2.0
"""Which cores compute threads keep to (engine.pin_threads)."""

import contextlib
import os
import pathlib

import pytest


def cores(server, name):
    """The cores that each thread of the server with this name may use."""
    found = []
    for task in pathlib.Path(f"/proc/{server.process.pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            if (task / "comm").read_text().strip() == name:
                found.append(os.sched_getaffinity(int(task.name)))
    return found


@pytest.mark.parametrize("pin", ["true", "false"])
def test_a_thread_for_every_core_keeps_to_it_unless_told_otherwise(start, pin):
    every = os.sched_getaffinity(0)
    if len(every) < 2:
        pytest.skip("one core")
    s = start("--engine-pin-threads=" + pin, "--backend", "cpu")
    s.complete("One step, so that all of them have run")
    pool = cores(s, "whet-pool")
    ranks = cores(s, "whet-engine") + pool  # and a thread that a library began on the engine's
    kept = sorted(sorted(rank) for rank in ranks if rank != every)
    assert len(pool) == len(every) - 1
    assert kept == ([[core] for core in sorted(every)] if pin == "true" else [])


def test_fewer_threads_than_cores_go_where_the_scheduler_wants(start):
    every = os.sched_getaffinity(0)
    if len(every) < 2:
        pytest.skip("one core")
    s = start("--engine-threads", str(len(every) - 1), "--backend", "cpu")
    s.complete("One step")
    ranks = cores(s, "whet-engine") + cores(s, "whet-pool")
    assert ranks and all(rank == every for rank in ranks)
