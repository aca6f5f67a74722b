"""What everybody is going to ask, drawn from a seed: the same in every act.

People come by the clock (open loop): a question is asked when its time has come, whatever became of
the ones before. Agents come by themselves (closed loop): each has an endless row of jobs and starts
the next when the last one has ended, well or badly.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gateway.twin import tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

PEOPLE = 12
"""Users of the box: a team."""

PAUSE_S = 40.0
"""Mean time between two questions of one person, seconds: reading, thinking, typing."""

LEAD_S = 3.0
"""The agents were there first: when the first person may come, seconds."""

PEOPLE_CAP = 800
"""max_tokens of a chat window, about a page."""

PEOPLE_PROMPT = (60, 600)
"""A few turns of chat, tokens."""

PEOPLE_MEDIAN = 180
PEOPLE_SIGMA = 0.7
"""Log-normal chat answers; Azure's 2023 conversations have a median near 200."""

AGENTS = 8
"""Requests the runaway programs keep in the air: three of them with three or four each."""

AGENT_PROMPT = 19_000
"""Incident A: each request brought some 19,000 tokens."""

AGENT_ASKS = (None, 32_000)
"""Incident A: no max_tokens, and the server let such a request write 32,000. opencode and Claude
Code send 32,000 outright. Taken in turn."""

AGENT_MEDIAN = 6_000
AGENT_SIGMA = 0.72
"""Log-normal through p90 6,821 and p99 14,446: outputs of a reasoning model (ServeGen,
DeepSeek-R1 trace)."""

_FILLER = "def step(self, state): return self.table[state]  # as before, and so on\n"


@dataclass(frozen=True)
class Question:
    """One request to come. Times are box seconds, sizes tokens."""

    who: str
    at: float  # when a person asks it; agents do not look at the clock
    prompt: int
    want: int  # what the model would say if nobody stopped it
    cap: int | None  # max_tokens
    first: int  # 0 or 1: the server this caller was told to use

    @cached_property
    def body(self) -> dict[str, Any]:
        """The chat request. It begins with its author, so that no two share a cached prefix."""
        body: dict[str, Any] = {
            "model": "default",
            "messages": [{"role": "user", "content": _text(self.who, self.prompt)}],
            "stream": True,
            "twin_output_tokens": self.want,
        }
        if self.cap is not None:
            body["max_tokens"] = self.cap
        return body


@dataclass(frozen=True)
class Script:
    """Everything that will be asked in `seconds`, from `seed`."""

    seconds: float
    seed: int
    people: int = PEOPLE
    agents: int = AGENTS

    def questions(self) -> list[Question]:
        """What people ask, by time."""
        return sorted(
            (one for person in range(self.people) for one in self._person(person)),
            key=lambda question: question.at,
        )

    def jobs(self, agent: int) -> Iterator[Question]:
        """What one agent asks, without end."""
        rng = random.Random(f"{self.seed} agent {agent}")  # noqa: S311 - a load, not a secret
        turn = agent
        while True:
            yield Question(
                who=f"agent {agent}, job {turn}, {rng.random()}",
                at=0.0,
                prompt=AGENT_PROMPT - rng.randint(0, 500),
                want=_length(rng, AGENT_MEDIAN, AGENT_SIGMA),
                cap=AGENT_ASKS[turn % len(AGENT_ASKS)],
                first=agent % 2,
            )
            turn += 1

    def _person(self, person: int) -> Iterator[Question]:
        rng = random.Random(f"{self.seed} person {person}")  # noqa: S311 - a load, not a secret
        at = LEAD_S + rng.expovariate(1 / PAUSE_S)
        while at < self.seconds:
            yield Question(
                who=f"person {person}, {rng.random()}",
                at=at,
                prompt=rng.randint(*PEOPLE_PROMPT),
                want=_length(rng, PEOPLE_MEDIAN, PEOPLE_SIGMA),
                cap=PEOPLE_CAP,
                first=person % 2,
            )
            at += rng.expovariate(1 / PAUSE_S)


def _length(rng: random.Random, median: float, sigma: float) -> int:
    return max(1, round(median * math.exp(sigma * rng.gauss(0.0, 1.0))))


def _text(who: str, tokens: int) -> str:
    """A message whose whole prompt, template included, is `tokens` long for the twin."""
    frame = tokenizer.count(tokenizer.render([{"role": "user", "content": ""}]))
    size = (tokens - frame) * tokenizer.BYTES_PER_TOKEN
    text = f"{who}\n"
    text += _FILLER * (size // len(_FILLER) + 1)
    return text[:size]
