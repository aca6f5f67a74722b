"""Ollama's embeddings, new and old: asked of the engine as OpenAI's, told and refused in its words."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.edge.dialects import Invalid, Times
from gateway.edge.dialects.ollama_embed import EmbedTeller, OllamaEmbed, OllamaEmbeddings
from tests.edge.rig import API_EMBED, API_EMBEDDINGS
from tests.edge.test_refusals import Busy
from tests.fakes import typed
from tests.fakes.behaviour import Behaviour, refuse

EMBED, OLD = API_EMBED, API_EMBEDDINGS
VECTOR = [0.5, 0.25]  # the fake engine's


def asked(given: Any = "a b c", **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": given, **fields}


def old(prompt: Any = "a b c", **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": prompt, **fields}


BOTH = pytest.mark.parametrize(("path", "body"), [(EMBED, asked()), (OLD, old())])


@pytest.mark.parametrize(("given", "prompts"), [("a b c", [3]), (["a b c", "d"], [3, 1])])
async def test_prompts_are_reserved_and_vectors_told(rig, given: Any, prompts: list[int]) -> None:
    sent = asked(given, model="tiny:latest", options={"num_ctx": 9}, keep_alive=-1, truncate=True)
    got = await rig.post(EMBED, sent, headers={"content-type": "text/x"})
    assert (got.status, got.headers["content-type"]) == (200, "application/json")
    told, record = got.json(), rig.records[0]
    assert (told["model"], told["embeddings"]) == ("tiny", [VECTOR] * len(prompts))
    assert told["prompt_eval_count"] == sum(prompts) == record["prompt_tokens"]
    assert told["total_duration"] >= told["load_duration"] >= 0
    assert (record["prompts"], record["cap_forwarded"]) == (len(prompts), 0)
    assert record["kv_reserved"] == sum(prompts) + len(prompts)  # a page each, one token here
    assert (record["outcome"], record["dialect"]) == ("completed", "ollamaembed")
    seen = rig.engine.seen[0]
    assert seen.received.target == typed.EMBEDDINGS
    assert set(seen.body) == {"model", "input", "rid"}
    assert (seen.body["model"], seen.body["input"]) == ("tiny", given)
    assert isinstance(seen.body["rid"], list) == isinstance(given, list)


async def test_the_older_one_tells_one_vector_and_nothing_else(rig) -> None:
    got = await rig.post(OLD, old(options={"seed": 3}))
    assert (got.status, got.json()) == (200, {"embedding": VECTOR})
    record = rig.records[0]
    assert (record["prompt_tokens"], record["kv_reserved"], record["cap_forwarded"]) == (3, 4, 0)
    assert rig.engine.seen[0].received.target == typed.EMBEDDINGS


async def test_how_many_numbers_are_wanted_is_passed_on(rig) -> None:
    for dimensions, passed in ((8, 8), ("8", 8), (0, None), (None, None)):
        assert (await rig.post(EMBED, asked(dimensions=dimensions))).status == 200
        assert rig.engine.seen[-1].body.get("dimensions") == passed


async def test_nothing_to_embed_is_a_model_to_load(rig) -> None:
    for given in ("", [], None):
        got = await rig.post(EMBED, asked(given))
        assert (got.status, got.json()) == (200, {"model": "tiny", "embeddings": []})
    assert (await rig.post(OLD, {"model": "tiny"})).json() == {"embedding": []}
    assert rig.engine.seen == []
    assert {record["kv_reserved"] for record in rig.records} == {None}


ODD: list[Any] = [
    (OllamaEmbed, {"input": 7}, "input"),
    (OllamaEmbed, {"input": ["a", 7]}, "input"),
    (OllamaEmbed, {"input": [1, 2]}, "input"),
    (OllamaEmbed, {"input": {"a": 1}}, "input"),
    (OllamaEmbed, {"input": "a", "dimensions": 1.5}, "dimensions"),
    (OllamaEmbed, {"input": "a", "model": 7}, "model"),
    (OllamaEmbed, {"input": "a", "model": "tiny:8b"}, "model"),
    (OllamaEmbeddings, {"prompt": ["a"]}, "prompt"),
]


@pytest.mark.parametrize(("dialect", "body", "field"), ODD)
def test_what_is_odd_is_refused_by_name(dialect: Any, body: Any, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        dialect().read(body)
    assert refused.value.param == field


async def test_refusals_are_a_text_with_numbers_beside_it(rig) -> None:
    for path, body in ((EMBED, asked(["w " * 700] * 3)), (OLD, old("w " * 2100))):
        got = await rig.post(path, body)
        assert (got.status, got.code) == (400, "context_length_exceeded")
        assert isinstance(got.error, str)
        assert got.json()["needed"] > got.json()["available"]
    got = await rig.post(EMBED, asked(["a"] * 1025))
    assert (got.status, got.code) == (400, "invalid_request")
    assert "1024" in got.error
    got = await rig.post(EMBED, asked([1]))
    assert (got.status, got.json()["param"]) == (400, "input")
    assert rig.engine.seen == []


@BOTH
async def test_overload_is_told_in_its_way(start, path: str, body: Any) -> None:
    async with start({"queue": {"max_requests": 1, "max_wait_s": 0.2}}) as rig, Busy(rig):
        waiting = asyncio.ensure_future(rig.post(path, body))
        await rig.queued()
        full, late = await rig.post(path, body), await waiting
        assert (full.status, full.code) == (429, "queue_full")
        assert (late.status, late.code) == (503, "queue_timeout")
        for got in (full, late):
            assert isinstance(got.error, str)
            assert 1 <= int(got.headers["retry-after"]) <= 60


@BOTH
async def test_what_the_engine_says_instead(rig, path: str, body: Any) -> None:
    """Of a model that generates text SGLang says 400; what is no answer at all is a 502."""
    rig.engine.queue.append(refuse(400, "this model does not embed"))
    got = await rig.post(path, body)
    assert (got.status, got.error) == (400, "this model does not embed")
    assert got.headers["x-kvgate-error-source"] == "upstream"
    rig.engine.queue.append(whole(b'{"data":[{"embedding":[0.5,null]}]}'))
    got = await rig.post(path, body)
    assert (got.status, got.code) == (502, "upstream_error")


def whole(body: bytes) -> Behaviour:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return Behaviour(raw=head % len(body) + body)


async def test_an_answer_of_many_megabytes_comes_whole(rig) -> None:
    number = b"-0.012345678901"
    vector = b"[" + b",".join([number] * 4096) + b"]"
    rows = b",".join([b'{"object":"embedding","embedding":%b,"index":0}' % vector] * 200)
    answer = b'{"object":"list","data":[%b],"usage":{"prompt_tokens":200}}' % rows
    assert len(answer) > 12 << 20
    rig.engine.queue.append(whole(answer))
    got = await rig.post(EMBED, asked(["a"] * 200))
    assert got.status == 200, got.body[:200]
    assert got.body.count(vector) == 200, "digit by digit"
    assert got.json()["prompt_eval_count"] == 200
    assert rig.records[0]["outcome"] == "completed"


async def test_who_leaves_leaves_nothing(rig) -> None:
    rig.engine.default = Behaviour(never=True)
    asking = asyncio.ensure_future(rig.post(EMBED, asked()))
    await rig.engine.arrived()
    asking.cancel()
    await rig.at_rest()
    assert rig.engine.aborts != []


@pytest.mark.parametrize("admission", ["off", "shadow"])
async def test_without_admission_it_is_put_into_other_words_all_the_same(
    start, admission: str
) -> None:
    async with start({"admission": admission}) as rig:
        assert (await rig.post(EMBED, asked(["a", "b"]))).json()["embeddings"] == [VECTOR] * 2
        assert (await rig.post(OLD, old())).json() == {"embedding": VECTOR}
        assert (await rig.post(OLD, old(["a"]))).status == 400


async def test_an_engine_with_several_ranks_cannot_be_steered(start) -> None:
    async with start(dp=2) as rig:
        got = await rig.post(EMBED, asked())
        assert (got.status, got.code) == (404, "not_found")
        assert "data-parallel ranks" in got.error


# ---- the engine's answer, told ---------------------------------------------------------------------


def told(number: int | None, body: bytes) -> Any:
    times = Times(0.0, 2.0, lambda: 3.0, lambda: "noon")
    found = EmbedTeller("tiny", number, times).whole(body)
    return None if found is None else json.loads(found)


def test_however_the_engine_lays_out_its_answer() -> None:
    rows = [{"index": at, "object": "embedding", "embedding": [at, -1e-7]} for at in (0, 1)]
    answer = {"usage": {"prompt_tokens": 12, "total_tokens": 12}, "data": rows, "model": "x"}
    for indent in (None, 2):
        for turned in (answer, dict(reversed(answer.items()))):
            said = told(2, json.dumps(turned, indent=indent).encode())
            assert said == {
                "model": "tiny",
                "embeddings": [[0, -1e-7], [1, -1e-7]],
                "total_duration": 3_000_000_000,
                "load_duration": 2_000_000_000,
                "prompt_eval_count": 12,
            }
    assert told(None, json.dumps({"data": rows[:1]}).encode()) == {"embedding": [0, -1e-7]}


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b'{"data":[]}',
        b'{"data":[{"embedding":[]}]}',
        b'{"data":[{"embedding":[1.0',
        b'{"data":[{"embedding":[1.0,NaN]}]}',
        b'{"data":[{"embedding":[null]}]}',
        b'{"data":[{"embedding":[-Infinity,1]}]}',
        b'{"data":[{"embedding":[[1.0]]}]}',
        b'{"data":[{"embedding":["1.0"]}]}',
        b'{"data":[{"embedding":[true]}]}',
        b'{"data":[{"embedding":[false]}]}',
        b'{"data":[{"embedding":[{}]}]}',
        b'{"data":[{"embedding":"AAAA"}]}',
        b'{"data":[{"embedding":[1.0]},{"embedding":[2.0]}]}',
    ],
)
def test_another_number_of_vectors_or_none_is_no_answer(answer: bytes) -> None:
    assert told(1, answer) is None
    assert told(None, answer) is None
