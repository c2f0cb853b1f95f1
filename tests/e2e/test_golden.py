# SPDX-License-Identifier: Apache-2.0
"""Greedy text over HTTP is what transformers computes in float32 from the same file."""

import json

import pytest

from conftest import ROOT
from golden import GREEDY, assert_writes

GOLDEN = ROOT / "tests" / "golden"


@pytest.mark.timing
@pytest.mark.parametrize("case", GREEDY, ids=lambda c: c["name"])
def test_greedy_tokens(server, case):
    assert_writes(server, case)


def test_greedy_tokens_of_rare_formats(start):
    """A GGUF file in Q2_K, Q3_K, IQ4_NL, IQ4_XS and MXFP4 (scripts/make-golden-formats)."""
    server = start(model=str(GOLDEN / "tiny-formats.gguf"))
    for case in json.loads((GOLDEN / "tiny-formats.json").read_text())["prompts"]:
        assert_writes(server, case)
