#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No folders of this tree include each other, none includes what is private to another, and
scripts/check-includes would see it if they did.

  test_includes.py ROOT       the tree as it is, then small trees with something planted
"""
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop())


def check(root):
    """(exit status, what it printed)"""
    run = subprocess.run([sys.executable, ROOT / "scripts" / "check-includes", root],
                         capture_output=True, text=True, check=False)
    return run.returncode, run.stdout + run.stderr


def tree(files):
    folder = tempfile.TemporaryDirectory()
    for name, text in files.items():
        path = pathlib.Path(folder.name, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


GOOD = {
    "low/low.h": "int low(void);\n",
    "low/low.c": '#include "low/low.h"\n',
    "middle/middle.h": '#include "low/low.h"\n',
    "high/high.c": '#include "middle/middle.h"\n#include "low/low.h"\n#include <stdio.h>\n',
}


class Includes(unittest.TestCase):
    def planted(self, more, *said):
        with tree(GOOD | more) as root:
            status, out = check(root)
        self.assertEqual(status, 1, out)
        for line in said:
            self.assertIn(line, out)

    def test_this_tree_has_no_cycle(self):
        status, out = check(ROOT)
        self.assertEqual(status, 0, out)
        self.assertIn("specializer -> specializer/candidate: ", out)
        self.assertIn("specializer/candidate -> kernels/cpu: ", out)  # by way of a macro
        self.assertRegex(out, r"\n\d{2,} folders, \d{3,} pairs, \d{4,} includes, 0 cycles\n")

    def test_a_tree_without_one_passes_with_its_counts(self):
        with tree(GOOD) as root:
            status, out = check(root)
        self.assertEqual((status, out), (0, "high -> low: 1\nhigh -> middle: 1\nmiddle -> low: 1\n"
                                            "3 folders, 3 pairs, 3 includes, 0 cycles\n"))

    def test_a_back_include_is_found_and_both_ways_are_named(self):
        self.planted({"low/back.c": '#include "middle/middle.h"\n'},
                     "these folders include each other: low, middle\n",
                     "  low/back.c includes middle/middle.h\n",
                     "  middle/middle.h includes low/low.h\n")

    def test_a_longer_way_round_is_found(self):
        self.planted({"high/high.h": "", "low/back.h": '#  include "../high/high.h"\n'},
                     "these folders include each other: high, low, middle\n",
                     "  low/back.h includes high/high.h\n")

    def test_a_folder_below_another_is_one_of_its_own(self):
        self.planted({"low/part/part.h": '#include "low/low.h"\n',
                      "low/whole.c": '#include "part/part.h"\n'},
                     "these folders include each other: low, low/part\n")

    def test_a_table_that_a_macro_names_counts(self):
        self.planted({"high/knobs.def": "", "low/table.c": '#define TABLE_DEF "high/knobs.def"\n'
                                                           "#include TABLE_DEF\n"},
                     "  low/table.c includes high/knobs.def\n")

    def test_what_is_nowhere_is_a_failure(self):
        self.planted({"low/lost.c": '#include "low/gone.h"\n'},
                     'low/lost.c includes "low/gone.h", which is nowhere\n')

    def test_a_private_header_is_for_its_own_top_folder_and_for_tests(self):
        inside = {"low/part/low_private.h": "", "low/whole.c": '#include "part/low_private.h"\n',
                  str(pathlib.Path("tests", "low.c")): '#include "low/part/low_private.h"\n'}
        with tree(GOOD | inside) as root:
            self.assertEqual(check(root)[0], 0)
        self.planted(inside | {"high/nosy.c": '#include "low/part/low_private.h"\n'},
                     "high/nosy.c includes low/part/low_private.h, which is private to low/\n")

    def test_a_build_folder_is_not_looked_at_and_nothing_at_all_fails(self):
        built = {"out/build.ninja": "", "out/made.c": '#include "nowhere.h"\n'}
        with tree(GOOD | built) as root, tree(built) as bare:
            self.assertEqual(check(root)[0], 0)
            self.assertEqual(check(bare)[0], 1)


if __name__ == "__main__":
    unittest.main()
