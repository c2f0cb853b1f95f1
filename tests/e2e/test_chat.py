# SPDX-License-Identifier: Apache-2.0
"""/v1/chat/completions with the real model."""

import pytest

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
