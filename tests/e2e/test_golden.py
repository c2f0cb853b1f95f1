# SPDX-License-Identifier: Apache-2.0
"""Greedy text over HTTP is what transformers computes in float32 from the same file."""

import json
import shutil

import pytest

from conftest import ROOT
from golden import GREEDY, assert_writes

GOLDEN = ROOT / "tests" / "golden"


@pytest.mark.once  # float32 of a real model, which takes a sanitized build minutes
@pytest.mark.parametrize("case", GREEDY, ids=lambda c: c["name"])
def test_greedy_tokens(server, case):
    assert_writes(server, case)


def test_greedy_tokens_of_rare_formats(start):
    """A GGUF file in Q2_K, Q3_K, IQ4_NL, IQ4_XS and MXFP4 (scripts/make-golden-formats)."""
    server = start(model=str(GOLDEN / "tiny-formats.gguf"))
    for case in json.loads((GOLDEN / "tiny-formats.json").read_text())["prompts"]:
        assert_writes(server, case)


CHECKPOINTS = sorted(p.name for p in (GOLDEN / "checkpoints").iterdir() if p.is_dir())


def test_there_are_checkpoints():
    assert len(CHECKPOINTS) >= 11


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_greedy_tokens_of_quantized_checkpoints(start, tmp_path, name):
    """FP8, AWQ, GPTQ and compressed-tensors (scripts/make-golden-checkpoints)."""
    for file in (GOLDEN / "checkpoints" / name).iterdir():
        shutil.copy(file, tmp_path)
    for file in "tokenizer.json", "tokenizer_config.json":
        shutil.copy(GOLDEN / "tiny-qwen3" / file, tmp_path)
    server = start(model=str(tmp_path))
    for case in json.loads((GOLDEN / "checkpoints" / f"{name}.json").read_text())["prompts"]:
        assert_writes(server, case)


ROPE = json.loads((GOLDEN / "rope-models.json").read_text())


@pytest.mark.parametrize("case", ROPE, ids=lambda c: c["case"])
def test_greedy_tokens_beyond_the_original_context(start, tmp_path, case):
    """What config.json may say of rotary frequencies (scripts/make-golden-rope)."""
    model = tmp_path / "model"
    shutil.copytree(GOLDEN / case["model"], model)
    config = json.loads((model / "config.json").read_text())
    del config["rope_parameters"]
    (model / "config.json").write_text(json.dumps(config | case["config"]))
    server = start(model=str(model))
    for prompt in case["prompts"]:
        assert_writes(server, prompt)
