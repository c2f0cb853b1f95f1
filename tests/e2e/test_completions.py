# SPDX-License-Identifier: Apache-2.0
"""/v1/completions with the real model."""

import json
import re
import shutil

import pytest

from conftest import NAME, ROOT

PROMPT = "The capital of France is"


def test_answer_has_openai_shape(server):
    answer = server.complete(PROMPT, model=NAME)
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert isinstance(answer["created"], int)
    assert answer["model"] == NAME
    assert answer["system_fingerprint"].startswith("fp_")
    choice = answer["choices"][0]
    assert set(choice) >= {"index", "text", "logprobs", "finish_reason"}
    assert choice["text"].startswith(" Paris")
    assert choice["finish_reason"] == "length" and choice["logprobs"] is None
    usage = answer["usage"]
    assert usage["prompt_tokens"] == 5 and usage["completion_tokens"] == 8
    assert usage["total_tokens"] == 13
    assert "cached_tokens" in usage["prompt_tokens_details"]


def test_works_without_v1(server):
    answer = server.post("/completions", {"prompt": PROMPT, "max_tokens": 2, "temperature": 0})
    assert answer.json()["choices"][0]["text"] == " Paris."


def test_max_tokens_defaults_to_16(server):
    body = {"prompt": "Once upon a time", "temperature": 0, "ignore_eos": True}
    assert server.post("/v1/completions", body).json()["usage"]["completion_tokens"] == 16


def test_token_ids_equal_text(server):
    ids = server.post("/tokenize", {"prompt": PROMPT}).json()["tokens"]
    expected = server.complete(PROMPT)["choices"][0]["text"]
    assert server.complete(ids)["choices"][0]["text"] == expected
    both = server.complete([PROMPT, "Water is"])["choices"]
    assert [c["index"] for c in both] == [0, 1]
    assert both[0]["text"] == expected
    assert server.complete([ids])["choices"][0]["text"] == expected
    mixed = server.complete([ids, ids])
    assert [c["text"] for c in mixed["choices"]] == [expected, expected]
    assert mixed["usage"]["prompt_tokens"] == 2 * len(ids)


def test_seed_decides_the_text(server):
    def text(**more):
        return server.complete(PROMPT, temperature=1.5, max_tokens=6, **more)["choices"][0]["text"]

    assert text(seed=7) == text(seed=7)
    assert text(seed=0) == text(seed=0)
    assert len({text(seed=s) for s in range(3)}) > 1
    assert len({text() for _ in range(3)}) > 1


def test_n_choices_differ_and_count_the_prompt_once(server):
    """Three, so that reading the prompts together stays on the narrow kernels: the wide ones round
    differently."""
    answer = server.complete(PROMPT, n=3, temperature=1.5, seed=3, max_tokens=12)
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2]
    assert len({c["text"] for c in answer["choices"]}) > 1
    assert answer["usage"]["prompt_tokens"] == 5
    assert answer["usage"]["completion_tokens"] == 36
    alone = server.complete(PROMPT, temperature=1.5, seed=3, max_tokens=12)
    assert alone["choices"][0]["text"] == answer["choices"][0]["text"]


def test_stop_string_ends_the_text(server):
    full = server.complete("Count: one, two, three,", max_tokens=12)["choices"][0]["text"]
    stop = full[5:8]
    answer = server.complete("Count: one, two, three,", max_tokens=12, stop=[stop, "never seen"])
    choice = answer["choices"][0]
    assert choice["text"] == full[: full.index(stop)]
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == stop
    kept = server.complete("Count: one, two, three,", max_tokens=12, stop=stop,
                           include_stop_str_in_output=True)["choices"][0]
    assert kept["text"] == full[: full.index(stop) + len(stop)]


def test_stop_token_ids(server):
    ids = server.complete(PROMPT, max_tokens=6, return_token_ids=True)["choices"][0]["token_ids"]
    assert len(ids) == 6
    choice = server.complete(PROMPT, max_tokens=6, stop_token_ids=[ids[3]],
                             return_token_ids=True)["choices"][0]
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == ids[3]
    assert choice["token_ids"] == ids[: ids.index(ids[3]) + 1]


def test_min_tokens_holds_the_stop_off(server):
    full = server.complete(PROMPT, max_tokens=10, ignore_eos=True)["choices"][0]["text"]
    choice = server.complete(PROMPT, max_tokens=10, min_tokens=10, ignore_eos=True,
                             stop=full[1:3])["choices"][0]
    assert choice["finish_reason"] in ("length", "stop")
    assert len(choice["text"]) >= len(full[:3])


def test_logit_bias_bans_and_forces(server):
    paris = server.post("/tokenize", {"prompt": " Paris"}).json()["tokens"]
    assert len(paris) == 1
    banned = server.complete(PROMPT, max_tokens=1, logit_bias={str(paris[0]): -100})
    assert banned["choices"][0]["text"] != " Paris"
    blue = server.post("/tokenize", {"prompt": " blue"}).json()["tokens"]
    forced = server.complete(PROMPT, max_tokens=3, logit_bias={str(blue[0]): 100})
    assert forced["choices"][0]["text"] == " blue blue blue"


def test_logprobs_have_the_legacy_shape(server):
    choice = server.complete(PROMPT, max_tokens=4, logprobs=3)["choices"][0]
    lp = choice["logprobs"]
    assert "".join(lp["tokens"]) == choice["text"]
    assert all(len(lp[k]) == 4 for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset"))
    for token, value, top in zip(lp["tokens"], lp["token_logprobs"], lp["top_logprobs"]):
        assert value <= 0 and 3 <= len(top) <= 4
        assert top[token] == pytest.approx(value, abs=1e-5)
        assert max(top, key=top.get) == token  # greedy
    for token, offset in zip(lp["tokens"], lp["text_offset"]):
        assert choice["text"][offset:].startswith(token)
    zero = server.complete(PROMPT, max_tokens=2, logprobs=0)["choices"][0]["logprobs"]
    assert [len(t) for t in zero["top_logprobs"]] == [1, 1]


def test_echo_scores_the_prompt_as_lm_evaluation_harness_reads_it(server):
    text = PROMPT + " Paris"
    choice = server.complete(text, max_tokens=0, echo=True, logprobs=1)["choices"][0]
    lp = choice["logprobs"]
    assert choice["text"] == text and "".join(lp["tokens"]) == text
    assert lp["token_logprobs"][0] is None and lp["top_logprobs"][0] is None
    assert all(v <= 0 for v in lp["token_logprobs"][1:])
    assert lp["text_offset"] == [text.index(t, o) for t, o in zip(lp["tokens"], lp["text_offset"])]
    # The score of the last token is what generating it gives.
    generated = server.complete(PROMPT, max_tokens=1, logprobs=1)["choices"][0]["logprobs"]
    assert lp["token_logprobs"][-1] == pytest.approx(generated["token_logprobs"][0], abs=2e-3)
    # As the harness asks: one more token than wanted, cut off by the client.
    more = server.complete(text, max_tokens=1, echo=True, logprobs=1)["choices"][0]["logprobs"]
    assert more["token_logprobs"][1:-1] == pytest.approx(lp["token_logprobs"][1:], abs=2e-3)
    assert len(more["tokens"]) == len(lp["tokens"]) + 1


def test_offsets_go_on_behind_a_normalized_character(start, tmp_path):
    model = tmp_path / "model"  # Qwen's tokenizers compose an e and its accent
    shutil.copytree(ROOT / "tests" / "golden" / "tiny-qwen2", model)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["normalizer"] = {"type": "NFC"}
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    s = start(model=str(model))
    prompt = "cafe\u0301 is open"
    choice = s.complete(prompt, max_tokens=1, echo=True, logprobs=0)["choices"][0]
    offsets = choice["logprobs"]["text_offset"]
    assert choice["text"].startswith(prompt)
    assert offsets == sorted(offsets) and offsets[-1] == len(prompt)
    for token, offset in zip(choice["logprobs"]["tokens"][5:-1], offsets[5:-1]):
        assert token in prompt[offset:offset + len(token) + 1]  # one character at most


def test_a_character_that_the_ids_of_a_prompt_begin_is_whole(server):
    prompt = [23274, 115, 40993, 179]  # two characters, and the first of three bytes
    choice = server.complete(prompt, max_tokens=4, echo=True, logprobs=0)["choices"][0]
    lp, spelled = choice["logprobs"], b""
    for token, offset in zip(lp["tokens"], lp["text_offset"]):
        assert offset == sum(byte & 0xc0 != 0x80 for byte in spelled)
        hexadecimal = re.findall(r"\\x(..)", token) if token.startswith("bytes:") else []
        spelled += bytes.fromhex("".join(hexadecimal)) or token.encode()
    assert spelled[6] == 0xe8 and len(lp["tokens"]) == 8
    assert choice["text"] == spelled.decode(errors="replace")
    assert len(choice["text"]) > 2 and choice["text"][2] != "\ufffd"
    alone = server.complete(prompt, max_tokens=4)["choices"][0]["text"]
    assert alone == choice["text"][2:]
    assert server.complete(prompt, max_tokens=0, echo=True)["choices"][0]["text"][2:] == "\ufffd"


def test_prefix_cache_is_reported(server):
    prompt = "A unique beginning 8472. " + "The quick brown fox jumps over the lazy dog. " * 10
    first = server.complete(prompt, max_tokens=1)
    second = server.complete(prompt, max_tokens=1)
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64
    assert first["choices"][0]["text"] == second["choices"][0]["text"]


def test_choices_and_those_that_come_together_read_a_beginning_once(server):
    hits = "whet_prefix_cache_hit_tokens_total"
    prompt = "A second unique beginning 6139. " + "The quick brown fox jumps over the lazy dog. " * 10
    before = server.metric(hits)
    answer = server.complete(prompt, n=4, max_tokens=4, temperature=0)
    whole = (answer["usage"]["prompt_tokens"] - 1) // 16 * 16
    assert server.metric(hits) - before == 3 * whole
    assert len({choice["text"] for choice in answer["choices"]}) == 1

    prompts = [f"A third beginning 2750. {prompt} Number {i}." for i in range(4)]
    before = server.metric(hits)
    answer = server.post("/v1/completions", {"prompt": prompts, "max_tokens": 4, "temperature": 0}).json()
    alone = [server.complete(p, max_tokens=4)["choices"][0]["text"] for p in prompts]
    assert [choice["text"] for choice in answer["choices"]] == alone
    assert server.metric(hits) - before >= 7 * whole


def test_penalties_and_cuts_are_accepted(server):
    answer = server.complete(PROMPT, temperature=0.8, seed=1, top_p=0.9, top_k=40, min_p=0.05,
                             presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.1,
                             user="someone", nonsense={"ignored": True}, best_of=1, suffix=None)
    assert answer["usage"]["completion_tokens"] <= 8
    greedy = server.complete(PROMPT)["choices"][0]["text"]
    assert server.complete(PROMPT, temperature=1.9, top_k=1, seed=4)["choices"][0]["text"] == greedy
    assert server.complete(PROMPT, temperature=1.9, top_p=0, seed=4)["choices"][0]["text"] == greedy


def test_tokenize_and_detokenize(server):
    for text in (PROMPT, "h\u00e9llo \u4e16\u754c \U0001f600", "a\x00b", "", "  spaces\n\n\ttabs",
                 "<|im_start|>user"):
        tokens = server.post("/tokenize", {"prompt": text}).json()
        assert tokens["count"] == len(tokens["tokens"])
        assert tokens["max_model_len"] == 8192
        assert server.post("/detokenize", {"tokens": tokens["tokens"]}).json() == {"prompt": text}
    assert server.post("/tokenize", {"content": "<|im_start|>"}).json()["count"] == 1


def test_models(server):
    listed = server.get("/v1/models").json()
    assert listed["object"] == "list"
    model = listed["data"][0]
    assert model["id"] == NAME and model["object"] == "model"
    assert model["owned_by"] and model["max_model_len"] == 8192 and model["created"] > 0
    assert server.get("/v1/models/" + NAME).json() == model
    missing = server.get("/v1/models/other/one")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


def test_version(server):
    assert server.get("/version").json()["version"]
