# SPDX-License-Identifier: Apache-2.0
"""A fleet whose database has settings that a DBA made for others, a clock that jumps, hundreds of servers, or
no connection left."""

import subprocess
from contextlib import contextmanager

from test_fleet import SLOT, database, fleet, member, online, pg, until, whet  # noqa: F401 - fixtures too
from test_fleet_trouble import IDLE, learnt
from test_fleet_words import Store, retracted

KEY = "a" * 16


@contextmanager
def setting(pg, name, value):  # noqa: F811
    """For all sessions of the role that begin from now on."""
    pg.sql(f"ALTER ROLE whet SET {name} = '{value}'")
    try:
        yield
    finally:
        pg.sql(f"ALTER ROLE whet RESET {name}")


def seen(pg):  # noqa: F811
    return pg.sql("SELECT seen FROM whet_server")


def test_a_session_that_listens_is_not_ended_for_being_idle(member, pg):  # noqa: F811
    with setting(pg, "idle_session_timeout", "1s"):
        server = online(member(IDLE))
        for _ in range(2):
            before = seen(pg)
            until(lambda: seen(pg) != before, server.text)  # noqa: B023 - called at once
    assert server.metric("whet_fleet_connects_total") == 1, server.text()


def test_a_word_that_waits_for_its_turn_is_told_where_transactions_are_serializable(member, pg, tmp_path):  # noqa: F811
    store = Store(member, tmp_path / "store.db")
    with setting(pg, "default_transaction_isolation", "serializable"):
        with subprocess.Popen(["psql", "-X", "-q", "-d", pg.uri], stdin=subprocess.PIPE, text=True) as session:
            session.stdin.write("BEGIN ISOLATION LEVEL READ COMMITTED;"
                                f"SELECT pg_advisory_xact_lock(hashtextextended('{store.env}', 2003330420));"
                                "INSERT INTO whet_retraction(env, key, slot, server, name, reason) VALUES"
                                f" ('{store.env}', '{KEY}', '{SLOT}', '{'2' * 16}', 'x', 'wrong');\n")
            session.stdin.flush()
            held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted = {}"
            until(lambda: pg.one(held.format("true")) == "1")
            store.say(KEY)
            server = online(member(IDLE, "--store", str(store.path)))
            until(lambda: pg.one(held.format("false")) == "1", server.text)
            session.stdin.write("COMMIT;\n")
            session.stdin.close()
        until(lambda: store.words() == [(KEY, 1)], server.text)
    assert server.metric("whet_fleet_errors_total") == 0, server.text()
    assert [row[2] for row in retracted(pg)] == [store.server]


def test_what_was_pruned_while_the_clock_was_ahead_is_told_anew(member, pg, tmp_path):  # noqa: F811
    """For a moment the database's clock is a year ahead, and somebody prunes."""
    store = Store(member, tmp_path / "store.db")
    learnt(store.path, store.env, KEY)
    store.say("b" * 16)
    server = online(member(IDLE, "--store", str(store.path)))
    until(lambda: pg.sql("SELECT key FROM whet_kernel") == [[KEY]] and retracted(pg), server.text)
    pg.sql("DELETE FROM whet_kernel; DELETE FROM whet_retraction; DELETE FROM whet_server")
    until(lambda: pg.sql("SELECT key FROM whet_kernel") == [[KEY]] and retracted(pg), server.text)
    assert server.metric("whet_fleet_connects_total") == 1


def test_many_servers_do_not_look_at_all_that_there_is_every_few_seconds(member, pg):  # noqa: F811
    assert whet("migrate", pg=pg).returncode == 0
    pg.sql("INSERT INTO whet_server(server, env, name, version, device) SELECT lpad(to_hex(n), 16, '0'),"
           " (SELECT repeat('e', 16)), 'server ' || n, '1', 'd' FROM generate_series(1, 20000) n")
    server = online(member(IDLE))
    env = until(lambda: fleet(server)["env"])
    pg.sql(f"UPDATE whet_server SET env = '{env}'")
    until(lambda: fleet(server)["totals"].get("servers", 0) > 20000, server.text)
    until(lambda: fleet(server)["view_age_s"] > 20, server.text)


def test_one_that_finds_no_connection_left_comes_when_there_is_one(member, pg):  # noqa: F811
    assert whet("migrate", pg=pg).returncode == 0
    pg.sql("DROP ROLE IF EXISTS few; CREATE ROLE few LOGIN CONNECTION LIMIT 1; GRANT ALL ON SCHEMA public TO few;"
           "GRANT ALL ON ALL TABLES IN SCHEMA public TO few; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO few")
    uri = pg.uri.replace("whet@", "few@")
    with subprocess.Popen(["psql", "-X", "-q", "-d", uri], stdin=subprocess.PIPE, text=True) as session:
        until(lambda: pg.one("SELECT count(*) FROM pg_stat_activity WHERE usename = 'few'") == "1")
        server = member(IDLE, uri=uri)
        until(lambda: 'too many connections for role "few"' in server.text(), server.text)
        assert server.complete("Bread is")["choices"][0]["text"]
        session.stdin.close()
    online(server)
    server.stop()
    pg.sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public; DROP ROLE few")
