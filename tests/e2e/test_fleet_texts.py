# SPDX-License-Identifier: Apache-2.0
"""Texts of a language model in a fleet: they go from one server to another through the PostgreSQL only
where specializer.agentic is on at both ends, and the one they come to believes nothing of them."""

import json
import sqlite3
from contextlib import closing

import pytest

from agentic import ALONE, FAST, HELD, SLOT, TOGETHER, Model, Streams, by_the_agent, end, get, until_published
from conftest import WHATEVER_SPEED, Server
from test_fleet import database, events, fleet, online, pg, until  # noqa: F401 - fixtures too

ON, OFF = ("--specializer-agentic", "on"), ("--specializer-agentic", "off")
IDLE = "--specializer-paused=true"  # its fleet is listened to and told, nothing is searched


@pytest.fixture
def options(pg, tmp_path):  # noqa: F811
    """What a server of the fleet is started with; its store has that name."""
    (tmp_path / "key").write_text("boss\n")
    return lambda store, *more: [
        *ALONE, "--server-admin-key-file", str(tmp_path / "key"), "--specializer-enabled=true",
        "--store", str(tmp_path / store), "--specializer-strategy", "agentic", "--specializer-slots", SLOT,
        "--specializer-fleet", pg.uri, *more]


def query(store, text, *values):
    with closing(sqlite3.connect(store)) as db, db:
        return db.execute(text, values).fetchall()


def texts_in(store):
    return query(store, "SELECT env, slot, text FROM agent_node")


def hash_of(text):
    """As a store has it (specializer/candidate/hash.h)."""
    value = 0xcbf29ce484222325
    for byte in "".join(line + "\n" for line in text.splitlines()).encode() + b"\0":
        value = (value ^ byte) * 0x100000001b3 % 2**64
    for shift, factor in ((30, 0xbf58476d1ce4e5b9), (27, 0x94d049bb133111eb)):
        value = (value ^ value >> shift) * factor % 2**64
    return f"{value ^ value >> 31:016x}"


def put_winner(store, env):
    """What a store holds once a text has served: its node, and a row that says it was admitted."""
    source = hash_of(FAST)
    query(store, "INSERT INTO agent_node(env, slot, id, parent, state, attempts, debugs, speed, label, plan,"
          " text, source, prompts) VALUES (?, ?, 0, -1, 'measured', 1, 0, 2.0, 'idea', 'plan', ?, ?, ?)",
          env, SLOT, FAST, source, "6" * 16)
    query(store, "INSERT INTO candidate(key, object_key, env, source, template, slot, knobs, name, origin, state,"
          " bit_equal, predicted_s, evidence, reason, changed) VALUES"
          " (?, '', ?, ?, 'agent_mlp_in', ?, 'ISA=1', 'a text', 2, 'retired', 0, 0, '{\"speed\":2}', '', 1)",
          "7" * 16, env, source, SLOT)


def went_around(server, pg):  # noqa: F811
    """Until all that the database held when this was called has been asked for: a server asks for
    retractions first and for texts last, so with the second retraction it has asked for the texts."""
    env = fleet(server)["env"]
    for _ in range(2):
        before = fleet(server)["suspects"]
        pg.sql("INSERT INTO whet_retraction(env, key, slot, server, name, reason) SELECT "
               f"'{env}', substr(md5(count(*)::text), 1, 16), '{SLOT}', 'x', 'somebody', 'wrong'"
               " FROM whet_retraction")
        until(lambda: fleet(server)["suspects"] > before, server.text)  # noqa: B023 - called at once


def test_a_text_goes_only_where_the_agent_is_on_at_both_ends(start, options, pg, tmp_path):  # noqa: F811
    def one(store, *more):
        return online(start(*options(store, *more)))

    # Where it comes from.
    author = one("author.db", *ON, IDLE)
    env = fleet(author)["env"]
    author.stop()
    put_winner(tmp_path / "author.db", env)
    mute = one("author.db", *OFF, IDLE)
    went_around(mute, pg)
    assert pg.sql("SELECT * FROM whet_text") == []
    mute.stop()
    author = one("author.db", *ON, IDLE)
    [[slot, body]] = until(lambda: pg.sql("SELECT slot, body FROM whet_text"), author.text)
    assert slot == SLOT and json.loads(body)["agent"]["text"] == FAST
    author.stop()

    # Where it comes to. What is not a text is heard with the option off, too.
    deaf = one("deaf.db", *OFF, IDLE)
    went_around(deaf, pg)
    assert fleet(deaf)["env"] == env and not events(deaf, "imported")
    deaf.stop()
    assert texts_in(tmp_path / "deaf.db") == []
    heir = one("heir.db", *ON, IDLE)
    [said] = until(lambda: events(heir, "imported"), heir.text)
    assert (said["slot"], said["who"]) == (SLOT, "fleet")
    heir.stop()
    assert [(slot, text.strip()) for _, slot, text in texts_in(tmp_path / "heir.db")] == [(SLOT, FAST.strip())]
    # A candidate is made of it when its turn comes; what it was elsewhere is nobody's evidence.
    assert query(tmp_path / "heir.db", "SELECT key FROM candidate") == []

    # One that breaks a rule stops at the door, and one of another environment is not asked for.
    bad = json.loads(body)
    bad["agent"]["text"] = "__asm__(\"nop\");\n" + bad["agent"]["text"]
    rows = [(env, "a" * 16, json.dumps(bad)), ("e" * 16, "b" * 16, body)]
    pg.sql("DELETE FROM whet_text; INSERT INTO whet_text(env, source, body, slot, server) VALUES " +
           ", ".join("('{}', '{}', '{}', '{}', '{}')".format(e, source, text.replace("'", "''"), SLOT, "f" * 16)
                     for e, source, text in rows))
    wary = one("wary.db", *ON, IDLE)
    until(lambda: fleet(wary)["refused"] == 1, lambda: json.dumps(fleet(wary)))
    went_around(wary, pg)
    assert fleet(wary)["refused"] == 1 and "breaks a rule" in fleet(wary)["refused_rows"][0]
    assert "__asm__" in events(wary, "not_imported")[0]["text"] and not events(wary, "imported")
    wary.stop()
    assert texts_in(tmp_path / "wary.db") == []


@pytest.mark.timing  # under sanitizers the search takes minutes, and what is faster does not show
@pytest.mark.usefixtures("awake")
def test_a_text_that_serves_at_one_is_proven_anew_at_the_other(options, pg):  # noqa: F811
    def author(n):
        model = Model([FAST])
        s = Server(*options(f"author-{n}.db", *ON, "--adviser-url", model.url, "--adviser-model", "writer",
                            "--adviser-calls-per-hour", "1000", WHATEVER_SPEED), env=HELD)
        return {"s": s, "model": model, "load": Streams(s, n=TOGETHER)}

    w = until_published(author)
    try:
        first = by_the_agent(w["s"], SLOT)
        served = {r["kernel"] for r in get(w["s"], f"/admin/trace?slot={SLOT}")["trace"] if r["event"] == "active"}
        until(lambda: pg.sql("SELECT slot FROM whet_text") == [[SLOT]] * len(served), w["s"].text)
    finally:
        end(w)

    def heir(n):  # it has no model to ask
        s = Server(*options(f"heir-{n}.db", *ON, WHATEVER_SPEED), env=HELD)
        return {"s": s, "load": Streams(s, n=TOGETHER)}

    w = until_published(heir, first["source"])  # the seed may have served as well, and come, too
    try:
        found = by_the_agent(w["s"], SLOT)
        assert found["source"] == first["source"] and found["agent"]["label"].startswith("imported: ")
        assert w["s"].metric("whet_agentic_questions_total") == 0
        rows = get(w["s"], f"/admin/trace?slot={SLOT}")["trace"]
        stages = ["proposed", "built", "probed", "benched", "shadowed", "canary", "active"]
        own = [r["event"] for r in reversed(rows) if r.get("kernel") == found["id"] and r["event"] in stages]
        assert own == stages
        assert [r["who"] for r in rows if r["event"] == "imported"] == ["fleet"] * len(served)
        assert found["evidence"]["probe_cases"] > 0
    finally:
        end(w)
