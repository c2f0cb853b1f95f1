# SPDX-License-Identifier: Apache-2.0
"""A fleet whose database cannot be written yet, is busy, loses rows, is not the first host of its address, or
has more rows than are kept: what was not said at first is said later."""

import contextlib
import select
import socket
import sqlite3
import struct
import subprocess
import threading
from contextlib import closing

import pytest

from conftest import BINARY
from test_fleet import (SLOT, database, fleet, member, online, pg, row_sql, until,  # noqa: F401 - fixtures too
                        whet)

IDLE = "--specializer-paused=true"
POINT = "ISA=2 PACK=0 DIGITS=0 ROWS=8 TOKENS=1 PREFETCH=8192 SPLIT=0 PREP=0"  # of mlp_out


@contextlib.contextmanager
def read_only(pg):  # noqa: F811
    """Until it ends no session may write, whenever it began."""
    may = pg.uri + "?options=-cdefault_transaction_read_only%3Doff"
    pg.sql("ALTER SYSTEM SET default_transaction_read_only = on", may)
    pg.sql("SELECT pg_reload_conf()", may)
    until(lambda: pg.sql("SHOW default_transaction_read_only") == [["on"]])
    try:
        yield
    finally:
        pg.sql("ALTER SYSTEM RESET default_transaction_read_only", may)
        pg.sql("SELECT pg_reload_conf()", may)


@contextlib.contextmanager
def locked(pg, table):  # noqa: F811
    """Somebody alters the table, and takes his time."""
    with subprocess.Popen(["psql", "-X", "-q", "-d", pg.uri], stdin=subprocess.PIPE, text=True) as session:
        session.stdin.write(f"BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE;\n")
        session.stdin.flush()
        until(lambda: pg.sql("SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted"
                             f" AND relation = '{table}'::regclass") == [["1"]])
        try:
            yield
        finally:
            session.stdin.write("COMMIT;\n")
            session.stdin.close()


def learnt(store, env, key, slot=SLOT, source="5" * 16):
    """A kernel that the store's server measured in an earlier life."""
    with closing(sqlite3.connect(store)) as db, db:
        db.execute("INSERT INTO candidate(key, object_key, env, source, template, slot, knobs, name, origin,"
                   " state, bit_equal, predicted_s, evidence, reason, changed) VALUES"
                   " (?, '', ?, ?, 'mlp_out', ?, '', 'x', 2, 'retired', 0, 0, '{\"speed\":2}', '', 1)",
                   (key, env, source, slot))


@pytest.fixture
def store(member, tmp_path):  # noqa: F811
    """Of a server that has something to tell. One row has a source that the tables do not take."""
    path = tmp_path / "store.db"
    server = online(member(IDLE, "--store", str(path)))
    env = fleet(server)["env"]
    server.stop()
    learnt(path, env, "a" * 16)
    learnt(path, env, "b" * 16, source="short")
    learnt(path, env, "c" * 16)
    learnt(path, env, "d" * 16, slot="mlp_out/m8")
    return path


def told(pg):  # noqa: F811
    return sorted(row[0][0] for row in pg.sql("SELECT key FROM whet_kernel"))


def forget(pg):  # noqa: F811
    pg.sql("DELETE FROM whet_server; DELETE FROM whet_kernel")


def test_a_database_that_may_be_written_later_is_told_later(member, pg, store):  # noqa: F811
    forget(pg)
    with read_only(pg):
        server = online(member(IDLE, "--store", str(store)))
        until(lambda: fleet(server)["troubled"], server.text)
        assert fleet(server)["listed"] is False and server.metric("whet_fleet_listed") == 0
    until(lambda: told(pg) == ["a", "c", "d"], server.text)
    until(lambda: fleet(server)["listed"], server.text)
    assert server.metric("whet_fleet_listed") == 1 and server.metric("whet_fleet_connects_total") == 1
    assert server.metric("whet_fleet_sent_total") == 3
    assert len(pg.sql("SELECT * FROM whet_server")) == 1


def test_a_table_that_is_locked_at_first_is_written_later(member, pg, store):  # noqa: F811
    forget(pg)
    with locked(pg, "whet_kernel"):
        server = online(member(IDLE, "--store", str(store)))
        until(lambda: "lock timeout" in server.text(), server.text)
        assert server.metric("whet_fleet_sent_total") == 0
    until(lambda: told(pg) == ["a", "c", "d"], server.text)


def test_a_server_whose_row_is_gone_enters_it_again(member, pg):  # noqa: F811
    server = online(member(IDLE))
    until(lambda: pg.sql("SELECT name FROM whet_server"), server.text)
    pg.sql("DELETE FROM whet_server")
    until(lambda: pg.sql("SELECT name FROM whet_server"), server.text)


def test_the_next_host_of_an_address_is_tried_when_one_says_nothing(pg):  # noqa: F811
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        both = f"postgresql://whet@127.0.0.1:{port},127.0.0.1:{pg.port}/postgres?connect_timeout=1"
        migrate = lambda uri: subprocess.run([BINARY, "fleet", "migrate", "--specializer-fleet", uri],
                                             capture_output=True, text=True, timeout=120)
        done = migrate(both)
        assert done.returncode == 0 and "of version 3" in done.stdout, done.stderr
        nobody = migrate(both.replace(str(pg.port), str(port)))
        assert nobody.returncode == 1 and "none of 2 hosts" in nobody.stderr and \
            "no connection in time" in nobody.stderr, nobody.stderr
        one = migrate(f"host=127.0.0.1,127.0.0.1 port={port},{pg.port} user=whet dbname=postgres connect_timeout=1"
                      " target_session_attrs=prefer-standby")
        assert one.returncode == 0, one.stderr
        wrong = migrate("host=a,b port=1,2,3 user=whet dbname=postgres")
        assert wrong.returncode == 1 and "port" in wrong.stderr, wrong.stderr


def test_a_winner_that_still_serves_is_kept_however_old_it_is(member, pg):  # noqa: F811
    assert whet("migrate", pg=pg).returncode == 0
    env = "e" * 16
    pg.sql("INSERT INTO whet_server(server, env, name, version, device, seen) VALUES"
           f" ('{'1' * 16}', '{env}', 'there', '1', 'd', now() - interval '2 days'),"
           f" ('{'2' * 16}', '{env}', 'gone', '1', 'd', now() - interval '8 days'),"
           f" ('{'3' * 16}', '{'f' * 16}', 'elsewhere', '1', 'd', now());" +
           ";".join(row_sql(env, digit * 16, server * 16, state=state) for digit, server, state in (
               ("a", "1", "active"), ("b", "1", "retired"), ("c", "2", "active"), ("d", "3", "active"),
               ("e", "4", "active"))) + "; UPDATE whet_kernel SET changed = now() - interval '91 days'")
    server = online(member(IDLE))
    until(lambda: told(pg) == ["a"], lambda: str(told(pg)) + server.text())


def test_of_more_rows_than_are_kept_the_newest_are_heard_and_later_ones_too(member, pg):  # noqa: F811
    first = online(member(IDLE))
    env = fleet(first)["env"]
    first.stop()
    pg.sql(row_sql(env, "f" * 16, "1" * 16, knobs=POINT, speed=2) + "; INSERT INTO whet_kernel(env, key, server, slot, template, source,"
           " knobs, state, own_s, speed, reason, evidence) SELECT env, lpad(to_hex(n), 16, '0'), server, slot,"
           " template, source, knobs, state, own_s, speed, '', '{}' FROM whet_kernel, generate_series(1, 1100) n")
    server = online(member(IDLE))
    rows = lambda outcome: server.metric(f'whet_fleet_rows_total{{outcome="{outcome}"}}')
    until(lambda: rows("taken") + rows("dropped") == 1101, lambda: str((rows("taken"), rows("dropped"))))
    assert rows("taken") == 512 and rows("refused") == 0
    pg.sql(row_sql(env, "e" * 16, "2" * 16, knobs=POINT, speed=3))
    until(lambda: rows("taken") == 513, lambda: str(rows("taken")))


def test_the_page_gets_the_newest_of_each_list_and_operators_all(member, pg):  # noqa: F811
    server = online(member(IDLE))
    env = fleet(server)["env"]
    pg.sql("INSERT INTO whet_server(server, env, name, version, device, seen) SELECT lpad(to_hex(n), 16, '0'),"
           f" '{env}', 'server ' || n, '1', 'd', now() - n * interval '1 minute' FROM generate_series(1, 250) n;"
           "INSERT INTO whet_retraction(env, key, slot, server, name, reason) SELECT"
           f" '{env}', lpad(to_hex(n), 16, '0'), '{SLOT}', 'x', 'x', 'wrong ' || n FROM generate_series(1, 30) n")
    until(lambda: len(fleet(server)["servers"]) == 200, lambda: str(fleet(server)["totals"]))
    until(lambda: len(fleet(server)["retractions"]) == 30)
    page = server.get("/specializer").json()["specializer"]["fleet"]
    for o in (page, fleet(server)):
        assert (o["totals"]["servers"], o["totals"]["retractions"], o["totals"]["leases"]) == (251, 30, 0)
    assert [r["name"] for r in page["servers"][1:]] == [f"server {n}" for n in range(1, 20)]
    assert [r["reason"] for r in page["retractions"]] == [f"wrong {n}" for n in range(30, 10, -1)]
    assert "servers: 251, of which these are the newest" in whet("status", pg=pg).stdout


def test_servers_that_come_at_once_make_the_tables_once(pg):  # noqa: F811
    command = [BINARY, "fleet", "migrate", "--specializer-fleet", pg.uri]
    all_of_them = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                   for _ in range(4)]
    for one in all_of_them:
        said = one.communicate(timeout=120)[0]
        assert one.returncode == 0 and "of version 3" in said, said
    assert pg.sql("SELECT version FROM whet_schema ORDER BY 1") == [["1"], ["2"], ["3"]]


class Pooler:
    """Gives each transaction of its client the other of two sessions, as a transaction pooler may, and makes up
    the process that serves it."""

    SSL, GSS = 80877103, 80877104

    def __init__(self, pg):  # noqa: F811
        self.to = ("127.0.0.1", pg.port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.uri = pg.uri.replace(f":{pg.port}/", f":{self.listener.getsockname()[1]}/")
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self.serve, args=(self.listener.accept()[0],), daemon=True).start()

    @staticmethod
    def read(s, n):
        data = b""
        while len(data) < n:
            if not (more := s.recv(n - len(data))):
                raise ConnectionError
            data += more
        return data

    def message(self, s):
        head = self.read(s, 5)
        return head[:1], head + self.read(s, struct.unpack(">I", head[1:])[0] - 4)

    def session(self, startup):
        """A new one, and what it says until it waits for a statement."""
        far, said, kind = socket.create_connection(self.to), b"", b""
        far.sendall(startup)
        while kind != b"Z":
            kind, data = self.message(far)
            said += data if kind != b"K" else data[:5] + struct.pack(">I", 1) + data[9:]
        return far, said

    def serve(self, near):
        with contextlib.suppress(OSError), near:
            code = self.SSL
            while code in (self.SSL, self.GSS):
                size = self.read(near, 4)
                startup = size + self.read(near, struct.unpack(">I", size)[0] - 4)
                code = struct.unpack(">I", startup[4:8])[0]
                if code in (self.SSL, self.GSS):
                    near.sendall(b"N")
            (far, said), (other, _) = self.session(startup), self.session(startup)
            near.sendall(said)
            with far, other:
                self.carry(near, far, other)

    def carry(self, near, far, other):
        while True:
            for ready in select.select([near, far], [], [])[0]:
                if ready is near:
                    if not (data := near.recv(1 << 16)):
                        return
                    far.sendall(data)
                    continue
                kind, data = self.message(far)
                near.sendall(data)
                if kind == b"Z" and data[5:] == b"I":
                    far, other = other, far


def test_a_pooler_of_transactions_is_told_from_the_database(member, pg):  # noqa: F811
    """Notifications would not come through it, and limits of a session would be somebody else's."""
    assert whet("migrate", pg=pg).returncode == 0
    pooler = Pooler(pg)
    server = member(IDLE, uri=pooler.uri)
    until(lambda: "gives every transaction another session" in server.text(), server.text)
    assert server.complete("Bread is")["choices"][0]["text"]
    pooler.listener.close()
