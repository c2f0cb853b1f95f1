# SPDX-License-Identifier: Apache-2.0
"""What a server says of a kernel that is wrong reaches the fleet: the server may be killed first, the database
away or another one, or have lost what it was told."""

import signal
import sqlite3
from contextlib import closing

import pytest

from load import Load
from test_fleet import (SLOT, active, database, events, fleet, member, online, pg,  # noqa: F401 - fixtures too
                        settled, until, whet, wrong_from_now_on)
from test_fleet_trouble import IDLE

KEY, OTHER, ELSEWHERE = "a" * 16, "b" * 16, "e" * 16


class Store:
    """Of a server that has been there, and of which more was found out since."""

    def __init__(self, member, path):  # noqa: F811
        self.path = path
        server = online(member(IDLE, "--store", str(path)))
        self.env, self.server = fleet(server)["env"], fleet(server)["server"]
        server.stop()

    def say(self, key, env=None, slot=SLOT, verdict=0, server=None, ago=0):
        with closing(sqlite3.connect(self.path)) as db, db:
            db.execute("INSERT INTO fleet_word(at, verdict, upheld, env, key, slot, words, server, name) VALUES"
                       " (strftime('%s', 'now') - ?, ?, 1, ?, ?, ?, 'wrong', ?, 'here:1')",
                       (ago, verdict, env or self.env, key, slot, server or self.server))

    def say_all(self, keys, verdict):
        with closing(sqlite3.connect(self.path)) as db, db:
            db.executemany("INSERT INTO fleet_word(at, verdict, upheld, env, key, slot, words, server, name) VALUES"
                           " (1, ?, 1, ?, ?, ?, 'wrong', ?, 'here:1')",
                           [(verdict, self.env, key, SLOT, self.server) for key in keys])

    def words(self):
        with closing(sqlite3.connect(self.path)) as db:
            return db.execute("SELECT key, told > 0 FROM fleet_word ORDER BY id").fetchall()


@pytest.fixture
def store(member, tmp_path):  # noqa: F811
    return Store(member, tmp_path / "store.db")


def retracted(pg):  # noqa: F811
    return sorted(pg.sql("SELECT key, env, server, name FROM whet_retraction"))


def reconnect(server, pg):  # noqa: F811
    before = server.metric("whet_fleet_connects_total")
    pg.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'whet'")
    until(lambda: server.metric("whet_fleet_connects_total") > before, server.text)


@pytest.mark.once  # the search has to get somewhere: minutes under sanitizers
def test_a_server_that_is_killed_before_the_database_is_back_tells_it_when_it_is_there_again(member, pg, tmp_path):  # noqa: F811
    options = ("--store", str(tmp_path / "store.db"), "--specializer-watch-every=2")
    server = online(member(*options))
    key = settled(server, pg)
    pg.stop()
    try:
        wrong_from_now_on(server)
        with Load(server):
            until(lambda: not active(server), server.text)
        assert events(server, "rolled_back")[0]["kernel"] == key
        assert server.metric("whet_fleet_untold") == 1
        server.signal(signal.SIGKILL)
        server.wait()
    finally:
        pg.start()
    assert pg.sql("SELECT * FROM whet_retraction") == []
    server = online(member(IDLE, *options))
    until(lambda: [row[0] for row in retracted(pg)] == [key], server.text)
    until(lambda: server.metric("whet_fleet_untold") == 0, server.text)


def test_words_of_an_earlier_life_are_told_for_whom_they_are(member, pg, store):  # noqa: F811
    """Also of the model that was served before, and of a server on the same store that is gone."""
    store.say(KEY)
    store.say(OTHER, env=ELSEWHERE)
    store.say(KEY, server="9" * 16, env="f" * 16, ago=61)
    store.say(OTHER, server="9" * 16, env="d" * 16)  # it may be there and tell it itself
    server = online(member(IDLE, "--store", str(store.path)))
    until(lambda: len(retracted(pg)) == 3, server.text)
    assert retracted(pg) == sorted([[KEY, store.env, store.server, "here:1"], [OTHER, ELSEWHERE, store.server, "here:1"],
                                    [KEY, "f" * 16, "9" * 16, "here:1"]])
    until(lambda: store.words() == [(KEY, 1), (OTHER, 1), (KEY, 1), (OTHER, 0)], server.text)
    until(lambda: fleet(server)["untold"] == 1, server.text)


def test_a_database_that_has_lost_a_retraction_is_told_again_and_one_that_knows_it_is_left_alone(member, pg, store):  # noqa: F811
    """A standby that took over lacks the last moments, a backup the last days, another database everything."""
    store.say(KEY)
    store.say(KEY, verdict=1)
    server = online(member(IDLE, "--store", str(store.path)))
    until(lambda: retracted(pg) and pg.sql("SELECT * FROM whet_verdict"), server.text)
    first = pg.one("SELECT seq FROM whet_retraction")
    until(lambda: store.words() == [(KEY, 1), (KEY, 1)], server.text)
    pg.sql("DELETE FROM whet_verdict")
    reconnect(server, pg)
    until(lambda: pg.sql("SELECT * FROM whet_verdict"), server.text)
    assert pg.one("SELECT seq FROM whet_retraction") == first, "others would look at it once more"
    pg.sql("DELETE FROM whet_retraction")
    reconnect(server, pg)
    until(lambda: [row[0] for row in retracted(pg)] == [KEY], server.text)


def test_hundreds_of_words_are_told_and_told_again(member, pg, store):  # noqa: F811
    """More than a turn says, behind as many that wait."""
    assert whet("migrate", pg=pg).returncode == 0
    pg.sql("ALTER TABLE whet_verdict RENAME TO gone")
    for verdict in (1, 0):
        store.say_all([f"{n:016x}" for n in range(200)], verdict)
    server = online(member(IDLE, "--store", str(store.path)))
    until(lambda: len(retracted(pg)) == 200, server.text)
    until(lambda: server.metric("whet_fleet_untold") == 200, server.text)
    pg.sql("ALTER TABLE gone RENAME TO whet_verdict")
    until(lambda: server.metric("whet_fleet_untold") == 0, server.text)
    assert pg.one("SELECT count(*) FROM whet_verdict") == "200"
    pg.sql("DELETE FROM whet_retraction; ALTER TABLE whet_verdict RENAME TO gone")
    reconnect(server, pg)
    until(lambda: len(retracted(pg)) == 200, server.text)
    pg.sql("DELETE FROM gone; ALTER TABLE gone RENAME TO whet_verdict")
    until(lambda: len(retracted(pg)) == 200 and pg.one("SELECT count(*) FROM whet_verdict") == "200", server.text)


def test_what_one_table_does_not_take_does_not_hold_up_the_other(member, pg, store):  # noqa: F811
    assert whet("migrate", pg=pg).returncode == 0
    pg.sql("DROP ROLE IF EXISTS halfway; CREATE ROLE halfway LOGIN; GRANT USAGE ON SCHEMA public TO halfway;"
           "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO halfway;"
           "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO halfway; REVOKE INSERT ON whet_verdict FROM halfway")
    store.say(KEY, verdict=1)
    store.say(OTHER, env="short")  # which no table takes
    store.say(KEY)
    server = online(member(IDLE, "--store", str(store.path), uri=pg.uri.replace("whet@", "halfway@")))
    until(lambda: [row[0] for row in retracted(pg)] == [KEY], server.text)
    until(lambda: store.words() == [(KEY, 0), (KEY, 1)], server.text)
    assert f"what is said of kernel {OTHER} is given up" in server.text()
    until(lambda: "permission denied for table whet_verdict" in server.text(), server.text)
    pg.sql("GRANT INSERT ON whet_verdict TO halfway")
    until(lambda: store.words() == [(KEY, 1), (KEY, 1)], server.text)
    pg.sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public; DROP ROLE halfway")


def test_an_operator_who_allows_a_kernel_again_takes_the_word_back(member, pg, store):  # noqa: F811
    with closing(sqlite3.connect(store.path)) as db, db:
        db.execute("INSERT INTO candidate(key, object_key, env, source, template, slot, knobs, name, origin, state,"
                   " bit_equal, predicted_s, evidence, reason, changed) VALUES (?, '', ?, '', 'mlp_out', ?, '', 'x',"
                   " 2, 'refused', 0, 0, '{}', 'audit: wrong', 1)", (KEY, store.env, SLOT))
    store.say(KEY)
    server = online(member(IDLE, "--store", str(store.path)))
    until(lambda: store.words() == [(KEY, 1)], server.text)
    answer = server.post(f"/admin/kernels/{KEY}/enable", None, headers={"authorization": "Bearer boss"})
    assert answer.status_code == 200, answer.text
    assert store.words() == []
