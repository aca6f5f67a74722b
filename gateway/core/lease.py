"""The table of one pool's leases, and how it is shared out between replicas of the gate.

Theory. Several gates stand in front of one server. Each may grant, by itself and at once, what its
*share* of the pool's ledgers holds. The shares stand in one table that all of them read and replace by
compare-and-swap, so that each change was made by somebody who knew all of it. Three rules keep what
is granted inside the budget, whatever is lost, late, doubled or cut off:

- a share is written down before it is used, and used no more before less is written down: the
  table never says less of anybody than may be in use;
- a replica grants only for as long as its lease runs, by its own clock, from before it asked
  (see `tenant`); so a share nobody renews stops growing by itself;
- a share leaves the table by its owner's hand, or when its lease is long over *and* the engine's own
  count shows nothing that the others cannot account for (see `witness`).

There is no clock in the table: `version` counts its changes, and how long is measured by who looks.
`epoch` names its beginning. A table that was lost, or came back older than it was (another `run` of the
store), begins anew with `unclaimed` None: replicas write down what they have by leases that still run,
and nobody gets more until everything else is known to be free.

How it is shared out: everybody is aimed at what it wants where that is together not too much (half of
what is over is headroom, half stays free for whoever wants next); else at no more than an equal part
(max-min fairness), in whole requests: what is over in one part fills up another. A replica whose next request is larger than that borrows: in the order in which
they came to need it, borrowers are aimed at what that request takes, and the others give way as their
requests end. Who has had its turn goes to the end. Pure: values in, values out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING

from gateway.core.amount import NOTHING, Amount

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


@dataclass(frozen=True, slots=True)
class Claim:
    """What a replica says of itself when it asks."""

    keeps: Amount  # what it goes on using, whatever the answer: a fact
    held: Amount  # what its requests have been promised
    want: Amount  # that, and what those who wait would take
    need: Amount  # what its next request takes by itself, where it has one; else nothing
    budget: Amount  # all of the pool, as its policy and the server say
    started: int = 0  # requests so far
    running: int = 0  # sequences it has on the server
    steady: int = 0  # of these, surely there during all of the last `witness.WINDOW_S`


@dataclass(frozen=True, slots=True)
class Entry:
    """One replica's line in the table."""

    seq: int  # grows with each of its writes
    at: int  # the table's version when it was written
    share: Amount  # what it may use, and nobody else
    held: Amount = NOTHING
    want: Amount = NOTHING
    need: Amount = NOTHING
    started: int = 0
    since: int = 0  # the version since which its next request has waited; 0: none waits
    budget: Amount = NOTHING
    running: int = 0
    steady: int = 0


@dataclass(frozen=True, slots=True)
class Draft:
    """A table to write in place of the one that was read, and what it aims its writer at."""

    table: Table
    aim: Amount


@dataclass(frozen=True, slots=True)
class Table:
    """All shares of one pool."""

    run: str  # which life of the store it was written in
    epoch: str  # which beginning of the table
    version: int = 0
    unclaimed: Amount | None = None
    """What may be in use by somebody who is not in the table; None: that is not known."""
    entries: Mapping[str, Entry] = field(default_factory=dict)

    def budget(self, without: Collection[str] = ()) -> Amount:
        """The smallest that anybody who is there has in mind: safe for all of them."""
        known = [entry.budget for who, entry in self.entries.items() if who not in without]
        return reduce(Amount.least, known) if known else NOTHING

    @property
    def shares(self) -> Amount:
        """All that is spoken for by replicas."""
        return Amount.total(entry.share for entry in self.entries.values())


def begun(table: Table | None, run: str, epoch: str) -> Table:
    """The table as it is in this life of the store: `table`, or one that begins anew from it."""
    if table is not None and table.run == run:
        return table
    if table is None:
        return Table(run, epoch)
    return replace(table, run=run, epoch=epoch, unclaimed=None)


def rewritten(
    table: Table,
    me: str,
    claim: Claim,
    *,
    silent: Collection[str] = (),
    gone: Collection[str] = (),
    unclaimed: Amount | None = None,
) -> Draft:
    """The table after `me` has written its line anew, with all the rules.

    `silent` have not renewed for long: they keep their shares and want nothing. `gone` of them are
    known to hold nothing. `unclaimed`: what is known now to be in use by nobody in the table; None:
    nothing new.
    """
    entries = {who: entry for who, entry in table.entries.items() if who not in gone}
    rest = table.unclaimed if unclaimed is None else unclaimed
    version = table.version + 1
    before = entries.pop(me, Entry(0, version, NOTHING))
    mine = Entry(
        seq=before.seq + 1,
        at=version,
        share=claim.keeps,
        held=claim.held,
        want=claim.want,
        need=claim.need,
        started=claim.started,
        since=_since(before, claim, version),
        budget=claim.budget,
        running=claim.running,
        steady=claim.steady,
    )
    table = replace(table, version=version, unclaimed=rest, entries=entries | {me: mine})
    if rest is None:  # what is in use is not known: everybody stays as he is
        return Draft(table, claim.keeps)
    budget = table.budget(silent)
    kept = Amount.total(entry.share for who, entry in entries.items() if who in silent)
    there = {who: entry for who, entry in table.entries.items() if who not in silent}
    aim = aims(budget - kept - rest, there)[me]
    others = Amount.total(entry.share for entry in entries.values())
    mine = replace(mine, share=aim.least(budget - others - rest).most(claim.keeps))
    return Draft(replace(table, entries=entries | {me: mine}), aim)


def _since(before: Entry, claim: Claim, version: int) -> int:
    """Who has started something goes to the end of the line."""
    if claim.need == NOTHING:
        return 0
    return before.since if before.since and before.started == claim.started else version


def aims(room: Amount, entries: Mapping[str, Entry]) -> dict[str, Amount]:
    """What each should have of `room`, by what it wants and what its next request needs."""
    names = sorted(entries)
    line = sorted(
        (who for who in names if entries[who].since), key=lambda who: (entries[who].since, who)
    )
    of = {
        ledger: _divided(
            getattr(room, ledger),
            {
                who: _Part(
                    getattr(entries[who].held, ledger),
                    getattr(entries[who].want, ledger),
                    getattr(entries[who].need, ledger),
                )
                for who in names
            },
            line,
        )
        for ledger in ("kv", "prefill", "slots")
    }
    return {who: Amount(of["kv"][who], of["prefill"][who], of["slots"][who]) for who in names}


@dataclass(frozen=True, slots=True)
class _Part:
    """Of one ledger."""

    held: int
    want: int
    need: int


def _divided(room: int, parts: Mapping[str, _Part], line: Collection[str]) -> dict[str, int]:
    """One ledger. The first borrower gets what it needs; the next ones what they need, where that
    leaves the others an equal part of the room each, or what they want of it."""
    equal = room // max(len(parts), 1)
    fair = _level(room, parts)
    lent: dict[str, int] = {}
    for who in line:
        need = parts[who].need
        if not fair[who] < need <= room:
            continue
        rest = room - sum(lent.values())
        others = sum(
            min(part.want, equal) for one, part in parts.items() if one not in lent and one != who
        )
        if not lent or need + others <= rest:
            lent[who] = need
    left = {who: part for who, part in parts.items() if who not in lent}
    if lent:
        fair = _level(room - sum(lent.values()), left)
    return lent | _whole(fair, left, [who for who in line if who in left])


def _level(room: int, parts: Mapping[str, _Part]) -> dict[str, int]:
    """Max-min fair parts of `room`; half of what nobody wants is headroom for all alike."""
    rest, given = max(room, 0), {}
    waiting = sorted(parts, key=lambda who: (parts[who].want, who))
    for index, who in enumerate(waiting):
        given[who] = min(parts[who].want, rest // (len(waiting) - index))
        rest -= given[who]
    over = rest // (2 * len(parts)) if parts else 0
    return {who: part + over for who, part in given.items()}


def _whole(
    fair: Mapping[str, int], parts: Mapping[str, _Part], line: Collection[str]
) -> dict[str, int]:
    """Fair parts in sizes that are of use: what of a part is too little for one more request goes,
    together, to those who have waited longest, one request each; the rest to all alike who have no more than their
    part."""
    given, spare = dict(fair), 0
    short = [who for who in line if parts[who].want > fair[who] and parts[who].need]
    for who in short:
        part = parts[who]
        spare += fair[who] - part.held  # below nothing where it holds more: it will give that back
        if part.held <= fair[who]:
            given[who] = part.held + (fair[who] - part.held) // part.need * part.need
            spare -= given[who] - part.held
    for who in short:
        if parts[who].held <= fair[who] and parts[who].need <= spare:
            given[who] += parts[who].need
            spare -= parts[who].need
    takers = [who for who in given if parts[who].held <= fair[who]] if short else []
    for who in takers:  # not who has more than its part: its turn is over
        given[who] += max(spare, 0) // len(takers)
    return given
