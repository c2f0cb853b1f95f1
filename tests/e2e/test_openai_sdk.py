# SPDX-License-Identifier: Apache-2.0
"""The OpenAI Python SDK, as an application uses it."""

import asyncio

import openai
import pytest

from conftest import NAME, PATIENCE


@pytest.fixture
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0,
                         timeout=PATIENCE)


def test_models(client):
    assert [m.id for m in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing")


def test_completion(client):
    answer = client.completions.create(model=NAME, prompt="The capital of France is", max_tokens=4,
                                       temperature=0, logprobs=2)
    assert answer.choices[0].text.startswith(" Paris")
    assert len(answer.choices[0].logprobs.tokens) == 4
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0


def test_completion_stream(client):
    chunks = list(client.completions.create(model=NAME, prompt="The capital of France is",
                                            max_tokens=4, temperature=0, stream=True,
                                            stream_options={"include_usage": True}))
    assert "".join(c.choices[0].text for c in chunks if c.choices).startswith(" Paris")
    assert chunks[-1].usage.completion_tokens == 4


def test_chat(client):
    answer = client.chat.completions.create(
        model=NAME, messages=[{"role": "user", "content": "What is the capital of France?"}],
        max_completion_tokens=20, temperature=0, logprobs=True, top_logprobs=2)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].logprobs.content[0].top_logprobs[0].bytes
    assert answer.system_fingerprint.startswith("fp_")


def test_chat_stream(client):
    text, finishes = "", []
    with client.chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": "What is the capital of France?"}],
            max_tokens=20, temperature=0, stream=True) as stream:
        for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            if chunk.choices[0].finish_reason:
                finishes.append(chunk.choices[0].finish_reason)
    assert "Paris" in text and len(finishes) == 1


def test_errors_become_exceptions(client):
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model=NAME, messages=[], temperature=0)
    assert e.value.param == "messages"
    with pytest.raises(openai.NotFoundError) as e:
        client.completions.create(model="gpt-4o", prompt="x")
    assert e.value.code == "model_not_found"


@pytest.mark.threads
def test_many_at_once(server):
    async def run():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0,
                                      timeout=PATIENCE) as client:
            return await asyncio.gather(*[
                client.chat.completions.create(model=NAME, max_tokens=4, temperature=0,
                                               messages=[{"role": "user", "content": "Say hi."}])
                for _ in range(12)])

    texts = {a.choices[0].message.content for a in asyncio.run(run())}
    assert len(texts) == 1


def test_leaving_a_stream_early(client, server):
    before = server.metric("whet_generation_tokens_total")
    with client.completions.create(model=NAME, prompt="Tell me a story", max_tokens=4000,
                                   stream=True, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    server.wait_metric("whet_requests_running", 0)
    assert server.metric("whet_generation_tokens_total") < before + 4000
