# SPDX-License-Identifier: Apache-2.0
"""What an operator asks who sees that servers of a fleet differ: why one does not run what another found, who
searches a slot and since when, who found a kernel wrong and whether everybody heard."""

import re
import subprocess

import pytest

from conftest import BINARY
from test_fleet import (SLOT, database, fleet, member, online, pg, row_sql, until,  # noqa: F401 - fixtures too
                        whet)
from test_fleet_trouble import IDLE, POINT, learnt
from test_fleet_words import Store

ENV, KEY, OTHER = "e" * 16, "a" * 16, "b" * 16
FINDER, REFUSER, SLOWER, SILENT, GONE, ELSEWHERE = (d * 16 for d in "123456")


def server_sql(server, name, env=ENV, seen="now()", heard="NULL", stopped="false"):
    return ("INSERT INTO whet_server(server, env, name, version, device, seen, heard, stopped) VALUES"
            f" ('{server}', '{env}', '{name}', '0.1.0', 'a device', {seen}, {heard}, {stopped})")


@pytest.fixture
def made(pg):  # noqa: F811
    assert whet("migrate", pg=pg).returncode == 0
    pg.sql(";".join([
        server_sql(FINDER, "finder:1"), server_sql(REFUSER, "refuser:1", heard="1000000"),
        server_sql(SLOWER, "slower:1", heard="1"), server_sql(SILENT, "silent:1"),
        server_sql(GONE, "gone:1", seen="now() - interval '2 hours'"),
        server_sql(ELSEWHERE, "elsewhere:1", env="f" * 16),
        row_sql(ENV, KEY, FINDER, speed=1.5, knobs="ISA=2"),
        row_sql(ENV, KEY, REFUSER, state="refused", speed=0, reason="probe: wrong in case 7"),
        row_sql(ENV, OTHER, SLOWER, speed=1.6)]))
    return pg


def show(word, pg):  # noqa: F811
    done = whet("show", word, pg=pg)
    assert done.returncode == 0, done
    return done.stdout


def line(text, begin):
    [found] = [one for one in text.splitlines() if one.strip().startswith(begin)]
    return found


def test_why_a_server_does_not_run_a_kernel_that_another_found(made):
    said = show(KEY, made)
    assert f"kernel {KEY}: {SLOT} mlp_out ISA=2" in said and "(1 servers of others do not see it)" in said
    assert "measured by 1 servers, median +50.0 % over eager" in said
    assert ": active, +50.0 % over eager" in line(said, "finder:1")
    assert ": refused, not measured" in line(said, "refuser:1") and "probe: wrong in case 7" in line(said, "refuser:1")
    assert f"told nothing of it; serves {OTHER} there, +60.0 % over eager" in line(said, "slower:1")
    assert line(said, "silent:1").endswith("told nothing of it")
    assert re.search("not seen since 7[0-9]{3} s ago", line(said, "gone:1"))
    assert "elsewhere" not in said


def test_who_found_a_kernel_wrong_and_who_has_not_heard(made):
    assert whet("retract", KEY, "incident 42", pg=made).returncode == 0
    made.sql(f"INSERT INTO whet_verdict(env, key, server, name, upheld, words) VALUES ('{ENV}', '{KEY}', '{REFUSER}',"
             " 'refuser:1', false, 'other bits')")
    said = show(KEY, made)
    assert "found wrong by an operator at 2" in said and "incident 42" in said
    assert "heard by 1 of 4 servers that are there" in said
    assert "looked again: wrong, other bits; heard that it is wrong" in line(said, "refuser:1")
    for name in ("finder:1", "slower:1", "silent:1"):
        assert "has not heard that it is wrong" in line(said, name)
    assert "(heard by 1 of 4 servers; wrong on 1 more, right on 0)" in whet("status", pg=made).stdout
    made.sql(f"UPDATE whet_retraction SET server = '{FINDER}', name = 'finder:1'")  # who says it knows it
    assert "heard by 2 of 4" in show(KEY, made)


def test_who_has_a_slot_and_since_when(made):
    made.sql("INSERT INTO whet_lease(env, slot, server, since, until) VALUES"
             f" ('{ENV}', '{SLOT}', '{FINDER}', '2026-01-02 03:04:05Z', now() + interval '20 s'),"
             f" ('{ENV}', '{SLOT}+2', '{'9' * 16}', now(), now() - interval '100 s')")
    said = show(SLOT, made)
    assert f"{SLOT} is leased by finder:1 ({FINDER}) since 2026-01-02 03:04:05 UTC" in said
    assert re.search(r" s\), left (19|20) s", said) and re.search(f"leased by {'9' * 16} since .* over for 10[0-9] s", said)
    assert f"finder:1 ({FINDER}) serves {KEY}, +50.0 %" in said and f"slower:1 ({SLOWER}) serves {OTHER}" in said
    assert "nobody has it leased" in show("attn/m1/c256", made) and "eager serves everywhere" in show("attn/m1/c256", made)
    assert f"{'9' * 16} " in whet("status", pg=made).stdout, "a lease of a server that nobody knows has its id"


def test_what_is_known_of_a_server(made):
    for word in (SLOWER, "slower:1"):
        said = show(word, made)
        assert f"server slower:1 ({SLOWER}): whet 0.1.0, environment {ENV}, a device" in said
        assert "has nothing leased" in said and f"serves {OTHER}" in said
        assert "has not heard yet of 0 kernels" in said
    assert "does not tell which kernels it heard to be wrong" in show("finder:1", made)
    nothing = whet("show", "\x1b[2Jnobody", pg=made)
    assert nothing.returncode == 1 and "nothing is known of" in nothing.stderr
    made.sql("UPDATE whet_server SET name = E'\\x1b[2Jliar' WHERE server = '" + SLOWER + "'")
    assert "\x1b" not in show(SLOWER, made)


def test_servers_say_what_they_heard(member, pg):  # noqa: F811
    server = online(member(IDLE))
    mine = fleet(server)
    pg.sql(row_sql(mine["env"], KEY, "1" * 16))
    assert whet("retract", KEY, "incident 42", pg=pg).returncode == 0
    until(lambda: "heard by 1 of 1 servers" in show(KEY, pg), lambda: show(KEY, pg))
    shown = until(lambda: [r for r in fleet(server)["retractions"] if r["heard_by"] == 1])
    assert shown[0]["key"] == KEY and shown[0]["heard_of"] == 1
    assert "has not heard yet of 0 kernels" in show(mine["server"], pg)


def test_a_server_names_those_whose_speeds_it_did_not_see(member, pg, tmp_path):  # noqa: F811
    store = Store(member, tmp_path / "store.db")
    keys = [f"{n:016x}" for n in range(5)]
    for key in keys:
        learnt(store.path, store.env, key)  # twice as fast as eager
    pg.sql(";".join(row_sql(store.env, key, "9" * 16, knobs=POINT, speed=8) for key in keys) + ";" +
           ";".join(row_sql(store.env, key, "8" * 16, knobs=POINT, speed=2) for key in keys))
    server = online(member(IDLE, "--store", str(store.path)))
    until(lambda: fleet(server)["distrusted"] == ["9" * 16], lambda: str(fleet(server)))
    assert server.metric("whet_fleet_distrusted") == 1


def test_a_server_that_may_not_bring_the_tables_up_goes_on_with_those_that_are_there(member, pg):  # noqa: F811
    assert whet("migrate", pg=pg).returncode == 0
    pg.sql("ALTER TABLE whet_server DROP heard; DELETE FROM whet_schema WHERE version > 2;"
           "CREATE ROLE late LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC; GRANT USAGE ON SCHEMA public TO late;"
           "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO late;"
           "GRANT USAGE ON SEQUENCE whet_seq TO late")
    late = pg.uri.replace("whet@", "late@")
    try:
        server = online(member(IDLE, uri=late))
        until(lambda: fleet(server)["listed"], server.text)
        assert "goes on with those of version 2" in server.text()
        migrate = subprocess.run([BINARY, "fleet", "migrate", "--specializer-fleet", late], capture_output=True, text=True)
        assert migrate.returncode == 1 and "may not create" in migrate.stderr
        assert "has not heard" not in show(fleet(server)["server"], pg)
        assert whet("status", pg=pg).returncode == 0
        assert server.metric("whet_fleet_errors_total") == 0
        server.stop()
    finally:
        pg.sql("DROP OWNED BY late; DROP ROLE late")
