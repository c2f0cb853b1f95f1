# SPDX-License-Identifier: Apache-2.0
"""Wrong requests: each gets its status and names the parameter; none is a 5xx."""

import re
import time

import pytest
import requests

from conftest import NAME, PATIENCE, ROOT

USER = [{"role": "user", "content": "x"}]

COMPLETIONS = [
    # body, status, param
    ({}, 400, "prompt"),
    ({"prompt": None}, 400, "prompt"),
    ({"prompt": 3}, 400, "prompt"),
    ({"prompt": {}}, 400, "prompt"),
    ({"prompt": []}, 400, "prompt"),
    ({"prompt": ""}, 400, "prompt"),
    ({"prompt": [[]]}, 400, "prompt"),
    ({"prompt": ["a", 3]}, 400, "prompt"),
    ({"prompt": [1, "a"]}, 400, "prompt"),
    ({"prompt": [1.5]}, 400, "prompt"),
    ({"prompt": [-1]}, 400, "prompt"),
    ({"prompt": [10**9]}, 400, "prompt"),
    ({"prompt": [None]}, 400, "prompt"),
    ({"prompt": ["x"] * 300}, 400, "prompt"),
    ({"prompt": "x", "model": "gpt-4"}, 404, "model"),
    ({"prompt": "x", "model": 5}, 400, "model"),
    ({"prompt": "x", "n": 0}, 400, "n"),
    ({"prompt": "x", "n": 1000}, 400, "n"),
    ({"prompt": "x", "max_tokens": -1}, 400, "max_tokens"),
    ({"prompt": "x", "max_tokens": "many"}, 400, "max_tokens"),
    ({"prompt": "x", "max_tokens": 8192}, 400, "max_tokens"),
    ({"prompt": "x", "min_tokens": 20, "max_tokens": 10}, 400, "min_tokens"),
    ({"prompt": "x", "temperature": -1}, 400, "temperature"),
    ({"prompt": "x", "temperature": 2.5}, 400, "temperature"),
    ({"prompt": "x", "temperature": "warm"}, 400, "temperature"),
    ({"prompt": "x", "top_p": 1.5}, 400, "top_p"),
    ({"prompt": "x", "top_k": -5}, 400, "top_k"),
    ({"prompt": "x", "min_p": -0.1}, 400, "min_p"),
    ({"prompt": "x", "presence_penalty": 3}, 400, "presence_penalty"),
    ({"prompt": "x", "frequency_penalty": -3}, 400, "frequency_penalty"),
    ({"prompt": "x", "repetition_penalty": 0}, 400, "repetition_penalty"),
    ({"prompt": "x", "seed": 1.5}, 400, "seed"),
    ({"prompt": "x", "stop": 7}, 400, "stop"),
    ({"prompt": "x", "stop": [""]}, 400, "stop"),
    ({"prompt": "x", "stop": ["s"] * 17}, 400, "stop"),
    ({"prompt": "x", "stop_token_ids": [10**6]}, 400, "stop_token_ids"),
    ({"prompt": "x", "logprobs": 100}, 400, "logprobs"),
    ({"prompt": "x", "logprobs": True}, 400, "logprobs"),
    ({"prompt": "x", "logit_bias": {"x": 1}}, 400, "logit_bias"),
    ({"prompt": "x", "logit_bias": {"1": 500}}, 400, "logit_bias"),
    ({"prompt": "x", "logit_bias": [1]}, 400, "logit_bias"),
    ({"prompt": "x", "best_of": 2}, 400, "best_of"),
    ({"prompt": "x", "suffix": "y"}, 400, "suffix"),
    ({"prompt": "x", "stream": "yes"}, 400, "stream"),
    ({"prompt": "x", "stream_options": {"include_usage": True}}, 400, "stream_options"),
    ({"prompt": "x", "echo": "yes"}, 400, "echo"),
    ({"prompt": "x", "response_format": {"type": "json_object"}}, 400, "response_format"),
    ({"prompt": "x", "guided_choice": ["a", "b"]}, 400, "guided_choice"),
    ({"prompt": "x", "bad_words": ["y"]}, 400, "bad_words"),
    ({"prompt": "x", "allowed_token_ids": [1]}, 400, "allowed_token_ids"),
    ({"prompt": "x", "use_beam_search": True}, 400, "use_beam_search"),
]

CHAT = [
    ({}, 400, "messages"),
    ({"messages": []}, 400, "messages"),
    ({"messages": "hi"}, 400, "messages"),
    ({"messages": {}}, 400, "messages"),
    ({"messages": ["hi"]}, 400, "messages[0]"),
    ({"messages": [{}]}, 400, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, 400, "messages[0].content"),
    ({"messages": [{"role": "robot", "content": "x"}]}, 400, "messages[0].role"),
    ({"messages": [{"role": 5, "content": "x"}]}, 400, "messages[0].role"),
    ({"messages": USER + [{"role": "user", "content": 5}]}, 400, "messages[1].content"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 400, "messages[0].content"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, 400, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}]}, 400,
     "messages[0].content"),
    ({"messages": [{"role": "assistant", "content": None, "function_call": {
        "name": "f", "arguments": "{}"}}] + USER}, 400, "messages[0].function_call"),
    ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}] + USER},
     400, "messages[0].tool_calls"),
    ({"messages": [{"role": "assistant", "content": "x", "tool_calls": {"id": "a"}}] + USER},
     400, "messages[0].tool_calls"),
    ({"messages": [{"role": "assistant", "content": "x", "tool_calls": "f()"}] + USER},
     400, "messages[0].tool_calls"),
    ({"messages": [{"role": "assistant", "content": "x", "tool_calls": True}] + USER},
     400, "messages[0].tool_calls"),
    ({"messages": USER + [{"role": "assistant", "content": "x", "function_call": 5}]},
     400, "messages[1].function_call"),
    ({"messages": USER + [{"role": "assistant", "content": "x", "function_call": [1]}]},
     400, "messages[1].function_call"),
    ({"messages": [{"role": "assistant", "content": None, "audio": {"id": "a"}}] + USER}, 400, "messages[0].audio"),
    ({"messages": [{"role": "assistant", "content": None, "refusal": 5}] + USER}, 400, "messages[0].refusal"),
    ({"messages": [{"role": "assistant", "content": "Yes.", "refusal": "No."}] + USER}, 400, "messages[0].refusal"),
    ({"messages": [{"role": "assistant", "content": [{"type": "refusal", "text": "No."}]}] + USER}, 400,
     "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "refusal", "refusal": "No."}]}]}, 400, "messages[0].content"),
    ({"messages": USER, "documents": [{"text": "x"}]}, 400, "documents"),
    ({"messages": USER, "web_search_options": {}}, 400, "web_search_options"),
    ({"messages": USER, "model": "gpt-4o"}, 404, "model"),
    ({"messages": USER, "max_tokens": 0}, 400, "max_tokens"),
    ({"messages": USER, "max_completion_tokens": 0}, 400, "max_completion_tokens"),
    ({"messages": USER, "max_completion_tokens": 100000}, 400, "max_completion_tokens"),
    ({"messages": USER, "logprobs": 3}, 400, "logprobs"),
    ({"messages": USER, "top_logprobs": 3}, 400, "top_logprobs"),
    ({"messages": USER, "logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
    ({"messages": USER, "tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "tools"),
    ({"messages": USER, "response_format": {"type": "json_schema"}}, 400, "response_format"),
    ({"messages": USER, "add_generation_prompt": True, "continue_final_message": True}, 400,
     "continue_final_message"),
    ({"messages": USER, "chat_template": "{{ x }}"}, 400, "chat_template"),
]


def check(answer, status, param):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    assert len(error["message"]) > 10
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("body,status,param", COMPLETIONS, ids=lambda v: str(v)[:60])
def test_completions(server, body, status, param):
    check(server.post("/v1/completions", body), status, param)


@pytest.mark.parametrize("body,status,param", CHAT, ids=lambda v: str(v)[:60])
def test_chat(server, body, status, param):
    check(server.post("/v1/chat/completions", body), status, param)


def refused_on_the_page():
    """The members that docs/http.md lists as refused, all of which may be there and say nothing."""
    page = (ROOT / "docs" / "http.md").read_text()
    words = page[page.index("**Refused with 400"):page.index("All of them may be there as null, false or empty")]
    return sorted(set(re.findall(r"`([a-z_]{3,})`", words)) - {"unsupported", "none", "auto"})


@pytest.mark.parametrize("nothing", [None, False, "", [], {}], ids=repr)
def test_what_is_refused_may_say_nothing(server, nothing):
    members = {name: nothing for name in refused_on_the_page()}
    assert len(members) > 20 and "chat_template" in members
    server.complete("x", max_tokens=1, **{m: nothing for m in members if m != "echo"})  # which is a field there
    calls = {"tool_calls": nothing, "function_call": nothing}
    server.chat([{"role": "user", "content": "x", **calls}], max_tokens=1, **members)


@pytest.mark.parametrize("number", ["01", "-01", "1.", ".5", "+1", "1e", "-", "NaN", "Infinity", "0x10"])
def test_numbers_that_json_does_not_have(server, number):
    answer = server.send("POST", "/v1/completions", data='{"prompt":"x","max_tokens":1,"seed":%s}' % number,
                         headers={"Content-Type": "application/json"})
    check(answer, 400, None)
    assert "not JSON" in answer.json()["error"]["message"]


@pytest.mark.parametrize("body,param", [
    ({}, "prompt"), ({"prompt": 3}, "prompt"), ({"prompt": "x", "add_special_tokens": 1},
                                                "add_special_tokens")])
def test_tokenize(server, body, param):
    check(server.post("/tokenize", body), 400, param)


@pytest.mark.parametrize("body", [{}, {"tokens": "x"}, {"tokens": [1.5]}, {"tokens": [10**7]},
                                  {"tokens": [-1]}])
def test_detokenize(server, body):
    check(server.post("/detokenize", body), 400, "tokens")


def test_over_long_prompt_names_both_lengths(server):
    answer = server.post("/v1/completions", {"prompt": [5] * 9000})
    check(answer, 400, "prompt")
    error = answer.json()["error"]
    # By these words, OpenAI's, client libraries know it.
    assert error["message"].startswith("This model's maximum context length is 8192 tokens, but ")
    assert "9000" in error["message"]
    assert error["code"] == "context_length_exceeded"
    # Exactly full: no room for one token.
    full = server.post("/v1/completions", {"prompt": [5] * 8192, "max_tokens": 1})
    check(full, 400, "prompt")
    assert "context length is 8192" in full.json()["error"]["message"] and "no room" in full.json()["error"]["message"]
    more = server.post("/v1/chat/completions", {"messages": USER, "max_completion_tokens": 8192})
    check(more, 400, "max_completion_tokens")
    assert more.json()["error"]["message"].startswith("This model's maximum context length is 8192 tokens, but ")


def test_the_wrong_one_of_many_prompts_is_named(server):
    for wrong, param, words in (([5] * 9000, "prompt", "but `prompt[2]` has 9000 tokens"),
                                ([5] * 8192, "prompt", "but `prompt[2]` has as many tokens"),
                                ([], "prompt", "`prompt[2]` has no tokens"),
                                ([5, -1], "prompt[2]", "`prompt[2]`: element 1 is not a token id")):
        answer = server.post("/v1/completions", {"prompt": ["x", [5], wrong, "y"], "max_tokens": 1})
        check(answer, 400, param)
        assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize("body", [
    b"", b"{", b"[]", b"null", b"3", b'"x"', b'{"prompt": "x"} trailing', b'{"prompt": "x",}',
    b"{'prompt': 'x'}", b'{"prompt": NaN}', b'\xff\xfe{"prompt": "x"}', b'{"prompt": "\xc3"}',
    b'{"prompt": "\\ud800"}', b'{"a": ' + b"[" * 5000, b'{"a": [' + b"1," * 1100000 + b"1]}",
    b'{"prompt": "a\nb"}'], ids=lambda b: repr(b[:24]))
def test_bodies_that_are_no_json_objects(server, body):
    answer = requests.post(server.url + "/v1/completions", data=body, timeout=PATIENCE,
                           headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("kind,status", [
    ("application/json", 200), ("application/json; charset=utf-8", 200),
    ("Application/JSON", 200), ("application/vnd.api+json", 200), (None, 415),
    ("text/plain", 415), ("application/x-www-form-urlencoded", 415), ("multipart/form-data", 415)])
def test_content_types(server, kind, status):
    headers = {"content-type": kind} if kind else {}
    answer = requests.post(server.url + "/v1/completions", headers=headers, timeout=PATIENCE,
                           data=b'{"prompt": "x", "max_tokens": 1}')
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize("coding,status", [("identity", 200), ("gzip", 415), ("br, gzip", 415)])
def test_content_encodings(server, coding, status):
    """A body that is JSON all the same is none of its coding: others before us may have unpacked something else."""
    answer = requests.post(server.url + "/v1/completions", data=b'{"prompt": "x", "max_tokens": 1}', timeout=PATIENCE,
                           headers={"content-type": "application/json", "content-encoding": coding})
    assert answer.status_code == status, answer.text
    assert status == 200 or coding in answer.json()["error"]["message"]


@pytest.mark.parametrize("path,body", [("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [5]})])
def test_tokens_are_those_of_the_model_that_was_asked_for(server, path, body):
    check(server.post(path, {**body, "model": "gpt-4"}), 404, "model")
    assert server.post(path, {**body, "model": NAME}).status_code == 200


def test_unknown_routes_and_methods(server):
    assert server.get("/v1/nothing").status_code == 404
    assert server.get("/").status_code == 404
    wrong = server.get("/v1/chat/completions")
    assert wrong.status_code == 405 and "POST" in wrong.headers["allow"]
    assert requests.delete(server.url + "/v1/models").status_code == 405
    assert requests.options(server.url + "/v1/completions").status_code == 204
    assert requests.head(server.url + "/health").status_code == 200


def test_request_id_is_echoed_or_made(server):
    answer = server.get("/version", headers={"x-request-id": "my-id.42"})
    assert answer.headers["x-request-id"] == "my-id.42"
    for bad in ("a b", "x" * 300, "<script>", 'q"uote'):
        made = server.get("/version", headers={"x-request-id": bad}).headers["x-request-id"]
        assert made != bad and made.startswith("req-")
    server.post("/v1/completions", {"prompt": 3}, headers={"x-request-id": "find-me-17"})
    end = time.time() + PATIENCE  # a thread of ours reads the log, and may come later
    while "find-me-17" not in server.text():
        assert time.time() < end
        time.sleep(0.02)


def test_server_still_answers_after_all_that(server):
    assert server.complete("The capital of France is")["choices"][0]["text"].startswith(" Paris")
    assert server.metric("whet_requests_running") == 0
