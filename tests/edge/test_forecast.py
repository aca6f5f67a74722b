"""The default reservation, end to end: what is likely is charged, what was asked for is forwarded."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.core.model import ClientRule, Lead, RequestId, Ticket
from gateway.edge import tickets
from gateway.tokens import Kind
from tests.edge.rig import TEXT, running

FORECAST = {"reservation": "forecast"}


async def test_two_promises_of_more_than_the_pool_run_side_by_side(tmp_path) -> None:
    """2 x (100 + 1,500) of 2,026 tokens: each is answered, with the cap its client asked for."""
    async with running(tmp_path, FORECAST) as rig:
        body = {"prompt": [1] * 100, "max_tokens": 1_500}
        first, second = await asyncio.gather(rig.post(TEXT, body), rig.post(TEXT, body))
        assert (first.status, second.status) == (200, 200)
        assert [r["cap_forwarded"] for r in rig.records] == [1_500, 1_500]
        assert all(r["queue_ms"] in {None, 0.0} or r["queue_ms"] < 50 for r in rig.records)
        assert all(r["kv_reserved"] < 1_000 for r in rig.records)
        assert rig.app.gate.view().pools[0].kv.reserved == 0, "at rest every ledger is zero"


async def test_answers_teach_the_gate_how_long_answers_are(tmp_path) -> None:
    async with running(tmp_path, FORECAST) as rig:
        body = {"prompt": [1] * 100, "max_tokens": 1_500}
        for _ in range(12):
            assert (await rig.post(TEXT, body)).status == 200
        after, before = rig.records[0]["kv_reserved"], rig.records[-1]["kv_reserved"]
        assert after < before, "the engine of the test answers in a few tokens"


@pytest.mark.parametrize(
    ("headers", "policy", "seconds"),
    [
        ({}, None, None),
        ({}, 20.0, 20.0),
        ({"x-stainless-read-timeout": "600"}, None, 600.0),
        ({"x-stainless-timeout": "30"}, 60.0, 30.0),
        ({"x-stainless-timeout": "90"}, 60.0, 60.0),
        ({"x-stainless-read-timeout": "NOT_GIVEN"}, None, None),
        ({"x-stainless-timeout": "-5"}, None, None),
        ({"x-stainless-timeout": "nan"}, None, None),
        ({"x-stainless-timeout": "1e99"}, None, None),
        ({"x-stainless-timeout": "0"}, 60.0, 60.0),
    ],
)
def test_the_timeout_a_client_names_is_its_deadline(headers, policy, seconds) -> None:
    until = tickets.deadline(headers, 100.0, policy)
    assert until == (None if seconds is None else 100.0 + seconds)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({}, "chat"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": []}, "chat"),
        ({"reasoning_effort": "high", "tools": [1]}, "reasoning"),
        ({"reasoning_effort": "none"}, "chat"),
        ({"reasoning_effort": 7}, "chat"),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "reasoning"),
        ({"thinking": {"type": "disabled"}}, "chat"),
        ({"thinking": "yes"}, "chat"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "reasoning"),
        ({"chat_template_kwargs": {"enable_thinking": "true"}}, "chat"),
        ({"chat_template_kwargs": [1]}, "chat"),
    ],
)
def test_the_kind_of_answer_is_read_from_the_body(body, kind) -> None:
    assert tickets.kind_of(body) == kind


def test_a_ticket_carries_what_the_core_decides_by() -> None:
    made = made_for("tiny", body={"tools": [1]}, lead=Lead.of([(1, 5)]))
    assert (made.lead, made.session) == (Lead.of([(1, 5)]), "5e5510")
    assert (made.ask.prompts, made.ask.n, made.ask.cap) == ((5, 7), 2, 30)
    assert made.ask.images
    assert (made.kind, made.deadline, made.body_bytes, made.streamed) == ("tools", 5.0, 99, True)
    assert made.grammar is None


def test_what_an_adapter_has_read_is_its_own() -> None:
    lead = Lead.of([(1, 5), (-(1 << 63), 9)])
    poems, again, sql = (
        made_for(f"tiny:{name}", body={}, lead=lead).lead for name in ("poems", "poems", "sql")
    )
    assert poems == again
    assert not {*lead.marks, *sql.marks} & {*poems.marks}
    assert poems.tokens == lead.tokens


def made_for(model: str, *, body: dict[str, Any], lead: Lead) -> Ticket:
    intent = SimpleNamespace(
        kind=Kind.CHAT, n=2, cap=30, usual=None, stream=True, model=model, compile_s=0.0
    )
    return tickets.ticket(
        RequestId("r"),
        ClientRule("a"),
        intent,  # type: ignore[arg-type]
        SimpleNamespace(prompts=(5, 7), lead=lead, media=3),  # type: ignore[arg-type]
        body=body,
        size=99,
        pools=(),
        headers={},
        session="5e5510",
        arrived=1.0,
        first_token_s=4.0,
    )


async def test_each_piece_of_a_stream_tells_how_far_its_server_is_in_a_step(tmp_path) -> None:
    """Who comes next is told when its first token will come, from when the server was last heard."""
    async with running(tmp_path, FORECAST) as rig:
        backend = next(iter(rig.app.fleet.backends.values()))
        assert (await rig.post(TEXT, {"prompt": [1] * 100, "max_tokens": 5})).status == 200
        heard = backend.watch.heard_at
        assert heard > 0
        place = rig.app.gate.core.books.pools[backend.pools[0]]
        place.heard = 0.0
        backend.say_when_heard(rig.app.gate.core.books)
        assert place.heard == heard
        backend.pools = (*backend.pools, backend.pools[0]._replace(rank=1))
        place.heard = 0.0
        backend.say_when_heard(rig.app.gate.core.books)
        assert place.heard == 0.0, "of two ranks nobody knows which it was"
        backend.pools = backend.pools[:1]
        told: list[object] = []
        backend.say_when_heard = told.append
        assert (await rig.post(TEXT, {"prompt": [1] * 100, "max_tokens": 5})).status == 200
        assert told == [rig.app.gate.core.books], "before each request that is asked in"
