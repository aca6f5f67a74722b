"""A look at everything there is to see: books, servers, what waits and for what, how fast it goes.

Nothing is fetched here: loads and metrics are what the watch and `signals` have read for their own
ends, seconds ago; their age is told with them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from ipaddress import ip_address
from itertools import islice
from statistics import fmean, median
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.core.flows import within_share
from gateway.core.model import UNBOUNDED, Code
from gateway.observe.looks import GateLook, Look, ServerLook
from gateway.upstream.life import Life

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gateway.core.books import Books
    from gateway.core.flows import Entry, Flow
    from gateway.core.hold import Hold
    from gateway.core.ledger import PoolLedger
    from gateway.core.model import PoolId, RequestId
    from gateway.core.pools import Pool
    from gateway.edge.backends import Backend, Fleet
    from gateway.edge.reaper import Reaper
    from gateway.gate import Gate
    from gateway.observe.journal import Journal
    from gateway.observe.looks import CardLook
    from gateway.observe.record import Record

ASKED = 128
"""Waiting requests that are asked what they lack, over all clients, each client's oldest first. One
takes up to 0.05 ms where a forecast is made; those behind in a client's line are taken to lack the same
as the last one asked."""

COUNTED = 2_048
"""Waiting requests of one client that are counted at all: eight times the default queue."""

FORGOTTEN = 100_000
"""Ends remembered from one look to the next: more than five seconds of any gate."""


@dataclass(slots=True)
class _Waits:
    """Who waits for one server, by what each lacks."""

    kv: int = 0
    prefill: int = 0
    slots: int = 0
    client: int = 0
    turn: int = 0
    prefill_tokens: int = 0
    oldest_s: float = 0.0
    client_oldest_s: float = 0.0
    clients: dict[str, int] | None = None


class Lookout:
    """Makes looks. `booked` is whether the gate's books decide (`admission: on`): else nobody waits
    here, and what runs is what the engine says. `state` is the gate's own, in words."""

    def __init__(
        self,
        *,
        gate: Gate,
        fleet: Fleet,
        reaper: Reaper,
        journal: Journal,
        state: Callable[[], str],
        booked: bool,
    ) -> None:
        self._gate = gate
        self._fleet = fleet
        self._reaper = reaper
        self._journal = journal
        self._state = state
        self._booked = booked
        self._at: float | None = None  # the last look, loop's clock
        self._seen: dict[RequestId | str, int] = {}  # tokens counted of each request
        self._over: set[RequestId | str] = set()  # of these, whose records are written
        self._wrote: set[RequestId] = set()  # streams that wrote at the last look
        self._late: dict[str, int] = {}  # tokens of requests that ended since, by server
        self._prefilled: dict[str, int] = {}  # prompt tokens by the engine's count, by server

    def ended(self, record: Record) -> None:
        """A request ended: count what the last look had not seen of it."""
        if len(self._over) >= FORGOTTEN:  # nobody looks any more
            self._over.clear()
            self._seen.clear()
        self._over.add(record.id)
        new = (record.output_tokens or 0) - self._seen.get(record.id, 0)
        if record.backend is not None and new > 0:
            self._late[record.backend] = self._late.get(record.backend, 0) + new
            self._seen[record.id] = self._seen.get(record.id, 0) + new

    def take(self, cards: tuple[CardLook, ...], note: str | None) -> Look:
        """Everything, now."""
        now = self._gate.now()
        since = None if self._at is None else now - self._at
        waits = self._waits(now) if self._booked else {}
        servers = tuple(
            self._server(backend, waits.get(backend.name, _Waits()), since)
            for backend in self._fleet
        )
        self._at, self._late = now, {}
        books = self._gate.core.books
        self._wrote = {
            ident
            for pool in books.pools.values()
            for ident, hold in pool.ledger.holds.items()
            if _writes(hold)
        }
        for ident in [ident for ident in self._over if ident not in books.held]:
            self._over.discard(ident)
            self._seen.pop(ident, None)
        return Look(datetime.now(UTC), self._look_at_gate(cards, note), servers, cards)

    # ---- the gate --------------------------------------------------------------------------------

    def _look_at_gate(self, cards: tuple[CardLook, ...], note: str | None) -> GateLook:
        queue, totals = self._gate.view().queue, self._journal.totals
        booked = self._booked
        return GateLook(
            state=self._state(),
            queue_requests=queue.requests if booked else 0,
            queue_tokens=queue.tokens if booked else 0,
            queue_bytes=queue.bytes if booked else 0,
            queue_oldest_s=round(queue.oldest_s, 3) if booked else 0.0,
            admitted=totals.admitted,
            completed=totals.completed,
            rejected=sum(totals.rejected.values()),
            client_limited=totals.rejected.get(Code.CLIENT_LIMIT.value, 0),
            no_backend=totals.rejected.get(Code.NO_BACKEND.value, 0),
            cancelled=totals.cancelled,
            failed=totals.failed,
            abandoned=self._reaper.dying,
            cards=len(cards) if note is None else None,
            cards_note=note,
        )

    def _waits(self, now: float) -> dict[str, _Waits]:
        """What each waiting request lacks on each server that it may run on."""
        books = self._gate.core.books
        weights = {ident: books.weight_on(ident) for ident in books.pools}
        found: dict[str, _Waits] = {}
        lines = [flow for flow in books.flows.values() if flow.waiting]
        each = max(1, ASKED // max(1, len(lines)))
        for flow in lines:
            lacks: dict[str, str] = {}
            placed = (entry for entry in flow.waiting if entry.demands)  # others wait for no server
            for index, entry in enumerate(islice(placed, COUNTED)):
                if index < each:
                    lacks = _lacks(books, flow, entry, weights)
                for name, lack in lacks.items():
                    _count(found.setdefault(name, _Waits()), lack, flow, entry, books, now=now)
        return found

    # ---- one server ------------------------------------------------------------------------------

    def _server(self, backend: Backend, waits: _Waits, since: float | None) -> ServerLook:
        look = ServerLook(
            server=backend.name,
            state=_state_of(backend),
            deaths=backend.deaths,
            running=backend.sequences,
            waits_kv=waits.kv,
            waits_prefill=waits.prefill,
            waits_slots=waits.slots,
            waits_client=waits.client,
            waits_turn=waits.turn,
            waits_prefill_tokens=waits.prefill_tokens,
            waits_oldest_s=waits.oldest_s,
            waits_client_oldest_s=waits.client_oldest_s,
            waiting_client=max(waits.clients, key=waits.clients.__getitem__)
            if waits.clients
            else None,
        )
        return self._engine(backend, self._books(backend, look, since), since)

    def _books(self, backend: Backend, look: ServerLook, since: float | None) -> ServerLook:
        books, now = self._gate.core.books, self._gate.now()
        pools = [books.pools[pool] for pool in backend.pools if pool in books.pools]
        ledgers = [pool.ledger for pool in pools]
        holds = [item for ledger in ledgers for item in ledger.holds.items()]
        views = [ledger.views() for ledger in ledgers]
        unread = [hold.since for _, hold in holds if hold.prefilling]
        generated, speed = self._speed(holds, since)
        booked = self._booked
        return replace(
            look,
            kv_limit=sum(kv.limit for kv, _, _ in views),
            kv_reserved=sum(kv.reserved for kv, _, _ in views) if booked else 0,
            kv_used=sum(kv.used for kv, _, _ in views) if booked else 0,
            kv_lingering=sum(hold.demand.kv for _, hold in holds if hold.lingering),
            kv_foreign=sum(ledger.foreign for ledger in ledgers),
            prefill_limit=_bounded(prefill.limit for _, prefill, _ in views),
            prefill_tokens=sum(ledger.uncached for ledger in ledgers) if booked else 0,
            slots_limit=_bounded(slots.limit for _, _, slots in views),
            slots_allowed=_bounded(ledger.all_slots for ledger in ledgers),
            reading=sum(hold.prefilling for _, hold in holds) if booked else 0,
            reading_oldest_s=round(now - min(unread), 3) if unread and booked else 0.0,
            writing=sum(not hold.prefilling for _, hold in holds) if booked else 0,
            generated_tokens=generated + self._late.get(backend.name, 0),
            stream_tok_s=speed,
            prefill_tok_s=_rate(pools),
        )

    def _speed(
        self, holds: Iterable[tuple[RequestId, Hold]], since: float | None
    ) -> tuple[int, float | None]:
        """Tokens since the last look, and the median speed of a sequence over all of that time."""
        generated, speeds = 0, []
        for ident, hold in holds:
            new = max(0, hold.seen - self._seen.get(ident, 0))
            generated += new
            self._seen[ident] = max(hold.seen, self._seen.get(ident, 0))
            if since and ident in self._wrote and _writes(hold):
                speeds.append(new / since / max(hold.demand.slots, 1))
        return generated, round(median(speeds), 2) if speeds else None

    def _measured(self, server: str, total: int | None, since: float | None) -> float | None:
        """Prompt tokens the engine has prefilled a second since the last look."""
        if total is None:
            return None
        before, self._prefilled[server] = self._prefilled.get(server), total
        if before is None or total <= before or not since:
            return None
        return round((total - before) / since, 1)

    def _engine(self, backend: Backend, look: ServerLook, since: float | None) -> ServerLook:
        """What it says itself, where it is there to say it."""
        loads = backend.loads
        if loads is None or look.state in {"starting", "connecting", "down"}:
            return look
        said = list(backend.said.values())
        rate = look.prefill_tok_s
        if not self._booked:  # nothing was learned from first tokens
            rate = self._measured(backend.name, _sum(rank.prefilled for rank in loads.ranks), since)
        return replace(
            look,
            prefill_tok_s=rate,
            engine_running=loads.running,
            engine_waiting=loads.waiting,
            engine_used=loads.used,
            engine_pool=_sum(rank.pool_tokens for rank in loads.ranks)
            or (None if backend.facts is None else backend.facts.pool_tokens * len(loads.ranks)),
            engine_pending=_sum(rank.waiting_uncached for rank in loads.ranks),
            engine_tok_s=_total(rank.throughput for rank in loads.ranks),
            engine_age_s=round(backend.loads_age_s + (loads.age_s or 0.0), 2),
            engine_hit_rate=_mean(one.hit_rate for one in said),
            engine_retracted=_sum(int(one.retracted) for one in said),
            engine_prompt_tokens=_sum(one.prompt_tokens for one in said),
            engine_cached_tokens=_sum(one.cached_tokens for one in said),
            engine_generated_tokens=_sum(one.generated_tokens for one in said),
        )


def local_server(fleet: Iterable[Backend]) -> str | None:
    """The server on this machine where there is exactly one: which of several has which card, nobody
    says."""
    here = [backend.name for backend in fleet if _is_loopback(backend.url)]
    return here[0] if len(here) == 1 else None


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _state_of(backend: Backend) -> str:
    if backend.held is not None:
        return "held"
    if backend.watch is None:
        return "starting"
    state = backend.watch.snapshot().state
    if state is Life.READY and not backend.ready:
        return "starting"  # it is up, and not yet known well enough to be sent work
    return state.value


def _lacks(books: Books, flow: Flow, entry: Entry, weights: dict[PoolId, float]) -> dict[str, str]:
    """What a waiting request lacks, by server that takes work: on the rank where it lacks least."""
    found: dict[str, str] = {}
    for ident, demand in entry.demands.items():
        pool = books.pools[ident]
        if not pool.open:
            continue
        lack = _lack(pool.ledger, entry, ident)
        # Its share is smaller the fuller the pool is: what does not fit does not wait for that.
        shared = lack != "turn" or within_share(flow, demand, pool.ledger, weights[ident])
        if not (flow.within_own_limits(demand) and shared):
            lack = "client"
        before = found.get(ident.backend)
        if before is None or _SEVERITY.index(lack) < _SEVERITY.index(before):
            found[ident.backend] = lack
    return found


_SEVERITY = ("turn", "prefill", "slots", "kv", "client")


def _lack(ledger: PoolLedger, entry: Entry, pool: PoolId) -> str:
    demand = entry.demands[pool]
    if ledger.fits(demand, entry.lengths):
        return "turn"
    if ledger.only_prefill_lacks(demand, entry.lengths):
        return "prefill"
    return "slots" if ledger.slots + demand.slots > ledger.all_slots else "kv"


def _count(waits: _Waits, lack: str, flow: Flow, entry: Entry, books: Books, *, now: float) -> None:
    setattr(waits, lack, getattr(waits, lack) + 1)
    age = round(now - entry.since, 3)
    if lack == "client":
        waits.client_oldest_s = max(waits.client_oldest_s, age)
        waits.clients = waits.clients or {}
        waits.clients[flow.rule.name] = waits.clients.get(flow.rule.name, 0) + 1
        return
    waits.oldest_s = max(waits.oldest_s, age)
    if lack == "prefill":
        lead = entry.ticket.lead
        waits.prefill_tokens += min(
            books.pools[pool].reading(demand, lead)[1] for pool, demand in entry.demands.items()
        )


def _writes(hold: Hold) -> bool:
    return hold.streamed and not hold.prefilling and not hold.lingering


def _rate(pools: list[Pool]) -> float | None:
    return round(fmean(pool.prefill_rate for pool in pools), 1) if pools else None


def _bounded(limits: Iterable[float]) -> int:
    """The sum of limits; 0 where nobody set one."""
    total = sum(limits)
    return int(total) if total < UNBOUNDED else 0


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known), 2) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(fmean(known), 4) if known else None
