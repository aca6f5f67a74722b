"""One server: its client, the watch over its life, its facts, its counter, what we sent it.

What it holds of ours is known in three ways: the flights handed over (`began`, `ended`), the
engine's own count (`loads`), and its `life`, a number that grows whenever all it held was written
off. `gone` brings the three together: is an abandoned request really over?
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from gateway.core.model import PoolId
from gateway.core.unseen import Look
from gateway.disk import Clerk
from gateway.edge import replies
from gateway.edge.dialects import Engine
from gateway.tokens import Unreadable, build_counter, find_tokenizer
from gateway.upstream.client import Client
from gateway.upstream.watch import Life

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gateway.core.books import Books
    from gateway.core.model import RequestId
    from gateway.edge.elsewhere import Elsewhere
    from gateway.policy.schema import Backend as BackendPolicy
    from gateway.tokens import Counter
    from gateway.upstream.facts import ServerFacts
    from gateway.upstream.loads import LoadsFacts
    from gateway.upstream.scrape import RankSignals
    from gateway.upstream.watch import Watch

TOKENIZE_S = 5.0
"""Limit of one question to the server's /v1/tokenize; the counter has a shorter one of its own."""

TOKENIZE_BYTES = 64 << 20
"""The answer lists every id: about 8 bytes a token, for a million tokens and more."""

NOT_READ = frozenset({400, 422})
"""What it answers to a body that it does not take; other errors are not the body's."""

OLDEST = (0, 5, 6)
V1_TOKENIZE_FROM = (0, 5, 12)

SETTLE_S = 1.0
"""How long before a snapshot a request must have been written to be surely in it, seconds: the
engine tokenizes first, which takes 0.1-0.5 s for 100,000 tokens, one request after the other."""

DOUBT_S = 5.0
"""How long a new request waits to hear whether a server lives of which one broken connection makes it
doubtful, or what one is like that a gate meets which has just been started. One that lives has said so, and
is open again, after a tenth of a second, a tokenizer is read in two; this is what a connection may take to be
made."""

COUNTED_S = 30.0
"""How old a count may be that has a silent stream in it, seconds: a prefill step of 8,192 tokens at 300
tokens/s takes 27 s, and the engine makes no count meanwhile."""

PROOFS = 2
"""Loads in a row that must show a request gone: one may have been taken between two events."""


@dataclass(frozen=True, slots=True)
class Others:
    """Sequences that other gates have on one rank."""

    running: int = 0
    steady: int = 0  # of these, surely there for some seconds


@dataclass(frozen=True, slots=True)
class _Sent:
    """A request that was handed over."""

    sequences: int
    at: float  # loop's clock


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
        self.leaving = False
        """The policy names it no more: nothing new goes there, what waits for it and runs may end."""
        self.pools: tuple[PoolId, ...] = ()
        self.watch: Watch | None = None
        self.alive: Callable[[], None] = lambda: None
        """To be called when a byte of a real answer came: the watch's, with nothing between."""
        self._expected_until = math.inf  # it has not been asked yet
        self.life = 0
        """Grows when what it held is written off."""
        self.deaths = 0  # with requests in flight
        self.talked = False
        """It was asked for words. Kept over its starts: its clients stay who they are."""
        self.held: str | None = None
        """Why nothing is sent to it although it is up, in words."""
        self.on_prefilled: Callable[[], None] | None = None
        """Told of each prompt that came through, while somebody wants to know."""
        self.on_probe: Callable[[float], None] | None = None
        """Told that it fails though it lives: nothing new for so many seconds, then few."""
        self.on_trial = False
        """It has generated nothing since it was reached: see `Deaths`."""
        self.said: dict[int, RankSignals] = {}
        """By rank: what its metrics said last; empty where they say nothing."""
        self.drift: dict[int, int] = {}
        """By rank, when the loads came last: KV tokens that our requests use by the books beyond what
        the engine says it uses; negative where it uses more."""
        self.elsewhere: dict[int, Elsewhere] = {}
        """By rank: what it ran already when it was reached, while any of that is left."""
        self.others: dict[int, Others] = {}
        """By rank: what other gates say of themselves, where others share it."""
        self._running: dict[RequestId, _Sent] = {}  # sent and not ended
        self._turn = asyncio.Event()
        self._loads: LoadsFacts | None = None
        self._loads_at = 0.0
        self._counted_at = -math.inf  # when the engine's own count had all that we know of in it
        self._loads_came = asyncio.Event()
        self._counted_as: tuple[str, ...] | None = None
        self._disk = Clerk(f"tokenizer of {policy.name}")

    @property
    def engine(self) -> Engine:
        """What dialects must know of it."""
        version = None if self.facts is None else self.facts.version
        talks = self.talked and self.facts is not None and self.facts.is_generation
        return Engine(version or OLDEST, max(1, len(self.pools)), talks)

    @property
    def headers(self) -> list[tuple[str, str]]:
        """What every request to it carries."""
        return [] if self.api_key is None else [("authorization", f"Bearer {self.api_key}")]

    def headers_to(self, rank: int) -> list[tuple[str, str]]:
        """The same for a request to one of its ranks: the body of messages has no field for it."""
        ranks = [("x-data-parallel-rank", str(rank))] if len(self.pools) > 1 else []
        return [*self.headers, *ranks]

    def say_when_heard(self, books: Books) -> None:
        """Tell how far its server is in a step, for a request that may be sent at once. Of several ranks
        nobody here knows which of them was heard."""
        if len(self.pools) == 1 and self.watch is not None:
            books.heard(self.pools[0], self.watch.heard_at)

    @property
    def loads(self) -> LoadsFacts | None:
        """What the engine last said it holds."""
        return self._loads

    def stays_keyed(self, keys: Mapping[str, str]) -> bool:
        """Whether it goes on being asked with a key that is no more what the policy names."""
        return not self.leaving and keys.get(self.name) != self.api_key

    def serves(self, model: str | None) -> bool:
        """Whether it may be asked for `model`. A server of unknown names takes any, as SGLang does."""
        return model is None or self.facts is None or model in self.facts.names

    @property
    def sequences(self) -> int:
        """Sequences sent to it that are not known to be over."""
        return sum(sent.sequences for sent in self._running.values())

    @property
    def busy_since(self) -> float | None:
        """Since when it has had work of ours without a break, loop's clock; None while it has none."""
        return min((sent.at for sent in self._running.values()), default=None)

    @property
    def loads_age_s(self) -> float:
        """Seconds since the loads came."""
        return self.now() - self._loads_at

    @property
    def doubted(self) -> bool:
        """Whether it is not known now if it is alive."""
        state = self.watch.snapshot().state if self.watch is not None else Life.READY
        return state not in {Life.READY, Life.STALLED}

    def now(self) -> float:
        """The loop's clock."""
        return asyncio.get_running_loop().time()

    async def turned(self) -> None:
        """Wait until something is known of it that was not."""
        await self._turn.wait()

    def turn(self) -> None:
        """Something is: wake who waits in `turned`."""
        self._turn.set()
        self._turn = asyncio.Event()

    def began(self, ident: RequestId, sequences: int, *, quiet: bool = False) -> None:
        """A request was handed to it; `quiet`: one that asks for no words."""
        self.talked = self.talked or not quiet
        self._running[ident] = _Sent(sequences, self.now())

    def ended(self, ident: RequestId) -> None:
        """That request is over, or its client left: it no longer counts as known to be alive."""
        self._running.pop(ident, None)

    def died(self) -> None:
        """All it held was written off."""
        self.life += 1
        self._loads_came.set()

    def prefilled(self) -> None:
        """A prompt came through: its first output is there, or its whole answer."""
        if self.on_prefilled is not None:
            self.on_prefilled()

    @property
    def expected(self) -> bool:
        """Whether it takes nothing for now, and it is a matter of moments to know for how long: it is
        being asked whether it lives, or for the first time what it is."""
        waits = not self.ready and not self.leaving and self.held is None
        return waits and self.now() < self._expected_until

    def opens(self) -> None:
        """It takes work from now on."""
        self.held = None
        self.ready = not self.leaving
        self._expected_until = -math.inf

    def away(self) -> None:
        """It was asked, and can not be used."""
        self._expected_until = -math.inf

    def suspect(self, reason: str) -> None:
        """A request broke in a way that a dead server explains."""
        if self.ready:
            self._expected_until = self.now() + DOUBT_S
        if self.watch is not None:
            self.watch.suspect(reason)

    def took_loads(self, loads: LoadsFacts) -> None:
        """The watch read what the engine holds."""
        self._loads, self._loads_at = loads, self.now()
        taken_at = self._loads_at - (loads.freshest_s or 0.0)
        if loads.running + loads.waiting >= self._known(taken_at):
            self._counted_at = taken_at
        self._loads_came.set()

    def looks(self, loads: LoadsFacts) -> Iterator[tuple[PoolId, Look]]:
        """What that tells of prompts whose first token nobody sees. What others run there is no proof for ours."""
        for load in loads.ranks:
            pool = PoolId(self.name, load.rank)
            if pool not in self.pools:
                continue
            others = self.others[load.rank].running if load.rank in self.others else 0
            if (before := self.elsewhere.get(load.rank)) is not None:
                others += before.charge.requests
            yield (
                pool,
                Look(
                    at=self._loads_at - (load.age_s or 0.0),
                    running=max(load.running - others, 0),
                    waiting=load.waiting,
                    unread=load.waiting_uncached,
                    read=load.prefilled,
                    read_s=load.prefill_s,
                ),
            )

    async def gone(self, since: float, start: int, wait_s: float) -> bool:
        """Wait until the engine's own counts prove that nothing runs but what we know of, or until
        the server has died: then nothing runs at all.

        `since` is when the request was abandoned: older snapshots prove nothing. `start` is the
        server's `life` at that time. False after `wait_s`, and where the engine does not say what
        it holds.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        proofs = 0
        try:
            async with asyncio.timeout_at(until):
                while proofs < PROOFS and self.life == start:
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
        others = sum(rank.running for rank in self.others.values())
        return loads.running + loads.waiting > self.sequences + others

    def _proves(self, since: float) -> bool:
        loads = self._loads
        if loads is None:
            return False
        taken_at = self._loads_at - (loads.age_s or 0.0)
        return taken_at >= since and loads.running + loads.waiting <= self._known(taken_at)

    def _known(self, taken_at: float) -> int:
        """Sequences that a count taken then must have in it. Requests just written may not be there yet:
        they would stand in for one that is."""
        known = sum(s.sequences for s in self._running.values() if s.at <= taken_at - SETTLE_S)
        return known + sum(rank.steady for rank in self.others.values())

    def at_work(self, most_s: float, over_s: float) -> bool:
        """Whether the engine still has all that was sent to it, by its own count, so also a stream that has
        been silent for `over_s` seconds too long: its parsers keep back arguments of a tool until they are
        whole, and thoughts where they are not asked for. Not for more than `most_s`."""
        return over_s < most_s and self.now() - self._counted_at <= COUNTED_S

    async def tokenize(self, body: dict[str, Any]) -> int:
        """The server's own count. Raises whatever an answer that is none makes it raise."""
        return int((await self._tokenized(body))["count"])

    async def token_ids(self, body: dict[str, Any]) -> object:
        """The ids it counts, as it gave them; raises likewise."""
        return (await self._tokenized(body))["tokens"]

    async def _tokenized(self, body: dict[str, Any]) -> Any:  # noqa: ANN401 - another's JSON
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
        if reply.status in NOT_READ:
            said = replies.error_in(answer, reply.status).get("message")
            raise Unreadable(said if isinstance(said, str) else f"{reply.status}")
        return orjson.loads(answer)

    async def make_counter(self, facts: ServerFacts) -> None:
        """A counter for the model it serves now; the old one where that has not changed."""
        told = (facts.version_text, facts.model_type, facts.chat_template, facts.tool_parser)
        key = (facts.tokenizer_path, *told)
        if self.counter is not None and self._counted_as == key:
            return
        try:  # the server's own path: it may be a mount here that hangs
            files = await self._disk.do(find_tokenizer, facts.tokenizer_path, self.policy.tokenizer)
        except OSError:
            files = None
        self.counter = await build_counter(
            tokenizer_dir=files,
            engine_version=facts.version_text or None,
            remote=self.tokenize,
            remote_ids=self.token_ids,
            model_type=facts.model_type or None,
            chat_template=facts.chat_template or None,
            tool_parser=facts.tool_parser or None,
            fast=self.policy.tokenizer_engine == "fast",
            told=key,
        )
        # Where they could not even be looked for, they are at the next start.
        self._counted_as = key if self._disk.answers else None
