"""What is a client's own: routes, models under any name, caps, tokens per window."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import quote

import pytest
from structlog.testing import capture_logs
from yarl import URL

from gateway import app
from gateway.edge import routes
from gateway.policy.callers import Route
from tests.edge.rig import CHAT, COUNT, GENERATE, TEXT, chat, written
from tests.fakes.behaviour import Behaviour
from tests.fakes.sglang import FakeSGLang

if TYPE_CHECKING:
    from pathlib import Path


def keyed(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "key_sha256": hashlib.sha256(name.encode()).hexdigest(), **more}


def key(name: str) -> dict[str, str]:
    return {"x-api-key": name}


def test_every_route_that_generates_can_be_named_in_a_policy() -> None:
    costly = {
        path for (_, path), route in routes.ROUTES.items() if not isinstance(route, routes.Quick)
    }
    assert costly <= set(get_args(Route))


async def test_routes_that_are_not_the_client_s_are_403(start) -> None:
    policy = {"clients": [keyed("a", routes=[TEXT, CHAT]), keyed("b")]}
    async with start(policy) as rig:
        body = {"text": "w", "sampling_params": {"max_new_tokens": 2}}
        got = await rig.post(GENERATE, body, headers=key("a"))
        assert (got.status, got.code) == (403, "forbidden")
        assert rig.records[0]["client"] == "a"
        assert f"it may call {CHAT}, {TEXT}" in got.error["message"]
        assert got.headers["x-should-retry"] == "false"
        assert rig.engine.seen == []
        assert (await rig.post(GENERATE, body, headers=key("b"))).status == 200
        assert (await rig.post(CHAT, chat(), headers=key("a"))).status == 200
        async with rig.http.get(rig.app.listen_url + "/v1/models", headers=key("a")) as answer:
            assert answer.status == 200


@pytest.mark.parametrize("model", ["gpt-9", None, 7, {"a": 1}, [], ["tiny"], ""])
async def test_models_that_are_not_the_client_s_are_403(start, model: Any) -> None:
    policy = {"clients": [keyed("a", models="tiny")], "models": {"other": "huge"}}
    async with start(policy) as rig:
        got = await rig.post(CHAT, chat(model=model), headers=key("a"))
        assert (got.status, got.code) == (403, "forbidden")
        assert rig.records[0]["client"] == "a"
        message = got.error["message"]
        assert "it may use tiny" in message
        assert ("leave out which model" in message) == (model in (None, "", []))
        assert (await rig.post(CHAT, chat(), headers=key("a"))).status == 200
        assert len(rig.engine.seen) == 1


async def test_who_names_no_model_is_told_so_and_of_no_others(start) -> None:
    """It read that it may not use a model that it had never asked for."""
    policy = {"clients": [keyed("a", models="mine"), keyed("b")], "models": {"mine": "tiny"}}
    async with start(policy) as rig:
        body = chat()
        del body["model"]
        got = await rig.post(CHAT, body, headers=key("a"))
        assert (got.status, got.code) == (403, "forbidden")
        words = "Client 'a' may not leave out which model it wants; it may use mine."
        assert got.error["message"].startswith(words)
        assert "tiny" not in got.error["message"]
        assert (await rig.post(CHAT, body, headers=key("b"))).status == 200


async def test_an_alias_is_asked_for_by_its_real_name(start) -> None:
    policy = {
        "models": {"gpt-5": "tiny", "gone": "not-served"},
        "clients": [keyed("a", models="tiny"), keyed("b", models=["gpt-5"]), keyed("c")],
    }
    async with start(policy) as rig:
        for client in "abc":
            got = await rig.post(CHAT, chat(model="gpt-5"), headers=key(client))
            assert got.status == 200
        assert {seen.body["model"] for seen in rig.engine.seen} == {"tiny"}
        assert {record["model"] for record in rig.records} == {"tiny"}
        listed = {}
        for client in "abc":
            url = rig.app.listen_url + "/v1/models"
            async with rig.http.get(url, headers=key(client)) as answer:
                listed[client] = [one["id"] for one in (await answer.json())["data"]]
        assert listed == {"a": ["tiny", "gpt-5"], "b": ["gpt-5"], "c": ["tiny", "gpt-5"]}


SLASHED = "Qwen/Qwen3-8B"


async def test_one_model_is_told_by_the_rules_of_the_list(start) -> None:
    policy = {
        "models": {"gpt-5": SLASHED, "gone": "not-served"},
        "clients": [keyed("a", models=SLASHED), keyed("b", models=["gpt-5"]), keyed("c")],
    }
    names = (SLASHED, "gpt-5", "gone", "not-served", "tiny", "Qwen", "")
    async with start(policy, model=SLASHED) as rig:
        asked = dict(rig.engine.calls)

        async def ask(path: str, client: str) -> tuple[int, Any]:
            url = URL(f"{rig.app.listen_url}/v1/models{path}", encoded=True)
            async with rig.http.get(url, headers=key(client)) as answer:
                return answer.status, await answer.json()

        for client in "abc":
            listed = {one["id"]: one for one in (await ask("", client))[1]["data"]}
            assert listed
            for name in names:
                for path in (f"/{name}", f"/{quote(name, safe='')}"):
                    status, told = await ask(path, client)
                    assert status == (200 if name in listed else 404), path
                    if status == 200:
                        assert told == listed[name]
                    else:
                        error = told["error"]
                        assert (error["code"], error["type"]) == ("not_found", "not_found_error")
                        assert not any(one in error["message"] for one in names[:5])
        assert (await ask(f"/{SLASHED}:latest", "c"))[1]["id"] == SLASHED, "as Ollama's clients say"
        assert (await ask(f"/{SLASHED}", "nobody"))[0] == 401
        twice = quote(quote(SLASHED, safe=""), safe="")
        for odd in (f"/{twice}", f"/{SLASHED}/", f"//{SLASHED}", "/%ff%00", "/../../flush_cache"):
            assert (await ask(odd, "c"))[0] == 404, odd
        own = {"/v1/loads", "/v1/models", "/server_info", "/model_info", "/metrics"}
        grew = {path for path, n in rig.engine.calls.items() if n > asked.get(path, 0)}
        assert grew <= own, "the gate's own questions"
        assert rig.engine.seen == []


async def test_an_adapter_that_a_server_lists_is_a_model(start) -> None:
    """Asked for as SGLang wants it, `model:adapter`; by its own name alone the engine answers without it."""
    policy = {
        "models": {"poet": "tiny:poems"},
        "clients": [keyed("a", models=["tiny:poems"]), keyed("b", models=["tiny"]), keyed("c")],
    }
    async with FakeSGLang(model="large") as other:
        policy["more"] = [{"url": other.url, "name": "gpu1"}]
        async with start(policy, adapters=("poems", "sql")) as rig:
            await rig.until(lambda: all(backend.ready for backend in rig.app.fleet))
            url = rig.app.listen_url + "/v1/models"
            async with rig.http.get(url, headers=key("c")) as answer:
                listed = {one["id"]: one["max_model_len"] for one in (await answer.json())["data"]}
            assert listed == {
                "tiny": 8192, "tiny:poems": 8192, "tiny:sql": 8192, "large": 8192, "poet": 8192,
            }  # fmt: skip
            for model, client, status in (
                ("tiny:poems", "a", 200),
                ("poet", "a", 200),
                ("tiny:sql", "a", 403),
                ("tiny:poems", "b", 403),
                ("tiny:sql", "c", 200),
                ("tiny:other", "c", 400),
                ("large:sql", "c", 400),
                (":", "c", 400),
            ):
                got = await rig.post(CHAT, chat(model=model), headers=key(client))
                assert got.status == status, (model, client)
                if status == 400:
                    assert (got.code, got.error["param"]) == ("invalid_request", "model")
            for model, status in (("tiny:sql", 200), ("tiny:other", 400)):
                counted = await rig.post(COUNT, chat(model=model), headers=key("c"))
                assert counted.status == status, "nor is it counted for one that is not there"
            asked = [seen.body["model"] for seen in rig.engine.seen]
            assert asked == ["tiny:poems", "tiny:poems", "tiny:sql"]
            assert not other.seen, "it has no adapters"
            served = {record["model"] for record in rig.records if record["outcome"] == "completed"}
            assert served == {"tiny:poems", "tiny:sql"}


async def test_adapters_that_come_and_go_are_known_when_they_are_asked_for(start) -> None:
    async with start(enable_lora=True) as rig:
        url = rig.app.listen_url + "/v1/models"

        async def listed() -> set[str]:
            async with rig.http.get(url) as answer:
                return {one["id"] for one in (await answer.json())["data"]}

        def again() -> None:
            """A second later."""
            rig.app.data._lobby.names._read_at.clear()

        assert await listed() == {"tiny"}
        rig.engine.profile = replace(rig.engine.profile, adapters=("poems",))
        got = await rig.chat(model="tiny:poems")
        assert (got.status, got.code) == (400, "invalid_request"), "it was asked just now"
        again()
        assert (await rig.chat(model="tiny:poems")).status == 200
        assert await listed() == {"tiny", "tiny:poems"}
        rig.engine.profile = replace(rig.engine.profile, adapters=())
        again()
        assert await listed() == {"tiny"}
        rig.engine.profile = replace(rig.engine.profile, adapters=("sql",))
        again()
        assert (await rig.post(COUNT, chat(model="tiny:sql"))).status == 200


async def test_names_that_are_made_up_cost_a_server_a_question_a_second(start) -> None:
    async with start(enable_lora=True) as rig:
        before = rig.engine.calls["/v1/models"]
        many = [rig.chat(model=f"tiny:a{number}") for number in range(20)]
        assert {got.status for got in await asyncio.gather(*many)} == {400}
        assert rig.engine.calls["/v1/models"] == before + 1
        rig.app.data._lobby.names._read_at.clear()
        assert (await rig.chat(model="else:a")).status == 400
        assert rig.engine.calls["/v1/models"] == before + 1, "it does not serve the model"


async def test_no_more_adapters_are_sent_than_run_together(start) -> None:
    async with start(adapters=("poems", "sql"), loras_per_batch=2) as rig:
        hold = asyncio.Event()
        rig.engine.default = Behaviour(tokens=2, hold=hold)
        names = ("tiny", "tiny:poems", "tiny:sql", "tiny:poems")
        all_ = [asyncio.create_task(rig.chat(model=name, max_tokens=2)) for name in names]
        await rig.until(lambda: rig.app.gate.view().queue.requests + len(rig.engine.seen) == 4)
        assert len({seen.body["model"] for seen in rig.engine.seen}) == 2, "whichever come first"
        hold.set()
        assert [got.status for got in await asyncio.gather(*all_)] == [200] * 4


async def test_who_takes_no_adapters_is_not_asked(start) -> None:
    async with start() as rig:
        before = rig.engine.calls["/v1/models"]
        assert (await rig.chat(model="tiny:a")).status == 400
        assert rig.engine.calls["/v1/models"] == before


async def test_a_list_that_does_not_come_changes_nothing(start) -> None:
    async with start(adapters=("poems",)) as rig:
        rig.engine.profile = replace(rig.engine.profile, api_key="other")
        assert (await rig.chat(model="tiny:sql")).status == 400
        facts = rig.app.fleet.backends["gpu0"].facts
        assert facts.adapters == ("tiny:poems",)


async def test_one_model_is_asked_of_no_server_that_is_not_ready(start) -> None:
    async with start() as rig:
        await rig.engine.die()
        await rig.until(lambda: not rig.app.fleet.any_ready, 8)
        async with rig.http.get(rig.app.listen_url + "/v1/models/tiny") as answer:
            assert answer.status == 503
            assert (await answer.json())["error"]["code"] == "no_backend"


async def test_each_model_is_asked_of_the_servers_that_have_it(start) -> None:
    async with FakeSGLang(model="large") as other:
        policy = {
            "more": [{"url": other.url, "name": "gpu1"}],
            "models": {"small": "tiny", "best": "large"},
        }
        async with start(policy) as rig:
            await rig.until(lambda: all(backend.ready for backend in rig.app.fleet))
            went = {
                name: (await rig.post(CHAT, chat(model=name))).headers["x-kvgate-backend"]
                for name in ("tiny", "small", "large", "best")
            }
            assert went == {"tiny": "gpu0", "small": "gpu0", "large": "gpu1", "best": "gpu1"}


async def test_caps_are_the_client_s_own_where_it_has_some(start) -> None:
    policy = {
        "clients": [
            keyed("a", default_output_tokens=5, max_output_tokens=9),
            {"name": "anyone"},
        ]
    }
    async with start(policy) as rig:
        for asked, cap, source in [(None, "5", "none"), (100, "9", "100"), (7, "7", None)]:
            fields = {} if asked is None else {"max_tokens": asked}
            got = await rig.post(CHAT, chat(**fields), headers=key("a"))
            assert got.headers["x-kvgate-max-tokens"] == cap
            assert got.headers.get("x-kvgate-clamped-from") == source
            assert rig.engine.seen[-1].body["max_tokens"] == int(cap)
        assert (await rig.chat(max_tokens=100)).headers["x-kvgate-max-tokens"] == "100"


async def test_a_quota_counts_what_was_used_and_names_the_end_of_its_window(start) -> None:
    policy = {"clients": [keyed("a", quota={"tokens": 60, "window_s": 7200.0}), keyed("b")]}
    async with start(policy) as rig:
        rig.engine.default = Behaviour(tokens=10)
        for stream in (True, False):  # 20 tokens of prompt and 10 of answer, of 500 allowed
            got = await rig.post(CHAT, chat(max_tokens=500, stream=stream), headers=key("a"))
            assert got.status == 200
        got = await rig.post(CHAT, chat(), headers=key("a"))
        assert (got.status, got.code) == (429, "quota_exceeded")
        assert 7000 < int(got.headers["retry-after"]) <= 7200
        assert "60 tokens used of your quota of 60" in got.error["message"]
        assert (await rig.post(CHAT, chat(), headers=key("b"))).status == 200
        assert len(rig.engine.seen) == 3


async def test_how_much_of_a_quota_is_left_is_told(start, tmp_path: Path) -> None:
    quota = {"tokens": 1000, "window_s": 7200.0}
    policy = {"clients": [keyed("a", quota=quota), keyed("b", quota={"tokens": 7}), keyed("c")]}
    async with start(policy) as rig:
        rig.engine.default = Behaviour(tokens=10)
        await rig.post(CHAT, chat(max_tokens=500), headers=key("a"))
        hold = asyncio.Event()
        rig.engine.queue.append(Behaviour(tokens=10, hold=hold))
        running = asyncio.ensure_future(rig.post(CHAT, chat(max_tokens=50), headers=key("a")))
        await rig.until(lambda: rig.reserved)
        one, other = (await rig.status())["quotas"]
        assert 7100 < one.pop("window_left_s") <= 7200
        numbers = {"used_tokens": 30, "under_way_tokens": 71, "quota_tokens": 1000}
        assert one == {"client": "a", **numbers, "elsewhere_tokens": 0, "window_s": 7200.0}
        assert (other["client"], other["used_tokens"], other["window_left_s"]) == ("b", 0, None)
        text = (await rig.control("/metrics")).body.decode()
        assert 'kvgate_client_quota_used_tokens{client="a"} 30.0' in text
        assert 'kvgate_client_quota_under_way_tokens{client="a"} 71.0' in text
        hold.set()
        await running
        # By the policy in force: another quota is told at once, and one that is gone no more.
        policy["clients"] = [keyed("a", quota={"tokens": 500}), keyed("b"), keyed("c")]
        written(tmp_path, rig.engine.url, policy)
        assert (await rig.control("/reload", "POST")).status == 200
        (one,) = (await rig.status())["quotas"]
        assert (one["used_tokens"], one["quota_tokens"]) == (60, 500)


async def test_a_burst_does_not_slip_past_a_quota(start) -> None:
    """What runs and waits counts too: forty at once are not forty times the quota."""
    policy = {"clients": [keyed("a", quota={"tokens": 100})]}
    async with start(policy) as rig:
        hold = asyncio.Event()
        rig.engine.default = Behaviour(tokens=10, hold=hold)
        asked = [
            asyncio.ensure_future(rig.post(CHAT, chat(max_tokens=10), headers=key("a")))
            for _ in range(40)
        ]
        await rig.until(lambda: sum(one.done() for one in asked) == 36)
        hold.set()
        statuses = [(await one).status for one in asked]
        assert (statuses.count(200), statuses.count(429)) == (4, 36)


async def test_a_client_that_hangs_up_pays_for_what_it_got(start) -> None:
    policy = {"clients": [keyed("a", quota={"tokens": 1000})]}
    async with start(policy) as rig:
        rig.engine.queue.append(Behaviour(tokens=40, hold=asyncio.Event(), hold_at=30))
        body = chat(max_tokens=40, stream=True)
        url = rig.app.listen_url + CHAT
        async with rig.http.post(url, json=body, headers=key("a")) as answer:
            await rig.until(lambda: rig.app.gate.core.books.held)
            seen = 0
            while seen < 20:
                seen += (await answer.content.readany()).count(b"data: ")
            answer.close()
        await rig.until(lambda: not rig.app.gate.core.books.held)
        assert 20 + 20 <= rig.app.gate.core.meters.used("a") <= 20 + 40


@pytest.mark.parametrize(("here", "level"), [(True, "info"), (False, "warning")])
async def test_a_gate_without_keys_says_so(start, tmp_path: Path, monkeypatch, here, level) -> None:
    if not here:
        monkeypatch.setattr(app, "is_loopback", lambda _: False)
    keys = {"clients": [keyed("a")]}
    with capture_logs() as logs:

        def told() -> list[Any]:
            return [one for one in logs if one["event"] == "no_keys"]

        async with start() as rig:
            (one,) = told()
            assert (one["log_level"], one["listen"]) == (level, rig.app.listen_url)
            assert one["listen"].startswith("http://127.0.0.1:"), "of itself it is on loopback"
            assert "no client has a key" in one["reason"]
            for policy, times in ((keys, 1), (keys, 1), ({}, 2)):
                written(tmp_path, rig.engine.url, policy)
                assert (await rig.control("/reload", "POST")).status == 200
                assert len(told()) == times
        async with start(keys) as rig:
            assert len(told()) == 2


async def test_who_calls_from_where(start) -> None:
    async with start({"clients": [{"name": "here", "address": "127.0.0.0/8"}]}) as rig:
        assert (await rig.chat()).status == 200
        assert rig.records[0]["client"] == "here"
    async with start({"clients": [{"name": "there", "address": "10.0.0.0/8"}]}) as rig:
        assert (await rig.chat()).status == 401


async def test_rules_send_requests_to_servers_and_nowhere_else(start) -> None:
    async with FakeSGLang() as other, FakeSGLang(model="large") as third:
        policy = {
            "more": [{"url": other.url, "name": "gpu1"}, {"url": third.url, "name": "gpu2"}],
            "clients": [keyed("a"), keyed("b")],
            "routes": [
                {"when": {"prompt_tokens_over": 500}, "to": "gpu1"},
                {"when": {"client": "b"}, "to": ["gpu0"]},
                {"when": {"stream": True}, "to": ["gpu1"]},
            ],
        }
        async with start(policy) as rig:
            await rig.until(lambda: all(backend.ready for backend in rig.app.fleet))

            async def went(client: str, words: int = 16, **fields: Any) -> str:
                got = await rig.post(CHAT, chat(words, **fields), headers=key(client))
                return got.headers.get("x-kvgate-backend") or got.code

            assert [await went("a", 600), await went("b", 600)] == ["gpu1", "gpu1"]
            assert [await went("b"), await went("b", stream=True)] == ["gpu0", "gpu0"]
            assert await went("a", stream=True) == "gpu1"
            assert await went("a", model="large") == "gpu2"
            assert await went("b", model="large") == "forbidden"
            await other.die()
            await rig.until(lambda: not rig.app.fleet.backends["gpu1"].ready)
            assert await went("a", 600) == "no_backend", "not on a server the rule does not name"
