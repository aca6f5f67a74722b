"""The servers behind the gate: who they are, whether they take work, what runs on them.

A `Backend` ties together what is known of one server: its client, the watch over its life, the
facts of its present start, the counter of its model and the requests we sent it. When the watch
says it is up, its pools get their limits, and they open once the counter is ready; when it says it
is down they close. What it held is written off only when a *new start* has been seen: until then a
broken connection proves nothing, the engine may still be at work behind it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson

from gateway.core.model import PoolId
from gateway.edge.dialects import Engine
from gateway.policy.compile import pool_limits
from gateway.tasks import spawn
from gateway.tokens import build_counter, find_tokenizer
from gateway.upstream.client import Client
from gateway.upstream.watch import Life, Watch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.core.model import RequestId
    from gateway.gate import Gate
    from gateway.policy.schema import Backend as BackendPolicy
    from gateway.policy.schema import Policy
    from gateway.tokens import Counter
    from gateway.upstream.facts import ServerFacts
    from gateway.upstream.loads import LoadsFacts

TOKENIZE_S = 5.0
"""Limit of one question to the server's /v1/tokenize; the counter has a shorter one of its own."""

TOKENIZE_BYTES = 64 << 20
"""The answer lists every id: about 8 bytes a token, for a million tokens and more."""

OLDEST = (0, 5, 6)
V1_TOKENIZE_FROM = (0, 5, 12)

PROOFS = 2
"""Loads in a row that must show a request gone: one may have been taken between two events."""


class Backend:
    """See the module. Made by `Fleet`."""

    def __init__(self, policy: BackendPolicy, *, api_key: str | None, connect_s: float) -> None:
        self.policy = policy
        self.name = policy.name
        self.url = policy.url
        self.api_key = api_key
        self.client = Client(policy.url, connect_timeout_s=connect_s)
        self.facts: ServerFacts | None = None
        self.counter: Counter | None = None
        self.ready = False
        self.pools: tuple[PoolId, ...] = ()
        self.watch: Watch | None = None
        self._running: dict[RequestId, int] = {}  # sent and not ended: sequences
        self._loads: LoadsFacts | None = None
        self._loads_at = 0.0
        self._loads_came = asyncio.Event()
        self._counted_as: tuple[str, str] | None = None

    @property
    def engine(self) -> Engine:
        """What dialects must know of it."""
        version = None if self.facts is None else self.facts.version
        return Engine(version or OLDEST, max(1, len(self.pools)))

    @property
    def headers(self) -> list[tuple[str, str]]:
        """What every request to it carries."""
        return [] if self.api_key is None else [("authorization", f"Bearer {self.api_key}")]

    @property
    def loads(self) -> LoadsFacts | None:
        """What the engine last said it holds."""
        return self._loads

    def serves(self, model: str | None) -> bool:
        """Whether it may be asked for `model`. A server of unknown names takes any, as SGLang does."""
        return model is None or self.facts is None or model in self.facts.models

    @property
    def sequences(self) -> int:
        """Sequences sent to it that are not known to be over."""
        return sum(self._running.values())

    def began(self, ident: RequestId, sequences: int) -> None:
        """A request was handed to it."""
        self._running[ident] = sequences

    def ended(self, ident: RequestId) -> None:
        """That request is over, or its client left: it no longer counts as known to be alive."""
        self._running.pop(ident, None)

    def suspect(self, reason: str) -> None:
        """A request broke in a way that a dead server explains."""
        if self.watch is not None:
            self.watch.suspect(reason)

    def alive(self) -> None:
        """A byte of a real answer came."""
        if self.watch is not None:
            self.watch.alive()

    def took_loads(self, loads: LoadsFacts) -> None:
        """The watch read what the engine holds."""
        self._loads, self._loads_at = loads, asyncio.get_running_loop().time()
        self._loads_came.set()

    async def gone(self, since: float, wait_s: float) -> bool:
        """Wait until the engine's own counts prove that nothing runs but what we know of.

        `since` is when the request was abandoned: older snapshots prove nothing. False after
        `wait_s`, and where the engine does not say what it holds.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        proofs = 0
        try:
            async with asyncio.timeout_at(until):
                while proofs < PROOFS:
                    if self.watch is not None:
                        self.watch.want_loads(until)
                    self._loads_came.clear()
                    await self._loads_came.wait()
                    proofs = proofs + 1 if self._proves(since) else 0
        except TimeoutError:
            return False
        return True

    def says_busy(self, since: float) -> bool:
        """Whether the engine said, after `since`, that it runs more than we know of."""
        loads = self._loads
        if loads is None or self._loads_at <= since:
            return False
        return loads.running + loads.waiting > self.sequences

    def _proves(self, since: float) -> bool:
        loads = self._loads
        if loads is None:
            return False
        taken_at = self._loads_at - (loads.age_s or 0.0)
        return taken_at >= since and loads.running + loads.waiting <= self.sequences

    async def tokenize(self, body: dict[str, Any]) -> int:
        """The server's own count. Raises whatever an answer that is none makes it raise."""
        target = "/v1/tokenize" if self.engine.version >= V1_TOKENIZE_FROM else "/tokenize"
        model = self.facts.models[0] if self.facts is not None and self.facts.models else ""
        data = orjson.dumps({"model": model, **body})
        sent = [("content-type", "application/json"), *self.headers]
        async with asyncio.timeout(TOKENIZE_S):
            reply = await self.client.request("POST", target, sent, data)
            try:
                answer = await reply.read_all(TOKENIZE_BYTES)
            finally:
                reply.close()
        return int(orjson.loads(answer)["count"])

    async def make_counter(self, facts: ServerFacts) -> None:
        """A counter for the model it serves now; the old one where that has not changed."""
        key = (facts.tokenizer_path, facts.version_text)
        if self.counter is not None and self._counted_as == key:
            return
        self.counter = await build_counter(
            tokenizer_dir=find_tokenizer(facts.tokenizer_path, self.policy.tokenizer),
            engine_version=facts.version_text or None,
            remote=self.tokenize,
        )
        self._counted_as = key


class Fleet:
    """All backends of a policy, and their pools in the gate."""

    def __init__(self, policy: Policy, keys: dict[str, str], gate: Gate) -> None:
        self._policy = policy
        self._gate = gate
        self.backends = {
            one.name: Backend(one, api_key=keys.get(one.name), connect_s=policy.limits.connect_s)
            for one in policy.backends
        }
        self._starts: dict[str, int] = {}
        self.open = asyncio.Event()  # a server has been ready once
        self.notes: dict[str, tuple[str, ...]] = {}

    def __iter__(self) -> Iterator[Backend]:
        return iter(self.backends.values())

    @property
    def any_ready(self) -> bool:
        """Whether at least one server takes work."""
        return any(backend.ready for backend in self)

    def for_model(self, model: str | None) -> list[Backend]:
        """Servers that may run a request: those that serve its model, else all.

        SGLang itself takes any model name (0.5.6-0.5.23), and clients rely on it.
        """
        named = [backend for backend in self if backend.serves(model)]
        return named or list(self)

    def least_busy(self) -> Backend | None:
        """The ready server with fewest of our requests; None where none is ready."""
        ready = [backend for backend in self if backend.ready]
        return min(ready, key=lambda backend: backend.sequences, default=None)

    def start(self) -> None:
        """Begin to watch every server."""
        for backend in self:
            backend.watch = Watch(
                backend.client,
                name=backend.name,
                api_key=backend.api_key,
                on_up=lambda facts, one=backend: self._up(one, facts),  # type: ignore[misc]
                on_down=lambda _reason, one=backend: self._down(one),  # type: ignore[misc]
                on_loads=backend.took_loads,
            )
            backend.watch.start()

    async def stop(self) -> None:
        """Stop watching and close every connection."""
        for backend in self:
            if backend.watch is not None:
                await backend.watch.stop()
            await backend.client.close()

    def _up(self, backend: Backend, facts: ServerFacts) -> None:
        starts = backend.watch.starts if backend.watch is not None else 0
        if starts != self._starts.get(backend.name, starts):
            for pool in backend.pools:
                self._gate.void(pool)
        self._starts[backend.name] = starts
        backend.facts = facts
        limits = replace(
            pool_limits(backend.policy, facts), useful_floor=self._policy.caps.useful_floor
        )
        gone = backend.pools[facts.dp :]
        backend.pools = tuple(PoolId(backend.name, rank) for rank in range(facts.dp))
        for pool in backend.pools:
            self._gate.resize(pool, limits)
        for pool in gone:  # ranks of the last start: nobody may wait for them
            self._gate.resize(pool, replace(limits, kv_tokens=0))
        _ = spawn(self._open(backend, facts), f"open {backend.name}")

    async def _open(self, backend: Backend, facts: ServerFacts) -> None:
        """Let work start, once prompts can be counted as this server counts them."""
        await backend.make_counter(facts)
        counter_notes = backend.counter.notes if backend.counter is not None else ()
        self.notes[backend.name] = (*facts.warnings, *counter_notes)
        state = backend.watch.snapshot().state if backend.watch is not None else Life.READY
        if backend.facts is facts and state is Life.READY:
            backend.ready = True
            self.open.set()
            for pool in backend.pools:
                self._gate.set_open(pool, is_open=True)

    def _down(self, backend: Backend) -> None:
        backend.ready = False
        for pool in backend.pools:
            self._gate.set_open(pool, is_open=False)
