# SPDX-License-Identifier: Apache-2.0
"""Clients that keep a server busy while a test waits for its search."""

import os
import threading
import time
from pathlib import Path

PATIENT = 10  # rests, at most, of a client that leaves the cores to the search


def searches(server):
    """Whether a compiler or probe of its search is at work: a child that gets what nobody else wants."""
    for listed in Path(f"/proc/{server.process.pid}/task").glob("*/children"):
        try:
            for pid in listed.read_text().split():
                if os.sched_getscheduler(int(pid)) == os.SCHED_IDLE:
                    return True
        except OSError:  # the thread or the child is over
            pass
    return False


class Load:
    """A client for each server, one request after the other, and after each of them nothing for `rest` times as
    long as it took. Compilers and probes get what requests leave, and a request lasts longer on a slow machine:
    under a load without rests a compiler that needs a second there takes half a minute. So while one is at work
    the rests are up to `patient` times as long; what waits for steps of the server has them soon after. With 1
    they are not: where many steps are what is waited for.

    Begins at once and ends with end() or as a context. An answer is kept in `answers`; a request that failed
    before the end ends its client and is told in `failed`."""

    def __init__(self, *servers, rest=2, patient=PATIENT):
        self.patient = patient
        self.rest, self.answers, self.failed, self.over = rest, [], [], threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(s,), daemon=True) for s in servers]
        for thread in self.threads:
            thread.start()

    def ask(self, server):
        """One request; what it returns is the answer."""
        return server.complete("Bread is", max_tokens=48)

    def run(self, server):
        while not self.over.is_set():
            begin = time.monotonic()
            try:
                self.answers.append(self.ask(server))
            except Exception as e:  # noqa: BLE001 - refused, cut off, wrong: whatever it is, the test must know
                if not self.over.is_set():
                    self.failed.append(repr(e))
                return
            pause = self.rest * (time.monotonic() - begin)
            self.over.wait(pause)
            end = time.monotonic() + (self.patient - 1) * pause
            while time.monotonic() < end and searches(server) and not self.over.wait(0.1):
                pass

    def end(self):
        self.over.set()
        for thread in self.threads:
            thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
