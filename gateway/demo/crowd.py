"""The manners of clients: people whose program retries politely, agents that do not.

A person's program behaves as the OpenAI SDKs do: two more tries after a refusal or a connection
that failed, after Retry-After where it was told and after half a second, then one, where not; an
answer that breaks off is an error on the screen, not tried again. An agent's program waits a
second, whatever it was told, and fires again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.demo.client import Ending, Exchange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gateway.demo.client import Asker
    from gateway.demo.script import Question, Script

TRIES = 3
FIRST_PAUSE_S = 0.5
"""The SDK's own backoff where no Retry-After came; doubled each time."""

AGENT_PAUSE_S = 1.0
"""A loop with sleep(1) in it: the commonest runaway."""

AGAIN = frozenset({Ending.REFUSED, Ending.FAILED})
HEADER = "x-team"
PEOPLE, AGENTS = "people", "agents"


@dataclass(slots=True)
class Asked:
    """A question and its tries, the last of which counts."""

    at: float
    tries: list[Exchange] = field(default_factory=list)

    @property
    def last(self) -> Exchange:
        """The try that decided."""
        return self.tries[-1]

    @property
    def ending(self) -> Ending:
        """How it ended for the one who asked."""
        return self.last.ending if self.tries else Ending.OPEN

    def waited(self, now: float) -> float:
        """Seconds to the first word, over all tries; so far, where none came."""
        first = self.last.first if self.tries else None
        if first is None:
            ended = self.last.ended if self.tries else None
            first = now if ended is None else ended
        return first - self.at


@dataclass(slots=True)
class Crowd:
    """Everybody. `door` says which URL and server a caller was told to use (0 or 1)."""

    script: Script
    asker: Asker
    door: Callable[[int], tuple[str, str]]
    people: list[Asked] = field(default_factory=list)
    agents: list[Asked] = field(default_factory=list)

    async def perform(self, *, agents: bool) -> None:
        """Until cancelled, or until all that people ask is answered where there are no agents."""
        async with asyncio.TaskGroup() as group:
            for question in self.script.questions():
                _ = group.create_task(self._person(question))
            if agents:
                for agent in range(self.script.agents):
                    _ = group.create_task(self._agent(self.script.jobs(agent)))

    async def _person(self, question: Question) -> None:
        clock = self.asker.clock
        await clock.until(question.at)
        asked = Asked(question.at)
        self.people.append(asked)
        pause = FIRST_PAUSE_S
        for left in reversed(range(TRIES)):
            exchange = await self._try(asked, question, PEOPLE)
            if exchange.ending not in AGAIN or not left:
                return
            if exchange.retry_after is not None:
                await asyncio.sleep(exchange.retry_after)  # the gate's seconds are ours
            else:
                await clock.sleep(pause)
            pause *= 2

    async def _agent(self, jobs: Iterator[Question]) -> None:
        for question in jobs:
            asked = Asked(self.asker.clock.now())
            self.agents.append(asked)
            exchange = await self._try(asked, question, AGENTS)
            if exchange.ending is not Ending.SERVED:
                await self.asker.clock.sleep(AGENT_PAUSE_S)

    async def _try(self, asked: Asked, question: Question, team: str) -> Exchange:
        url, server = self.door(question.first)
        now = self.asker.clock.now()
        exchange = Exchange(now, question.prompt, question.cap, server)
        asked.tries.append(exchange)
        await self.asker.ask(url, exchange, question, {HEADER: team})
        return exchange
