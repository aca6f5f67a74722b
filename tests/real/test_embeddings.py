"""Ollama's embeddings through the gate to a genuine SGLang: one that embeds, one that does not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from tests.real.engine import MODEL_NAME, Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.real.gateproc import Gate

SHORTER = json.dumps({"is_matryoshka": True})
"""Without it the server refuses `dimensions`."""


@pytest.fixture
def embedder(installed: None) -> Iterator[Engine]:
    with Engine.start(["--is-embedding", "--json-model-override-args", SHORTER]) as running:
        yield running


async def test_vectors_are_the_server_s(embedder: Engine, make_gate: Callable[..., Gate]) -> None:
    gate = make_gate(embedder)
    texts = ["the sea", "a lake in the hills", "the sea"]

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as http:

        async def post(url: str, **body: Any) -> tuple[int, Any, Any]:
            async with http.post(url, json={"model": MODEL_NAME, **body}) as answer:
                return answer.status, await answer.json(), answer.headers

        status, own, _ = await post(embedder.url + "/v1/embeddings", input=texts)
        assert status == 200, own
        vectors = [row["embedding"] for row in own["data"]]
        assert len(vectors[0]) == 64
        status, told, headers = await post(gate.url + "/api/embed", input=texts)
        assert status == 200, told
        assert told["embeddings"] == [pytest.approx(one, abs=1e-5) for one in vectors]
        assert told["embeddings"][0] == pytest.approx(told["embeddings"][2], abs=1e-5)
        counted = int(headers["x-kvgate-prompt-tokens"])
        assert told["prompt_eval_count"] == own["usage"]["prompt_tokens"] <= counted
        status, told, _ = await post(gate.url + "/api/embed", input=texts[1], dimensions=8)
        assert (status, [len(one) for one in told["embeddings"]]) == (200, [8]), told
        status, told, _ = await post(gate.url + "/api/embeddings", prompt=texts[0])
        assert (status, told) == (200, {"embedding": pytest.approx(vectors[0], abs=1e-5)})
        status, told, _ = await post(gate.url + "/api/embed", input="sea " * 9000)
        assert (status, told["code"]) == (400, "context_length_exceeded")
        async with http.post(gate.url + "/api/show", json={"model": MODEL_NAME}) as answer:
            assert (await answer.json())["capabilities"] == ["embedding"]
    assert gate.reserved() == 0


async def test_a_server_that_generates_says_no_in_ollama_s_way(gate: Gate) -> None:
    body = {"model": MODEL_NAME, "input": "the sea"}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as http,
        http.post(gate.url + "/api/embed", json=body) as answer,
    ):
        told = await answer.json()
    assert answer.status == 400
    assert isinstance(told["error"], str)
    assert answer.headers["x-kvgate-error-source"] == "upstream"
    assert gate.reserved() == 0
