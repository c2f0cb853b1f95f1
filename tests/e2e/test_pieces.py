# SPDX-License-Identifier: Apache-2.0
"""A model with a vocabulary of SentencePiece, from a GGUF file (scripts/make-golden-pieces)."""

import json

import pytest

from conftest import ROOT, Server

GOLDEN = ROOT / "tests" / "golden" / "tokenizer"
VOCAB = json.loads((GOLDEN / "pieces.json").read_text())["model"]["vocab"]
BOS = VOCAB["<s>"]


@pytest.fixture(scope="module")
def pieces():
    server = Server(model=str(GOLDEN / "pieces.gguf"))
    yield server
    server.stop()


def complete(server, prompt, token, count, **more):
    """The choice of a completion in which one token is drawn again and again."""
    reply = server.post("/v1/completions", {"prompt": prompt, "max_tokens": count, "temperature": 0,
                                            "logit_bias": {str(token): 100}, **more})
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]


def test_texts_become_the_ids_of_sentencepiece(pieces):
    texts = (GOLDEN / "pieces.txt").read_text().split("\n")
    expected = (GOLDEN / "pieces.ids").read_text().split("\n")
    plain = [n for n, text in enumerate(texts) if text and "\\" not in text]
    assert len(plain) > 200
    for n in plain[::5]:
        reply = pieces.post("/tokenize", {"prompt": texts[n]})
        assert reply.json()["tokens"] == [BOS] + [int(i) for i in expected[n].split()]


def test_a_text_comes_back(pieces):
    text = "  int main(void) { 中😀\n\treturn  0; }"
    ids = pieces.post("/tokenize", {"prompt": text}).json()["tokens"]
    assert pieces.post("/detokenize", {"tokens": ids[1:]}).json()["prompt"] == text
    assert pieces.post("/detokenize", {"tokens": ids}).json()["prompt"] == "<s> " + text


def test_the_space_in_front_is_left_out_where_the_answer_begins_the_text(pieces):
    word = VOCAB["\u2581the"]
    assert complete(pieces, [BOS], word, 2)["text"] == "the the"
    assert complete(pieces, "int", word, 2)["text"] == " the the"
    assert complete(pieces, "int", word, 2, echo=True)["text"] == "int the the"


def test_characters_are_made_of_byte_tokens(pieces):
    half = [BOS, VOCAB["<0xE2>"], VOCAB["<0x82>"]]
    assert complete(pieces, half, VOCAB["<0xAC>"], 1)["text"] == "€"
    assert complete(pieces, half, VOCAB["<0xAC>"], 1, echo=True)["text"] == "<s>€"


def test_offsets_of_tokens(pieces):
    word = VOCAB["\u2581the"]
    lists = complete(pieces, [BOS], word, 2, logprobs=1)["logprobs"]
    assert lists["tokens"] == [" the", " the"]
    assert lists["text_offset"] == [0, 3]
    lists = complete(pieces, "int x", word, 1, logprobs=1, echo=True)["logprobs"]
    text = "int x the"
    ids = pieces.post("/tokenize", {"prompt": "int x"}).json()["tokens"]
    assert len(lists["tokens"]) == len(ids) + 1
    assert lists["text_offset"][:2] == [0, 0]  # <s> is not in the text
    for token, offset in zip(lists["tokens"][2:], lists["text_offset"][2:]):
        assert text[offset:].startswith(token)


def test_a_template_writes_bos_itself(pieces):
    """Nothing is put in front of what a chat template makes."""
    reply = pieces.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "int x"}], "max_tokens": 1})
    assert reply.status_code == 200, reply.text
    tokens = pieces.post("/tokenize", {"prompt": "<s>[INST] int x [/INST]", "add_special_tokens": False})
    assert tokens.json()["tokens"][:2] == [BOS, VOCAB["[INST]"]]
    assert reply.json()["usage"]["prompt_tokens"] == tokens.json()["count"]


def test_a_stop_string_over_pieces(pieces):
    word = VOCAB["\u2581the"]
    choice = complete(pieces, "int", word, 8, stop=["the the th"])
    assert choice["text"] == " " and choice["finish_reason"] == "stop"
