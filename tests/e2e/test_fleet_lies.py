# SPDX-License-Identifier: Apache-2.0
"""A fleet whose database holds rows that no server would write: whoever may write may write anything, and what
moves tables from one database to another may leave a sequence behind. That costs time, never what others say."""

import json
import re
import sqlite3
import subprocess
import time
from contextlib import closing
from datetime import datetime

from load import Load
from test_fleet import (SLOT, database, fleet, member, online, pg, row_sql, until, whet)  # noqa: F401 - fixtures too
from test_fleet_trouble import IDLE, POINT, Pooler

LAST = 2 ** 63 - 2


def retraction(env, key, seq="nextval('whet_seq')"):
    return ("INSERT INTO whet_retraction(env, key, slot, server, name, reason, seq) VALUES"
            f" ('{env}', '{key * 16}', '{SLOT}', 'x', 'x', 'wrong', {seq})")


def kernel(env, key, **more):
    return row_sql(env, key * 16, "2" * 16, knobs=POINT, speed=3, **more)


def heard(server):
    o = fleet(server)
    return o["taken"], o["suspects"]


def test_a_row_whose_number_the_sequence_never_gave_silences_nobody(member, pg):  # noqa: F811
    server = online(member(IDLE))
    env = fleet(server)["env"]
    # Whoever reads this one and asks for what is above its number hears nothing any more.
    pg.sql(";".join([retraction(env, "a", LAST), kernel(env, "a", seq=LAST), kernel(env, "b", seq=-3)]))
    # One that arrives reads from the newest on.
    late = online(member(IDLE))
    pg.sql(";".join([retraction(env, "c"), kernel(env, "c")]))
    # All are heard, these too, with numbers that a server gave them.
    for one in (server, late):
        until(lambda: heard(one) == (3, 2), lambda: json.dumps(fleet(one)) + one.text())  # noqa: B023
    assert pg.one("SELECT count(*) FROM (SELECT seq FROM whet_kernel UNION ALL SELECT seq FROM whet_retraction) s"
                  f" WHERE seq NOT BETWEEN 1 AND (SELECT last_value FROM whet_seq)") == "0"
    pg.sql(";".join([retraction(env, "d"), kernel(env, "d")]))
    for one in (server, late):
        until(lambda: heard(one) == (4, 3), lambda: json.dumps(fleet(one)))  # noqa: B023


def test_a_sequence_that_was_left_behind_when_the_tables_moved(member, pg):  # noqa: F811
    first = online(member(IDLE))
    env = fleet(first)["env"]
    first.stop()
    pg.sql(";".join([retraction(env, k) + ";" + kernel(env, k) for k in "abc"]))
    pg.sql("ALTER SEQUENCE whet_seq RESTART")  # as behind logical replication
    server = online(member(IDLE))
    pg.sql(";".join([retraction(env, "d"), kernel(env, "d")]))
    until(lambda: heard(server) == (4, 4), lambda: json.dumps(fleet(server)) + server.text())


def test_tables_that_are_restored_under_a_connection(member, pg):  # noqa: F811
    server = online(member(IDLE))
    env = fleet(server)["env"]
    pg.sql(";".join([retraction(env, k) + ";" + kernel(env, k) for k in "abc"]))
    until(lambda: heard(server) == (3, 3), lambda: json.dumps(fleet(server)))
    # As pg_restore --clean does, of a backup from before them.
    pg.sql("DELETE FROM whet_kernel; DELETE FROM whet_retraction; ALTER SEQUENCE whet_seq RESTART;" +
           retraction(env, "d") + ";" + kernel(env, "d"))
    until(lambda: heard(server) == (4, 4), lambda: json.dumps(fleet(server)) + server.text())
    assert server.metric("whet_fleet_connects_total") == 1


def test_times_and_speeds_without_an_end_hide_nothing_from_operators(member, pg, tmp_path):  # noqa: F811
    server = online(member(IDLE))
    env = fleet(server)["env"]
    pg.sql(";".join([kernel(env, "a", state="active"), kernel(env, "b", state="active") +
                     "; UPDATE whet_kernel SET speed='NaN' WHERE key LIKE 'b%'",
                     kernel(env, "c", state="active") + "; UPDATE whet_kernel SET speed='Infinity' WHERE key LIKE 'c%'",
                     "UPDATE whet_kernel SET changed='infinity'", retraction(env, "e"),
                     "UPDATE whet_retraction SET at='-infinity'",
                     "INSERT INTO whet_server(server, env, name, version, device, started, seen) VALUES"
                     f" ('{'2' * 16}', '{env}', 'forever', '1', 'd', '-infinity', 'infinity')",
                     f"INSERT INTO whet_lease(env, slot, server, until) VALUES ('{env}', '{SLOT}', 'x', 'infinity')"]))
    until(lambda: fleet(server)["leases"], lambda: json.dumps(fleet(server)))
    o = fleet(server)
    assert o["trouble"] == "" and [w["key"] for w in o["winners"]] == ["a" * 16]
    for row in o["servers"] + o["leases"] + o["winners"] + o["retractions"]:
        assert None not in row.values(), row
    status = whet("status", pg=pg)
    assert status.returncode == 0 and "forever" in status.stdout and "a" * 16 in status.stdout, status
    assert "nan" not in status.stdout and "inf " not in status.stdout, status.stdout
    file = tmp_path / "fleet.json"
    assert whet("export", str(file), pg=pg).returncode == 0
    assert [k["id"] for k in json.loads(file.read_text())["kernels"]] == ["a" * 16]


def test_a_lease_that_no_clock_can_have_given_is_nobodys(member, pg):  # noqa: F811
    """A server that died holds its slots for hours where another database took over whose clock is behind."""
    first = online(member(IDLE))
    env = fleet(first)["env"]
    first.stop()
    pg.sql(";".join("INSERT INTO whet_lease(env, slot, server, until) VALUES"
                    f" ('{env}', '{SLOT}{n}', '{'7' * 16}', now() + interval '3 hours')"
                    for n in ("", "+2", "+3", "+4")))
    server = online(member("--specializer-starts=false"))
    with Load(server):
        until(lambda: fleet(server)["lease"] == SLOT, lambda: json.dumps(fleet(server)))
    assert pg.one(f"SELECT until < now() + interval '1 minute' FROM whet_lease WHERE server <> '{'7' * 16}'") == "t"


def test_an_answer_ends_at_its_bound(member, pg):  # noqa: F811
    server = online(member(IDLE))
    env = fleet(server)["env"]
    memory = lambda: int(re.search(r"VmHWM:\s+(\d+)", open(f"/proc/{server.process.pid}/status").read())[1])
    before = memory()
    pg.sql("ALTER TABLE whet_kernel DROP CONSTRAINT whet_kernel_knobs_check;" + kernel(env, "a") +
           "; UPDATE whet_kernel SET knobs=repeat('x', 100000000)")
    until(lambda: "an answer of too many bytes" in fleet(server)["trouble"] + server.text(), server.text)
    assert memory() - before < 100 << 10  # 64 MiB, and what a read brings beyond them
    assert fleet(server)["refused"] == 0


def test_bytes_that_are_no_text_silence_nobody(member, pg):  # noqa: F811
    """A database of no encoding, as initdb makes one where there is no locale, takes any bytes."""
    pg.sql("DROP DATABASE IF EXISTS raw")
    pg.sql("CREATE DATABASE raw ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE 'C'")
    uri = pg.uri.replace("/postgres", "/raw")
    server = online(member(IDLE, uri=uri))
    env = fleet(server)["env"]
    until(lambda: pg.sql("SELECT * FROM whet_server", uri), server.text)
    no_text = "convert_from('\\xff'::bytea, 'SQL_ASCII')"
    pg.sql(kernel(env, "a") + f"; UPDATE whet_kernel SET knobs={no_text}; UPDATE whet_server SET device={no_text};" +
           kernel(env, "b"), uri)
    until(lambda: heard(server) == (1, 0) and fleet(server)["refused"] == 1, lambda: json.dumps(fleet(server)))
    until(lambda: "?" in [s["device"] for s in fleet(server)["servers"]], lambda: json.dumps(fleet(server)))
    assert fleet(server)["trouble"] == ""


def test_a_flood_of_retractions_and_of_notifications_has_its_bounds(member, pg):  # noqa: F811
    """Whoever may write may find everything wrong, again and again, and anybody who may connect may notify."""
    server = online(member(IDLE))
    env = fleet(server)["env"]
    pg.sql("INSERT INTO whet_retraction(env, key, slot, server, name, reason) SELECT"
           f" '{env}', lpad(to_hex(n), 16, '0'), '{SLOT}', 'x', 'x', 'made up' FROM generate_series(1, 500) n")
    heard_of = lambda: server.metric('whet_fleet_retractions_total{by="others"}')

    def traced():
        with closing(sqlite3.connect(server.store.name + "/store.db")) as db:
            return db.execute("SELECT count(*) FROM trace WHERE event='retracted'").fetchone()[0]
    while "are not told of any more" not in server.text():  # one that is found wrong anew before it is told of is one
        before = heard_of()
        pg.sql(f"UPDATE whet_retraction SET seq=nextval('whet_seq'), at=clock_timestamp(); NOTIFY \"whet_{env}\"")
        until(lambda: heard_of() >= before + 500, lambda: str(heard_of()))  # noqa: B023
        assert traced() < 2100
    assert traced() >= 2048
    looked = lambda: int(pg.one("SELECT sum(seq_scan + coalesce(idx_scan, 0)) FROM pg_stat_user_tables"
                                " WHERE relname='whet_retraction'"))
    before, begin = looked(), time.time()
    subprocess.run(["psql", "-X", "-q", "-o", "/dev/null", "-d", pg.uri], text=True, check=True, timeout=300,
                   input=f"SELECT pg_notify('whet_{env}', 'x');\n" * 5000)
    time.sleep(2)  # in which PostgreSQL tells what was done
    # Five pulls a second at most, of one look each, and what a page of it takes now and then.
    assert looked() - before < 6 * (time.time() - begin) + 50
    pg.sql(retraction(env, "e"))
    until(lambda: heard(server) == (0, 501), lambda: str(heard(server)))


def test_a_database_that_ends_each_connection_is_asked_less_and_less_often(member, pg):  # noqa: F811
    assert whet("migrate", pg=pg).returncode == 0
    pooler = Pooler(pg)  # who gives each statement another session is left
    server = member(IDLE, uri=pooler.uri)
    times = lambda: [datetime.fromisoformat(line.split()[0].rstrip("Z")) for line in server.text().splitlines()
                     if "fleet: connected as" in line]
    until(lambda: len(times()) >= 4, server.text)
    pooler.listener.close()
    last = times()[:4]
    assert (last[3] - last[2]).total_seconds() >= 3 * 0.9  # the third pause: of 4 s, a quarter less at most
