# SPDX-License-Identifier: Apache-2.0
"""The parts of a drill, one after the other, and the table of what came of them."""

import argparse
import faulthandler
import resource
import signal
import sys
import time
import traceback

import clients
import parts_faults as faults
import parts_net as net
from world import Failed, Skipped, World

FULL = {"idle": 2000, "house": 2000, "streams": 500, "bodies": 150, "readers": 8, "writers": 32,
        "kills": 12, "advice": 2, "answers": 20, "crowd": 200,
        "days": (1, -1, 3650, -400)}
SHORT = {"idle": 200, "house": 1100, "streams": 24, "bodies": 6, "readers": 2, "writers": 4,
         "kills": 1, "advice": 1, "answers": 4, "crowd": 40, "days": (1, -1)}

# name, function, in a world of its own, in a short run too
PARTS = [
    # tests/e2e/test_drills.py kills children of each kind, too, in less time
    ("killed-probes", faults.killed_probes, False, False),
    ("killed-compilers", faults.killed_compilers, False, False),
    ("idle-connections", net.idle_connections, False, True),
    ("abandoned-streams", net.abandoned_streams, False, True),
    ("slow-readers", net.slow_readers, False, True),
    ("slow-writers", net.slow_writers, False, True),
    ("body-storm", net.body_storm, False, True),
    ("no-descriptors", faults.no_descriptors, False, True),
    ("store-locked", faults.store_locked, False, True),
    ("file-limit", faults.file_limit, False, True),
    ("disk-full", faults.disk_full, True, True),
    ("clock-jumps", faults.clock_jumps, True, True),
    ("full-house", net.full_house, True, True),
    *((f"adviser-{mode}", faults.bad_adviser(mode), True, False) for mode in faults.ADVISERS),
    ("killed-executors", faults.killed_executors, True, False),
]


def warm_up(w):
    """Touches once what the parts touch: memory is compared with a server that has lived."""
    small = {"idle": 64, "streams": 8, "bodies": 8}
    for prompt in range(4):
        w.server.post("/v1/completions", {"prompt": f"{prompt} " + "river garden " * 350,
                                          "max_tokens": 8})
    net.idle_connections(w, small)
    net.abandoned_streams(w, small)
    net.body_storm(w, small)
    w.begin()


class Results:
    def __init__(self):
        self.rows = []

    def add(self, name, begun, verdict, words, figures=None):
        self.rows.append((name, verdict, figures or {}, words))
        mib = {k: f"{figures[k] / 1024:.0f}" for k in ("memory", "peak")} if figures else {}
        kinds = ("sent", "answered", "errored", "left") if figures else ()
        count = "/".join(str(figures.get(k, "-")) for k in kinds)
        print(f"{name:18} {verdict:7} {time.monotonic() - begun:5.0f} s  {count:22}"
              f" {mib.get('memory', ''):>5} {mib.get('peak', ''):>5}  {words}", flush=True)

    def end(self):
        count = {v: sum(1 for r in self.rows if r[1] == v) for v in ("ok", "FAILED", "skipped")}
        skipped = f", {count['skipped']} skipped" if count["skipped"] else ""
        print(f"{count['ok']} passed, {count['FAILED']} failed{skipped}", flush=True)
        return 1 if count["FAILED"] or not count["ok"] else 0


def attempt(wrong, work):
    """What `work()` returns; None, and a reason more in `wrong`, if it failed or fell over."""
    try:
        return work()
    except Failed as e:
        wrong.append(str(e))
    except Skipped:
        raise
    except Exception as e:  # the next part is run all the same
        wrong.append(f"{e!r}: {traceback.format_exc().splitlines()[-3].strip()}")
    return None


def run_part(results, name, part, world, counts):
    """One part and what must be true after it; a row of the table."""
    begun, wrong = time.monotonic(), []
    try:
        if world:
            words = attempt(wrong, lambda: part(world, counts))
            figures, after = attempt(wrong, world.check) or ({}, [])
        else:
            words, figures, after = attempt(wrong, lambda: part(None, counts)) or ("", {}, [])
        wrong += after
        results.add(name, begun, "FAILED" if wrong else "ok", "; ".join(wrong) or words, figures)
    except Skipped as e:
        results.add(name, begun, "skipped", str(e))


def drill(names, counts, short):
    results = Results()
    chosen = [p for p in PARTS if (p[0] in names if names else p[3] or not short)]
    print(f"{'part':18} {'verdict':7} {'time':>7}  {'sent/answered/errored/left':22}   MiB  peak",
          flush=True)
    shared = [p for p in chosen if not p[2]]
    if shared:
        try:
            with World() as w:
                warm_up(w)
                for name, part, _, _ in shared:
                    run_part(results, name, part, w, counts)
        except Exception as e:  # the server is gone, say: what was not done has failed
            traceback.print_exc()
            done = {row[0] for row in results.rows}
            for name, *_ in shared:
                if name not in done:
                    results.add(name, time.monotonic(), "FAILED", f"the server: {e!r}"[:500])
    for name, part, own, _ in chosen:
        if own:
            run_part(results, name, part, None, counts)
    return results.end()


def raise_limits():
    """Client and server need a descriptor for every connection; the server inherits ours."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192
    if hard != resource.RLIM_INFINITY and hard < wanted:
        sys.exit(f"drill: needs {wanted} file descriptors, the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def main():
    p = argparse.ArgumentParser(prog="scripts/drill", description="load and faults against a "
                                "real server; --build DIR: the program of this build folder")
    p.add_argument("--short", action="store_true", help="the quick parts, with small counts")
    p.add_argument("--list", action="store_true", help="the parts, and what each defends")
    p.add_argument("names", nargs="*", help="the parts to run; all, if none is named")
    a = p.parse_args()
    if a.list:
        for name, part, _, quick in PARTS:
            print(f"{name:18} {'' if quick else '(long) '}{' '.join(part.__doc__.split())}")
        return 0
    if unknown := set(a.names) - {p[0] for p in PARTS}:
        p.error(f"there is no part {', '.join(sorted(unknown))}; --list says which there are")
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # says where a drill stands
    raise_limits()
    if a.short:
        clients.Load.pause = 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that servers are stopped
    return drill(a.names, SHORT if a.short else FULL, a.short)


if __name__ == "__main__":
    sys.exit(main())
