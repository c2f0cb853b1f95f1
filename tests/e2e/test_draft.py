# SPDX-License-Identifier: Apache-2.0
"""A draft model beside the served one: the same answers, whatever it guesses."""

import subprocess
import time

import pytest
from conftest import MODEL, PATIENCE, ROOT

PROMPTS = ["Write a story about a dragon and a sailor.", "Count from one to thirty in words.",
           "What is the capital of France? Answer in one sentence."]
SAMPLINGS = [{"temperature": 0}, {"temperature": 0.8, "seed": 11},
             {"temperature": 1, "seed": 5, "top_p": 0.9, "frequency_penalty": 0.3}]
DRAFT = "whet_speculation_draft_"

# Two models, many steps: minutes under sanitizers, which the unit tests of the draft run under.
pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def first_layers(tmp_path_factory):
    """The model's first three layers: small, of its vocabulary, and seldom right."""
    path = tmp_path_factory.mktemp("draft") / "first.gguf"
    subprocess.run([ROOT / "scripts" / "make-draft", MODEL, path, "--first", "3"], check=True)
    return path


def text_of(answer):
    return [c["message"]["content"] for c in answer["choices"]]


def compare(server, tokens):
    """Texts with a draft and without; the share of the draft's guesses that were right."""
    for prompt in PROMPTS:
        for sampling in SAMPLINGS:
            plain = server.chat(prompt, max_tokens=tokens, speculate=False, **sampling)
            drafted = server.chat(prompt, max_tokens=tokens, **sampling)
            assert text_of(drafted) == text_of(plain)
            assert drafted["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
    proposed = server.metric(DRAFT + "proposed_tokens_total")
    assert proposed > 0
    return server.metric(DRAFT + "accepted_tokens_total") / proposed


def test_the_model_itself_is_nearly_always_right(start):
    """Greedy and sampled, alone, several of one prompt, and as a stream with log-probabilities."""
    server = start(f"--engine-speculate=draft:{MODEL}", "--engine-draft-tokens=3")
    assert compare(server, 32) > 0.97
    several = {"n": 3, "max_tokens": 24, "temperature": 0.9, "seed": 3}
    plain = server.chat(PROMPTS[0], speculate=False, **several)
    assert text_of(server.chat(PROMPTS[0], **several)) == text_of(plain)
    body = {"prompt": "The sea is", "max_tokens": 24, "temperature": 0, "logprobs": 2}
    plain = server.complete(speculate=False, **body)
    chunks = server.stream("/v1/completions", body)
    pieces = [c["choices"][0] for c in chunks if c["choices"]]
    assert "".join(p["text"] for p in pieces) == plain["choices"][0]["text"]
    got = [x for p in pieces if p["logprobs"] for x in p["logprobs"]["token_logprobs"]]
    assert got == pytest.approx(plain["choices"][0]["logprobs"]["token_logprobs"], abs=1e-4)
    assert server.metric(DRAFT + "steps_total") > 0
    assert server.metric("whet_failed_steps_total") == 0


def test_the_first_layers_are_tried_and_change_nothing(start, first_layers):
    """A fixed number of guesses: how many pay depends on the machine, and may be none."""
    server = start(f"--engine-speculate=draft:{first_layers}", "--engine-draft-tokens=2",
                   "--specializer-numerics=bit_equal")
    assert compare(server, 40) < 0.9
    assert 0 < server.metric(DRAFT + "seconds_total")


def refused(start, *options):
    """What a server says that does not become ready."""
    server, end = start(*options, wait=False), time.time() + PATIENCE
    while server.process.poll() is None and time.time() < end:
        if "engine.speculate" in server.text():
            break
        time.sleep(0.05)
    return server.text()


@pytest.mark.parametrize("draft, says", [
    ("draft:random:tiny", "the vocabularies differ: token "),
    ("draft:/nowhere/at/all.gguf", "/nowhere/at/all.gguf"),
])
def test_a_draft_that_will_not_do_is_named(start, draft, says):
    assert says in refused(start, f"--engine-speculate={draft}")


@pytest.mark.parametrize("option", ["lookahead", "draft:"])
def test_an_option_that_is_none_is_refused_at_once(option):
    from conftest import BINARY
    done = subprocess.run([BINARY, "serve", "--model", MODEL, "--port", "0", f"--engine-speculate={option}"],
                          capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode != 0
    assert f'engine.speculate = "{option}"' in done.stderr
