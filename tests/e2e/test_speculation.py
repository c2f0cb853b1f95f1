# SPDX-License-Identifier: Apache-2.0
"""Guessed tokens: the same answers, in fewer steps."""

import pytest
from conftest import Server

# The default model repeats it, so there is something to guess. It is not read from a file that
# others change: what the model says to a text, and so what can be guessed, would change with it.
TEXT = """The sun rises over the hills, and the river runs down to the sea. Ships leave the harbour \
at noon, and gulls follow them out.
"""
CODE = """def start(self, wait=True):
    self.process = subprocess.Popen(self.command)
    if wait:
        Server.wait(self, self.process)
    return Server(self.process)
"""
PROMPTS = ["Repeat this text word for word:\n" + 3 * TEXT,
           "Rename Server to Host in this code:\n" + CODE,
           "Write a story about a dragon and a sailor.",
           "Count from one to thirty in words."]


@pytest.fixture(scope="module")
def server():
    """One of its own: whether guesses pay is learned, and others' requests would teach it."""
    s = Server()
    yield s
    s.stop()


def text_of(answer):
    return answer["choices"][0]["message"]["content"]


def details(answer):
    return answer["usage"].get("completion_tokens_details")


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.8, "seed": 11},
                                      {"temperature": 1, "seed": 5, "top_p": 0.9, "frequency_penalty": 0.3}])
def test_answers_are_those_without_guesses(server, sampling):
    accepted = 0
    for prompt in PROMPTS:
        plain = server.chat(prompt, max_tokens=90, **sampling)
        guessed = server.chat(prompt, max_tokens=90, speculate=True, **sampling)
        assert text_of(guessed) == text_of(plain)
        assert guessed["choices"][0]["finish_reason"] == plain["choices"][0]["finish_reason"]
        assert guessed["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
        assert details(plain) is None
        accepted += details(guessed)["accepted_prediction_tokens"]
    assert accepted > 0 or sampling["temperature"] > 0  # what is drawn may be what nobody guesses


def test_a_right_prediction_saves_steps(start):
    server = start()
    prompt = "Write a story about a dragon and a sailor."
    plain = server.chat(prompt, max_tokens=64)
    before = server.metric("whet_step_seconds_count")
    again = server.chat(prompt, max_tokens=64,
                        prediction={"type": "content", "content": text_of(plain)})
    steps = server.metric("whet_step_seconds_count") - before
    assert text_of(again) == text_of(plain)
    accepted = details(again)["accepted_prediction_tokens"]
    assert accepted >= 4  # the first time no wide step was seen, so several are tried
    assert steps <= 64 - accepted + 3


def test_predicted_parts_and_the_sdk(server):
    import openai
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
    answer = client.chat.completions.create(
        model="smollm2", max_tokens=24, temperature=0,
        messages=[{"role": "user", "content": "Name three rivers."}],
        prediction={"type": "content", "content": [{"type": "text", "text": "1. The River"},
                                                   {"type": "text", "text": " of Life"}]})
    assert answer.usage.completion_tokens_details.accepted_prediction_tokens >= 0
    assert answer.usage.completion_tokens_details.rejected_prediction_tokens >= 0


def test_streams_and_logprobs_are_whole(server):
    body = {"prompt": "one two three one two three one two three one", "max_tokens": 40,
            "temperature": 0, "logprobs": 2}
    plain = server.complete(body["prompt"], **{k: v for k, v in body.items() if k != "prompt"})
    chunks = server.stream("/v1/completions", {**body, "speculate": True})
    pieces = [c["choices"][0] for c in chunks if c["choices"]]
    assert "".join(p["text"] for p in pieces) == plain["choices"][0]["text"]
    got = [x for p in pieces if p["logprobs"] for x in p["logprobs"]["token_logprobs"]]
    assert got == pytest.approx(plain["choices"][0]["logprobs"]["token_logprobs"], abs=1e-4)
    assert server.metric("whet_speculation_accepted_tokens_total") > 0


def test_many_at_once(server):
    from concurrent.futures import ThreadPoolExecutor
    alone = [text_of(server.chat(p, max_tokens=48)) for p in PROMPTS]
    with ThreadPoolExecutor(8) as pool:
        for round in range(2):
            answers = list(pool.map(lambda i: server.chat(PROMPTS[i % 4], max_tokens=48,
                                                          speculate=i % 3 > 0), range(8)))
            # Steps of more than 16 tokens go through BLAS and may round otherwise; texts are whole.
            assert all(a["usage"]["completion_tokens"] > 0 for a in answers)
            assert sum(text_of(a) == alone[i % 4] for i, a in enumerate(answers)) >= 4


def test_the_option_is_for_requests_that_do_not_say(start):
    server = start("--engine-speculate=ngram", "--specializer-numerics=bit_equal")
    prompt = "Repeat: " + "the sun and the moon and the sun and the stars. " * 3
    on = server.chat(prompt, max_tokens=60)
    off = server.chat(prompt, max_tokens=60, speculate=False)
    assert details(on)["accepted_prediction_tokens"] > 0 and details(off) is None
    assert text_of(on) == text_of(off)


@pytest.mark.parametrize("more, param", [
    ({"speculate": "yes"}, "speculate"),
    ({"prediction": "text"}, "prediction"),
    ({"prediction": {"type": "content"}}, "prediction"),
    ({"prediction": {"type": "diff", "content": "x"}}, "prediction"),
    ({"prediction": {"type": "content", "content": [{"type": "image", "text": "x"}]}}, "prediction"),
    ({"prediction": {"type": "content", "content": 7}}, "prediction"),
    ({"prediction": {"type": "content", "content": "a\0b"}}, "prediction"),
    ({"speculate": False, "prediction": {"type": "content", "content": "x"}}, "speculate"),
])
def test_what_is_wrong_is_named(server, more, param):
    answer = server.post("/v1/chat/completions",
                         {"messages": [{"role": "user", "content": "Hi"}], **more})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
