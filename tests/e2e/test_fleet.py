# SPDX-License-Identifier: Apache-2.0
"""Servers that share a PostgreSQL: a real one, of the test's own. What it does wrong (it dies, it
says nothing, it may only be read, it lies) costs the sharing and nothing else."""

import glob
import json
import os
import platform
import re
import signal
import socket
import subprocess
import threading
import time

import pytest

from agentic import ALONE, PATIENCE
from conftest import BINARY, ROOT, WHATEVER_SPEED
from load import Load
from postgres import Postgres

SLOT = "mlp_out/m1"
KEY = {"authorization": "Bearer boss"}
ON = ("--specializer-enabled=true", "--specializer-slots", SLOT, WHATEVER_SPEED, *ALONE)


@pytest.fixture(scope="module")
def database():
    try:
        pg = Postgres()
    except FileNotFoundError as missing:
        assert not os.environ.get("WHET_TEST_REQUIRE_MODEL"), missing
        pytest.skip(str(missing))
    yield pg
    pg.close()


@pytest.fixture
def pg(database):
    """With no tables, whatever the test before left."""
    database.sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return database


@pytest.fixture
def member(start, pg, tmp_path):
    """Starts a server of the fleet."""
    key = tmp_path / "admin.key"
    key.write_text("boss\n")

    def one(*options, uri=None, **more):
        return start(*ON, f"--server-admin-key-file={key}", "--specializer-fleet", uri or pg.uri,
                     *options, **more)

    return one


def wrong_from_now_on(server):
    """What broken memory might do to a kernel after every proof of it: its entry returns at once, in every
    object that this server has loaded. Nothing may run meanwhile."""
    code = {"x86_64": b"\xc3", "aarch64": bytes.fromhex("c0035fd6")}[platform.machine()]
    lowest = {}
    for line in open(f"/proc/{server.process.pid}/maps"):
        where = line.split(maxsplit=5)
        if len(where) == 6 and ".objects/" in where[5]:
            lowest.setdefault(where[5].strip(), int(where[0].split("-")[0], 16))
    assert lowest, "no object is loaded"
    with open(f"/proc/{server.process.pid}/mem", "r+b", buffering=0) as memory:
        for path, base in lowest.items():
            symbols = subprocess.run(["nm", "-D", path], capture_output=True, text=True, check=True).stdout
            kernel = base + int(re.search(r"^([0-9a-f]+) . whet_kernel$", symbols, re.M)[1], 16)
            memory.seek(kernel + 16)  # run, behind the three numbers of struct cpu_kernel
            entry = int.from_bytes(memory.read(8), "little")
            memory.seek(entry)
            memory.write(code)


def until(what, said="", patience=PATIENCE):
    end = time.time() + patience
    while not (value := what()):
        assert time.time() < end, said() if callable(said) else said
        time.sleep(0.1)
    return value


def fleet(server):
    return server.get("/admin/fleet", headers=KEY).json()


def online(server):
    until(lambda: server.get("/admin/fleet", headers=KEY).status_code == 200 and
          fleet(server)["state"] == "online", server.text)
    return server


def events(server, event):
    rows = server.get("/admin/trace", headers=KEY).json()["trace"]
    return [r for r in rows if r["event"] == event]


def of_kernel(server, key):
    """What was done with it, first things first."""
    rows = server.get("/admin/trace", headers=KEY).json()["trace"]
    return [r for r in reversed(rows) if r.get("kernel") == key]


def active(server):
    slot = server.get(f"/admin/slots/{SLOT}", headers=KEY).json()
    return [k["id"] for k in slot.get("tried", []) if k["state"] == "active"]


def whet(*words, pg):
    return subprocess.run([BINARY, "fleet", *words, "--specializer-fleet", pg.uri],
                          capture_output=True, text=True, timeout=120)


def row_sql(env, key, server, **more):
    """An INSERT of what a server might tell, right in all that `more` does not change."""
    row = {"env": env, "key": key, "server": server, "slot": SLOT, "template": "mlp_out",
           "source": "0" * 16, "knobs": "", "state": "active", "own_s": 1e-5, "speed": 9,
           "reason": "", "evidence": "{}", **more}
    names = ", ".join(row)
    values = ", ".join("'" + str(v).replace("'", "''") + "'" for v in row.values())
    return f"INSERT INTO whet_kernel({names}) VALUES ({values})"


def freeze(server):
    """Nothing new is searched or published from now on; audits and what a retraction asks for go on."""
    answer = server.post("/admin/specializer/freeze", None, headers=KEY)
    assert answer.status_code == 200, answer.text


def settled(server, pg):
    """The kernel that `server` has published and keeps, and the only one that the fleet still knows of."""
    with Load(server):
        until(lambda: active(server), server.text)
        freeze(server)
    [key] = active(server)
    until(lambda: pg.sql(f"SELECT state FROM whet_kernel WHERE key='{key}'") == [["active"]], server.text)
    pg.sql(f"DELETE FROM whet_kernel WHERE key <> '{key}'")
    return key


def joined(member, key, *options):
    """A server that has proved `key` of the fleet and serves it. It may build nothing else: its own search
    would soon have found another."""
    server = online(member("--specializer-starts=false", "--specializer-builds-per-hour", "1", *options))
    with Load(server):
        until(lambda: {"active", "refused"} & {e["event"] for e in of_kernel(server, key)}, server.text)
    assert active(server) == [key], of_kernel(server, key)
    return server


@pytest.mark.once  # the search has to get somewhere: minutes under sanitizers
def test_a_winner_of_one_is_the_first_candidate_of_the_other_and_is_proven_again(member, pg, tmp_path):
    first = online(member())
    key = settled(first, pg)
    [[speed, evidence]] = pg.sql("SELECT speed, evidence FROM whet_kernel")
    assert float(speed) > 0 and json.loads(evidence)["probe_cases"] > 0
    assert pg.sql("SELECT slot FROM whet_lease WHERE server <> ''") == [[SLOT]]
    second = joined(member, key)
    stages = ["proposed", "built", "probed", "benched", "shadowed", "canary", "active"]
    assert [r["event"] for r in of_kernel(second, key) if r["event"] in stages] == stages
    assert events(second, "proposed")[-1]["kernel"] == key, "another came first"
    assert events(second, "fleet")

    # Somebody finds it wrong: both look again, and hold it right.
    retracted = whet("retract", key, "it looked odd", pg=pg)
    assert retracted.returncode == 0, retracted.stderr
    with Load(first, second):
        until(lambda: pg.sql("SELECT count(*) FROM whet_verdict WHERE upheld") == [["2"]],
              lambda: first.text() + second.text())
    for server in (first, second):
        assert active(server) == [key]
        said = events(server, "retracted")[0]
        assert said["kernel"] == key and said["who"] == "an operator" and "it looked odd" in said["text"]
        assert events(server, "upheld")[0]["kernel"] == key
    shown = until(lambda: fleet(second)["retractions"])[0]
    assert shown["key"] == key and shown["name"] == "an operator"

    # What operators see and take along.
    status = whet("status", pg=pg)
    assert status.returncode == 0
    assert "servers: 2" in status.stdout and key in status.stdout and "it looked odd" in status.stdout
    pg.sql("DELETE FROM whet_retraction")
    file = tmp_path / "fleet.json"
    assert whet("export", str(file), pg=pg).returncode == 0
    taken = subprocess.run([BINARY, "kernels", "import", str(file), "--store", str(tmp_path / "x.db")],
                           capture_output=True, text=True, timeout=120)
    assert taken.returncode == 0 and "1 kernels will be tried first" in taken.stdout, taken

    # It dies in the middle of its lease; the other may have the slot when that is over.
    first.signal(signal.SIGKILL)
    first.wait()
    dead = pg.one("SELECT server FROM whet_server ORDER BY started LIMIT 1")
    holder = pg.one("SELECT server FROM whet_lease WHERE slot='" + SLOT + "'")
    if holder == dead:
        pg.sql("UPDATE whet_lease SET until = now()")  # what 30 s without a heartbeat come to
        with Load(second):
            until(lambda: pg.one(f"SELECT server FROM whet_lease WHERE slot='{SLOT}'") not in (dead, ""),
                  second.text)


@pytest.mark.once  # the search has to get somewhere: minutes under sanitizers
def test_what_an_audit_finds_wrong_on_one_is_looked_at_again_at_once_on_the_other(member, pg):
    """The kernel is right, one machine is not: there it goes, on the other one it is proven again."""
    audited = "--specializer-watch-every=2"
    first = online(member(audited))
    by_eager = first.complete("Bread is", max_tokens=24)["choices"][0]["text"]
    key = settled(first, pg)
    second = joined(member, key, audited)
    assert pg.sql("SELECT * FROM whet_retraction") == []

    wrong_from_now_on(first)
    with Load(first, second) as load:
        until(lambda: pg.sql("SELECT key FROM whet_verdict WHERE upheld") == [[key]],
              lambda: first.text() + second.text())
        until(lambda: not active(first), first.text)
    assert not load.failed
    assert active(second) == [key]
    assert events(first, "rolled_back")[0]["kernel"] == key
    assert 'whet_kernel_rollbacks_total{reason="audit"} 1' in first.get("/metrics").text
    who = pg.one(f"SELECT name FROM whet_retraction WHERE key='{key}'")
    assert who.endswith(f"/{first.process.pid}")  # a port of the system's choice is no name
    said = events(second, "retracted")[0]
    assert (said["kernel"], said["who"]) == (key, who) and "looked at again" in said["text"]
    upheld = events(second, "upheld")[0]
    assert upheld["kernel"] == key and "passed the whole probe again" in upheld["text"]
    for server in (first, second):
        shown = until(lambda: fleet(server)["retractions"])[0]  # noqa: B023 - called at once
        assert (shown["key"], shown["slot"], shown["name"]) == (key, SLOT, who)
    assert first.complete("Bread is", max_tokens=24)["choices"][0]["text"] == by_eager
    # What it wrote meanwhile is shared no more; the other one, whose kernel is right, has forgotten nothing.
    assert first.metric("whet_kv_pages_forgotten_total") > 0
    assert second.metric("whet_kv_pages_forgotten_total") == 0
    # There it is refused at once, until an operator, who has changed the memory, says that it may be tried again.
    kernel = lambda: first.get(f"/admin/kernels/{key}", headers=KEY).json()
    assert kernel()["state"] == "refused" and kernel()["reason"].startswith("audit: ")
    assert kernel()["evidence"]["refusal"] == {"stage": "audit", "cause": "wrong"}
    pinned = first.post(f"/admin/slots/{SLOT}/pin", {"kernel": key}, headers=KEY)
    assert pinned.status_code == 409 and "is refused" in pinned.json()["error"]["message"]
    assert first.post(f"/admin/kernels/{key}/enable", None, headers=KEY).status_code == 200
    assert kernel()["state"] == "proposed" and "reason" not in kernel()


def test_a_poisoned_row_is_refused_by_name_and_a_database_that_lies_serves_nobody(member, pg):
    server = online(member("--specializer-paused=true"))
    env = fleet(server)["env"]
    liar = "f" * 16
    pg.sql("ALTER TABLE whet_kernel DROP CONSTRAINT whet_kernel_key_check,"
           " DROP CONSTRAINT whet_kernel_slot_check, DROP CONSTRAINT whet_kernel_template_check,"
           " DROP CONSTRAINT whet_kernel_source_check, DROP CONSTRAINT whet_kernel_state_check;" +
           ";".join([row_sql(env, "no key'; DROP TABLE", liar),
                     row_sql(env, "1" * 16, liar, slot="x" * 5000),
                     row_sql(env, "2" * 16, liar, template="%n%n%n" * 100),
                     row_sql(env, "3" * 16, liar, knobs="ISA=99999999999999999999 PACK=" + "9" * 300),
                     row_sql(env, "4" * 16, liar, state="crowned"),
                     row_sql(env, "5" * 16, liar, source="../../etc"),
                     row_sql(env, "6" * 16, liar, speed="NaN")]))
    pg.sql(f"INSERT INTO whet_retraction(env, key, slot, server, name, reason) VALUES"
           f" ('{env}', '{'7' * 16}', 'no/slot', 'x', 'x', 'x'),"
           f" ('{env}', '{'8' * 16}', '{SLOT}', 'x', '\x1b[2J liar', 'x')")
    pg.sql(f"NOTIFY \"whet_{env}\"")
    until(lambda: fleet(server)["refused"] >= 8, lambda: json.dumps(fleet(server)))
    said = fleet(server)["refused_rows"]
    for column in ("key", "slot", "template", "point", "state", "source", "speed"):
        assert any(f"wrong {column}" in row for row in said), (column, said)
    assert server.complete("Bread is")["choices"][0]["text"]
    until(lambda: "found wrong by ?[2J liar" in server.text(), server.text)


@pytest.mark.once  # the search has to get somewhere: minutes under sanitizers
def test_a_database_that_goes_away_under_load_and_comes_back(member, pg):
    server = online(member())
    with Load(server) as load:
        pg.stop()
        until(lambda: fleet(server)["state"] == "away", server.text)
        assert server.metric("whet_fleet_connected") == 0
        done = server.metric("whet_fleet_sent_total")
        until(lambda: len(server.get("/admin/kernels", headers=KEY).json()["kernels"]) > 0,
              "the search waits for a database")
        assert server.metric("whet_fleet_sent_total") == done
        pg.start()
        until(lambda: fleet(server)["state"] == "online", server.text)
        until(lambda: pg.one("SELECT count(*) FROM whet_kernel") != "0", server.text)
        # It is there and says nothing: statements end at their limit, requests notice nothing.
        pg.freeze(True)
        try:
            until(lambda: fleet(server)["state"] == "away", server.text)
            assert server.complete("Bread is")["choices"][0]["text"]
        finally:
            pg.freeze(False)
        assert not load.failed
    begin = time.time()
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert time.time() - begin < 60


class Slow:
    """Between servers and the database: every answer of it comes DELAY_S later."""

    DELAY_S = 2  # below what a statement may take

    def __init__(self, pg):
        self.held = 0  # answers that are on their way now
        self.done = 0  # answers that arrived
        self.to = ("127.0.0.1", pg.port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.uri = pg.uri.replace(f":{pg.port}/", f":{self.listener.getsockname()[1]}/")
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(self.to)
            for source, to, delay in ((near, far, 0), (far, near, self.DELAY_S)):
                threading.Thread(target=self.carry, args=(source, to, delay), daemon=True).start()

    def carry(self, source, to, delay):
        try:
            while data := source.recv(1 << 16):
                if delay:
                    self.held += 1
                    time.sleep(delay)
                    self.held -= 1
                    self.done += 1
                to.sendall(data)
        except OSError:
            pass
        for s in (source, to):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def within_one_answer(self, act):
        """True if what `act` does came to its end while the database owed the same answer."""
        before = self.done
        return self.held > 0 and act() and self.held > 0 and self.done == before


@pytest.mark.once  # the search has to get somewhere: minutes under sanitizers
def test_what_many_say_serves_them_well_is_tried_first(member, pg):
    """Whether it wins here is for this machine to say; that it comes first, and by whose word, is not."""
    first = online(member())
    with Load(first):
        row = until(lambda: pg.sql("SELECT env, key, source, knobs FROM whet_kernel WHERE speed > 0"),
                    first.text)[0]
    assert first.stop() is None
    env, key, source, knobs = row
    pg.sql("DELETE FROM whet_kernel; DELETE FROM whet_lease;" +
           ";".join(row_sql(env, key, digit * 16, source=source, knobs=knobs, speed=speed)
                    for digit, speed in (("a", 1.4), ("b", 1.5), ("c", 9000))))
    second = online(member("--specializer-starts=false"))
    with Load(second):
        until(lambda: events(second, "proposed"), second.text)
    assert events(second, "proposed")[-1]["kernel"] == key
    assert "+50.0 % over eager" in events(second, "fleet")[-1]["text"]  # not the liar's word


@pytest.mark.once  # the search has to get somewhere: minutes under sanitizers
def test_one_that_joins_proves_what_others_found_in_several_slots_together(member, pg):
    """Whether they win here is for this machine to say; that they come as a set, and that each has every stage
    behind it before it serves, is not."""
    several = ("--specializer-slots", "mlp_out/m1,mlp_in/m1,head/m1,attn_out/m1")
    found = """SELECT DISTINCT ON (slot) slot, env, key, template, source, knobs FROM whet_kernel
               WHERE speed > 0 ORDER BY slot, speed DESC"""
    for slots in ("head/m1", "mlp_in/m1"):  # alone: which of several a server would search first is its own affair
        first = online(member("--specializer-slots", slots))
        with Load(first):
            until(lambda: slots in [slot for slot, *_ in pg.sql(found)], first.text)
        assert first.stop() is None
    rows = pg.sql(found)
    pg.sql("DELETE FROM whet_kernel; DELETE FROM whet_lease;" +
           ";".join(row_sql(env, key, digit * 16, slot=slot, template=template, source=source, knobs=knobs,
                            speed=3) for slot, env, key, template, source, knobs in rows for digit in "ab"))
    offered = {key for _, _, key, *_ in rows}
    second = online(member("--specializer-starts=false", *several))

    def trace(key=None):
        rows = second.get("/admin/trace", headers=KEY).json()["trace"]
        return [r["event"] for r in rows if r.get("kernel") == key]

    with Load(second):
        until(lambda: "fleet_set" in trace(), second.text)
        ends = {"active", "refused", "deferred", "set_aside", "runner_up"}
        until(lambda: all(ends & set(trace(key)) for key in offered), second.text)
    for key in offered:
        stages = trace(key)[::-1]
        assert stages[0] == "proposed", stages
        if "active" in stages:
            assert {"built", "probed", "benched", "shadowed", "canary"} <= set(stages), stages


@pytest.mark.once  # the search has to get somewhere: minutes under sanitizers
def test_a_lease_moves_to_the_slot_that_is_worth_more(member, pg):
    """While batches go on in the slot that was held: it was kept as long as they did."""
    server = online(member("--specializer-slots", "mlp_in/m1,attn_out/m1"))
    other, mine = "f" * 16, pg.one("SELECT server FROM whet_server")
    pg.sql("INSERT INTO whet_lease(env, slot, server, until) SELECT env, 'mlp_in/m1' || holder,"
           f" '{other}', now() + interval '1 hour' FROM whet_server, unnest('{{\"\",+2,+3,+4}}'::text[]) holder")

    def held():
        return pg.one(f"SELECT slot FROM whet_lease WHERE server = '{mine}'")

    with Load(server):
        until(lambda: held() == "attn_out/m1", server.text)
        until(lambda: [e for e in events(server, "batch") if e["slot"] == "attn_out/m1"], server.text)
        pg.sql(f"UPDATE whet_lease SET until = now() WHERE server = '{other}'")
        until(lambda: held() == "mlp_in/m1", server.text)
        until(lambda: [e for e in events(server, "batch") if e["slot"] == "mlp_in/m1"], server.text)


@pytest.mark.once  # the search has to get somewhere: minutes under sanitizers
def test_neither_requests_nor_the_search_wait_for_a_slow_database(member, pg):
    slow = Slow(pg)
    server = online(member(uri=slow.uri))
    with Load(server) as load:
        until(lambda: slow.within_one_answer(lambda: server.complete("Bread", max_tokens=1)),
              server.text)
        moved = lambda: len(server.get("/admin/trace", headers=KEY).json()["trace"])

        def search_moves():
            before, answers = moved(), slow.done
            while moved() == before and slow.done == answers:
                time.sleep(0.05)
            return moved() > before
        until(lambda: slow.within_one_answer(search_moves), server.text)
        # What it learned arrives all the same, late.
        until(lambda: pg.one("SELECT count(*) FROM whet_kernel") != "0", server.text)
        assert fleet(server)["state"] == "online"
        assert not load.failed
    slow.listener.close()


def test_one_that_may_only_read_listens(member, pg):
    other = online(member("--specializer-paused=true"))
    env = fleet(other)["env"]
    pg.sql("DO $$BEGIN CREATE ROLE reader LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END$$;"
           "GRANT USAGE ON SCHEMA public TO reader; GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    server = online(member("--specializer-paused=true",
                           uri=pg.uri.replace("whet@", "reader@")))
    pg.sql(f"INSERT INTO whet_retraction(env, key, slot, server, name, reason) VALUES"
           f" ('{env}', '{'a' * 16}', '{SLOT}', 'x', 'somebody', 'wrong')")
    until(lambda: fleet(server)["suspects"] == 1, lambda: json.dumps(fleet(server)))
    assert "permission denied" in fleet(server)["trouble"]
    assert len(pg.sql("SELECT * FROM whet_server")) == 1


def test_a_kernel_can_be_found_wrong_again_and_made_up_ones_silence_nobody(member, pg):
    server = online(member("--specializer-paused=true"))
    env, key = fleet(server)["env"], "a" * 16
    pg.sql(row_sql(env, key, "f" * 16))
    for n, why in enumerate(["first", "second"]):
        assert whet("retract", key, why, pg=pg).returncode == 0
        until(lambda: len([e for e in events(server, "retracted") if e["kernel"] == key]) == n + 1,  # noqa: B023
              server.text)
        assert why in [e for e in events(server, "retracted") if e["kernel"] == key][0]["text"]
    assert fleet(server)["suspects"] == 1
    assert pg.sql("SELECT count(*) FROM whet_retraction") == [["1"]]
    pg.sql(f"INSERT INTO whet_retraction(env, key, slot, server, name, reason) SELECT '{env}',"
           f" lpad(to_hex(n), 16, '0'), '{SLOT}', 'x', 'x', 'made up' FROM generate_series(1, 1100) n")
    assert whet("retract", key, "third", pg=pg).returncode == 0
    until(lambda: any("third" in e["text"] for e in events(server, "retracted")), server.text)
    assert fleet(server)["suspects"] == 1024
    assert "is forgotten (1 times)" in server.text()


LIBFAKETIME = [p for p in glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")]


@pytest.mark.once  # before AddressSanitizer's own functions are there, this library allocates memory
@pytest.mark.skipif(not LIBFAKETIME, reason="libfaketime is not installed")
def test_a_clock_that_is_a_day_ahead_is_nobodys_business(member, pg):
    """The database's clock alone counts, for who holds what and for who is there."""
    wrong = {"LD_PRELOAD": LIBFAKETIME[0], "FAKETIME": "+1d", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    ahead = online(member("--specializer-paused=true",
                          prefix=["env", *(f"{k}={v}" for k, v in wrong.items())]))
    mine = until(lambda: fleet(ahead)["servers"])[0]
    assert mine["seen_s"] < 30 and mine["started_s"] < 60
    pg.sql("INSERT INTO whet_server(server, env, name, version, device) VALUES"
           " ('00000000000000aa', '00000000000000ee', 'a', '1', 'd');"
           " INSERT INTO whet_lease(env, slot, server, until) VALUES"
           f" ('00000000000000ee', '{SLOT}', '00000000000000aa', now() + interval '30 s')")
    shown = subprocess.run([BINARY, "fleet", "status", "--specializer-fleet", pg.uri], text=True,
                           capture_output=True, timeout=120, env={**os.environ, **wrong})
    assert shown.returncode == 0, shown.stderr
    left = int(re.search(SLOT + r".* left (\d+) s", shown.stdout)[1])
    assert 0 < left <= 30


def test_old_and_new_tables(pg):
    """A database of the first version is brought up; one of the future is used while it allows it."""
    first = (ROOT / "specializer" / "fleet" / "schema" / "001.sql").read_text()
    pg.sql("CREATE TABLE whet_schema (version int PRIMARY KEY, least int NOT NULL,"
           " at timestamptz NOT NULL DEFAULT now()); INSERT INTO whet_schema VALUES (1, 1);" + first)
    pg.sql(row_sql("e" * 16, "b" * 16, "c" * 16))
    assert whet("status", pg=pg).returncode == 0
    up = whet("migrate", pg=pg)
    assert up.returncode == 0 and "of version 3" in up.stdout, up.stderr
    assert pg.one("SELECT count(*) FROM whet_kernel") == "1" and \
        pg.one("SELECT count(*) FROM whet_text") == "0"
    assert "of version 3" in whet("migrate", pg=pg).stdout
    pg.sql("INSERT INTO whet_schema VALUES (99, 1)")
    assert "of version 99" in whet("migrate", pg=pg).stdout
    pg.sql("UPDATE whet_schema SET least = 50 WHERE version = 99")
    late = whet("migrate", pg=pg)
    assert late.returncode == 1 and "use a newer whet" in late.stderr
    pg.sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    pg.sql("DO $$BEGIN CREATE ROLE poor LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END$$;"
           "REVOKE CREATE ON SCHEMA public FROM PUBLIC; GRANT USAGE ON SCHEMA public TO PUBLIC")
    poor = subprocess.run([BINARY, "fleet", "migrate", "--specializer-fleet",
                           pg.uri.replace("whet@", "poor@")], capture_output=True, text=True,
                          timeout=120)
    assert poor.returncode == 1 and "may not create" in poor.stderr, poor.stderr


def test_the_password_is_in_a_file_and_nowhere_else(pg, tmp_path):
    pg.sql("DO $$BEGIN CREATE ROLE guarded LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END$$;"
           "ALTER ROLE guarded PASSWORD 'open sesame'; GRANT ALL ON SCHEMA public TO guarded")
    hba = pg.data + "/pg_hba.conf"
    before = open(hba).read()
    secret = tmp_path / "fleet.key"
    secret.write_text("open sesame\n")
    os.chmod(secret, 0o600)
    uri = pg.uri.replace("whet@", "guarded@")
    run = lambda *words: subprocess.run([BINARY, "fleet", "migrate", "--specializer-fleet", *words],
                                        capture_output=True, text=True, timeout=120)
    try:
        with open(hba, "w") as f:
            f.write("host all guarded 127.0.0.1/32 scram-sha-256\n" + before)
        pg.sql("SELECT pg_reload_conf()")
        without = until(lambda: (r := run(uri)).returncode and r)
        assert "password" in without.stderr
        assert run(uri, "--specializer-fleet-key-file", str(secret)).returncode == 0
        secret.write_text("open barley\n")
        wrong = run(uri, "--specializer-fleet-key-file", str(secret))
        assert wrong.returncode == 1 and "open" not in wrong.stderr
        # One of a cloud's has thousands of bytes; of one that is too long nothing is cut off.
        token = "".join(str(n) for n in range(1500))
        pg.sql(f"ALTER ROLE guarded PASSWORD '{token}'")
        secret.write_text(token + "\n")
        long = run(uri, "--specializer-fleet-key-file", str(secret))
        assert long.returncode == 0 and long.stderr == "", long.stderr
        os.chmod(secret, 0o644)
        assert "mode 0644" in run(uri, "--specializer-fleet-key-file", str(secret)).stderr
        secret.write_text("x" * 20000 + "\n")
        too_long = run(uri, "--specializer-fleet-key-file", str(secret))
        assert too_long.returncode == 1 and "more than 16383 bytes" in too_long.stderr, too_long.stderr
    finally:
        with open(hba, "w") as f:
            f.write(before)
        pg.sql("SELECT pg_reload_conf()")
    assert run("postgresql://[broken").returncode == 1


@pytest.mark.parametrize("address", [
    "postgresql://guarded:sesame@127.0.0.1/x", "postgresql://guarded:ses%ame@127.0.0.1/x",
    "postgresql://guarded:sesame/open@127.0.0.1/x", "postgresql://127.0.0.1/x?password=ses%ame",
    "host=127.0.0.1 password=open sesame", "host=127.0.0.1 password='open sesame",
    "postgresql://127.0.0.1/x?sslpassword=sesame"])
def test_a_password_in_an_address_is_refused_and_not_repeated(address):
    """Whether the address can be read or not: libpq quotes what it did not understand."""
    inside = subprocess.run([BINARY, "fleet", "status", "--specializer-fleet", address], capture_output=True,
                            text=True, timeout=120)
    assert inside.returncode == 1 and "specializer.fleet: " in inside.stderr, inside.stderr
    assert "ses" not in inside.stderr, inside.stderr
    named = subprocess.run([BINARY, "fleet", "status", "--specializer-fleet", "host=a sslmod=require"],
                           capture_output=True, text=True, timeout=120)
    assert named.returncode == 1 and '"sslmod"' in named.stderr  # what is no secret is told
