"""Several processes of the gate and the board between them, in virtual time.

Each has a clock of its own and the real core. A round writes its words and reads the board; the answer
may be lost, or come late, while the others go on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.core.model import Outcome, PoolLimits
from gateway.core.others import Words
from gateway.core.quarantine import FORGET_S, Quarantine
from gateway.lease.tables import Tables
from gateway.lease.words import decode, encode
from tests.core.desk import Desk, rid

if TYPE_CHECKING:
    from gateway.core.model import ClientRule
    from gateway.lease.store import Heard


@dataclass
class Written:
    """What was true of a process when it wrote."""

    let_in: int
    started: int
    under_way: int
    held: int
    at: float


@dataclass(eq=False)
class Process:
    name: str
    offset: float
    rule: ClientRule
    desk: Desk = field(
        default_factory=lambda: Desk(gpu0=PoolLimits(kv_tokens=10**6, useful_floor=1))
    )
    let_in: int = 0  # tokens, by what was promised at the door
    started: int = 0  # tokens of requests that started
    late: tuple[Heard, dict[str, Written]] | None = None  # an answer on its way
    knows: dict[str, Written] = field(default_factory=dict)  # by whom: when he wrote it
    asked: int = 0

    def __post_init__(self) -> None:
        self.quarantine = Quarantine(self.desk.core.others)

    @property
    def under_way(self) -> int:
        return self.desk.core.books.under_way(self.rule)

    @property
    def held(self) -> int:
        flow = self.desk.core.books.flows.get(self.rule.name)
        return 0 if flow is None else flow.held

    @property
    def true(self) -> int:
        """Used and under way here."""
        return self.desk.core.meters.used(self.rule.name) + self.under_way

    def ask(self, prompt: int, cap: int) -> str:
        self.asked += 1
        name = f"{self.name}.{self.asked}"
        before = set(self.desk.running)
        self.desk.ask(name, prompt, cap, client=self.rule)
        if name not in self.desk.refused:
            self.let_in += prompt + cap + 1
        self.count(before)
        return name

    def end(self, generated: int) -> None:
        """The oldest that runs, having generated so much or its cap."""
        for name, grant in list(self.desk.running.items())[:1]:
            before = set(self.desk.running)
            self.desk.core.true_up(rid(name), min(generated, grant.demand.cap))
            self.desk.take(self.desk.core.settle(rid(name), Outcome.COMPLETED, self.desk.now))
            self.count(before)

    def count(self, before: set[str]) -> None:
        new = [name for name in self.desk.running if name not in before]
        self.started += sum(self.desk.running[name].demand.kv for name in new)


class World:
    def __init__(self, rule: ClientRule, offsets: list[float]) -> None:
        self.now = 0.0
        self.tables = Tables(lambda: self.now)
        self.of = [Process(f"p{i}", offset, rule) for i, offset in enumerate(offsets)]
        self.written: dict[str, Written] = {}
        self.wait(0.0)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        for one in self.of:
            one.desk.now = self.now + one.offset

    def words(self, one: Process) -> Words:
        now, core = one.desk.now, one.desk.core
        return Words(
            now,
            now + 2 * FORGET_S,
            core.uses([one.rule], now),
            one.quarantine.strikes,
            one.quarantine.answered(now),
        ).bounded()

    def write(self, one: Process) -> None:
        """The question reaches the store; what it answers is on its way."""
        document = encode(self.words(one), one.desk.now)
        heard = self.tables.post(one.name, b"salt", document, 2 * FORGET_S)
        one.late = heard, {who: self.written[who] for who in heard.of}
        self.written[one.name] = Written(one.let_in, one.started, one.under_way, one.held, self.now)

    def read(self, one: Process, *, lost: bool = False) -> None:
        """It comes, or does not; the round is over."""
        if one.late is not None and not lost:
            heard, written = one.late
            for who, said in heard.of.items():
                one.desk.core.others.heard(who, decode(said, one.desk.now))
            one.knows |= written
        one.late = None
        before = set(one.desk.running)
        one.desk.take(one.desk.core.heard(one.desk.now))
        one.count(before)

    def rounds(self, times: int = 2) -> None:
        """Everybody hears everybody."""
        for _ in range(times):
            for one in self.of:
                self.write(one)
                self.read(one)
