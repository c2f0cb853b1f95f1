# SPDX-License-Identifier: Apache-2.0
"""What the role of a fleet's servers may not do is named before it fails, with the statement that gives it."""

import re
import subprocess

import pytest

from conftest import BINARY
from test_fleet import database, fleet, member, online, pg, until  # noqa: F401 - fixtures too
from test_fleet_trouble import IDLE
from test_fleet_words import Store

TABLES = [f"whet_{name}" for name in ("server", "kernel", "retraction", "verdict", "lease", "text")]
ALL = "SELECT, INSERT, UPDATE, DELETE"


@pytest.fixture
def made(pg):  # noqa: F811
    """Tables in a schema of their own, and a role that has the rights that servers need and no more."""
    pg.sql("CREATE ROLE \"few rights\" LOGIN; ALTER ROLE \"few rights\" SET search_path = fleet;"
           "CREATE SCHEMA fleet")
    pg.owner = pg.uri + "?options=-csearch_path%3Dfleet"
    pg.server = pg.uri.replace("whet@", "few%20rights@")
    done = subprocess.run([BINARY, "fleet", "migrate", "--specializer-fleet", pg.owner], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pg.sql("GRANT USAGE ON SCHEMA fleet TO \"few rights\"; GRANT SELECT ON whet_schema TO \"few rights\";"
           "GRANT USAGE ON SEQUENCE whet_seq TO \"few rights\";" +
           ";".join(f"GRANT {ALL} ON {t} TO \"few rights\"" for t in TABLES), pg.owner)
    yield pg
    pg.sql("GRANT EXECUTE ON FUNCTION pg_notify(text, text), pg_advisory_xact_lock(bigint) TO PUBLIC;"
           "DROP SCHEMA fleet CASCADE; DROP OWNED BY \"few rights\"; DROP ROLE \"few rights\"")


def status(pg):  # noqa: F811
    return subprocess.run([BINARY, "fleet", "status", "--specializer-fleet", pg.server], capture_output=True,
                          text=True, timeout=120)


def test_each_right_that_is_missing_is_named_with_the_grant_that_gives_it(made):
    whole = status(made)
    assert whole.returncode == 0 and "rights of role few rights: all that servers need" in whole.stdout, whole
    some = [(right, table) for table in TABLES for right in ALL.split(", ")] + \
        [("SELECT", "whet_schema"), ("USAGE", "SEQUENCE whet_seq"), ("USAGE", "SCHEMA fleet"),
         ("EXECUTE", "FUNCTION pg_notify(text,text)"), ("EXECUTE", "FUNCTION pg_advisory_xact_lock(bigint)")]
    for right, on in some:
        made.sql(f"REVOKE {right} ON {on} FROM \"few rights\", PUBLIC", made.owner)
        lacks = status(made)
        assert lacks.returncode == 1 and "has not all rights that servers need" in lacks.stderr, (on, right, lacks)
        grants = re.findall(r"^  (GRANT .*;)$", lacks.stdout, re.M)
        assert len(grants) == 1 and right in grants[0] and on.split()[-1] in grants[0], (on, right, grants)
        made.sql(grants[0])  # by somebody with another search_path
        assert status(made).returncode == 0, (on, right)


def test_rights_on_all_columns_are_enough_and_on_some_are_not(made):
    made.sql("REVOKE UPDATE ON whet_lease FROM \"few rights\";"
             "GRANT UPDATE (env, slot, server, since) ON whet_lease TO \"few rights\"", made.owner)
    assert "UPDATE on whet_lease" in status(made).stderr
    made.sql("GRANT UPDATE (until) ON whet_lease TO \"few rights\"", made.owner)
    assert status(made).returncode == 0


def test_what_is_listed_is_all_that_a_server_needs_and_one_that_lacks_some_says_so(member, made, tmp_path):
    store = Store(member, tmp_path / "store.db")
    made.sql("INSERT INTO whet_server(server, env, name, version, device, seen) VALUES"
             f" ('{'1' * 16}', '{store.env}', 'old', '1', 'd', now() - interval '8 days')", made.owner)
    store.say("a" * 16)
    store.say("b" * 16, verdict=1)
    server = online(member(IDLE, "--store", str(store.path), uri=made.server))
    until(lambda: made.sql("SELECT key FROM whet_retraction", made.owner) == [["a" * 16]], server.text)
    until(lambda: made.sql("SELECT key FROM whet_verdict", made.owner) == [["b" * 16]], server.text)
    until(lambda: server.metric("whet_fleet_pruned_total") == 1, server.text)
    assert fleet(server)["listed"] and fleet(server)["winners"] == []
    assert server.metric("whet_fleet_errors_total") == 0 and "lacks rights" not in server.text()
    server.stop()

    made.sql("REVOKE DELETE ON whet_lease FROM \"few rights\"; REVOKE INSERT, UPDATE ON whet_text FROM \"few rights\"",
             made.owner)
    server = online(member(IDLE, "--store", str(store.path), uri=made.server))
    assert "role few rights lacks rights: DELETE on whet_lease; INSERT, UPDATE on whet_text" in server.text()
