# SPDX-License-Identifier: Apache-2.0
"""What must be true of a server in a soak (soak.py): all the time, when it rests, and after its end."""

import contextlib
import json
import os
import random
import re
import signal
import sqlite3
import time

import conftest
import soak_clients as clients
from parts_faults import COMPILERS
from test_drills import LEGAL
from soak_clients import Lost, exchange
from world import Failed, children, demand, end_of, kind_of, memory, total, wait_until

LINE = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S*Z? +(error|warn|info|debug) +\S+: ")
ZERO = ("whet_requests_running", "whet_requests_waiting", "whet_pending_bytes", "whet_pending_jobs",
        "whet_answer_bytes", "whet_kv_pages_used", "whet_client_active")
# counters, for who reads along
FIGURES = ("kernel_swaps", "kernel_rollbacks", "preemptions", "yields", "displaced", "audit_comparisons",
           "audit_mismatches", "failed_steps", "store_errors", "client_disconnects", "slow_clients")
LOOKS = 600
WEAR_ROUNDS = 5  # of same_texts()
GROWTH = 1.5, 128 << 10  # times what it was at the first rest, and KiB more, that a server may have


def plain():
    """The program has no sanitizer, which would have to be loaded before a library that fakes the clock."""
    with open(conftest.BINARY, "rb") as f:
        return b"__asan_init" not in (data := f.read()) and b"__tsan_init" not in data


# ---- all the time -------------------------------------------------------------------------------


def samples(w, key=None):
    """{sample: value} and {metric: type} of /metrics."""
    status, _, body = exchange(w.server, "GET", "/metrics", key=key)
    demand(status == 200, lambda: f"/metrics: {status} {body[:200]!r}")
    return samples_of(body)


def samples_of(body):
    values, types = {}, {}
    for line in body.decode().splitlines():
        if line.startswith("# TYPE "):
            types[line.split()[2]] = line.split()[3]
        elif line[:1] != "#":
            name, value = line.rsplit(" ", 1)
            demand(name not in values, lambda name=name: f"{name} is there twice")
            values[name] = float(value)
    return values, types


def counters_rise(w, values, types, who):
    """No counter is less than it was, nor gone, and none is below 0 or no number."""
    for name, value in values.items():
        base = name.split("{")[0]
        kind = types.get(base) or types.get(re.sub(r"_(bucket|count|sum)$", "", base))
        demand(kind and value == value, lambda name=name: f"{name} has no type or is no number")
        if kind in ("counter", "histogram"):
            before = w.counters.get((who, name), 0)
            demand(value >= before, lambda name=name, value=value, before=before: f"{name} fell: {before} -> {value}")
            w.counters[who, name] = value
        else:
            demand(value >= 0 or "ratio" in name or "excess" in name,
                   lambda name=name, value=value: f"{name} is {value}")
    gone = [n for (of, n) in w.counters if of == who and n not in values]
    demand(not gone, lambda: f"counters are gone: {gone[:5]}")


POLLED = ("/metrics", "/metrics", "/dashboard", "/specializer", "/health", "/ready", "/version")


def poller(w, seed):
    """Metrics, dashboard, health: as a Prometheus, a browser and a balancer ask for them."""
    r = random.Random(f"{seed} poller")
    while not w.over.wait(0.3):
        if not w.enter():
            continue
        life, path = w.life, r.choice(POLLED)
        with w.doing(path):
            key = r.choice([None, clients.ADMIN]) if path == "/metrics" else None
            status, _, body = exchange(w.server, "GET", path, key=key)
            if status == 503 and b"too many connections" in body:  # it was given up before it had asked
                w.account.add("poller", "crowded")
                continue
            demand(status == 200 or (w.ending and path != "/metrics") or (path == "/ready" and b"restoring" in body),
                   lambda: f"{path}: {status} {body[:200]!r}")
            if path == "/metrics" and w.life == life:
                values, types = samples_of(body)
                counters_rise(w, values, types, key)
                demand(values["whet_hot_path_compiles_total"] == 0, "a compiler was started on the request path")
            elif path == "/specializer":
                json.loads(body)
            w.account.add("poller", path)


def state(w):
    """Where the server stands, for who wonders why something does not end."""
    said = []
    for path in ("/health", "/specializer"):
        with contextlib.suppress(Lost):
            said.append(exchange(w.server, "GET", path, timeout=5)[2][:600])
    with contextlib.suppress(Lost, Failed, OSError):
        said.append({k: v for k, v in samples(w)[0].items() if k.split("{")[0] in ZERO})
    return f"{said} {''.join(w.server.log[-15:])}"


# ---- at rest ------------------------------------------------------------------------------------


def rest(w):
    """Nobody asks for anything: nothing is held, and nothing has grown."""
    admin(w, "freeze")
    try:
        wait_until(lambda: not held(w), lambda: f"at rest there still is {held(w)}: {state(w)}", looks=LOOKS, pause=0.1)
        wait_until(lambda: not at_work(w), lambda: f"children of a frozen search: {at_work(w)}", looks=LOOKS, pause=0.1)
        wait_until(lambda: not zombies(w.pid), lambda: f"zombies: {zombies(w.pid)}", looks=50, pause=0.1)
        grown(w)
        same_texts(w)
        served_is_stored(w)
        wrong_are_out(w)
    finally:
        admin(w, "resume")


def admin(w, mode):
    """The disk is whole, so a change can be stored; a store that had given up comes back within some looks."""
    last = []

    def works():
        last[:] = [exchange(w.server, "POST", f"/admin/specializer/{mode}", {}, clients.ADMIN)]
        return last[0][0] == 200

    wait_until(works, lambda: f"{mode}: {last[0][0]} {last[0][2][:300]!r}", looks=LOOKS, pause=0.1)


def held(w):
    values, _ = samples(w, clients.ADMIN)
    found = {name: total(values, name) for name in ZERO if total(values, name)}
    if total(values, "whet_connections") > 1:  # this look is one
        found["whet_connections"] = total(values, "whet_connections")
    return found


def at_work(w):
    """Neither an executor, which may serve, nor another rank of the model."""
    return [c[:3] for c in children(w.pid).values() if kind_of(c) != "executor" and c[1:2] != ["serve"]]


def zombies(pid):
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{entry}/stat") as f:
            name, rest_of = f.read().rsplit(")", 1)
            if rest_of.split()[:2] == ["Z", str(pid)]:
                found.append(name.split("(", 1)[1])
    return found


def grown(w):
    """Threads, descriptors, memory and temporary files, against the first rest of this life."""
    executors = sum(kind_of(c) == "executor" for c in children(w.pid).values())
    now = {"threads": len(os.listdir(f"/proc/{w.pid}/task")), "memory": memory(w.pid),
           "descriptors": len(os.listdir(f"/proc/{w.pid}/fd")), "executors": executors,
           "files": sum(len(files) + len(dirs) for _, dirs, files in os.walk(w.tmp))}
    objects = w.store + ".objects"
    now["objects"] = len(os.listdir(objects)) if os.path.isdir(objects) else 0
    values, _ = samples(w, clients.ADMIN)
    figures = {name: int(total(values, f"whet_{name}_total")) for name in FIGURES}
    print(f"  at rest: {now} {figures}", flush=True)
    w.first = w.first or now
    times, more = GROWTH
    demand(now["memory"] <= w.first["memory"] * times + more, lambda: f"memory grew: {w.first} -> {now}")
    demand(now["threads"] <= w.first["threads"] + 1, lambda: f"threads: {w.first} -> {now}")
    demand(now["descriptors"] <= w.first["descriptors"] + 4 + 8 * executors,
           lambda: f"descriptors: {w.first} -> {now}: {descriptors(w.pid)}")
    demand(now["files"] <= w.first["files"] + 4 + 4 * executors,
           lambda: f"temporary files: {w.first} -> {now}: {sorted(os.listdir(w.tmp))}")


def descriptors(pid):
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return sorted(found)[-40:]


def wrong_texts(w):
    """{prompt: what the server writes} of those prompts that it does not go on with as it should."""
    wrong = {}
    for prompt, text in list(w.texts.items())[:6]:
        body = {"prompt": prompt, "max_tokens": clients.TOKENS, "temperature": 0, "ignore_eos": True}
        status, _, got = exchange(w.server, "POST", "/v1/completions", body)
        demand(status == 200, lambda status=status, got=got: f"at rest: {status} {got[:300]!r}")
        said = json.loads(got)["choices"][0]["text"]
        if said != text:
            wrong[prompt[-50:]] = said
    return wrong


def same_texts(w):
    """Alone on the server, with the kernels of now. Where the compiler lied, one of these begins to be wrong when it has
    written enough (soak_faults.WORN), here if not before: these requests are the steps in which an audit finds it, and
    from then on all is right, what it wrote into pages that are shared as well. No search goes on that could put
    another one there."""
    wrong, rounds = wrong_texts(w), WEAR_ROUNDS if w.lied else 0
    while not wrong and rounds:
        wrong, rounds = wrong_texts(w), rounds - 1
    demand(not wrong or w.lied, lambda: f"at rest: {wrong}")
    if not wrong:
        return
    print(f"  {len(wrong)} texts are wrong", flush=True)
    w.account.add("rest", "wrong texts")
    wait_until(lambda: not wrong_texts(w), lambda: f"no audit ends what is wrong: {wrong_texts(w)} {state(w)}",
               looks=30, pause=0)
    found = total(samples(w, clients.ADMIN)[0], "whet_audit_mismatches_total")
    demand(found, lambda: f"texts were wrong and are right again, and no audit has found anything: {wrong}")
    print(f"  and right again: {int(found)} audits found something", flush=True)
    w.account.add("rest", "right again")


def served_is_stored(w):
    """Every kernel that serves is the store's winner of its slot, and its row says what proved it."""
    def served():
        rows = json.loads(exchange(w.server, "GET", "/admin/slots", key=clients.ADMIN)[2]).get("slots", [])
        return {(s["slot"], s["kernel"]["id"]) for s in rows if s["kernel"]["id"] != "eager"}

    def stored():
        return set(rows_of(w.store, "SELECT slot, key FROM winner"))

    wait_until(lambda: served() <= stored(), lambda: f"serves {served() - stored()}, stored is {stored()}",
               looks=100, pause=0.1)
    for slot, key in served():
        found = rows_of(w.store, f"SELECT state, evidence FROM candidate WHERE key = '{key}'")
        demand(found and found[0][0] == "active", lambda slot=slot, found=found: f"{slot} serves what is {found}")
        proof = json.loads(found[0][1])
        demand(proof.get("probe_cases", 0) > 0,
               lambda slot=slot, proof=proof: f"{slot} serves without a proof: {proof}")


# Kernels that an audit found wrong, and nobody has allowed again since.
WRONG = """SELECT c.key, c.slot, c.state, c.rollbacks FROM candidate c
           WHERE json_extract(c.evidence, '$.refusal.cause') = 'wrong'"""


def wrong_are_out(w):
    """What was taken out twice, or was wrong once, is refused for good: it serves nowhere, and has not since."""
    bad = rows_of(w.store, "SELECT w.slot, w.key, c.rollbacks FROM winner w JOIN candidate c ON c.key = w.key"
                           " WHERE c.rollbacks >= 2")
    demand(not bad, lambda: f"was taken out twice and serves: {bad}")
    for key, slot, state_of, _ in rows_of(w.store, WRONG):
        # Killed between two moves, it is rolled back until the search comes by it.
        demand(state_of in ("refused", "disabled", "rolled_back"), lambda: f"{slot}: {key} was wrong and is {state_of}")
        since = rows_of(w.store, f"SELECT event FROM trace WHERE key = '{key}' AND id > (SELECT max(id) FROM trace WHERE"
                                 f" key = '{key}' AND event = 'rolled_back')")
        again = {event for event, in since} & {"proposed", "canary", "active", "restored"}
        demand(not again, lambda: f"{slot}: {key} was wrong, and then {since}")


def rows_of(store, sql):
    for _ in range(20):
        try:
            with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True, timeout=10)) as db:
                return db.execute(sql).fetchall()
        except sqlite3.OperationalError as e:
            last = e
            time.sleep(0.2)
    raise Failed(f"the store cannot be read: {last}")


# ---- after the end --------------------------------------------------------------------------------


def after(w, how, code):
    """It ended as it was told to, left no process, a whole store, and a log that tells no secrets."""
    log = w.server.text()
    for summary, block in sanitized(log).items():
        w.fail(f"a sanitizer: {summary}\n{block}")
    # While the model is being loaded the first signal ends the process.
    allowed = {"drained": (0,) if w.ready_once else (0, -15), "killed": (-9,), "told twice": (0, -15, 1)}[how]
    if code not in allowed:
        w.fail(f"{how}, the server ended {end_of(code)}: {log[-3000:]}")
    if code != 0:
        end_hung_compilers()
    w.guard(lambda: wait_until(lambda: not orphans(w), lambda: f"children of a server that ended: {orphans(w)}",
                               looks=300, pause=0.1))
    reap()
    w.guard(lambda: log_is_clean(w, log, how))
    w.guard(lambda: store_is_whole(w))
    if how == "drained" and not w.was_away and os.listdir(w.tmp):
        w.fail(f"temporary files stay: {sorted(os.listdir(w.tmp))[:20]}")


def sanitized(log):
    """{summary: report} of what sanitizers said, each once; without a summary (UBSan) the line is both."""
    found, lines = {}, log.splitlines()
    begun = 0
    for i, line in enumerate(lines):
        if line.startswith("=" * 18):
            begun = i
        elif line.startswith("SUMMARY: "):
            found.setdefault(line, "\n".join(li for li in lines[max(begun, i - 150):i] if not LINE.match(li)))
        elif "runtime error:" in line:
            found.setdefault(line, line)
    return found


def orphans(w):
    reap()
    return [c[:3] for c in children(os.getpid()).values() if c[0] and kind_of(c) not in ("mount", "umount")]


def end_hung_compilers():
    """What a compiler runs ends with its work, or by its limit of time, where the server was gone before it could
    end it; those that hang because a saboteur made them do neither."""
    for pid, command in children(os.getpid()).items():
        if kind_of(command) in (*COMPILERS, "sleep"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def reap():
    """Children of servers come to us when their parent is gone."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def log_is_clean(w, log, how):
    for line in log.splitlines():
        found = LINE.match(line)
        demand(found or not plain() or how == "killed", lambda line=line: f"no line of a log: {line[:300]!r}")
        if found and found.group(1) in ("error", "warn"):
            words = line[found.start(1):]
            words = re.sub(r"req-[0-9a-f]+", "req-*", words)
            words = re.sub(r"\b[0-9a-f]{12,}\b", "*", words)
            w.lines[re.sub(r"[-+]?\d+(\.\d+)?", "#", words)[:220]] += 1
        demand(clients.MARK not in line, f"a key or a prompt is in the log: {line[:300]}")
        demand(not any(len(t.strip()) > 20 and t.strip() in line for t in w.texts.values()),
               f"a text of the model is in the log: {line[:300]}")


def store_is_whole(w):
    if not os.path.exists(w.store):
        return
    demand(rows_of(w.store, "PRAGMA integrity_check") == [("ok",)], "the store is damaged")
    states = dict(rows_of(w.store, "SELECT state, count(*) FROM candidate GROUP BY state"))
    demand(set(states) <= LEGAL, lambda: f"states that there are not: {states}")
    for sql in ("SELECT w.key, c.state FROM winner w LEFT JOIN candidate c ON c.key = w.key"
                " WHERE c.state IS NOT 'active'",
                "SELECT key FROM candidate WHERE state = 'active' AND key NOT IN (SELECT key FROM winner)"):
        bad = rows_of(w.store, sql)
        demand(not bad, lambda bad=bad: f"winners and active kernels do not agree: {bad}")
    w.guard(lambda: wrong_are_out(w))
    print(f"  store: {states}, {len(rows_of(w.store, WRONG))} found wrong by audits", flush=True)
    damaged = [n for n in os.listdir(w.store_folder) if ".damaged-" in n]
    demand(not damaged, lambda: f"a server took the store for damaged: {damaged}")
