"""Bodies made to hurt, through the gate to the genuine server: it lives, and answers others meanwhile.

Two parts. The worst that are known each ended the scheduler, the detokenizer or a whole process of a
server that they were sent to directly. And some hundred are drawn: a good body in which one or two fields,
of those that the server itself says it has, hold something else. They are the same at every run;
KVGATE_BODIES_SEED=2 draws others.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import random
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from gateway.edge.dialects import FIRST
from gateway.edge.dialects.hazards import SAMPLING
from gateway.edge.dialects.responses import TOLD_FROM
from gateway.upstream.facts import parse_version
from tests.real.engine import MODEL_NAME
from tests.real.install import SGLANG_VERSION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.real.conftest import Note
    from tests.real.engine import Engine
    from tests.real.gateproc import Gate

VERSION = parse_version(SGLANG_VERSION) or FIRST
CHAT, TEXT, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
MESSAGES, RESPONSES, SCORE, RERANK = "/v1/messages", "/v1/responses", "/v1/score", "/v1/rerank"
API_CHAT, API_GENERATE, EMBEDDINGS = "/api/chat", "/api/generate", "/v1/embeddings"

TURNS = [{"role": "user", "content": "hi"}]
GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"messages": TURNS, "max_tokens": 3},
    TEXT: {"prompt": "a b", "max_tokens": 3},
    GENERATE: {"text": "a b", "sampling_params": {"max_new_tokens": 3}},
    MESSAGES: {"messages": TURNS, "max_tokens": 3},
    RESPONSES: {"input": "hi", "max_output_tokens": 4},
    SCORE: {"query": "a", "items": ["b", "c"], "label_token_ids": [1, 2]},
    RERANK: {"query": "a", "documents": ["b", "c"]},
    EMBEDDINGS: {"input": "a b"},
    API_CHAT: {"messages": TURNS, "options": {"num_predict": 3}, "stream": False},
    API_GENERATE: {"prompt": "hi", "options": {"num_predict": 3}, "stream": False},
}
CAPS = {"max_tokens", "max_completion_tokens", "max_output_tokens", "options", "max_new_tokens"}
"""Left as they are: an answer as long as the pool takes a minute here, and caps have tests of their own."""

VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, -2, 3.0, 0.5, 1e-9, 1e39, 1e308, float("nan"), float("inf")),
    *(257, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30),
    *("", " ", "a", "0", "-1", "2.0", "NaN", "true", "\x00", "\ud800", "💥", "<|im_end|>", "x" * 5000),
    *([], [None], [0], [-1], [True], [1.5], ["a"], [""], [[]], [[1]], [["a"]], [[1, 2], [3]], [{}]),
    *([None, "a"], [1, "a"], [2**63], [None] * 2000, {}, {"a": 1}, {"1": 1}, {"": ""}, {"a": None}),
    *({"a": {"b": [1, {}]}}, {"type": "a"}, {"type": "text"}, {"url": "a"}, {"1": "x"}),
]  # fmt: skip


ITS_OWN = 500
"""What the server answers where it trips over a body and lives: counted and told, and no fault of this
test where it is drawn. Those that are known (`TRIPS`) are refused."""


def sampling(**params: Any) -> tuple[str, Any]:
    return GENERATE, {"text": "a b", "sampling_params": {"max_new_tokens": 3, **params}}


def native(**fields: Any) -> tuple[str, Any]:
    return GENERATE, GOOD[GENERATE] | fields


def chat(**fields: Any) -> tuple[str, Any]:
    return CHAT, GOOD[CHAT] | fields


WORST: list[tuple[str, Any]] = [
    sampling(json_schema={"type": "object"}),
    sampling(regex=["a"]),
    sampling(skip_special_tokens=7),
    sampling(no_stop_trim=[1]),
    sampling(spaces_between_special_tokens="x"),
    sampling(logit_bias={"5": "x"}),
    sampling(logit_bias={"5": 1e39}),
    sampling(custom_params=5),
    sampling(stream_interval="x"),
    sampling(temperature=[1]),
    sampling(top_k=2.5),
    sampling(stop_token_ids=[10**6]),
    sampling(ebnf="root ::= Token(1000000)"),
    sampling(structural_tag='{"format": {"type": []}}'),
    sampling(structural_tag='{"format": {"type": "token", "token": 1000000}}'),
    native(return_logprob=True, top_logprobs_num=[1]),
    native(return_logprob=[True]),
    native(return_logprob=True, logprob_start_len=[0]),
    native(return_logprob=True, logprob_start_len=-5),
    native(return_logprob=True, token_ids_logprob=[1, 2]),
    native(return_logprob=True, top_logprobs_num=10**6),
    native(extra_key=["a"]),
    native(multi_item_delimiter_indices=[99999]),
    native(mm_data_mooncake=[{"a": 1}]),
    (
        GENERATE,
        {
            "text": "a b",
            "return_logprob": True,
            "token_indices_to_pool": [10**6],
            "sampling_params": {"max_new_tokens": 0},
        },
    ),
    (GENERATE, {"input_ids": [-1], "sampling_params": {"max_new_tokens": 3}}),
    native(text=""),
    native(text=["", "a"]),
    (GENERATE, {"input_ids": [[]], "sampling_params": {"max_new_tokens": 3}}),
    chat(logit_bias={"5": "nan"}),
    chat(logit_bias={"5": 1e39}),
    chat(logit_bias={"5": 3e38}, temperature=0.5),
    chat(stop_token_ids=[-1]),
    chat(ebnf="root ::= Token(1000000)"),
    chat(ebnf="root ::= root"),
    chat(
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"$ref": "#"}},
        }
    ),
    chat(regex="a", min_tokens=2, max_tokens=9),
    chat(regex="a", logit_bias={"64": -3.4e38}, temperature=0.5),
    chat(stop_token_ids=list(range(151_936)), min_tokens=2),
    sampling(stop_token_ids=list(range(151_936)), min_new_tokens=2),
    sampling(ebnf="root ::= Token(151645)"),
    sampling(regex="((a{1,10}){1,10}){1,10}"),
    (TEXT, GOOD[TEXT] | {"prompt": ["", "a"]}),
    (TEXT, GOOD[TEXT] | {"logit_bias": {"5": "inf"}}),
    (SCORE, GOOD[SCORE]),
    (SCORE, GOOD[SCORE] | {"label_token_ids": [-1]}),
]

TURN = {"role": "assistant", "content": ""}
TRIPS: list[tuple[str, Any]] = [
    (TEXT, GOOD[TEXT] | {"echo": True, "logprobs": 0}),
    (TEXT, GOOD[TEXT] | {"echo": True, "logprobs": 0, "stream": True}),
    chat(messages=[TURN], continue_final_message=True),
    chat(
        messages=[TURN | {"content": [{"type": "text", "text": "a"}]}], continue_final_message=True
    ),
    (RESPONSES, GOOD[RESPONSES] | {"top_k": -2, "stream": True}),
    (RESPONSES, GOOD[RESPONSES] | {"top_p": 0, "stream": True}),
    (RESPONSES, GOOD[RESPONSES] | {"repetition_penalty": 3, "stream": True}),
    *(
        (RESPONSES, GOOD[RESPONSES] | {"reasoning": {"effort": effort}, "stream": True})
        for effort in ("none", "xhigh")
        if VERSION < TOLD_FROM
    ),
    (EMBEDDINGS, {"input": [{"text": "a"}]}),
]
"""Each a bare 500, or a stream without an event, at 0.5.17, sent to it as it is; the last is refused by a server
of words, in words. 0.5.23 trips over none of them but those of a stream of responses, and says what effort it was."""

AT_ONCE = 8
GROUP = 32
"""Sent between two looks at the server. Larger groups take as long, and tell less of who it was."""
DRAWN = 960
"""Bodies; a minute on two cores. So many and not for so long: everywhere the same."""
ANSWERS_S = 20.0
"""In which a plain request is answered by a server that lives: it takes 0.1 s, or 2 s on a busy machine."""


class Sender:
    """Sends bodies through a gate, and looks between whether all is well."""

    def __init__(self, http: aiohttp.ClientSession, gate: Gate, engine: Engine) -> None:
        self.http, self.gate, self.engine = http, gate, engine
        self.statuses: dict[int, int] = {}

    async def send(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        """Status and answer; what takes longer than anybody waits is 0."""
        data = json.dumps({"model": MODEL_NAME, **body}).encode()
        kind = {"content-type": "application/json"}
        try:
            async with self.http.post(
                self.gate.url + path, data=io.BytesIO(data), headers=kind
            ) as answer:
                said = await answer.text(errors="replace")
        except TimeoutError:
            return 0, "no answer"
        self.statuses[answer.status] = self.statuses.get(answer.status, 0) + 1
        return answer.status, said

    async def together(self, bodies: list[tuple[str, Any]]) -> list[str]:
        """Send them, `AT_ONCE` at a time, beside a chat; what is wrong then, in words."""
        turn = asyncio.Semaphore(AT_ONCE)

        async def one(path: str, body: Any) -> tuple[int, str]:
            async with turn:
                return await self.send(path, body)

        beside = asyncio.create_task(self.send(*chat(max_tokens=60, ignore_eos=True)))
        answers = await asyncio.gather(*(one(*body) for body in bodies))
        wrong = [
            f"{status} {said[:200]} for {path} {json.dumps(body)[:300]}"
            for (path, body), (status, said) in zip(bodies, answers, strict=True)
            if status == 0 or status > ITS_OWN
        ]
        status, said = await beside
        if status != 200:
            wrong.append(f"the chat beside them: {status} {said[:200]}")
        async with asyncio.timeout(ANSWERS_S):
            status, said = await self.send(*chat())
        if status != 200 or not self.engine.alive:
            wrong.append(f"the server is gone: {status} {said[:200]}")
        return wrong


@pytest.fixture
async def sender(gate: Gate, engine: Engine) -> AsyncIterator[Sender]:
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        yield Sender(http, gate, engine)


def fields(engine: Engine) -> dict[str, list[str]]:
    """What the server says may stand in a body of each route."""
    told = engine.get("/openapi.json")
    found = {}
    for path in GOOD:
        asked = told["paths"].get(path, {}).get("post", {}).get("requestBody")
        if asked is not None:
            schema = asked["content"]["application/json"]["schema"]
            if "$ref" not in schema:  # 0.5.12 says nothing of what may stand in a response
                continue
            name = schema["$ref"].rpartition("/")[2]
            found[path] = sorted(told["components"]["schemas"][name]["properties"].keys() - CAPS)
    assert {CHAT, TEXT, GENERATE, MESSAGES, SCORE} <= found.keys()
    assert RESPONSES in found or VERSION < (0, 5, 17)
    return found


def drawn(rng: random.Random, known: dict[str, list[str]]) -> Iterator[tuple[str, Any]]:
    paths = sorted(known)
    # Known from 0.5.23 on; before that a 500, null too.
    later = set() if VERSION >= (0, 5, 23) else {"watermark", "beam_width"}
    params = sorted(SAMPLING - CAPS - later)
    while True:
        path = rng.choice([*paths, GENERATE])
        body = dict(GOOD[path])
        if path == GENERATE and rng.random() < 0.5:
            own = {rng.choice(params): rng.choice(VALUES) for _ in range(rng.choice([1, 1, 2]))}
            body["sampling_params"] = body["sampling_params"] | own
            if rng.random() < 0.3:
                body["text"] = ["a", "b c"]
        else:
            for _ in range(rng.choice([1, 1, 2])):
                body[rng.choice(known[path])] = rng.choice(VALUES)
        if rng.random() < 0.2 and path in {CHAT, TEXT, GENERATE, MESSAGES, RESPONSES}:
            body["stream"] = True
        if rng.random() < 0.1 and path in {CHAT, TEXT}:
            body["n"] = 2
        yield path, body


async def test_the_worst_that_are_known_reach_nobody(sender: Sender, report: Note) -> None:
    for first in range(0, len(WORST), GROUP):
        wrong = await sender.together(WORST[first : first + GROUP])
        assert not wrong, "\n".join(wrong)
    report(f"{len(WORST)} bodies that end a server: {sender.statuses}")


async def test_what_it_trips_over_is_told_in_words(sender: Sender) -> None:
    for path, body in TRIPS:
        status, said = await sender.send(path, body)
        assert (status, "Internal" in said) == (400, False), f"{status} {said} for {path} {body}"


async def test_whatever_stands_in_a_field_the_server_lives(
    sender: Sender, engine: Engine, report: Note
) -> None:
    seed = int(os.environ.get("KVGATE_BODIES_SEED") or 1)
    bodies, sent = drawn(random.Random(seed), fields(engine)), 0
    while sent < DRAWN:
        group = [next(bodies) for _ in range(GROUP)]
        wrong = await sender.together(group)
        sent += len(group)
        told = "\n".join(f"{path} {json.dumps(body)[:300]}" for path, body in group)
        assert not wrong, "\n".join([f"seed {seed}, after {sent}:", *wrong, "sent:", told])
    report(f"{sent} bodies drawn with seed {seed}: {dict(sorted(sender.statuses.items()))}")
