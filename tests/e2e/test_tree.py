# SPDX-License-Identifier: Apache-2.0
"""The scripts that hold the tree to its own rules see what is wrong, and mend it where they can."""

import shutil
import subprocess

import pytest

from conftest import ROOT

pytestmark = pytest.mark.once

LINE = "SPDX-License-Identifier: Apache-2.0"


def plant(folder, files):
    """A tree of these files, text by name."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def run(folder, script, *words):
    """The script as one of the tree in `folder`: its exit status and what it said."""
    copy = folder / "scripts" / script
    if not copy.exists():
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / "scripts" / script, copy)
    done = subprocess.run([copy, *words], capture_output=True, text=True)
    return done.returncode, done.stdout


def test_a_source_without_a_licence_is_found_and_gets_its_line(tmp_path):
    plant(tmp_path, {
        "meson.build": f"# {LINE}\nproject('x')\n", "meson_options.txt": f"# {LINE}\n",
        "engine/plan.c": "/* plan.c */\nint x;\n", "scripts/serve": "#!/bin/sh\necho\n",
        "server/dashboard/index.html": "<!doctype html>\n<html></html>\n",
        "tests/golden/data.py": "data\n", "specializer/prompts/seed.c": "data\n"})
    code, said = run(tmp_path, "spdx")
    assert code == 1
    for name in ("engine/plan.c", "scripts/serve", "server/dashboard/index.html"):
        assert f"{name} does not say" in said
    assert "golden" not in said and "prompts" not in said and "meson" not in said
    run(tmp_path, "spdx", "--fix")
    assert run(tmp_path, "spdx")[0] == 0
    assert (tmp_path / "engine/plan.c").read_text() == f"/* {LINE} */\n/* plan.c */\nint x;\n"
    assert (tmp_path / "scripts/serve").read_text() == f"#!/bin/sh\n# {LINE}\necho\n"
    page = (tmp_path / "server/dashboard/index.html").read_text()
    assert page == f"<!doctype html>\n<!-- {LINE} -->\n<html></html>\n"
    assert (tmp_path / "specializer/prompts/seed.c").read_text() == "data\n"
    before = {p: p.read_text() for p in tmp_path.rglob("*") if p.is_file()}
    run(tmp_path, "spdx", "--fix")  # a second time changes nothing
    assert before == {p: p.read_text() for p in before}


def test_a_guard_of_another_name_is_found_and_renamed(tmp_path):
    guard = "#ifndef {0}\n#define {0}\n#ifndef N\n#define N\n#endif\n#endif\n"
    plant(tmp_path, {"engine/cuda/a.h": guard.format("WHET_ENGINE_A_H"),
                     "engine/none.h": "int x;\n",
                     "engine/twice.h": "/* no include guard on purpose */\n"})
    code, said = run(tmp_path, "check-guards")
    assert code == 1 and "engine/cuda/a.h has the guard WHET_ENGINE_A_H" in said
    assert "engine/none.h has no include guard" in said and "twice" not in said
    run(tmp_path, "check-guards", "--fix")
    assert (tmp_path / "engine/cuda/a.h").read_text() == guard.format("WHET_ENGINE_CUDA_A_H")


def test_a_name_of_no_file_and_a_source_that_nobody_builds_are_found(tmp_path):
    plant(tmp_path, {"README.md": "`engine/plan.c`, `engine/gone.c`, `life.h`, `scripts/nothing`\n",
                     "ARCHITECTURE.md": "`plan_walk()`, `PLAN_ALL()`, `plan_gone()`\n",
                     "engine/meson.build": "files('plan.c', 'plan_order.c', 'rows.h')\n",
                     "engine/plan_order.c": "static int *plan_walk(int x)\n{\n    plan_gone();\n}\n"
                                            "#define PLAN_ALL(x) x\n",
                     "engine/plan.c": "/* see specializer/gone.h, and kernels/<file>.def:\n"
                                       " * plan_walk() or plan_lost() */\n",
                     "config/options.def": 'OPT_INT(engine, port, 0, 0, 9, "")\nOPT_INT(engine, lost, 0, 0, 9, "")\n',
                     "config/meson.build": "files('options.def')\n",
                     "engine/rows.h": "int port = ENGINE_C(engine_port); /* engine_lost */\n",
                     "engine/orphan.c": "int x;\n", "kernels/cpu/new.def": "KNOB(ROWS, ROWS, 1, V(1))\nKNOB(LOST, DEAL, 0, V(0))\n",
                     "kernels/cpu/lib/rows.h": "int rows = ROWS; /* not LOST */\n",
                     "kernels/templates_cuda.def": "TEMPLATE(a_out, REGION_MLP_OUT, a, 1, 4, \"\")\n"
                                                   "TEMPLATE(b_out, REGION_MLP_OUT, b, 1, 4, \"\")\n"
                                                   "LIBRARY(lt_out, REGION_MLP_OUT, lt, 1, 4, \"\")\n",
                     "kernels/README.md": "a\n\n## Templates\n\n| `b.cu` |\n\n## Else\n\n`lt.def`\n",
                     "tests/kernels/test_bad.c":
                     '    {"sleeps", OUT},\n    {"forks", OUT},\n    {"good_one", OUT},\n',
                     "docs/specializer.md": "`sleeps`\n",
                     "tests/kernels/meson.build": "files('test_bad.c')\n",
                     "tests/kernels/bad/sleeps.c": "", "tests/kernels/bad/lies.c": ""})
    code, said = run(tmp_path, "check-lists")
    of_ours = [line for line in said.splitlines() if not line.startswith("scripts/check-lists ")]
    assert code == 1 and sorted(of_ours) == [
        "ARCHITECTURE.md names plan_gone(), which is not there",
        "README.md names engine/gone.c, which is not there",
        "README.md names life.h, which is not there",
        "README.md names scripts/nothing, which is not there",
        "a.cu of kernels/templates_cuda.def is not in the templates' table of kernels/README.md",
        "config/options.def: nothing reads engine.lost (the member engine_lost of struct config)",
        "engine/orphan.c is in no meson.build",
        "engine/plan.c names plan_lost(), which is not there",
        "engine/plan.c names specializer/gone.h, which is not there",
        "forks of tests/kernels/test_bad.c is not in docs/specializer.md",
        "kernels/cpu/new.def is in no meson.build",
        "kernels/cpu/new.def: nothing reads the knob LOST",
        "lt.def of kernels/templates_cuda.def is not in the templates' table of kernels/README.md",
        "tests/kernels/bad/lies.c has no row in tests/kernels/test_bad.c"]


def test_who_counts_the_cpus_of_the_machine_is_found(tmp_path):
    text = "int n(void)\n{\n    return (int)sysconf(_SC_NPROCESSORS_ONLN);\n}\n"
    plant(tmp_path, {"engine/meson.build": "files('plan.c')\n", "engine/plan.c": text,
                     "config/meson.build": "files('cores.c')\n", "config/cores.c": text})
    code, said = run(tmp_path, "check-lists")
    assert code == 1 and "engine/plan.c counts the CPUs" in said and "config/cores.c" not in said


def test_the_marks_of_a_merge_are_found(tmp_path):
    ours, theirs = "<" * 7 + " HEAD\n", ">" * 7 + " branch\n"
    plant(tmp_path, {"README.md": ours + "one\n=======\nother\n" + theirs,
                     "engine/meson.build": "files('plan.c')\n",
                     "engine/plan.c": "/* one\n" + theirs + " */\n",
                     "docs/title.md": "Title\n=======\n"})
    code, said = run(tmp_path, "check-lists")
    assert code == 1 and "README.md has the marks of a merge" in said
    assert "engine/plan.c has the marks of a merge" in said and "title" not in said


def test_a_file_that_is_not_laid_out_is_found(tmp_path):
    plant(tmp_path, {"README.md": "two spaces break a line  \nend\n", "docs/a.md": "blank \n",
                     "engine/a.c": "int x;", "engine/b.c": "int x;\r\n", "engine/c.h": "\tint x;\n",
                     "tests/golden/d.c": "int x; \n"})
    code, said = run(tmp_path, "check-format")
    lines = [line for line in said.splitlines() if "clang-format" not in line]
    assert code == 1 and lines == [
        "docs/a.md: line 1 has blanks at its end", "engine/a.c: does not end with a line feed",
        "engine/b.c: line 1 ends with a carriage return", "engine/c.h: line 1 is indented by a tab"]
    (tmp_path / ".clang-format").write_text("BasedOnStyle: LLVM\n")
    (tmp_path / "engine/a.c").write_text("int   x;\n")
    said = run(tmp_path, "check-format")[1]
    assert ("engine/a.c: clang-format (14) writes it differently; --fix does so" in said
            or "no clang-format" in said)
    if "no clang-format" not in said:
        assert "engine/a.c" not in run(tmp_path, "check-format", "--fix")[1]
        assert (tmp_path / "engine/a.c").read_text() == "int x;\n"


def test_what_is_too_long_and_a_header_of_one_file_are_found(tmp_path):
    body = "int f(void)\n{\n" + "    x++;\n" * 74 + "}\n"
    short = "int g(void)\n{\n" + "    x++;\n" * 73 + "}\n"
    plant(tmp_path, {"engine/long.c": "int x;\n" * 501, "engine/a.c": short + body + "int y;\n" * 44,
                     "engine/b.c": '#include "engine/one.h"\n' + "int y;\n" * 300,
                     "engine/c.c": '#include "engine/c.h"\n' + "int y;\n" * 200, "engine/c.h": "int c;\n",
                     "engine/one.h": "int one;\n", "engine/two.h": "int two;\n" * 40})
    code, said = run(tmp_path, "check-sizes")
    assert code == 1 and said.splitlines() == [
        "4 sources of 1200 lines: median 251, longest 501; 3 headers",
        "engine/long.c has 501 lines", "engine/a.c:78 begins a function of 76 lines",
        "engine/one.h has 1 lines, and engine/b.c alone includes it"]
    (tmp_path / "engine/b.c").write_text("int y;\n")
    (tmp_path / "engine/c.c").write_text("int y;\n")
    assert "the median of all sources is 99 lines" in run(tmp_path, "check-sizes")[1]
