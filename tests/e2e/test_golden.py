# SPDX-License-Identifier: Apache-2.0
"""Greedy text over HTTP is what transformers computes in float32 from the same file."""

import pytest

from golden import GREEDY, assert_writes


@pytest.mark.timing
@pytest.mark.parametrize("case", GREEDY, ids=lambda c: c["name"])
def test_greedy_tokens(server, case):
    assert_writes(server, case)
