"""The fleet: all servers behind the gate, and their pools in it.

When the watch says that a server is up, its pools get their limits, and they open once prompts can
be counted as it counts them and it is known what else runs there; when it is down or does not move
they close. What it held is written off once, when it is certain that it is gone: another process is
behind the door, or nobody is. Until then a broken connection proves nothing, the engine may still
be at work behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from gateway.core.amount import Amount
from gateway.core.model import PoolId
from gateway.edge.backend import Backend
from gateway.edge.dialects.hazards import names_kill
from gateway.edge.elsewhere import Elsewhere
from gateway.observe.view import EngineView
from gateway.policy.compile import pool_limits
from gateway.tasks import spawn
from gateway.upstream.watch import Life, Pace, Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gateway.core.model import PoolLimits
    from gateway.edge.deaths import Deaths
    from gateway.edge.memory import Memory
    from gateway.edge.reaper import Reaper
    from gateway.edge.signals import Signals
    from gateway.gate import Gate
    from gateway.policy.schema import Backend as BackendPolicy
    from gateway.policy.schema import Policy
    from gateway.upstream.facts import ServerFacts
    from gateway.upstream.loads import LoadsFacts

LOST_S = 60.0
"""How long ago a request must have been written before an engine that runs nothing has lost it,
seconds: tokenizing, fetching images and compiling a grammar come before the scheduler sees it."""

LOADS_S = 5.0
"""How long a server that is up may take to say what it holds before it is opened without. Asked
through the scheduler (below 0.5.17) that waits behind one forward step."""

LEAVES_S = 5.0
"""Between two looks whether a server that was taken out is needed any more. Longer than it takes to
count a prompt: what was being counted when it was taken out may still name it."""

__all__ = ["Backend", "Fleet"]


class Fleet:
    """All backends of a policy, and their pools in the gate."""

    def __init__(
        self,
        policy: Policy,
        keys: dict[str, str],
        *,
        gate: Gate,
        reaper: Reaper,
        deaths: Deaths,
        signals: Signals,
        memory: Memory,
    ) -> None:
        self._policy = policy
        self._gate = gate
        self._reaper = reaper
        self._deaths = deaths
        self._signals = signals
        self._memory = memory
        self.backends = {one.name: self._make(one, keys) for one in policy.backends}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._starts: dict[str, int] = {}
        self._written_off: set[str] = set()
        self._opening: dict[str, asyncio.Task[None]] = {}
        self.open = asyncio.Event()  # a server has been ready once
        self._news: asyncio.Future[None] | None = None
        self.notes: dict[str, tuple[str, ...]] = {}
        self.on_loads: Callable[[Backend, LoadsFacts], None] | None = None
        """Set where other gates share the servers: then what runs there besides is theirs to tell."""

    def __iter__(self) -> Iterator[Backend]:
        return iter(self.backends.values())

    @property
    def any_ready(self) -> bool:
        """Whether at least one server takes work."""
        return any(backend.ready for backend in self)

    @property
    def news(self) -> asyncio.Future[None]:
        """Done once something is known of a server that was not; another one each time."""
        if self._news is None or self._news.done():
            self._news = asyncio.get_running_loop().create_future()
        return self._news

    def names(self, model: str | None) -> bool:
        """Whether policy says of a model that there is one."""
        policy = self._policy
        lists = [*policy.models.values(), *(client.models for client in policy.clients)]
        return any(model in one for one in lists)

    def least_busy(self) -> Backend | None:
        """The ready server with fewest of our requests; None where none is ready."""
        ready = [backend for backend in self if backend.ready]
        return min(ready, key=lambda backend: backend.sequences, default=None)

    def engines(self) -> list[EngineView]:
        """What is told of each server beside its books."""
        return [
            EngineView(
                backend.name,
                on_trial=backend.on_trial,
                loads_stale=backend.watch is not None and backend.watch.snapshot().metrics_stale,
                counting=0 if backend.counter is None else backend.counter.under_way,
                drift=dict(backend.drift),
            )
            for backend in self
        ]

    def cooling(self, backend: Backend) -> dict[str, float]:
        """Clients whose requests failed there while others were served, and for how many seconds
        none of theirs goes there."""
        cooled = self._deaths.failures.cooled(backend)
        return {client: round(left, 1) for client, left in cooled.items()}

    @property
    def leaving(self) -> dict[str, str]:
        """Servers that were taken out and are not gone yet: name → URL."""
        return {backend.name: backend.url for backend in self if backend.leaving}

    def start(self) -> None:
        """Begin to watch every server."""
        for backend in self:
            self._watch(backend)

    def adopt(self, policy: Policy, keys: dict[str, str]) -> None:
        """Another policy, one that `policy.change` has brought together with the one in force.

        New limits hold at once. New servers are watched and open when they are known; those that
        are named no more get nothing new and are let go when nothing waits for them or runs there.
        """
        self._policy = policy
        wanted = {one.name: one for one in policy.backends}
        for backend in self:
            if backend.name in wanted:
                backend.policy = wanted[backend.name]
            elif not backend.leaving:
                backend.leaving, backend.ready = True, False
                self._turn(backend)
                task = spawn(self._leave(backend), f"leave {backend.name}")
                self._leaving[backend.name] = task
        added = [self._make(one, keys) for name, one in wanted.items() if name not in self.backends]
        known = {**self.backends, **{backend.name: backend for backend in added}}
        order = dict.fromkeys([*wanted, *known])  # the file's order is that of preference
        self.backends = {name: known[name] for name in order}
        self._memory.follow(self)
        for backend in self:
            self._resize(backend)
        for backend in added:
            self._watch(backend)

    async def _leave(self, backend: Backend) -> None:
        """Let a server go once no request names it."""
        while True:
            await asyncio.sleep(LEAVES_S)
            if self._gate.remove(backend.pools):
                break
        backend.pools, backend.facts = (), None
        del self.backends[backend.name]
        self._memory.follow(self)
        if (opening := self._opening.pop(backend.name, None)) is not None:
            opening.cancel()
        self._starts.pop(backend.name, None)
        self.notes.pop(backend.name, None)
        self._written_off.discard(backend.name)
        try:
            if backend.watch is not None:
                await backend.watch.stop()
        finally:
            await backend.client.close()
        del self._leaving[backend.name]

    def _make(self, policy: BackendPolicy, keys: dict[str, str]) -> Backend:
        connect_s = self._policy.limits.connect_s
        return Backend(policy, api_key=keys.get(policy.name), connect_s=connect_s)

    def _watch(self, backend: Backend) -> None:
        backend.watch = Watch(
            backend.client,
            name=backend.name,
            api_key=backend.api_key,
            on_up=partial(self._up, backend),
            on_down=partial(self._down, backend),
            on_loads=partial(self._loads, backend),
            on_gone=partial(self._gone, backend),
            on_stall=partial(self._stalled, backend),
            on_move=partial(self._moves, backend),
            on_away=partial(self._away, backend),
            busy_since=partial(getattr, backend, "busy_since"),
            pace=Pace(stall_s=self._policy.limits.stall_s),
        )
        backend.alive = backend.watch.alive
        backend.on_prefilled = partial(self._prefilled, backend)
        backend.on_probe = partial(self._probe, backend)
        backend.watch.start()

    async def stop(self) -> None:
        """Stop watching and close every connection."""
        for task in (*self._opening.values(), *self._leaving.values()):
            task.cancel()
        for backend in self:
            if backend.watch is not None:
                await backend.watch.stop()
        await self._signals.stop()
        for backend in self:
            await backend.client.close()

    # ---- what the watch tells --------------------------------------------------------------------

    def _up(self, backend: Backend, facts: ServerFacts) -> None:
        starts = backend.watch.starts if backend.watch is not None else 0
        known = self._starts.get(backend.name, starts)
        self._starts[backend.name] = starts
        if starts != known and backend.name not in self._written_off:
            self._write_off(backend, "it has been started anew")
        first = backend.facts is None
        anew = first or backend.name in self._written_off
        self._written_off.discard(backend.name)
        self._deaths.acquitted(backend)  # where it died, there is nothing left to drop
        backend.facts, backend.said, backend.drift = facts, {}, {}
        self._deaths.reached(backend, first=first)
        gone = backend.pools[facts.dp :]
        backend.pools = tuple(PoolId(backend.name, rank) for rank in range(facts.dp))
        self._resize(backend)
        self._memory.met(backend, facts)
        if anew and self.on_loads is None:  # what it runs may be unknown to our books
            backend.elsewhere = {p.rank: Elsewhere(facts.pool_tokens) for p in backend.pools}
        for pool in gone:  # ranks of the last start: nobody may wait for them
            self._gate.resize(pool, replace(self._limits(backend, facts), kv_tokens=0))
        self._turn(backend)
        self._reopen(backend, facts)

    def _reopen(self, backend: Backend, facts: ServerFacts) -> None:
        if (earlier := self._opening.get(backend.name)) is not None:
            earlier.cancel()
        task = spawn(self._open(backend, facts), f"open {backend.name}")
        self._opening[backend.name] = task

    async def _open(self, backend: Backend, facts: ServerFacts) -> None:
        """Let work start, once prompts can be counted as this server counts them."""
        await backend.make_counter(facts)
        counter_notes = backend.counter.notes if backend.counter is not None else ()
        self.notes[backend.name] = (
            *facts.warnings,
            *self._signals.notes(facts),
            *counter_notes,
        )
        if pause := self._deaths.returned(backend):
            await asyncio.sleep(pause)
        if backend.watch is not None:  # what it runs already
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOADS_S):
                    await backend.watch.asked.wait()
        state = backend.watch.snapshot().state if backend.watch is not None else Life.READY
        if backend.facts is facts and state is Life.READY:
            backend.opens()
            self.open.set()
            self._deaths.opened(backend, facts, self.notes[backend.name])
            for pool in backend.pools:
                self._gate.set_open(pool, is_open=True)
            self._turn(backend)

    def _turn(self, backend: Backend) -> None:
        """Something is known of it that was not."""
        backend.turn()
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _away(self, backend: Backend, reason: str) -> None:
        """It was asked, and can not be used."""
        backend.away()
        self._deaths.away(backend, reason)
        self._turn(backend)

    def _down(self, backend: Backend, reason: str) -> None:
        self._deaths.suspected(backend, reason)
        backend.drift = {}
        self._close(backend)

    def _gone(self, backend: Backend, reason: str) -> None:
        """Nobody is there any more."""
        if backend.name not in self._written_off:
            self._write_off(backend, reason)
            self._turn(backend)

    def _stalled(self, backend: Backend, reason: str) -> None:
        """It does not move: nothing new goes there, and what runs may wait."""
        self._deaths.stalled(backend, reason)
        self._close(backend)

    def _moves(self, backend: Backend) -> None:
        if backend.facts is not None:
            self._deaths.reached(backend)
            self._resize(backend)
            self._reopen(backend, backend.facts)

    def _loads(self, backend: Backend, loads: LoadsFacts) -> None:
        """What it holds, and what of that it held before we came."""
        backend.took_loads(loads)
        if self.on_loads is None:
            self._compare(backend, loads)
        else:
            self.on_loads(backend, loads)
        for of, look in backend.looks(loads):
            self._gate.looked(of, look)
        self._signals.due(backend)
        if self._deaths.counted(backend, loads):
            self._resize(backend)
        if loads.running + loads.waiting == 0:
            taken_at = backend.now() - (loads.age_s or 0.0)
            if lost := self._reaper.missed(backend, taken_at - LOST_S):
                self._deaths.lost(backend, lost)
        if not backend.elsewhere:
            return
        books = {pool.pool: pool for pool in self._gate.view().pools}
        for load in loads.ranks:
            pool = PoolId(backend.name, load.rank)
            if (others := backend.elsewhere.get(load.rank)) is None or pool not in books:
                continue
            _, slots = self._gate.occupied(pool)
            view = books[pool]
            ours = view.slots.reserved - slots
            charge = others.took(load, ours, view.kv.used + view.prefill.reserved)
            self._gate.occupy(pool, charge.kv, charge.requests)
            if others.over:
                del backend.elsewhere[load.rank]

    def _compare(self, backend: Backend, loads: LoadsFacts) -> None:
        """By how much books and engine differ. With other gates there, what is theirs is in the count."""
        for load in loads.ranks:
            if (pool := PoolId(backend.name, load.rank)) in backend.pools:
                least, most = self._gate.uses(pool)
                backend.drift[load.rank] = max(least - load.used, 0) + min(most - load.used, 0)

    def _close(self, backend: Backend) -> None:
        backend.ready = False
        for pool in backend.pools:
            self._gate.set_open(pool, is_open=False)

    def _write_off(self, backend: Backend, reason: str) -> None:
        """What it held is gone, once for each death."""
        self._written_off.add(backend.name)
        self._deaths.died(backend, reason)
        backend.died()
        for pool in backend.pools:
            self._gate.void(pool)
        self._reaper.cut(backend, "The server died.")

    # ---- limits ----------------------------------------------------------------------------------

    def _prefilled(self, backend: Backend) -> None:
        if self._deaths.prefilled(backend):
            self._resize(backend)

    def _probe(self, backend: Backend, pause_s: float) -> None:
        """It lives and fails: nothing new for a while, and then it is on trial."""
        self._deaths.reached(backend)
        self._resize(backend)
        for pool in backend.pools:
            self._gate.pause(pool, pause_s)

    def _resize(self, backend: Backend) -> None:
        if backend.facts is not None:
            limits = self._deaths.narrowed(backend, self._limits(backend, backend.facts))
            for pool in backend.pools:
                self._gate.resize(pool, limits)

    def budget(self, name: str) -> Amount | None:
        """All of a pool of that server, whatever is held back of it for now; None: it is not known."""
        backend = self.backends.get(name)
        if backend is None or backend.facts is None:
            return None
        return Amount.of(self._limits(backend, backend.facts))

    def _limits(self, backend: Backend, facts: ServerFacts) -> PoolLimits:
        forecast = self._policy.reservation == "forecast"
        limits = pool_limits(backend.policy, facts, forecast=forecast)
        return replace(
            limits,
            useful_floor=self._policy.caps.useful_floor,
            scores_apart=facts.is_generation and names_kill(backend.engine),
        )
