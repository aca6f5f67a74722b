"""What the processes of a gate know in common beside leases: quotas, held tokens, requests that kill.

Each second, and at once after a death, this process pins up its words (`core.others`) in the store that
leases are in, and reads those of the others: one question to the store, and no request waits for it. So
what another process did is counted here after two of its rounds at most: what it did right after it wrote
is written a second later, and read here within another.

A process that ends leaves its words where they are, for as long as anything in them counts: what its
clients used until their windows end, its deaths for an hour. Whoever is started in its place has another
name and reads them like all others, so nothing is lost and nothing counted twice. Where the store has lost
them, who has heard them pins them up again, so that a gate that is started then hears them too, and makes
its marks as they were made. Where the store is gone,
what was heard last stays as far as it is fact (see there) and the rest is each process's own: nobody is
refused for what nobody can say any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.core.others import MOST, Words
from gateway.core.quarantine import FORGET_S
from gateway.lease.store import LONGEST_S, Lost, Said, StoreError
from gateway.lease.words import decode, encode
from gateway.tasks import spawn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from structlog.typing import FilteringBoundLogger

    from gateway.core.model import ClientRule
    from gateway.edge.deaths import Deaths
    from gateway.edge.leases import Leases
    from gateway.gate import Gate
    from gateway.lease.store import Heard

ROUND_S = 1.0
"""Between two rounds, as between two renewals of a lease."""

ANSWER_S = 2.0
"""Longest time for one answer of the store."""

SAME_S = 0.5
"""What was written within this of what was read before, and is the same to the letter, is that very writing:
half of a round, and more than the store's answers differ in time."""

SETTLED_S = 5.0
"""How long a salt is used before it is insisted on: whoever has used another one and reaches the store has
written by then, even where one try got no answer (`ROUND_S`, and `ANSWER_S` twice)."""

LEAST_S = 10.0
"""How long words hang there that say nothing of any lasting: so long that others see them late, too."""


@dataclass(slots=True)
class _Read:
    """A document as it was heard."""

    document: bytes
    at: float  # when it was written, this process's clock
    until: float = -math.inf  # how long it counts; of what was not understood it is not known

    def is_same(self, document: bytes, at: float) -> bool:
        """Whether another writing is this one."""
        return self.document == document and abs(self.at - at) < SAME_S

    def lost(self, now: float) -> Lost:
        """The same for whoever pins it up again."""
        age_s = max(now - self.at, 0.0)
        return Lost(Said(age_s, self.document), min(self.until - now, LONGEST_S - age_s - SAME_S))


class Common:
    """`start`, then `stop`, each once; the store is closed by whoever has made it."""

    def __init__(
        self,
        leases: Leases,
        gate: Gate,
        deaths: Deaths,
        rules: Callable[[], Iterable[ClientRule]],
        log: FilteringBoundLogger,
    ) -> None:
        """`rules`: of all clients by the policy in force. The store is that of the leases, and so is
        this process's name."""
        self._leases = leases
        self._gate = gate
        self._deaths = deaths
        self._rules = rules
        self._log = log
        self._task: asyncio.Task[None] | None = None
        self._soon = asyncio.Event()
        self._error: str | None = None
        self._odd: set[str] = set()  # whose words could not be understood, and that was told
        self._read: dict[str, _Read] = {}
        """What was heard last of each. Of who has ended it stays the same for hours, and many that ended
        may have said much: all of it anew each second would be 0.1 s."""
        self._salted = math.inf  # since when the marks are made by the salt that all have
        deaths.on_strike = self._soon.set

    def start(self) -> None:
        """Begin, in the background."""
        self._task = spawn(self._run(), "common")

    async def stop(self) -> None:
        """Leave the last words."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            await self._round()

    def status(self) -> dict[str, Any]:
        """The `common` of /status."""
        others = self._gate.core.others
        return {"others": others.fresh(self._gate.now()), "error": self._error}

    # ---- inside ----------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._soon.clear()
            await self._round()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ROUND_S):
                    await self._soon.wait()

    async def _round(self) -> None:
        now = self._gate.now()
        words = self._words(now)
        document = encode(words, now)
        try:
            async with asyncio.timeout(ANSWER_S):
                salt = self._deaths.marks.salt
                kept = now - self._salted >= SETTLED_S
                heard = await self._leases.store.post(
                    self._leases.me, salt, document, words.until - now, kept=kept
                )
                if lost := self._heard(heard):
                    await self._leases.store.restore(lost)
        except (StoreError, TimeoutError) as error:
            self._failed(str(error) or "does not answer in time")
        else:
            self._works()
        self._gate.heard()

    def _words(self, now: float) -> Words:
        rules = {rule.name: rule for rule in self._rules()}
        clients = self._gate.core.uses(rules.values(), now)
        strikes, served = self._deaths.quarantine.strikes, self._deaths.quarantine.answered(now)
        ends = [LEAST_S]
        for who, use in clients.items():
            quota = rules[who].quota
            if use.used and use.began is not None and quota is not None:
                ends.append(use.began + quota.window_s - now)
        ends += [one.last + FORGET_S - now for one in strikes.values()]
        ends += [at + FORGET_S - now for at in served.values()]
        return Words(now, now + min(max(ends), LONGEST_S), clients, strikes, served).bounded()

    def _heard(self, heard: Heard) -> dict[str, Lost]:
        """Take in what was said. What of it the store has lost since it was heard last."""
        now = self._gate.now()
        if self._deaths.marks.take(heard.salt):
            self._deaths.quarantine.forget()
            self._salted = now
        self._salted = min(self._salted, now)
        self._odd &= heard.of.keys()
        before, self._read = self._read, {}
        for who, said in heard.of.items():
            at = now - said.age_s
            known = before.get(who)
            if known is not None and known.is_same(said.document, at):
                self._read[who] = known
                continue
            self._read[who] = _Read(said.document, at)
            try:
                words = decode(said, now)
                self._gate.core.others.heard(who, words)
                self._read[who].until = words.until
            except StoreError as error:
                if who not in self._odd:
                    self._log.warning("common_not_understood", replica=who, error=str(error))
                self._odd.add(who)
        return self._lost(before, now)

    def _lost(self, before: Mapping[str, _Read], now: float) -> dict[str, Lost]:
        """Of what was read before, what would still hang there. The board is bounded: the latest of it."""
        gone = [who for who in before.keys() - self._read.keys() if before[who].until > now]
        room = MOST - 1 - len(self._read)
        latest = sorted(gone, key=lambda who: before[who].at, reverse=True)[: max(room, 0)]
        self._read |= {who: before[who] for who in latest}  # until it is heard again
        return {who: before[who].lost(now) for who in latest}

    def _works(self) -> None:
        if self._error is not None:
            self._log.info("common_again")
        self._error = None

    def _failed(self, why: str) -> None:
        if self._error is None:
            self._log.warning(
                "common_alone",
                error=f"the store {why}",
                reason="what other processes use, hold and see die is not heard; what was heard of "
                "tokens used and of deaths counts on",
            )
        self._error = f"the store {why}"
