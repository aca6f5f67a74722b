"""A request that fits nowhere it may go: a larger server, a larger model, fewer turns, or the numbers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.edge.rig import API_CHAT, API_GENERATE, CHAT, TEXT, chat
from tests.edge.test_callers import key, keyed
from tests.fakes.behaviour import Behaviour
from tests.fakes.sglang import FakeSGLang
from tests.fakes.typed import MESSAGES, RESPONSES

TRIM = {"clients": [{"name": "anyone", "overflow": "trim"}]}
SYSTEM = {"role": "system", "content": "be brief"}


def words(number: int) -> str:
    return " ".join(["w"] * number)


def turns(number: int, each: int = 200) -> list[dict[str, Any]]:
    """Requests and answers, and a last request: 4 tokens and `each` words a message."""
    said = [
        {"role": role, "content": f"{at} {words(each - 1)}"}
        for at in range(number)
        for role in ("user", "assistant")
    ]
    return [*said, {"role": "user", "content": "last"}]


def calls(number: int, each: int = 100) -> list[dict[str, Any]]:
    """Calls with two results each, by the same two ids again and again."""
    made: list[dict[str, Any]] = []
    for at in range(number):
        named = [
            {"id": one, "type": "function", "function": {"name": "f", "arguments": "{}"}}
            for one in ("a", "b")
        ]
        made.append({"role": "assistant", "content": f"{at}", "tool_calls": named})
        made += [
            {"role": "tool", "tool_call_id": one, "content": words(each)} for one in ("b", "a")
        ]
    return made


async def test_by_default_it_is_refused_with_numbers(rig) -> None:
    got = await rig.post(CHAT, {"model": "tiny", "messages": turns(6)})
    assert (got.status, got.code) == (400, "context_length_exceeded")
    assert got.error["needed"] > got.error["available"]
    assert "x-kvgate-trimmed" not in got.headers
    assert rig.records[0]["trimmed_turns"] is None
    assert rig.engine.seen == []


async def test_the_oldest_turns_go_and_the_answer_says_so(start) -> None:
    async with start(TRIM) as rig:
        messages = [SYSTEM, *turns(6)]
        body = {"model": "tiny", "messages": messages, "seed": 7}
        got = await rig.post(CHAT, body)
        assert got.status == 200
        seen = rig.engine.seen[0]
        assert seen.body["messages"] == [SYSTEM, *messages[5:]]
        assert seen.body["seed"] == 7
        whole, left = 6 + 12 * 204 + 5, 6 + 8 * 204 + 5
        assert got.headers["x-kvgate-trimmed"] == f"turns=4 tokens={whole - left}"
        assert got.headers["x-kvgate-prompt-tokens"] == str(left) == str(sum(seen.job.prompts))
        record = rig.records[0]
        assert (record["trimmed_turns"], record["trimmed_tokens"]) == (4, whole - left)
        assert (record["prompt_tokens"], record["usage_prompt_tokens"]) == (left, left)
        assert int(got.headers["x-kvgate-max-tokens"]) == 2026 // 8, "an answer has room"
        # What fits is left alone.
        got = await rig.post(CHAT, {"model": "tiny", "messages": messages[5:]})
        assert "x-kvgate-trimmed" not in got.headers
        assert rig.engine.seen[-1].body["messages"] == messages[5:]


async def test_an_agent_s_calls_keep_their_results(start) -> None:
    async with start(TRIM) as rig:
        ask = {"role": "user", "content": "do it"}
        messages = [SYSTEM, ask, *calls(20)]
        got = await rig.post(CHAT, {"model": "tiny", "messages": messages, "max_tokens": 300})
        assert got.status == 200
        left = rig.engine.seen[0].body["messages"]
        assert left[:2] == [SYSTEM, ask]
        assert left[2:] == messages[-len(left) + 2 :]
        assert left[2]["role"] == "assistant"
        assert sum(rig.engine.seen[0].job.prompts) + 300 <= 2026


async def test_messages_of_anthropic_s_api_likewise(start) -> None:
    async with start(TRIM) as rig:
        ask = {"role": "user", "content": "do it"}
        messages: list[Any] = [ask]
        for at in range(15):
            use = {"type": "tool_use", "id": "t", "name": "f", "input": {"at": at}}
            result = {"type": "tool_result", "tool_use_id": "t", "content": words(200)}
            messages.append({"role": "assistant", "content": [use]})
            messages.append({"role": "user", "content": [result]})
        body = {"model": "tiny", "system": "be brief", "messages": messages, "max_tokens": 300}
        got = await rig.post(MESSAGES, body)
        assert got.status == 200, got.body
        seen = rig.engine.seen[0].body
        left = seen["messages"]
        assert seen["system"] == "be brief"
        assert left[0] == ask
        assert 3 <= len(left) < len(messages)
        assert left[1:] == messages[-len(left) + 1 :]
        assert left[1]["role"] == "assistant"
        record = rig.records[0]
        assert record["trimmed_turns"] == (len(messages) - len(left)) / 2
        assert got.headers["x-kvgate-trimmed"].startswith(f"turns={record['trimmed_turns']} ")


async def test_the_items_of_a_response_likewise(start) -> None:
    """What the model thought, said and called in a row goes with all results, or stays with them."""
    async with start(TRIM) as rig:
        ask = {"role": "user", "content": [{"type": "input_text", "text": "do it"}]}
        rules = {"role": "developer", "content": "be kind"}
        old = {"role": "user", "content": f"old {words(300)}"}
        items: list[Any] = [rules, old, {"role": "assistant", "content": "yes"}, ask]
        for at in range(12):
            thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
            said = {"type": "message", "role": "assistant", "content": f"{at}"}
            idents = [f"a{at}", f"b{at}"]
            called = [
                {"type": "function_call", "call_id": one, "name": "f", "arguments": "{}"}
                for one in idents
            ]
            results = [
                {"type": "function_call_output", "call_id": one, "output": words(100)}
                for one in reversed(idents)
            ]
            items += [thought, said, *called, *results]
        body = {"model": "tiny", "instructions": "be brief", "input": items, "temperature": 0.5}
        got = await rig.post(RESPONSES, {**body, "max_output_tokens": 300})
        assert got.status == 200, got.body
        seen = rig.engine.seen[0].body
        left = seen["input"]
        assert (seen["instructions"], seen["temperature"]) == ("be brief", 0.5)
        assert left[:2] == [rules, ask]
        assert 2 < len(left) < len(items)
        assert left[2:] == items[-len(left) + 2 :]
        assert left[2]["type"] == "reasoning", "with what it came with"
        assert (len(left) - 2) % 6 == 0
        gone = 12 - (len(left) - 2) // 6
        record = rig.records[0]
        assert record["trimmed_turns"] == gone + 2, "the model's items in a row are one turn"
        told = f"turns={gone + 2} tokens={record['trimmed_tokens']}"
        assert got.headers["x-kvgate-trimmed"] == told
        assert record["prompt_tokens"] + 300 <= 2026


async def test_chats_of_ollama_s_likewise(start) -> None:
    """Its calls have no ids; results are tied to them by name and order."""
    async with start(TRIM) as rig:
        ask = {"role": "user", "content": "do it"}
        old = {"role": "user", "content": f"old {words(300)}"}
        messages: list[Any] = [SYSTEM, old, {"role": "assistant", "content": "yes"}, ask]
        for at in range(12):
            named = [{"function": {"name": name, "arguments": {"at": at}}} for name in "fg"]
            messages.append({"role": "assistant", "content": f"{at}", "tool_calls": named})
            messages += [
                {"role": "tool", "tool_name": name, "content": words(100)} for name in "gf"
            ]
        options = {"num_predict": 300}
        body = {"model": "tiny:latest", "messages": messages, "options": options, "stream": False}
        got = await rig.post(API_CHAT, body)
        assert got.status == 200, got.body
        assert got.json()["done"]
        left = rig.engine.seen[0].body["messages"]
        assert [one["content"] for one in left[:2]] == ["be brief", "do it"]
        assert 2 < len(left) < len(messages)
        kept = messages[-len(left) + 2 :]
        assert [one["content"] for one in left[2:]] == [one["content"] for one in kept]
        assert left[2]["role"] == "assistant"
        answered = [one["tool_call_id"] for one in left if one["role"] == "tool"]
        made = [call["id"] for one in left for call in one.get("tool_calls", ())]
        assert sorted(answered) == sorted(made), "each call has its result"
        record = rig.records[0]
        assert record["trimmed_turns"] == 2 + 12 - (len(left) - 2) // 3
        assert got.headers["x-kvgate-trimmed"].startswith(f"turns={record['trimmed_turns']} ")
        large = [*messages[:3], {"role": "user", "content": words(2000)}]
        got = await rig.post(API_CHAT, {**body, "messages": large})
        assert (got.status, got.code) == (400, "context_length_exceeded")
        assert "Even without its older turns it needs 2" in got.error


@pytest.mark.parametrize("api", [CHAT, MESSAGES])
async def test_what_may_not_go_and_does_not_fit_is_refused_with_its_numbers(
    start, api: str
) -> None:
    async with start(TRIM) as rig:
        large = {"role": "user", "content": words(2000)}
        body = {"model": "tiny", "messages": [*turns(2)[:-1], large], "max_tokens": 300}
        got = await rig.post(api, body)
        assert got.status == 400
        message = got.error["message"]
        assert "Even without its older turns it needs 2" in message
        assert "the KV pool here is 2026" in message
        assert "x-kvgate-trimmed" not in got.headers
        assert rig.records[0]["prompt_tokens"] == 4 * 204 + 2004, "of the request as it came"
        assert rig.engine.seen == []
        # Where nothing could go, the words are as ever.
        got = await rig.post(api, {**body, "messages": [large]})
        assert " Needs 2" in got.error["message"]


async def test_the_fewest_turns_are_sent_where_their_answer_is_short_and_no_stub(start) -> None:
    async with start({**TRIM, "backend": {"max_output_tokens": 40}}) as rig:
        large = {"role": "user", "content": words(1970)}
        got = await rig.post(CHAT, {"model": "tiny", "messages": [*turns(2)[:-1], large]})
        assert (got.status, got.headers["x-kvgate-max-tokens"]) == (200, "40")
        assert rig.engine.seen[0].body["messages"] == [large]


async def test_the_client_s_word_counts_before_the_route_s(start) -> None:
    policy = {
        "clients": [keyed("a"), keyed("b", overflow="refuse"), keyed("c", overflow="trim")],
        "routes": [
            {"when": {"stream": True}, "to": "gpu0"},
            {"to": "gpu0", "overflow": "trim"},
        ],
    }
    async with start(policy) as rig:

        async def status(client: str, **fields: Any) -> int:
            body = {"model": "tiny", "messages": turns(6), **fields}
            return int((await rig.post(CHAT, body, headers=key(client))).status)

        assert [await status(client) for client in "abc"] == [200, 400, 200]
        assert [await status(client, stream=True) for client in "abc"] == [400, 400, 200]


async def test_only_turns_are_trimmed(start) -> None:
    async with start(TRIM) as rig:
        for api, body in [
            (TEXT, {"prompt": words(3000)}),
            (RESPONSES, {"input": words(3000)}),
            (CHAT, {"messages": turns(6), "input_ids": [1] * 3000}),
            (API_GENERATE, {"prompt": words(3000), "messages": turns(6)}),
        ]:
            got = await rig.post(api, {"model": "tiny", **body})
            assert (got.status, got.code) == (400, "context_length_exceeded"), api
            words_ = got.error if isinstance(got.error, str) else got.error["message"]
            assert "Even without" not in words_, "nothing was tried"


async def test_in_the_shadow_everything_goes_as_it_came(start) -> None:
    async with start({**TRIM, "admission": "shadow"}) as rig:
        rig.largest_pool = 4096  # nothing is kept off the engine
        messages, hold = turns(6), asyncio.Event()
        rig.engine.default = Behaviour(hold=hold)
        body = {"model": "tiny", "messages": messages, "max_tokens": 5}
        asked = asyncio.ensure_future(rig.post(CHAT, body))
        await rig.until(lambda: rig.reserved)
        hold.set()
        got = await asked
        assert rig.engine.seen[0].body["messages"] == messages
        assert "x-kvgate-trimmed" not in got.headers
        record = rig.records[0]
        assert (record["shadow"], record["trimmed_turns"]) == ("admit", None)
        assert record["prompt_tokens"] == 12 * 204 + 5


async def test_a_server_where_it_fits_takes_it_and_no_other(start) -> None:
    """The same model on two servers: the smaller one is not asked, and is not waited for."""
    async with FakeSGLang(pool=8192, context=6000) as large:
        policy = {**TRIM, "more": [{"url": large.url, "name": "gpu1"}]}
        async with start(policy) as rig:
            rig.largest_pool = 8192
            await rig.until(lambda: all(backend.ready for backend in rig.app.fleet))
            got = await rig.chat(3000)
            assert (got.status, got.headers["x-kvgate-backend"]) == (200, "gpu1")
            assert "x-kvgate-trimmed" not in got.headers
            got = await rig.chat(6000)
            assert (got.status, got.error["available"]) == (400, 6000 - 7), "the closest's numbers"
            # The turns that fit the larger one stay.
            got = await rig.post(CHAT, {"model": "tiny", "messages": turns(15)})
            assert (got.status, got.headers["x-kvgate-backend"]) == (200, "gpu1")
            assert sum(large.seen[-1].job.prompts) > 4000


async def test_an_alias_of_several_models_goes_to_the_first_on_which_it_fits(start) -> None:
    async with (
        FakeSGLang(model="middle", pool=4096, context=5000) as middle,
        FakeSGLang(model="large", pool=8192) as large,
    ):
        policy = {
            "more": [{"url": middle.url, "name": "gpu1"}, {"url": large.url, "name": "gpu2"}],
            "models": {"best": ["tiny", "middle", "large"], "odd": ["large", "tiny"], "small": "tiny"},
            "clients": [
                keyed("a"),
                keyed("b", models=["tiny", "large"]),
                keyed("c", models=["best"]),
                keyed("d", models=["tiny"], overflow="trim"),
                keyed("e", overflow="trim"),
            ],
            "routes": [{"when": {"client": "c"}, "to": ["gpu0", "gpu1"]}, {"to": ["gpu0", "gpu1", "gpu2"]}],
        }  # fmt: skip
        async with start(policy) as rig:
            rig.largest_pool = 8192
            await rig.until(lambda: all(backend.ready for backend in rig.app.fleet))

            async def went(client: str, number: int, model: str = "best") -> str:
                got = await rig.post(CHAT, chat(number, model=model), headers=key(client))
                return str(got.headers.get("x-kvgate-backend") or got.code)

            too_long = "context_length_exceeded"
            assert [await went("a", n) for n in (100, 3000, 6000)] == ["gpu0", "gpu1", "gpu2"]
            assert rig.records[0]["model"] == large.seen[-1].body["model"] == "large"
            assert await went("a", 3000, "small") == too_long
            assert await went("b", 3000) == "gpu2", "not the model that is not its own"
            assert await went("c", 6000) == too_long, "not where its route does not lead"
            assert await went("d", 3000) == too_long
            assert await went("a", 9000) == too_long
            assert rig.records[0]["model"] == "large", "the numbers of the nearest"
            assert rig.records[0]["available"] == 8192 - 7
            assert await went("a", 9000, "odd") == too_long
            assert (rig.records[0]["model"], rig.records[0]["available"]) == ("large", 8192 - 7)

            body = {"model": "best", "messages": turns(30)}
            for client, backend in [("d", "gpu0"), ("e", "gpu2")]:
                got = await rig.post(CHAT, body, headers=key(client))
                assert (got.status, got.headers["x-kvgate-backend"]) == (200, backend)
                assert "x-kvgate-trimmed" in got.headers

            listed = {}
            for client in "ab":
                url = rig.app.listen_url + "/v1/models"
                async with rig.http.get(url, headers=key(client)) as answer:
                    data = (await answer.json())["data"]
                    listed[client] = {one["id"]: one["max_model_len"] for one in data}
            assert listed["a"]["best"] == 8192
            assert set(listed["b"]) == {"tiny", "large", "best", "odd", "small"}

            await large.die()
            await rig.until(lambda: not rig.app.fleet.backends["gpu2"].ready)
            assert await went("a", 6000) == "no_backend", "it fits once that server is there again"
            assert await went("a", 3000) == "gpu1"


async def test_a_larger_model_is_found_without_a_word_on_trimming(start) -> None:
    async with FakeSGLang(model="large", pool=8192) as large:
        policy = {
            "more": [{"url": large.url, "name": "gpu1"}],
            "models": {"best": ["tiny", "large"]},
        }
        async with start(policy) as rig:
            rig.largest_pool = 8192
            await rig.until(lambda: all(backend.ready for backend in rig.app.fleet))
            for number, backend in [(100, "gpu0"), (3000, "gpu1")]:
                got = await rig.chat(number, model="best")
                assert (got.status, got.headers["x-kvgate-backend"]) == (200, backend)


async def test_an_adapter_that_no_server_lists_is_passed_over_like_a_model_that_is_not_the_client_s(
    start,
) -> None:
    """Who asked for the alias named no adapter, and is told of none."""
    async with FakeSGLang(model="large", pool=8192) as large:
        policy = {
            "more": [{"url": large.url, "name": "gpu1"}],
            "models": {"best": ["tiny", "tiny:gone", "large"], "two": ["tiny", "tiny:gone"]},
        }
        async with start(policy) as rig:
            rig.largest_pool = 8192
            await rig.until(lambda: all(backend.ready for backend in rig.app.fleet))
            got = await rig.chat(3000, model="best")
            assert (got.status, got.headers["x-kvgate-backend"]) == (200, "gpu1")
            got = await rig.chat(3000, model="two")
            assert (got.status, got.code) == (400, "context_length_exceeded")
