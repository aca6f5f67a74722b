"""Incident A: what clients promise is more than the pool holds.

The original: three agents with 19,000-token prompts and 32,000 tokens of output each before a pool
of 67,375. Scaled by 33: prompts of 560 tokens, a pool of 2,048, three and twelve clients at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.real.conftest import POOL
from tests.real.load import (
    END_OF_TURN,
    ONE_IN_100,
    LoadSampler,
    chat_body,
    chats,
    chats_in_one_pass,
    spread,
    streaming,
)

if TYPE_CHECKING:
    from tests.real.conftest import Note
    from tests.real.engine import Engine
    from tests.real.gateproc import Gate
    from tests.real.load import Reply

pytestmark = pytest.mark.alone

PROMPT = 560

# The refusals a client of an overloaded but healthy server may meet.
OVERLOAD_CODES = {"queue_full", "queue_timeout", "client_limit", "deadline_unreachable"}


def bodies(clients: int, *, seed: int, **fields: Any) -> list[dict[str, Any]]:
    return [streaming(chat_body(PROMPT, seed + k, **fields)) for k in range(clients)]


class TestWithoutTheGate:
    """The baseline, so that calm behind the gate means something."""

    async def test_no_cap_means_one_at_a_time(self, engine: Engine, report: Note) -> None:
        with LoadSampler(engine) as seen:
            replies = await chats(engine.url, bodies(3, seed=100))
        ttft = sorted(reply.first_byte_s for reply in replies)
        took = sorted(reply.total_s for reply in replies)
        report(f"3 chats without a cap: TTFT {spread(ttft)}; {seen}")
        assert seen.waiting == 2, "the first chat takes all that is left of the pool"
        assert ttft[1] >= took[0] - 0.5, "the second starts when the first has ended"
        assert ttft[2] >= took[1] - 0.5
        taken = {reply.usage["completion_tokens"] for reply in replies}
        assert min(taken) > POOL / 2, "each generated until nothing was left"
        assert {reply.usage["prompt_tokens"] for reply in replies} == {PROMPT}

    async def test_a_sensible_cap_still_queues_and_retracts(
        self, engine: Engine, report: Note
    ) -> None:
        with LoadSampler(engine) as seen:
            replies = await chats_in_one_pass(engine, bodies(12, seed=200, max_tokens=300))
        ttft = [reply.first_byte_s for reply in replies]
        report(f"12 chats of at most 300 tokens: TTFT {spread(ttft)}; {seen}")
        assert seen.waiting >= 8
        assert seen.retractions >= 1


CAPS = {
    "no cap": {},
    "300 tokens": {"max_tokens": 300},
    "runaway 8000": {"max_tokens": 8000},
}


class TestBehindTheGate:
    @pytest.mark.parametrize("kind", CAPS)
    async def test_three_at_once(self, engine: Engine, gate: Gate, kind: str, report: Note) -> None:
        with LoadSampler(engine) as seen:
            replies = await chats(gate.url, bodies(3, seed=300, **CAPS[kind]))
        tell(report, f"3 chats, {kind}", replies, seen)
        self.calm(seen)
        self.answered(replies, CAPS[kind])
        assert gate.reserved() == 0

    @pytest.mark.parametrize("kind", CAPS)
    async def test_twelve_at_once(
        self, engine: Engine, gate: Gate, kind: str, report: Note
    ) -> None:
        ends_early: dict[str, Any] = {}
        if kind == "runaway 8000":
            # They promise all and use a little of it, like agents: those who wait must get in as
            # soon as the promise turns out empty.
            ends_early = {"temperature": 1, "logit_bias": {END_OF_TURN: ONE_IN_100}}
        with LoadSampler(engine) as seen:
            replies = await chats(gate.url, bodies(12, seed=400, **CAPS[kind], **ends_early))
        tell(report, f"12 chats, {kind}", replies, seen)
        self.calm(seen)
        self.answered(replies, CAPS[kind])
        assert gate.reserved() == 0

    def calm(self, seen: LoadSampler) -> None:
        assert seen.samples > 20, "the scenario was watched"
        assert seen.retractions == 0
        assert seen.waiting == 0, "who waits, waits at the gate"
        assert seen.used < POOL

    def answered(self, replies: list[Reply], asked: dict[str, int]) -> None:
        complete = [reply for reply in replies if reply.complete]
        assert complete
        for reply in replies:
            if reply not in complete:
                self.refused_in_words(reply)
                continue
            cap = reply.header("max-tokens")
            assert reply.header("prompt-tokens") == reply.usage["prompt_tokens"] == PROMPT
            assert 0 < reply.usage["completion_tokens"] <= cap
            if reply.finish_reasons == ["length"]:
                assert reply.usage["completion_tokens"] == cap, "the cap announced is in force"
            if asked.get("max_tokens") == 300:
                assert cap == 300, "what fits is not touched"
                assert "x-kvgate-clamped-from" not in reply.headers
            else:
                assert cap + PROMPT < POOL
                assert "x-kvgate-clamped-from" in reply.headers
        if not asked:
            promised = sum(PROMPT + reply.header("max-tokens") for reply in complete[:2])
            assert promised < POOL, "a cap made up for those who sent none lets two run at once"

    def refused_in_words(self, reply: Reply) -> None:
        assert reply.status in {429, 503}
        error = reply.error
        assert error is not None
        assert error["code"] in OVERLOAD_CODES
        assert len(error["message"].split()) >= 5
        assert 1 <= int(reply.headers["retry-after"]) <= 60


def tell(report: Note, scenario: str, replies: list[Reply], seen: LoadSampler) -> None:
    complete = [reply for reply in replies if reply.complete]
    caps = sorted({reply.headers.get("x-kvgate-max-tokens", "-") for reply in complete})
    report(
        f"{scenario}: {len(complete)} complete, {len(replies) - len(complete)} refused, "
        f"cap in force {', '.join(caps)}, "
        f"output {sum(reply.usage['completion_tokens'] for reply in complete)} tokens, "
        f"TTFT {spread([reply.first_byte_s for reply in replies])}, "
        f"all done after {max(reply.total_s for reply in replies):.1f} s; {seen}"
    )
