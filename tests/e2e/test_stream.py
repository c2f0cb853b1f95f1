# SPDX-License-Identifier: Apache-2.0
"""Streaming: chunks, ends, usage, and equality with the plain answer."""

import itertools

import pytest
import requests

from conftest import PATIENCE

TEXTS = [
    {"prompt": "The capital of France is", "max_tokens": 12, "temperature": 0},
    {"prompt": "Some emoji: \U0001f600\U0001f680", "max_tokens": 24, "temperature": 1.3, "seed": 5},
    {"prompt": "\u4f60\u597d\uff0c\u4e16\u754c\u3002", "max_tokens": 24, "temperature": 1.3, "seed": 6},
    {"prompt": "Count: one, two, three,", "max_tokens": 24, "temperature": 0,
     "stop": ["six", ", seven", "x, s"]},
    {"prompt": "Hello", "max_tokens": 6, "temperature": 0, "echo": True, "logprobs": 2},
    {"prompt": "Hello", "max_tokens": 6, "temperature": 0, "return_token_ids": True},
]


@pytest.mark.parametrize("body", TEXTS, ids=range(len(TEXTS)))
def test_stream_is_the_plain_answer(server, body):
    plain = server.post("/v1/completions", body).json()["choices"][0]
    chunks = server.stream("/v1/completions", body)
    choices = [c["choices"][0] for c in chunks]
    assert "".join(c["text"] for c in choices) == plain["text"]
    assert [c["finish_reason"] for c in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] == plain["finish_reason"]
    assert choices[-1]["stop_reason"] == plain["stop_reason"]
    if body.get("logprobs"):
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            joined = list(itertools.chain.from_iterable(
                c["logprobs"][key] for c in choices if c["logprobs"]))
            assert joined == plain["logprobs"][key]
    if body.get("return_token_ids"):
        joined = list(itertools.chain.from_iterable(c["token_ids"] for c in choices))
        assert joined == plain["token_ids"]


def test_chunks_share_id_and_shape(server):
    chunks = server.stream("/v1/completions", {"prompt": "Hello", "max_tokens": 5})
    assert len({c["id"] for c in chunks}) == 1
    assert {c["object"] for c in chunks} == {"text_completion"}
    assert all("usage" not in c for c in chunks)
    assert len({(c["created"], c["model"], c["system_fingerprint"]) for c in chunks}) == 1


def test_chat_stream_has_the_role_first_and_once(server):
    body = {"messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 10,
            "temperature": 0}
    plain = server.post("/v1/chat/completions", body).json()["choices"][0]
    chunks = server.stream("/v1/chat/completions", body)
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
    assert deltas[0]["role"] == "assistant"
    assert all("role" not in d for d in deltas[1:])
    assert "".join(d.get("content", "") for d in deltas) == plain["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == plain["finish_reason"]


def test_usage_chunk_when_asked(server):
    body = {"prompt": "Hello", "max_tokens": 5, "temperature": 0,
            "stream_options": {"include_usage": True}}
    chunks = server.stream("/v1/completions", body)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 5
    assert all(c["usage"] is None for c in chunks[:-1])


def test_every_choice_finishes_once(server):
    body = {"prompt": ["One", "Two"], "n": 2, "max_tokens": 4, "seed": 1}
    plain = server.post("/v1/completions", body).json()
    chunks = server.stream("/v1/completions", body)
    finishes, texts = {}, {}
    for chunk in chunks:
        for c in chunk["choices"]:
            texts[c["index"]] = texts.get(c["index"], "") + c["text"]
            if c["finish_reason"]:
                assert c["index"] not in finishes
                finishes[c["index"]] = c["finish_reason"]
    assert sorted(finishes) == [0, 1, 2, 3]
    assert [texts[i] for i in range(4)] == [c["text"] for c in plain["choices"]]


def test_headers_of_a_stream(server):
    with requests.post(server.url + "/v1/completions", stream=True, timeout=PATIENCE,
                       json={"prompt": "Hi", "max_tokens": 2, "stream": True}) as answer:
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["transfer-encoding"] == "chunked"
        assert b"\nid:" not in answer.content


def test_an_early_error_is_plain_json(server):
    answer = server.post("/v1/completions", {"prompt": "x " * 9000, "stream": True})
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    message = answer.json()["error"]["message"]
    assert "8192" in message and "90" in message


def test_stream_to_an_http_1_0_client_ends_with_the_connection(server):
    body = b'{"prompt":"Hi","max_tokens":3,"stream":true}'
    got = server.raw(b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\n"
                     b"Content-Length: %d\r\n\r\n" % len(body) + body)
    head, _, rest = got.partition(b"\r\n\r\n")
    assert b"chunked" not in head and b"Connection: close" in head
    assert rest.startswith(b"data: {") and rest.endswith(b"data: [DONE]\n\n")


def test_tokens_come_one_by_one(server):
    """The first chunks are there long before the last is generated."""
    before = server.metric("whet_generation_tokens_total")
    body = {"prompt": "Tell me", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with requests.post(server.url + "/v1/completions", json=body, stream=True,
                       timeout=PATIENCE) as answer:
        lines = (line for line in answer.iter_lines() if line)
        assert all(next(lines).startswith(b"data: {") for _ in range(20))
        assert server.metric("whet_generation_tokens_total") < before + 4000
    server.wait_metric("whet_requests_running", 0)
