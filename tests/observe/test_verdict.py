"""Verdicts: incident C's own log figures, the edges of each rule, and the same numbers in both
languages."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from gateway.observe.looks import CardLook, ServerLook
from gateway.observe.verdict import Kind, Verdict, Words, judge
from gateway.observe.words import verdict, worst

L20 = CardLook(0, "NVIDIA L20", 97.0, 41 << 30, 46 << 30)
POOL = 1_130_000  # 486K tokens at the peak were "never over 43 %" of it
READ = 389_000 / 360  # "389K new prefill tokens" in the six minutes from 11:50 to 11:56


def engine(**said: Any) -> ServerLook:
    """A look at a server that nothing of ours stands before: its own numbers only."""
    values = {"running": 0, "waiting": 0, "used": 0, "pool": POOL, "pending": 0} | said
    return ServerLook(
        "l20", "ready", prefill_tok_s=READ, **{f"engine_{k}": v for k, v in values.items()}
    )


def calm(**changes: Any) -> ServerLook:
    """A look at a server behind the gate that does well."""
    values: dict[str, Any] = {
        "kv_limit": 66_000,
        "kv_reserved": 20_000,
        "kv_used": 15_000,
        "slots_allowed": 8,
        "running": 2,
        "writing": 2,
        "stream_tok_s": 30.0,
        "prefill_tok_s": 2_000.0,
        "engine_waiting": 0,
        "engine_retracted": 0,
    }
    return ServerLook(**({"server": "gpu0", "state": "ready"} | values | changes))


def kind_of(*looks: ServerLook, **more: Any) -> Kind:
    return judge(looks, **more)[1][0]


# ---- incident C, 28 July, as its logs have it ----------------------------------------------------


def test_11_51_a_backlog_of_input() -> None:
    """`11:51:12 queue=3, pending=208013`, `11:51:14 queue=3, pending=292965`; GPUs busy."""
    looks = [
        engine(running=8, waiting=3, used=486_000, pending=pending)
        for pending in (208_013, 292_965)
    ]
    found = verdict(looks, cards=[L20])
    assert found.kind is Kind.PREFILL_BACKLOG
    assert "250,489 prompt tokens have still to be read, 292,965 at the peak" in found.sentence.en
    assert "at 1,081 tokens/s that takes 232 s; 3 requests wait at most" in found.sentence.en
    assert "GPUs 97 % busy" in found.sentence.en


def test_the_peak_of_621_390_tokens() -> None:
    found = verdict([engine(running=9, waiting=9, used=480_000, pending=621_390)])
    assert (found.kind, "575 s" in found.sentence.en) == (Kind.PREFILL_BACKLOG, True)


def test_eight_long_requests_decode_at_once() -> None:
    """8-9 running, 486K tokens in use, nobody pending: 31 tok/s alone, 9 now."""
    looks = [engine(running=8, used=8 * 60_750, tok_s=72.0)] * 12
    found = verdict(looks, cards=[L20], usual=31.0)
    assert found.kind is Kind.DECODE_COMPETITION
    assert found.sentence.en == (
        "8 requests of 60,750 tokens each decode at once; speed per request fell from 31 to 9 tok/s."
    )
    assert "slots: 4" in found.change.en  # 8 x 9 tok/s are 4 x 15.5 and a bit
    assert "8 个请求（平均 60,750 Token）同时生成" in found.sentence.zh
    assert "31 降到 9" in found.sentence.zh


def test_a_queue_of_nine_while_the_pool_is_far_from_full() -> None:
    """9 queued for 89 s, KV never over 43 %: what waits is small, so it is not the input."""
    looks = [engine(running=10, waiting=9, used=486_000, pending=9_000, tok_s=310.0)] * 12
    found = verdict(looks, cards=[L20], usual=31.0)
    assert found.kind is Kind.COMPUTE_QUEUE
    assert (
        "9 requests wait (9 at the peak) while only 43 % of the pool is in use" in found.sentence.en
    )


def test_memory_that_looks_full_while_the_cards_idle_is_no_load() -> None:
    """41 of 46 GB on each card: weights, graphs and the pool."""
    found = verdict([engine()], cards=[replace(L20, utilisation=0.0)])
    assert found.kind is Kind.CALM
    assert "memory is 89 % taken while they idle" in found.sentence.en
    assert found.change == Words()
    assert "静态预分配" in found.sentence.zh


def test_the_remedy_shows() -> None:
    """Ten may run, others wait in the gate: each that runs has its speed, so nobody crawls."""
    looks = [
        calm(running=10, writing=10, slots_allowed=10, waits_slots=6, waits_oldest_s=20.0)
    ] * 12
    assert kind_of(*looks, usual=31.0) is Kind.COMPUTE_QUEUE


# ---- the edges of the rules ----------------------------------------------------------------------


def of_twelve(count: int, **changes: Any) -> list[ServerLook]:
    return [calm(**changes)] * count + [calm()] * (12 - count)


@pytest.mark.parametrize(
    ("looks", "kind"),
    [
        (of_twelve(0), Kind.CALM),
        (of_twelve(1, state="down"), Kind.CALM),
        (of_twelve(2, state="down"), Kind.ENGINE_DOWN),
        (of_twelve(12, state="held"), Kind.ENGINE_DOWN),
        ([calm(deaths=1), calm(deaths=2)], Kind.ENGINE_DOWN),
        ([calm(deaths=2), calm(deaths=2)], Kind.CALM),
        ([calm(engine_retracted=4), calm(engine_retracted=5)], Kind.KV_EXHAUSTION),
        ([calm(engine_retracted=5), calm(engine_retracted=0)], Kind.CALM),  # a new process
        (
            [calm(engine_retracted=5), calm(engine_retracted=6), calm(engine_retracted=0)],
            Kind.KV_EXHAUSTION,
        ),
        (of_twelve(3, waits_kv=1, waits_oldest_s=3.0), Kind.CALM),
        (of_twelve(4, waits_kv=1, waits_oldest_s=3.0), Kind.KV_EXHAUSTION),
        (of_twelve(4, waits_kv=1, waits_oldest_s=0.9), Kind.CALM),
        (of_twelve(12, engine_waiting=1, engine_used=52_900), Kind.KV_EXHAUSTION),
        (of_twelve(12, engine_waiting=1, engine_used=52_700), Kind.COMPUTE_QUEUE),
        (of_twelve(12, reading=1, prefill_tokens=20_000), Kind.PREFILL_BACKLOG),
        (of_twelve(12, reading=1, prefill_tokens=19_000), Kind.CALM),
        (of_twelve(12, reading=1, reading_oldest_s=10.0), Kind.PREFILL_BACKLOG),
        (of_twelve(12, reading=1, reading_oldest_s=9.9), Kind.CALM),
        (of_twelve(12, waits_prefill=2, waits_oldest_s=5.0), Kind.COMPUTE_QUEUE),
        (of_twelve(12, waits_prefill=2, waits_oldest_s=50.0), Kind.PREFILL_BACKLOG),
        (of_twelve(12, stream_tok_s=16.0), Kind.CALM),
        (of_twelve(12, stream_tok_s=15.5), Kind.DECODE_COMPETITION),
        (of_twelve(12, stream_tok_s=15.5, writing=1), Kind.CALM),
        (of_twelve(8, stream_tok_s=3.0, reading=1), Kind.PREFILL_BACKLOG),
        (of_twelve(7, stream_tok_s=3.0, reading=1), Kind.DECODE_COMPETITION),
        (of_twelve(4, waits_slots=1, waits_oldest_s=1.0), Kind.COMPUTE_QUEUE),
        (of_twelve(4, waits_turn=1, waits_oldest_s=1.0), Kind.COMPUTE_QUEUE),
        (of_twelve(4, waits_client=1, waits_client_oldest_s=1.0), Kind.CLIENT_LIMITED),
        (of_twelve(4, waits_client=1, waits_oldest_s=9.0), Kind.CALM),
    ],
)
def test_where_a_class_begins(looks: list[ServerLook], kind: Kind) -> None:
    assert kind_of(*looks, usual=31.0) is kind


def test_what_happened_since_the_last_minute_counts() -> None:
    before = calm(deaths=1, engine_retracted=2)
    assert kind_of(calm(deaths=2), before=before) is Kind.ENGINE_DOWN
    assert kind_of(calm(deaths=1, engine_retracted=3), before=before) is Kind.KV_EXHAUSTION
    assert kind_of(calm(deaths=1, engine_retracted=2), before=before) is Kind.CALM


def test_a_crawl_is_one_whatever_is_usual() -> None:
    """A server that has always been too full knows no better speed."""
    assert kind_of(calm(stream_tok_s=9.0), usual=None) is Kind.DECODE_COMPETITION
    assert kind_of(calm(stream_tok_s=11.0), usual=None) is Kind.CALM
    found = verdict([calm(stream_tok_s=9.0)], usual=9.0)
    assert "each gets 9 tok/s" in found.sentence.en


def test_the_worst_comes_first_and_the_others_are_named() -> None:
    waits = {"waits_kv": 2, "waits_slots": 1, "waits_oldest_s": 30.0}
    waits |= {"waits_client": 1, "waits_client_oldest_s": 30.0}
    looks = [calm(**waits, stream_tok_s=4.0, prefill_tokens=50_000, deaths=n) for n in (0, 1)]
    found = verdict(looks, usual=31.0)
    assert (found.kind, *found.also) == tuple(Kind)[:-1]


def test_writers_that_stand_still_for_a_reader_do_not_compete_with_each_other() -> None:
    _, kinds = judge([calm(reading=1, stream_tok_s=0.0)] * 12, usual=31.0)
    assert kinds == (Kind.PREFILL_BACKLOG,)


def test_a_gate_is_as_well_as_its_worst_server() -> None:
    well = verdict([calm()])
    slow = verdict([calm(stream_tok_s=4.0)])
    assert worst([well, slow, well]) is slow
    assert worst([]) is None


def said(changes: dict[str, Any]) -> Verdict:
    return verdict([calm(**changes)] * 2, usual=31.0, cards=[replace(L20, utilisation=20.0)])


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (Kind.ENGINE_DOWN, {"state": "down"}),
        (Kind.KV_EXHAUSTION, {"waits_kv": 3, "waits_oldest_s": 12.5}),
        (Kind.PREFILL_BACKLOG, {"reading": 3, "prefill_tokens": 123_456}),
        (Kind.DECODE_COMPETITION, {"stream_tok_s": 7.0}),
        (Kind.COMPUTE_QUEUE, {"waits_slots": 5, "waits_oldest_s": 8.0}),
        (
            Kind.CLIENT_LIMITED,
            {"waits_client": 4, "waits_client_oldest_s": 9.0, "waiting_client": "agents"},
        ),
        (Kind.CALM, {}),
    ],
)
def test_both_languages_have_the_same_numbers(kind: Kind, changes: dict[str, Any]) -> None:
    found = said(changes)
    assert found.kind is kind

    def numbers(text: str) -> list[str]:
        return sorted(re.findall(r"\d[\d,.]*\d|\d", text))

    assert numbers(found.sentence.en) == numbers(found.sentence.zh) != []
    assert numbers(found.change.en) == numbers(found.change.zh)
    assert not re.search(r"[一-鿿]", found.sentence.en)
    assert re.search(r"[一-鿿]", found.sentence.zh)
    assert bool(found.change.en) == bool(found.change.zh) == (kind is not Kind.CALM)


def test_idle_cards_send_the_eye_elsewhere() -> None:
    assert "CPU" in said({"waits_slots": 5, "waits_oldest_s": 8.0}).change.en


def test_one_request_is_one() -> None:
    one = {"waits_slots": 1, "waits_oldest_s": 8.0}
    assert said(one).sentence.en.startswith("1 request waits (1 at the peak)")
    assert said({"running": 1, "writing": 1}).sentence.en.startswith("1 request runs, each at")


def test_a_client_is_named() -> None:
    changes = {"waits_client": 4, "waits_client_oldest_s": 9.0, "waiting_client": "agents"}
    assert "4 requests of agents held back" in said(changes).sentence.en
