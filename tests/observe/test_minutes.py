"""Minutes: when they close, what they add up, and that what is documented is what is said."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.core.model import Code, Outcome
from gateway.observe import minutes as module
from gateway.observe.looks import CardLook, GateLook, Look, ServerLook, columns
from gateway.observe.minutes import Minutes
from gateway.observe.record import Record
from gateway.observe.verdict import Kind

from .made_up import finished, refused

NOON = datetime(2026, 11, 30, 12, 0, 2, tzinfo=UTC)
DOCS = (Path(__file__).parents[2] / "docs" / "evidence.md").read_text()


def look(second: float, gate: dict[str, Any] | None = None, **server: Any) -> Look:
    at = NOON + timedelta(seconds=second)
    seen = ServerLook(**({"server": "gpu0", "state": "ready", "kv_limit": 1000} | server))
    cards = (CardLook(0, "L20", 90.0, 40, 46),)
    return Look(at, GateLook("ready", **(gate or {})), (seen,), cards)


def history(minutes: Minutes, most: int = 1440) -> list[Any]:
    return json.loads(minutes.history(most))["minutes"]


def test_a_minute_closes_with_the_first_look_of_the_next() -> None:
    minutes = Minutes(5.0)
    closed = [minutes.add(look(5.0 * index)) for index in range(13)]
    assert [one is not None for one in closed] == [False] * 12 + [True]
    (first, last) = history(minutes)
    assert json.loads(closed[-1] or b"") == first
    assert (first["at"], first["samples"]) == ("2026-11-30T12:00:00Z", 12)
    assert (last["at"], last["samples"]) == ("2026-11-30T12:01:00Z", 1)
    assert history(minutes, 1) == [last]


def test_means_sums_and_totals() -> None:
    minutes = Minutes(5.0)
    minutes.add(look(0, {"admitted": 7}))
    minutes.add(look(60, {"admitted": 10, "queue_requests": 1, "queue_oldest_s": 3.0}))
    minutes.add(
        look(
            65,
            {"admitted": 12, "queue_requests": 4, "queue_oldest_s": 1.0},
            kv_used=100,
            kv_reserved=301,
            generated_tokens=50,
            running=3,
            engine_waiting=1,
            stream_tok_s=20.0,
        )
    )
    one = history(minutes)[1]
    assert one["queue"] == {"requests": 2.5, "requests_max": 4, "tokens": 0, "oldest_s": 3.0}
    assert one["requests"]["admitted"] == 5
    (server,) = one["servers"]
    assert server["kv"] == {"reserved": 150, "used": 50, "limit": 1000}
    assert (server["running"], server["waiting"]) == (1.5, 1.0)  # unknown is not zero
    assert (server["generation_tok_s"], server["stream_tok_s"]) == (5.0, 20.0)
    assert one["gpus"] == [
        {"index": 0, "name": "L20", "utilisation": 90.0, "memory_used": 40, "memory_total": 46}
    ]


def test_requests_count_in_the_minute_they_end_in() -> None:
    minutes = Minutes(5.0)
    minutes.add(look(0))
    for number in range(1, 21):
        minutes.ended(finished(ttft_ms=10.0 * number, tpot_ms=1.0 * number))
    minutes.ended(finished(backend="gpu1", ttft_ms=1e6, tpot_ms=None))
    minutes.ended(refused(Code.QUEUE_FULL))
    minutes.ended(refused(Code.QUEUE_TIMEOUT, outcome=Outcome.EVICTED))
    minutes.ended(Record("x", outcome=Outcome.CANCELLED))
    minutes.add(look(60))
    before, now = history(minutes)
    counts = {"admitted": 0, "completed": 21, "rejected": 2, "cancelled": 1, "failed": 0}
    assert before["requests"] == counts
    assert before["ttft_ms"] == {"p50": 110.0, "p95": 200.0}  # nearest rank, all servers
    assert before["servers"][0]["ttft_ms"] == {"p50": 100.0, "p95": 190.0}
    assert before["servers"][0]["tpot_ms"] == {"p50": 10.0, "p95": 19.0}
    assert (now["ttft_ms"], now["servers"][0]["tpot_ms"]) == (None, None)
    assert now["requests"]["completed"] == 0


def test_a_flood_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENDS", 5)
    minutes = Minutes(5.0)
    minutes.add(look(0))
    for _ in range(9):
        minutes.ended(finished())
    assert len(minutes._ends.times) == 5
    assert history(minutes)[0]["requests"]["completed"] == 9


def test_the_verdict_of_now_looks_back_a_minute_and_not_more() -> None:
    minutes = Minutes(5.0)
    for index in range(3):
        minutes.add(look(5.0 * index, state="down"))
        assert minutes.verdict() is None
    minutes.add(look(15))
    verdict = minutes.verdict()
    assert verdict is not None
    assert verdict["class"] == "engine_down"
    for index in range(4, 16):
        minutes.add(look(5.0 * index))
    assert (minutes.verdict() or {})["class"] == "calm"


def test_what_is_usual_is_learned_from_minutes_and_not_from_the_crawl() -> None:
    minutes = Minutes(5.0)
    for index in range(12 * 30):
        speed = 31.0 if index < 12 * 4 else 12.0  # four good minutes of thirty
        minutes.add(look(5.0 * index, stream_tok_s=speed, writing=8))
    assert history(minutes)[-1]["verdict"]["class"] == "decode_competition"
    assert "from 31 to 12 tok/s" in history(minutes)[-1]["verdict"]["sentence"]["en"]


def test_a_day_is_kept() -> None:
    minutes = Minutes(5.0)
    minutes.recall([b'{"at":"%d"}' % number for number in range(1500)])
    assert [one["at"] for one in history(minutes)][:1] == ["60"]
    minutes.add(look(0))
    minutes.add(look(60))
    found = history(minutes)
    assert (len(found), found[0]["at"], found[-2]["at"]) == (1440, "62", "2026-11-30T12:00:00Z")


def test_cards_speak_for_the_server_of_this_machine_only() -> None:
    for local, said in (("gpu0", True), (None, False)):
        minutes = Minutes(5.0, local=local)
        minutes.add(look(0, reading=1, prefill_tokens=10**6, prefill_tok_s=100.0))
        assert ("GPUs 90 % busy" in history(minutes)[0]["verdict"]["sentence"]["en"]) is said


# ---- the documentation ---------------------------------------------------------------------------


def keys(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {name for key in value for name in ({key} | keys(value[key]))}
    if isinstance(value, list):
        return {name for one in value for name in keys(one)}
    return set()


def test_every_key_of_the_history_is_documented() -> None:
    minutes = Minutes(5.0)
    minutes.add(look(0, stream_tok_s=3.0))
    minutes.ended(finished())
    shape = DOCS.partition("## `GET /history`")[2].partition("\n## ")[0]
    documented = set(re.findall(r'"(\w+)":', shape))
    said = keys(json.loads(minutes.history()))
    assert said == documented


@pytest.mark.parametrize("kind", [GateLook, ServerLook, CardLook])
def test_every_column_is_documented(kind: type) -> None:
    for column in columns(kind):
        assert re.search(rf"^\| `{column}` \|", DOCS, re.MULTILINE), column


def test_every_class_and_every_field_of_a_record_is_documented() -> None:
    for word in (*Kind, *finished().to_dict()):
        assert f"`{word}`" in DOCS, word
