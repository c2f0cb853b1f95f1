# SPDX-License-Identifier: Apache-2.0
"""`whet fleet export`: all that a fleet knows, however much that is, as one file that another store takes."""

import json

import pytest

from test_fleet import database, pg, row_sql, whet  # noqa: F401 - fixtures too

TELL = ("INSERT INTO whet_kernel(env, key, server, slot, template, source, knobs, state, own_s, speed, reason,"
        " evidence) SELECT ")


@pytest.fixture
def made(pg):  # noqa: F811
    assert whet("migrate", pg=pg).returncode == 0
    return pg


def exported(file):
    return json.loads(file.read_text())["kernels"]


def test_all_kernels_and_texts_are_exported_the_fastest_of_each_slot_first(made, tmp_path):
    """20,000 kernels of two environments, of some two servers know, and 600 texts."""
    made.sql(TELL + "repeat(e, 16), lpad(to_hex(n), 16, '0'), repeat(s, 16), 'mlp_out/m' || (n % 4 + 1), 'mlp_out', repeat('0', 16),"
             " 'N=' || n, 'active', 1e-5, 1 + n * 1e-4, '', '{}' FROM generate_series(1, 10000) n,"
             " unnest('{e,f}'::text[]) e, unnest('{1,2}'::text[]) s WHERE s = '1' OR n % 2 = 0;"
             "INSERT INTO whet_retraction(env, key, slot, server, name, reason) VALUES"
             f" ('{'e' * 16}', lpad(to_hex(7), 16, '0'), 'mlp_out/m4', '', 'x', 'wrong');"
             "INSERT INTO whet_text(env, slot, source, server, body) SELECT repeat('e', 16), 'mlp_in/m1',"
             " lpad(to_hex(n), 16, '0'), repeat('1', 16), CASE n WHEN 3 THEN 'no row' ELSE"
             " json_build_object('slot', 'mlp_in/m1', 'n', n)::text END FROM generate_series(1, 600) n")
    file = tmp_path / "fleet.json"
    file.write_text("older")
    done = whet("export", str(file), pg=made)
    assert done.returncode == 0 and "19999 kernels, 599 texts" in done.stderr, done.stderr
    rows = exported(file)
    kernels, texts = rows[:19999], rows[19999:]
    assert len({(r["env"], r["id"]) for r in kernels}) == 19999 and {t["n"] for t in texts} == set(range(1, 601)) - {3}
    first = kernels[:8]
    assert sorted((r["env"], r["slot"]) for r in first) == sorted(
        (e * 16, f"mlp_out/m{m}") for e in "ef" for m in (1, 2, 3, 4)), "an import has room for some of each slot"
    assert {r["speed"] for r in first} == {2, 1.9999, 1.9998, 1.9997}
    assert [f.name for f in tmp_path.iterdir()] == ["fleet.json"]

    out = whet("export", "-", pg=made)
    assert json.loads(out.stdout)["kernels"] == rows


def test_what_fails_leaves_the_file_that_was_there(made, tmp_path):
    file = tmp_path / "fleet.json"
    file.write_text("older")
    made.sql("DROP TABLE whet_text;" + row_sql("e" * 16, "a" * 16, "1" * 16))
    done = whet("export", str(file), pg=made)
    assert done.returncode == 1 and 'relation "whet_text" does not exist' in done.stderr
    assert file.read_text() == "older" and [f.name for f in tmp_path.iterdir()] == ["fleet.json"]
    nowhere = whet("export", str(tmp_path / "no" / "file"), pg=made)
    assert nowhere.returncode == 1 and "No such file" in nowhere.stderr
    full = whet("export", "/dev/full", pg=made)
    assert full.returncode == 1
