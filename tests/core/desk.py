"""A small shell around the core for tests: plays clients and engine in virtual time.

`Desk` believes the transitions, keeps who waits, holds and ended, and lets scenarios be read as
stories. Nothing here decides anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.core.admission import Admission
from gateway.core.model import (
    NO_LEAD,
    Ask,
    ClientRule,
    Ended,
    Grant,
    Granted,
    Lead,
    Outcome,
    PoolId,
    PoolLimits,
    QueueRule,
    Refusal,
    Refused,
    Release,
    Released,
    RequestId,
    Ticket,
    Transition,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.core.model import Grammar

GPU0, GPU1 = PoolId("gpu0"), PoolId("gpu1")


def rid(name: str) -> RequestId:
    return RequestId(name)


class Desk:
    """One gate, its clock, and what became of each request."""

    def __init__(self, queue: QueueRule | None = None, **pools: PoolLimits) -> None:
        self.now = 0.0
        self.core = Admission(queue or QueueRule())
        self.running: dict[str, Grant] = {}
        self.started: dict[str, float] = {}
        self.refused: dict[str, Refusal] = {}
        self.ended: dict[str, Outcome] = {}
        self.released: list[tuple[str, Release]] = []
        self.order: list[str] = []
        self.log: list[Transition] = []
        for name, limits in pools.items():
            self.pool(name, limits)

    def pool(self, name: str, limits: PoolLimits) -> None:
        """Add or resize a pool, and open it."""
        self.take(self.core.resize(PoolId(name), limits, self.now))
        self.take(self.core.set_open(PoolId(name), self.now, is_open=True))

    def take(self, transitions: Iterable[Transition]) -> list[Transition]:
        got = list(transitions)
        for one in got:
            match one:
                case Granted(grant=grant):
                    self.running[grant.id] = grant
                    self.started[grant.id] = self.now
                    self.order.append(grant.id)
                case Refused(id=ident, refusal=refusal):
                    assert ident not in self.refused
                    self.refused[ident] = refusal
                case Ended(id=ident, outcome=outcome):
                    self.running.pop(ident, None)
                    self.ended[ident] = outcome
                case Released(id=ident, why=why):
                    self.running.pop(ident, None)
                    self.released.append((ident, why))
                case _:
                    pass
        self.log += got
        return got

    def ask(
        self,
        name: str,
        prompt: int | tuple[int, ...] = 10,
        cap: int | None = 10,
        *,
        client: ClientRule | str = "anyone",
        n: int = 1,
        to: tuple[PoolId, ...] = (GPU0,),
        streamed: bool = True,
        body: int = 0,
        deadline: float | None = None,
        lead: Lead = NO_LEAD,
        session: int | None = None,
        grammar: Grammar | None = None,
        adapter: str = "",
        scores: bool = False,
    ) -> list[Transition]:
        prompts = (prompt,) if isinstance(prompt, int) else prompt
        rule = ClientRule(client) if isinstance(client, str) else client
        ticket = Ticket(
            rid(name),
            rule,
            Ask(prompts, n, cap),
            to,
            body,
            streamed=streamed,
            deadline=deadline,
            lead=lead,
            session=None if session is None else str(session),
            grammar=grammar,
            adapter=adapter,
            scores=scores,
        )
        return self.take(self.core.submit(ticket, self.now))

    def first_token(self, *names: str) -> None:
        for name in names:
            self.take(self.core.first_token(rid(name), self.now))

    def finish(self, *names: str) -> None:
        for name in names:
            self.take(self.core.settle(rid(name), Outcome.COMPLETED, self.now))

    def wait(self, seconds: float) -> list[Transition]:
        """Let time pass as the shell does: `advance` at each wake-up and at the end."""
        until = self.now + seconds
        got: list[Transition] = []
        while (wake := self.core.next_wakeup()) is not None and wake <= until:
            self.now = max(self.now, wake)
            got += self.take(self.core.advance(self.now))
        self.now = until
        return got + self.take(self.core.advance(self.now))

    @property
    def waiting(self) -> list[str]:
        """Who waits, by arrival."""
        flows = self.core.books.flows.values()
        entries = sorted((e for f in flows for e in f.waiting), key=lambda e: e.seq)
        return [e.ticket.id for e in entries]

    def kv(self, pool: PoolId = GPU0) -> int:
        return self.core.books.pools[pool].ledger.kv

    def prefill(self, pool: PoolId = GPU0) -> int:
        return self.core.books.pools[pool].ledger.prefill

    def at_rest(self) -> bool:
        """Whether every ledger is back at zero and nothing is remembered."""
        books = self.core.books
        ledgers = [p.ledger for p in books.pools.values()]
        return (
            all(
                (x.kv, x.prefill, x.slots, x.by_client, x.holds) == (0, 0, 0, {}, {})
                for x in ledgers
            )
            and not books.flows
            and not books.waiting
            and not books.held
            and (books.tokens, books.bytes) == (0, 0)
        )
