# SPDX-License-Identifier: Apache-2.0
"""A fleet whose database dies, and whose standby takes over without the last that it was told."""

import signal

import pytest

from postgres import Postgres
from test_fleet import database, fleet, member, online, pg, row_sql, until, whet  # noqa: F401 - fixtures too
from test_fleet_trouble import IDLE, read_only
from test_fleet_words import Store, retracted

KEY, LATER = "a" * 16, "b" * 16


@pytest.fixture
def standby(pg):  # noqa: F811
    assert whet("migrate", pg=pg).returncode == 0
    second = Postgres(pg)
    yield second
    second.close()


def listens_to_nobody(standby):
    """What is written from now on does not reach it."""
    standby.sql("ALTER SYSTEM SET primary_conninfo = ''")
    standby.sql("SELECT pg_reload_conf()")
    until(lambda: standby.sql("SELECT pid FROM pg_stat_wal_receiver") == [])


def test_a_standby_that_took_over_is_told_what_it_lacks_and_heard(member, pg, standby, tmp_path):  # noqa: F811
    store = Store(member, tmp_path / "store.db")
    server = online(member(IDLE, "--store", str(store.path), uri="postgresql://whet@"
                           f"127.0.0.1:{pg.port},127.0.0.1:{standby.port}/postgres?target_session_attrs=read-write"))
    until(lambda: fleet(server)["listed"], server.text)
    until(lambda: standby.sql("SELECT server FROM whet_server") == [[store.server]])
    listens_to_nobody(standby)
    store.say(KEY)
    until(lambda: store.words() == [(KEY, 1)], server.text)
    pg.sql(row_sql(store.env, KEY, "2" * 16))
    until(lambda: server.metric('whet_fleet_rows_total{outcome="taken"}') +
          server.metric('whet_fleet_rows_total{outcome="refused"}') == 1, server.text)
    assert len(retracted(pg)) == 1 and retracted(standby) == []
    pg.stop(signal.SIGQUIT)
    try:
        assert whet("migrate", pg=standby).returncode == 0, "a standby whose tables are whole"
        standby.sql("SELECT pg_promote()")
        until(lambda: [row[0] for row in retracted(standby)] == [KEY], server.text)
        until(lambda: fleet(server)["listed"], server.text)

        # Its numbers are those of the standby now: what is new is heard, though the old primary had given more.
        before = server.metric('whet_fleet_rows_total{outcome="refused"}')
        standby.sql(row_sql(store.env, LATER, "2" * 16, template="none"))
        until(lambda: server.metric('whet_fleet_rows_total{outcome="refused"}') == before + 1, server.text)
    finally:
        server.stop()
        pg.start()


def both(first, second, more=""):
    return f"postgresql://whet@127.0.0.1:{first.port},127.0.0.1:{second.port}/postgres{more}"


def test_a_primary_that_can_only_be_read_any_more_is_left(member, pg, standby):  # noqa: F811
    """Fenced off instead of stopped: connections to it stay, and it is read until another host can be written."""
    server = online(member(IDLE, uri=both(pg, standby, "?target_session_attrs=read-write")))
    until(lambda: fleet(server)["listed"], server.text)
    listens_to_nobody(standby)
    name = fleet(server)["name"]
    with read_only(pg):
        until(lambda: fleet(server)["read_only"], server.text)
        assert server.metric("whet_fleet_read_only") == 1 and fleet(server)["state"] == "online"
        standby.sql("SELECT pg_promote()")
        standby.sql("UPDATE whet_server SET seen = 'epoch'")
        until(lambda: standby.sql("SELECT name FROM whet_server WHERE seen > 'epoch'") == [[name]], server.text)
        until(lambda: fleet(server)["listed"], server.text)
        assert not fleet(server)["read_only"] and server.metric("whet_fleet_read_only") == 0
        assert server.metric("whet_fleet_connects_total") == 2
        assert "the connection moves there" in server.text()


def test_a_standby_that_is_the_first_host_is_left_for_the_primary(member, pg, standby):  # noqa: F811
    server = online(member(IDLE, uri=both(standby, pg)))
    until(lambda: fleet(server)["listed"], server.text)
    assert len(pg.sql("SELECT * FROM whet_server")) == 1 and "can only be read" in server.text()


def test_who_asks_for_a_standby_keeps_it(member, pg, standby):  # noqa: F811
    server = online(member(IDLE, uri=both(standby, pg, "?target_session_attrs=prefer-standby")))
    until(lambda: fleet(server)["read_only"], server.text)
    until(lambda: server.metric("whet_fleet_errors_total") >= 6, server.text)
    assert pg.sql("SELECT * FROM whet_server") == [] and server.metric("whet_fleet_connects_total") == 1
