"""Discovery: the order of the questions, who shares them, and what each failure is called."""

from __future__ import annotations

import asyncio

import pytest

from gateway.upstream.ask import AskError
from gateway.upstream.discover import DiscoveryError, discover, loads
from tests.upstream.scripted import Scripted, ScriptedClient, status

pytestmark = pytest.mark.looptime


async def ask(client: ScriptedClient, api_key: str | None = None):
    return await discover(client, api_key=api_key, timeout_s=10.0)


@pytest.mark.parametrize("version", ["0.5.12", "0.5.17", "0.5.23"])
async def test_three_questions_the_scheduler_last_but_one(version):
    client = ScriptedClient(version=version, pool=5000, max_running=16)
    facts = await ask(client)
    assert (facts.version_text, facts.pool_tokens, facts.max_running) == (version, 5000, 16)
    assert [path for _, path in client.asked] == ["/v1/models", "/server_info", "/model_info"]


async def test_oldest_version_by_its_old_names():
    client = ScriptedClient(version="0.5.6")
    facts = await ask(client)
    assert facts.version == (0, 5, 6)
    assert [path for _, path in client.asked] == [
        "/v1/models",
        "/server_info",
        "/get_server_info",
        "/model_info",
        "/get_model_info",
    ]


async def test_facts_stand_without_model_info():
    client = ScriptedClient()
    client.override["/model_info"] = status(500)
    assert (await ask(client)).pool_tokens == 2048


async def test_key_goes_along_and_nowhere_else():
    client = ScriptedClient(api_key="sk-secret")
    facts = await ask(client, api_key="sk-secret")
    assert set(client.headers) == {(("authorization", "Bearer sk-secret"),)}
    assert "sk-secret" not in repr(facts)


async def test_concurrent_callers_share_one_discovery():
    client = ScriptedClient()
    first, second = await asyncio.gather(ask(client), ask(client))
    assert first is second
    assert len(client.asked) == 3
    await ask(client)
    assert len(client.asked) == 6


async def test_a_cancelled_caller_does_not_take_it_from_the_others():
    client = ScriptedClient()
    loop = asyncio.get_running_loop()
    first, second = loop.create_task(ask(client)), loop.create_task(ask(client))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).pool_tokens == 2048
    assert first.cancelled()


async def test_an_error_reaches_every_caller_and_is_not_remembered():
    client = ScriptedClient()
    client.mood = "refused"
    both = await asyncio.gather(ask(client), ask(client), return_exceptions=True)
    assert [type(outcome) for outcome in both] == [DiscoveryError, DiscoveryError]
    assert len(client.asked) == 1
    client.mood = "up"
    assert await ask(client)


@pytest.mark.parametrize(
    ("mood", "override", "kind", "words"),
    [
        ("refused", {}, "unreachable", "start the server"),
        ("silent", {}, "hung", "silent for 10 s"),
        ("frozen", {}, "hung", "scheduler was silent for 10 s"),
        ("up", {"/v1/models": status(503)}, "starting", "still loading"),
        ("up", {"/server_info": status(503)}, "starting", "still loading"),
        ("up", {"/v1/models": status(401)}, "unauthorized", "--api-key"),
        ("up", {"/v1/models": status(404)}, "not_sglang", "answers 404"),
        ("up", {"/v1/models": Scripted(body=b"<html>")}, "not_sglang", "not answer in JSON"),
        ("up", {"/v1/models": ["hello"]}, "not_sglang", "lists no models"),
        ("up", {"/server_info": {"version": "1.0"}}, "not_sglang", "max_total_num_tokens"),
        (
            "up",
            {"/server_info": status(404), "/get_server_info": status(404)},
            "not_sglang",
            "/get_server_info answers 404",
        ),
    ],
)
async def test_failures_by_name(mood, override, kind, words):
    client = ScriptedClient()
    client.mood, client.override = mood, override
    with pytest.raises(DiscoveryError, match=words) as caught:
        await ask(client)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("version", "path"), [("0.5.6", "/get_load"), ("0.5.12", "/v1/loads"), ("0.5.23", "/v1/loads")]
)
async def test_loads_by_version(version, path):
    client = ScriptedClient(version=version)
    got = await loads(client, client.profile.number, api_key=None, timeout_s=1.0)
    assert got is not None
    assert [asked for _, asked in client.asked] == [path]


async def test_loads_where_there_are_none_or_nobody_answers():
    client = ScriptedClient()
    client.override["/v1/loads"] = status(404)
    assert await loads(client, None, api_key=None, timeout_s=1.0) is None
    client.mood = "refused"
    with pytest.raises(AskError):
        await loads(client, None, api_key=None, timeout_s=1.0)
