# SPDX-License-Identifier: Apache-2.0
"""Texts and models made to keep the tokenizer busy: the server answers, and goes on answering."""

import json
import shutil
import subprocess
import tempfile

import pytest

from conftest import BINARY, PATIENCE, ROOT

GOLDEN = ROOT / "tests/golden/tiny-qwen3"


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(GOLDEN, tmp_path / "model")


def edited(folder, change):
    """The model with something in its tokenizer.json changed."""
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    change(tokenizer)
    path.write_text(json.dumps(tokenizer))
    return str(folder)


def with_nfc(folder):
    return edited(folder, lambda t: t.update(normalizer={"type": "NFC"}))


def with_pattern(folder, pattern):
    """A step more, in front of the tokenizer's own."""
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
             "invert": False}
    return edited(folder, lambda t: t.update(pre_tokenizer={
        "type": "Sequence", "pretokenizers": [split, t["pre_tokenizer"]]}))


def refusal(model):
    """What `whet serve` says about a model that it does not serve."""
    with tempfile.TemporaryDirectory() as store:
        done = subprocess.run([BINARY, "serve", "--model", model, "--port", "0",
                               "--store", f"{store}/store.db"],
                              capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode not in (0, -11, -7), done.stderr
    return done.stderr


def test_marks_in_the_worst_order_are_tokenized(start, folder):
    server = start(model=with_nfc(folder))
    marks = "a" + "\u0301" * 500_000 + "\u0323" * 500_000  # an hour, if each passed all others
    answer = server.post("/tokenize", {"prompt": marks})
    assert answer.status_code == 200, answer.text[:500]
    assert answer.json()["count"] > 500_000
    answer = server.post("/v1/completions", {"prompt": marks, "max_tokens": 1})
    assert answer.status_code == 400
    assert server.get("/health").status_code == 200


def test_a_pattern_that_explodes_fails_the_request_and_not_the_server(start, folder):
    server = start(model=with_pattern(folder, "(?:qq)+[yz]"))
    answer = server.post("/tokenize", {"prompt": "q" * 1_000_000})
    assert answer.status_code == 400
    assert "steps a byte" in answer.json()["error"]["message"]
    assert server.post("/tokenize", {"prompt": "all is well"}).status_code == 200
    assert server.get("/health").status_code == 200


@pytest.mark.parametrize("pattern, words", [
    (r"(?(DEFINE)(a\K))(?=(?1))", "is refused for"), (r"a\K", r"\K"), (r"(?R)", "(?R)"),
    (r"(?:\s*)*[yz]", "steps a byte"),
])
def test_a_pattern_that_would_not_end_is_refused_with_the_model(folder, pattern, words):
    assert words in refusal(with_pattern(folder, pattern))


def test_a_link_out_of_a_models_folder_is_not_followed(folder):
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.jinja").symlink_to("/etc/passwd")
    assert "leads out of the model's folder" in refusal(str(folder))
