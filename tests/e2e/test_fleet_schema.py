# SPDX-License-Identifier: Apache-2.0
"""Tables of a fleet of which something is missing: a DBA dropped it, a restore left it out. It is named, and
`whet fleet repair` makes it."""

import re
import sqlite3
from contextlib import closing

import pytest

from test_fleet import SLOT, database, fleet, member, online, pg, row_sql, until, whet  # noqa: F401 - fixtures too
from test_fleet_trouble import IDLE, learnt

ENV, KEY = "e" * 16, "a" * 16


@pytest.fixture
def made(pg):  # noqa: F811
    done = whet("migrate", pg=pg)
    assert done.returncode == 0 and "of version 3" in done.stdout, done.stderr
    pg.sql(row_sql(ENV, KEY, "1" * 16))
    return pg


def parts(pg):  # noqa: F811
    """Of all tables, by the catalog: (what it is called, how it is dropped, can it be made again)."""
    tables = [r[0] for r in pg.sql("SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'whet%'")]
    yield from ((f"table {t}", f"DROP TABLE {t}", True) for t in tables)
    yield "sequence whet_seq", "DROP SEQUENCE whet_seq CASCADE", True
    for table, column, default in pg.sql(
            "SELECT attrelid::regclass, attname, atthasdef FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped"
            " AND attrelid IN (SELECT oid FROM pg_class WHERE relkind = 'r' AND relname LIKE 'whet%')"):
        if table == "whet_schema":
            continue
        yield f"({column})", f"ALTER TABLE {table} DROP {column} CASCADE", column == "heard"
        if default == "t":
            yield f"{table} ({column})", f"ALTER TABLE {table} ALTER {column} DROP DEFAULT", True
    for table, name in pg.sql("SELECT conrelid::regclass, conname FROM pg_constraint WHERE contype = 'p'"
                              " AND conrelid::regclass::text LIKE 'whet%'"):
        if table != "whet_schema":
            yield f"uniqueness {table}", f"ALTER TABLE {table} DROP CONSTRAINT {name}", True
    for name, in pg.sql("SELECT indexrelid::regclass FROM pg_index WHERE NOT indisunique"
                        " AND indrelid::regclass::text LIKE 'whet%'"):
        yield f"index {name}", f"DROP INDEX {name}", True


def structure(pg):  # noqa: F811
    """What statements rest on, without the names that indexes have."""
    return pg.sql("SELECT attrelid::regclass::text, attname, format_type(atttypid, NULL), pg_get_expr(adbin, adrelid)"
                  " FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum"
                  " WHERE attnum > 0 AND NOT attisdropped AND attrelid IN (SELECT oid FROM pg_class"
                  " WHERE relkind IN ('r', 'S') AND relname LIKE 'whet%') ORDER BY 1, 2") + pg.sql(
        "SELECT indrelid::regclass::text, indkey::text, indisunique FROM pg_index WHERE indrelid::regclass::text LIKE 'whet%'"
        " ORDER BY 1, 2, 3")


def test_whatever_is_dropped_is_named_and_made_again(made):
    whole, seen = structure(made), 0
    for name, drop, can in list(parts(made)):
        made.sql(drop)
        missing = whet("migrate", pg=made)
        assert missing.returncode == 1 and name in missing.stderr and "whet fleet repair" in missing.stderr, \
            (drop, missing.stdout, missing.stderr)
        status = whet("status", pg=made)
        assert name in status.stdout + status.stderr and status.returncode == (0 if "index" in name else 1), status
        repaired = whet("repair", pg=made)
        if can:
            assert repaired.returncode == 0 and re.search(f"made: .*{re.escape(name)}", repaired.stdout), \
                (drop, repaired.stdout, repaired.stderr)
        else:
            assert repaired.returncode == 1 and "drop the table" in repaired.stderr and name in repaired.stderr
            made.sql("DROP TABLE " + drop.split()[2])
            repaired = whet("repair", pg=made)
            assert repaired.returncode == 0, repaired.stderr
        assert structure(made) == whole, drop
        seen += 1
    assert seen > 60
    assert "version 3, whole" in whet("status", pg=made).stdout


def test_an_index_that_keeps_nothing_unique_is_none(made):
    made.sql("ALTER TABLE whet_kernel DROP CONSTRAINT whet_kernel_pkey;"
             "CREATE UNIQUE INDEX ON whet_kernel (env, key, server) WHERE state = 'active';"
             "CREATE INDEX ON whet_kernel (env, key, server)")
    assert "uniqueness whet_kernel (env,key,server)" in whet("migrate", pg=made).stderr
    made.sql(row_sql(ENV, KEY, "1" * 16, state="retired"))
    twice = whet("repair", pg=made)
    assert twice.returncode == 1 and "nothing was changed" in twice.stderr and "unique" in twice.stderr, twice
    made.sql("DELETE FROM whet_kernel WHERE state = 'retired'; CREATE UNIQUE INDEX ON whet_kernel (key, server, env)")
    made.sql("ALTER ROLE whet SET quote_all_identifiers = on")  # of expressions in the catalog, too
    assert "whole" in whet("status", pg=made).stdout
    made.sql("ALTER ROLE whet RESET quote_all_identifiers")
    made.sql("ALTER TABLE whet_retraction DROP CONSTRAINT whet_retraction_pkey;"
             "CREATE UNIQUE INDEX ON whet_retraction (key, env)")
    for word in ("migrate", "status"):
        done = whet(word, pg=made)
        assert done.returncode == 0, ("a DBA's own index does as well", done.stderr)


def test_a_database_without_tables_is_not_repaired_but_migrated(pg):  # noqa: F811
    for word in ("status", "repair"):
        done = whet(word, pg=pg)
        assert done.returncode == 1 and "whet fleet migrate" in done.stderr, done
    assert pg.sql("SELECT relname FROM pg_class WHERE relname LIKE 'whet%'") == []


def test_tables_of_an_older_version_are_repaired_as_such_and_migrated(made):
    made.sql("ALTER TABLE whet_server DROP heard; DROP TABLE whet_text, whet_verdict; DELETE FROM whet_schema WHERE version > 1")
    assert "table whet_verdict" in whet("status", pg=made).stderr
    repaired = whet("repair", pg=made)
    assert repaired.returncode == 0 and "made: table whet_verdict\n" in repaired.stdout, repaired
    assert "of version 3" in repaired.stdout and whet("migrate", pg=made).returncode == 0


def test_a_server_names_what_is_missing_and_tells_all_when_it_is_there(member, pg, tmp_path):  # noqa: F811
    store = tmp_path / "store.db"
    server = online(member(IDLE, "--store", str(store)))
    env = fleet(server)["env"]
    server.stop()
    learnt(store, env, KEY)
    pg.sql("DROP TABLE whet_lease")
    server = online(member(IDLE, "--store", str(store)))
    assert "not whole, missing: table whet_lease (whet fleet repair)" in server.text()
    until(lambda: pg.sql("SELECT key FROM whet_kernel") == [[KEY]], server.text)
    until(lambda: fleet(server)["troubled"], server.text)

    # While it is connected a table is dropped and made again, by whom it concerns: what was in it comes back.
    pg.sql("DROP TABLE whet_kernel")
    until(lambda: 'relation "whet_kernel" does not exist' in server.text(), server.text)
    assert whet("repair", pg=pg).returncode == 0
    until(lambda: pg.sql("SELECT key FROM whet_kernel") == [[KEY]], server.text)
    assert server.metric("whet_fleet_connects_total") == 1
    with closing(sqlite3.connect(store)) as db:
        assert db.execute("SELECT count(*) FROM candidate").fetchone() == (1,)
