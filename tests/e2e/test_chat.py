# SPDX-License-Identifier: Apache-2.0
"""/v1/chat/completions with the real model."""

import shutil

import pytest

from conftest import ROOT

QUESTION = "What is the capital of France? Answer in one word."


def test_answer_has_openai_shape(server):
    answer = server.chat(QUESTION, max_tokens=20)
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    choice = answer["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert "Paris" in choice["message"]["content"]
    assert choice["finish_reason"] in ("stop", "length")
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert server.post("/chat/completions", {"messages": [{"role": "user", "content": "x"}],
                                             "max_tokens": 1}).status_code == 200


def test_template_is_the_models_own(server):
    """The prompt is what the model's template makes of the messages, with its default system
    message when there is none."""
    def count(text):
        return server.post("/tokenize", {"prompt": text}).json()["count"]

    rendered = ("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
                "<|im_start|>assistant\n")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert server.chat(messages, max_tokens=1)["usage"]["prompt_tokens"] == count(rendered)
    default = ("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by "
               "Hugging Face<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert server.chat("Hi", max_tokens=1)["usage"]["prompt_tokens"] == count(default)
    same = server.complete(rendered, max_tokens=12)["choices"][0]["text"]
    assert server.chat(messages, max_tokens=12)["choices"][0]["message"]["content"] == same


def test_typed_parts_are_text(server):
    whole = server.chat("one\ntwo")
    parts = server.chat([{"role": "user", "content": [{"type": "text", "text": "one"},
                                                      {"type": "text", "text": "two"}]}])
    assert parts["choices"][0]["message"] == whole["choices"][0]["message"]
    assert parts["usage"] ["prompt_tokens"] == whole["usage"]["prompt_tokens"]


def test_what_an_assistant_refused_to_say_is_in_the_prompt(server):
    def prompt(**answer):
        messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", **answer}, {"role": "user", "content": "Why?"}]
        return server.chat(messages, max_tokens=12)

    said = prompt(content="I cannot help with that.")
    for answer in ({"content": None, "refusal": "I cannot help with that."},
                   {"content": "", "refusal": "I cannot help with that."},
                   {"content": [{"type": "refusal", "refusal": "I cannot help with that."}]},
                   {"content": "I cannot help with that.", "refusal": None}):
        refused = prompt(**answer)
        assert refused["usage"]["prompt_tokens"] == said["usage"]["prompt_tokens"], answer
        assert refused["choices"][0]["message"] == said["choices"][0]["message"]
    assert prompt(content=None)["usage"]["prompt_tokens"] < said["usage"]["prompt_tokens"]


def test_what_openais_schema_demands_is_there(server):
    choice = server.chat("Say hi.", logprobs=True, max_tokens=2)["choices"][0]
    assert set(choice) >= {"finish_reason", "index", "message", "logprobs"}
    assert set(choice["message"]) == {"role", "content", "refusal"} and choice["message"]["refusal"] is None
    assert set(choice["logprobs"]) == {"content", "refusal"} and choice["logprobs"]["refusal"] is None


def test_continue_final_message(server):
    messages = [{"role": "user", "content": QUESTION},
                {"role": "assistant", "content": "The capital of France is"}]
    answer = server.chat(messages, continue_final_message=True, max_tokens=4)
    assert "Paris" in answer["choices"][0]["message"]["content"]


def test_max_tokens_defaults_to_the_rest_of_the_context(start):
    s = start("--engine-max-context", "96")
    answer = s.chat("Tell me a very long story.", max_tokens=None, ignore_eos=True)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == 96


def test_max_completion_tokens(server):
    answer = server.chat("Tell me a story.", max_tokens=None, max_completion_tokens=3)
    assert answer["usage"]["completion_tokens"] == 3


def test_logprobs_have_the_chat_shape(server):
    choice = server.chat(QUESTION, max_tokens=4, logprobs=True, top_logprobs=5)["choices"][0]
    content = choice["logprobs"]["content"]
    assert len(content) == 4
    for entry in content:
        assert entry["logprob"] <= 0
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert len(entry["top_logprobs"]) == 5
        best = entry["top_logprobs"][0]
        assert best["token"] == entry["token"]
        assert best["logprob"] == pytest.approx(entry["logprob"], abs=1e-5)
    assert "".join(e["token"] for e in content).startswith(choice["message"]["content"])
    none = server.chat(QUESTION, max_tokens=2, logprobs=True)["choices"][0]["logprobs"]["content"]
    assert all(e["top_logprobs"] == [] for e in none)
    assert server.chat(QUESTION, max_tokens=2)["choices"][0]["logprobs"] is None


def test_the_models_own_end_is_a_stop(server):
    choice = server.chat("Say hi.", max_tokens=200)["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] is None
    assert "<|im_end|>" not in choice["message"]["content"]


def test_a_conversation_shares_its_prefix(server):
    messages = [{"role": "system", "content": "You answer briefly. " * 12},
                {"role": "user", "content": "What is water?"}]
    first = server.chat(messages)["choices"][0]["message"]
    again = server.chat(messages + [first, {"role": "user", "content": "And ice?"}])
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32


# ---- templates: a small model with one of our own ----

USER = [{"role": "user", "content": "hello"}]


@pytest.fixture
def with_template(start, tmp_path):
    """A server of a tiny model whose chat template is the text."""
    def serve(text):
        folder = tmp_path / "model"
        shutil.copytree(ROOT / "tests/golden/tiny-qwen3", folder)
        (folder / "chat_template.jinja").write_text(text, encoding="utf-8", newline="")
        return start(model=str(folder))
    return serve


def prompt_tokens(server, messages, **fields):
    body = {"messages": messages, "max_tokens": 1, **fields}
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]["prompt_tokens"]


def test_variables_of_a_request_are_the_templates(with_template):
    server = with_template("{{ messages[0].content }}{{ 'x' * n }}{% if enable_thinking is false %}yyy{% endif %}"
                           "{{ word | default('') }}{{ 1 / 0 if n is not integer }}")
    for n, more, text in ((3, {}, "helloxxx"), (1, {"enable_thinking": False}, "helloxyyy"),
                          (0, {"word": "thing", "unused": None}, "hellothing")):
        count = server.post("/tokenize", {"prompt": text}).json()["count"]
        assert prompt_tokens(server, USER, chat_template_kwargs={"n": n, **more}) == count
    for kwargs, words in (({"messages": 1}, "chat_template_kwargs.messages"), ({"n": [1]}, "chat_template_kwargs.n"),
                          ({"enable_thinking": 1}, "must be true or false"), (3, "must be an object"),
                          ({f"v{i}": i for i in range(65)}, "at most 64"), ({"n": 1.5}, "unsupported operand types")):
        answer = server.post("/v1/chat/completions", {"messages": USER, "chat_template_kwargs": kwargs})
        assert answer.status_code == 400
        assert words in answer.json()["error"]["message"]


def test_reasoning_is_taken_by_any_of_its_names(with_template):
    server = with_template("{% for m in messages %}{{ m.thinking }}{{ m.reasoning_content }}{% endfor %}x")
    def count(**members):
        return prompt_tokens(server, USER + [{"role": "assistant", "content": "A", **members}] + USER)

    one, two = (server.post("/tokenize", {"prompt": r * 2 + "x"}).json()["count"] for r in ("why", "because"))
    assert count(content="B") == count(reasoning=None) == 1
    assert one != two and count(reasoning_content="why") == count(thinking="why") == count(reasoning="why") == one
    assert count(reasoning_content="because", thinking="why", reasoning="why") == two
    assert count(reasoning_content=None, thinking="because", reasoning="why") == two
    answer = server.post("/v1/chat/completions", {"messages": [{"role": "assistant", "content": "A", "reasoning": {}}]})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "messages[0].reasoning"


def test_what_a_template_raises_is_told(with_template):
    server = with_template("{{ raise_exception('Only ' ~ messages | length ~ ' is too few.') }}")
    answer = server.post("/v1/chat/completions", {"messages": USER})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "Only 1 is too few."
    assert answer.json()["error"]["param"] == "messages"


def test_a_template_that_is_not_understood_is_told_with_its_line(with_template):
    server = with_template("{% if true %}\r\n{% include 'x' %}\r\n{% endif %}")
    answer = server.post("/v1/chat/completions", {"messages": USER})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "no_chat_template"
    assert "line 2: the tag 'include' is not known" in answer.json()["error"]["message"]
    assert "line 2: the tag 'include' is not known" in server.text()
    assert server.post("/v1/completions", {"prompt": "hello", "max_tokens": 1}).status_code == 200


def test_a_template_that_takes_too_much_fails_the_request_and_not_the_server(with_template):
    server = with_template("{% for i in range(100000) %}{% for k in range(100000) %}{% endfor %}{% endfor %}")
    for _ in range(3):
        answer = server.post("/v1/chat/completions", {"messages": USER})
        assert answer.status_code == 400
        assert "the chat template took more than" in answer.json()["error"]["message"]
    assert server.get("/health").status_code == 200
