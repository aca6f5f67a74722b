"""Routes that generate nothing: what they reserve, and that they pass as they came."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from tests.edge.test_refusals import Busy
from tests.fakes.behaviour import Behaviour
from tests.fakes.typed import CLASSIFY, EMBEDDINGS, RERANK, SCORE

FRAME = 160  # of a reranker's template
SEAM = 1  # of two texts that are joined
PART = [{"type": "text", "text": "c d"}]

# path, body, tokens of each prompt
PASSED: list[Any] = [
    (EMBEDDINGS, {"input": "a b c"}, [3]),
    (EMBEDDINGS, {"input": ["a b c", "d"]}, [3, 1]),
    (EMBEDDINGS, {"input": [1, 2, 3, 4]}, [4]),
    (EMBEDDINGS, {"input": [[1, 2, 3], [4]], "dimensions": 8}, [3, 1]),
    (CLASSIFY, {"input": "a b c"}, [3]),
    (CLASSIFY, {"input": ["a b c", "d"]}, [3, 1]),
    (SCORE, {"query": "a b", "items": "c", "label_token_ids": [1]}, [3 + SEAM]),
    (SCORE, {"query": "a b", "items": ["c", "d e f"]}, [3 + SEAM, 5 + SEAM]),
    (SCORE, {"query": [1, 2], "items": [[3], [4, 5, 6]]}, [3 + SEAM, 5 + SEAM]),
    (RERANK, {"query": "a b", "documents": ["c", "d e f"]}, [3 + FRAME, 5 + FRAME]),
    (RERANK, {"query": "a", "documents": ["c"], "instruct": "b b b"}, [5 + FRAME]),
]


@pytest.mark.parametrize(("path", "body", "prompts"), PASSED)
async def test_prompts_are_reserved_and_no_output(rig, path: str, body: Any, prompts: Any) -> None:
    got = await rig.post(path, {"model": "tiny", **body, "priority": 9})
    assert got.status == 200, got.body
    record = rig.records[0]
    assert (record["prompts"], record["prompt_tokens"]) == (len(prompts), sum(prompts))
    assert record["kv_reserved"] == sum(prompts) + len(prompts)  # a page each, one token here
    assert (record["cap_forwarded"], record["output_tokens"]) == (0, 0)
    sent = rig.engine.seen[0].body
    rid = sent.pop("rid", None)
    assert sent == {"model": "tiny", **body}
    if path in (EMBEDDINGS, CLASSIFY):
        many = isinstance(body["input"], list) and not isinstance(body["input"][0], int)
        assert isinstance(rid, list) == many
        assert all(one.startswith(record["id"]) for one in (rid if many else [rid]))
    accuracy = rig.app.fleet.backends["gpu0"].counter.accuracy
    assert accuracy.requests == 0, "an estimate on the high side is not compared"


REFUSED: list[Any] = [
    (EMBEDDINGS, {}, "input"),
    (EMBEDDINGS, {"input": None}, "input"),
    (EMBEDDINGS, {"input": {}}, "input"),
    (EMBEDDINGS, {"input": [{}]}, "input"),
    (EMBEDDINGS, {"input": [{"text": "a"}, {"text": None, "a": 1}]}, "input"),
    (EMBEDDINGS, {"input": [1, "a"]}, "input"),
    (EMBEDDINGS, {"input": [-1]}, "negative"),
    (EMBEDDINGS, {"input": [1 << 40]}, "largest"),
    (EMBEDDINGS, {"input": "a", "embed_overrides": [[[0.5]]]}, "embed_overrides"),
    (EMBEDDINGS, {"input": "a", "lora_path": "x"}, "lora_path"),
    (EMBEDDINGS, {"input": ["a"] * 1025}, "1024"),
    (CLASSIFY, {"input": []}, "input"),
    (SCORE, {"items": ["a"]}, "query"),
    (SCORE, {"query": "a"}, "items"),
    (SCORE, {"query": ["a", "b"], "items": "c"}, "query"),
    (RERANK, {"query": "a", "documents": []}, "documents"),
    (RERANK, {"query": "a", "documents": [7]}, "documents"),
    (RERANK, {"query": "a", "documents": "b"}, "documents"),
    (RERANK, {"query": "a", "documents": ["b"] * 1025}, "1024"),
]


async def test_what_is_none_is_a_400_that_says_why(rig) -> None:
    for path, body, word in REFUSED:
        got = await rig.post(path, body)
        assert got.status == 400, (path, body, got.body)
        assert word in got.error["message"].lower(), (path, body, got.body)
    assert rig.engine.seen == []


async def test_what_can_never_fit_is_refused_with_the_numbers(rig) -> None:
    got = await rig.post(EMBEDDINGS, {"input": ["w " * 700] * 3})
    assert (got.status, got.code) == (400, "context_length_exceeded")
    assert got.error["needed"] == 3 * 701


@pytest.mark.parametrize("number", [1, 2])
async def test_one_object_is_one_prompt_with_one_id(rig, number: int) -> None:
    """A list of ids for a single object is a bare 500 (0.5.17)."""
    got = await rig.post(EMBEDDINGS, {"input": [{"text": "a"}] * number})
    assert got.status == 200
    assert isinstance(rig.engine.seen[0].body["rid"], list) == (number > 1)


async def test_pictures_and_texts_of_one_embedding(rig) -> None:
    """Each object is a prompt; pictures of unknown size are taken for the largest there is."""
    got = await rig.post(EMBEDDINGS, {"input": [{"text": "a"}, {"text": "b", "image": "data:,x"}]})
    assert (got.status, got.code) == (400, "context_length_exceeded")
    got = await rig.post(RERANK, {"query": PART, "documents": [PART, "e"]})
    assert got.status == 200
    assert rig.records[0]["prompt_tokens"] == 2 + 2 + FRAME + 2 + 1 + FRAME


async def test_they_wait_for_room_like_all_others(rig) -> None:
    async with Busy(rig) as busy:
        waiting = asyncio.ensure_future(rig.post(EMBEDDINGS, {"input": "w " * 900}))
        await rig.queued()
        busy.hold.set()
        assert (await waiting).status == 200


@pytest.mark.parametrize("path", [EMBEDDINGS, SCORE])
async def test_who_leaves_leaves_nothing(rig, path: str) -> None:
    rig.engine.default = Behaviour(never=True)
    body = {"input": "a"} if path == EMBEDDINGS else {"query": "a", "items": ["b"]}
    asking = asyncio.ensure_future(rig.post(path, body))
    await rig.engine.arrived()
    asking.cancel()
    await rig.at_rest()
    assert (rig.engine.aborts != []) == (path == EMBEDDINGS), "score has no id to abort by"


NAMING = [
    (SCORE, {"query": "a", "items": ["b"], "label_token_ids": [1]}),
    (RERANK, {"query": "a", "documents": ["b"]}),
]


@pytest.mark.parametrize(
    ("version", "status"),
    [("0.5.9", 200), ("0.5.10", 400), ("0.5.12", 400), ("0.5.17", 400), ("0.5.23", 200)],
)
async def test_scores_and_words_are_not_for_one_server_that_dies_of_both(
    start, version: str, status: int
) -> None:
    """A score names tokens, and beside a chat in one step that ends 0.5.17; among their like all is well."""
    async with start(version=version) as rig:
        for path, body in NAMING:
            assert (await rig.post(path, body)).status == 200
        assert (await rig.post(EMBEDDINGS, {"input": "a"})).status == 200
        for path, body in NAMING:
            assert (await rig.post(path, body)).status == 200
        assert (await rig.chat(max_tokens=2)).status == 200
        before = len(rig.engine.seen)
        for path, body in NAMING:
            got = await rig.post(path, body)
            assert got.status == status, got.body
            if status == 400:
                assert got.code == "invalid_request"
                assert "cores end SGLang" in got.error["message"]
        assert len(rig.engine.seen) == before + (2 if status == 200 else 0)
        assert (await rig.chat(max_tokens=2)).status == 200


@pytest.mark.parametrize(("path", "body"), NAMING)
@pytest.mark.parametrize("version", ["0.5.17", "0.5.23"])
async def test_the_first_words_wait_for_scores_that_run(
    start, version: str, path: str, body: Any
) -> None:
    async with start(version=version) as rig:
        hold = asyncio.Event()
        rig.engine.queue.append(Behaviour(hold=hold))
        score = asyncio.ensure_future(rig.post(path, body))
        await rig.engine.arrived()
        chat = asyncio.ensure_future(rig.chat(max_tokens=2))
        if version == "0.5.17":
            await rig.queued()
            assert len(rig.engine.seen) == 1
        else:
            assert (await chat).status == 200
        hold.set()
        assert (await score).status == 200
        assert (await chat).status == 200


async def test_a_server_that_makes_scores_of_its_own_takes_them_beside_all(rig) -> None:
    """One that does not generate is asked for no tokens by name."""
    assert (await rig.chat(max_tokens=2)).status == 200
    backend = rig.app.fleet.backends["gpu0"]
    assert backend.engine.talks
    backend.facts = dataclasses.replace(backend.facts, is_generation=False)
    for path, body in NAMING:
        assert (await rig.post(path, body)).status == 200
    rig.app.fleet._resize(backend)
    hold = asyncio.Event()
    rig.engine.queue.append(Behaviour(hold=hold))
    path, body = NAMING[0]
    score = asyncio.ensure_future(rig.post(path, body))
    await rig.engine.arrived(len(rig.engine.seen) + 1)
    assert (await rig.post(EMBEDDINGS, {"input": "a"})).status == 200, "beside a score, at once"
    hold.set()
    assert (await score).status == 200


async def test_scores_that_pass_undecided_are_no_words_either(start) -> None:
    """Else a server that is for scores alone would get none once admission is on again."""
    async with start({"admission": "off"}) as rig:
        for path, body in NAMING:
            assert (await rig.post(path, body)).status == 200
        assert not rig.app.fleet.backends["gpu0"].engine.talks
        assert (await rig.chat(max_tokens=2)).status == 200
        assert rig.app.fleet.backends["gpu0"].engine.talks
