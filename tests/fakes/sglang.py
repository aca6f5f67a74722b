"""A scripted SGLang on 127.0.0.1: real sockets, no model.

`async with FakeSGLang() as engine:` listens on `engine.url`. It answers the introspection routes
(shapes in `profile`), /tokenize and the three generation routes (wording and the counting rule in
`dialects`), holds each generation in /v1/loads until it ends, and records what it saw.

How a generation goes is a `Behaviour`, taken from the first of
1. `engine.script(seen)`, where it returns one,
2. `engine.queue`, one for each request in order of arrival,
3. `engine.default`.

Nothing here waits for luck: `await engine.until(...)` returns at the event, and each `Seen` has
`gone` (the peer closed) and `ended` (the engine holds it no more) to wait for.

Two traits of the real engine that tests rely on: an abort ends every request whose id *starts
with* the given one, and a request whose client left is held until the engine notices
(`notice_s`: about 0.03 s for a stream, 2 to 3.3 s otherwise on 0.5.17; here 0 unless set).
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections import Counter, deque
from dataclasses import replace
from itertools import count as counter
from typing import TYPE_CHECKING, Any

from tests.fakes import dialects, profile
from tests.fakes.behaviour import Behaviour
from tests.fakes.dialects import UNCAPPED, Job
from tests.fakes.generation import Play, Seen
from tests.fakes.http1 import Wire
from tests.fakes.profile import Profile, RankUse, Start
from tests.fakes.typed import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from tests.fakes.http1 import Received


_SINCE = {
    "/server_info": (0, 5, 12),
    "/model_info": (0, 5, 12),
    "/v1/loads": (0, 5, 12),
}
_GONE_IN = {"/get_load": (0, 5, 23)}


class FakeSGLang:
    """See the module. `changes` are fields of `Profile`: version, pool, context, page, dp, …"""

    def __init__(self, **changes: Any) -> None:
        self.profile = Profile(**changes)
        self.start = Start.of(self.profile)
        self.retracted = [0] * self.profile.dp  # requests since the start, by rank: see /metrics
        self.prefilled = self.profile.warm_up
        """Prompt tokens since the start as the loads say them, of each rank; a test lets it grow."""
        self.ratio: float | None = 0.7
        """new_token_ratio as /metrics say it; None: they do not."""
        self.default = Behaviour()
        self.queue: deque[Behaviour] = deque()
        self.script: Callable[[Seen], Behaviour | None] = lambda _: None
        self.notice_s: float | None = 0.0
        """Until a request whose client left is dropped. None: never (it runs to its end)."""
        self.aborts_work = True
        self.seen: list[Seen] = []
        self.aborts: list[str] = []
        self.calls: Counter[str] = Counter()  # every request by path, generations included
        self.tokenized: list[Any] = []
        self.connections = 0
        self.peak = 0
        """The most KV tokens one rank ever held. Above the pool: the engine would have retracted."""
        self.port = 0
        self._server: asyncio.Server | None = None
        self._wires: set[Wire] = set()
        self._held: list[Seen] = []
        self._changed = asyncio.Event()
        self._answering = asyncio.Event()
        self._stepping = asyncio.Event()
        self._stale: list[RankUse] | None = None
        self._stale_at: float | None = None
        self._rids = counter()
        self._answering.set()
        self._stepping.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> FakeSGLang:
        # Bound and never listening: while the process is dead its port is refused, and nobody's else. A
        # port that another test's engine got meanwhile was this one, back again.
        self._place = socket.socket()
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.bind(("127.0.0.1", self.port))
        self.port = self._place.getsockname()[1]
        await self._listen()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.die()
        self._place.close()

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._accepted, "127.0.0.1", self.port, reuse_address=True
        )

    def _accepted(self) -> Wire:
        """At once, and not when it is first served: one of a moment ago dies with the process, too."""
        wire = Wire(self._serve)
        self._wires.add(wire)
        return wire

    # ---- life ----

    async def die(self) -> None:
        """The process is gone: every connection is reset, new ones are refused."""
        if self._server is not None:
            self._server.close()
            self._server = None
        wires, self._wires = self._wires, set()
        tasks = [wire.task for wire in wires if wire.task is not None]
        for wire in wires:
            wire.reset()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def revive(self, **changes: Any) -> None:
        """Start again on the same port, as a new process, perhaps with other arguments."""
        self.profile = replace(self.profile, **changes)
        self.start = Start.of(self.profile)
        self.prefilled = self.profile.warm_up
        self.retracted = [0] * self.profile.dp
        self.thaw()
        self.unmute()
        await self._listen()

    def freeze(self) -> None:
        """The scheduler hangs: no token moves, /server_info hangs, loads are 200 and stale."""
        self._stale, self._stale_at = self.use(), time.time()
        self._stepping.clear()

    def thaw(self) -> None:
        """Undo `freeze`."""
        self._stale = self._stale_at = None
        self._stepping.set()

    def mute(self) -> None:
        """Accept and say nothing at all: the five seconds after a scheduler was killed."""
        self._answering.clear()
        self._stepping.clear()

    def unmute(self) -> None:
        """Undo `mute`."""
        self._answering.set()
        self._stepping.set()

    # ---- for the tests ----

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once `condition()` holds. Looked at whenever a request arrives, moves or ends."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def arrived(self, number: int = 1) -> Seen:
        """The `number`-th generation request (from 1), once it is here."""
        await self.until(lambda: len(self.seen) >= number)
        return self.seen[number - 1]

    def use(self) -> list[RankUse]:
        """What each rank holds. Beyond `max_running`, in order of arrival, requests wait."""
        ranks = []
        for rank in range(self.profile.dp):
            held = [seen for seen in self._held if seen.rank == rank]
            running, waiting = (
                held[: self.profile.max_running],
                held[self.profile.max_running :],
            )
            used = sum(seen.held for seen in running)
            total = used + sum(seen.held for seen in waiting)
            ranks.append(RankUse(len(running), len(waiting), used, total, self.prefilled))
        return ranks

    # ---- one connection ----

    async def _serve(self, wire: Wire) -> None:
        self.connections += 1
        try:
            while (received := await wire.receive()) is not None:
                self.calls[received.path] += 1
                self._changed.set()
                await self._answering.wait()
                await self._answer(wire, received)
                if received.headers.get("connection", "").lower() == "close":
                    wire.close()
                if wire.writer.transport.is_closing():
                    return
        finally:
            self._wires.discard(wire)

    async def _answer(self, wire: Wire, received: Received) -> None:
        if not self._authorized(received):
            await wire.answer(401, b'{"error":"Unauthorized"}')
        elif received.path == MESSAGES and self.profile.number < (0, 5, 12):
            await wire.answer(404, b'{"detail":"Not Found"}')
        elif received.path in dialects.GENERATION:
            await self._generate(wire, received)
        elif received.path == "/metrics" and self.profile.enable_metrics:
            body = profile.metrics(self.profile, self.retracted, self.ratio)
            await wire.answer(200, body, {"content-type": "text/plain; version=0.0.4"})
        else:
            status, body = await self._introspect(received)
            await wire.answer(status, json.dumps(body).encode())

    def _authorized(self, received: Received) -> bool:
        key = self.profile.api_key
        exempt = received.path.startswith(("/health", "/metrics"))
        return exempt or key is None or received.headers.get("authorization") == f"Bearer {key}"

    async def _introspect(self, received: Received) -> tuple[int, Any]:
        since = _SINCE.get(received.path, (0, 0, 0))
        until = _GONE_IN.get(received.path, (9, 9, 9))
        if not since <= self.profile.number < until:
            return 404, {"detail": "Not Found"}
        match received.path:
            case "/server_info" | "/get_server_info":
                await self._stepping.wait()  # goes through the scheduler
                answer: Any = profile.server_info(self.profile, self.start)
            case "/model_info" | "/get_model_info":
                answer = profile.model_info(self.profile)
            case "/v1/models":
                answer = profile.models(self.profile)
            case "/v1/loads":
                answer = profile.loads(self.profile, self._stale or self.use(), self._stale_at)
            case "/get_load":
                answer = profile.get_load(self._stale or self.use())
            case "/health" | "/health_generate":
                await self._stepping.wait()
                answer = ""
            case "/tokenize" | "/v1/tokenize":
                return self._tokenize(received.json())
            case "/abort_request":
                answer = self._abort(received.json())
            case _:
                return 404, {"detail": "Not Found"}
        return 200, answer

    def _tokenize(self, body: Any) -> tuple[int, Any]:
        self.tokenized.append(body)
        if "messages" in body and self.profile.number < (0, 5, 12):
            return 400, {"object": "error", "message": "prompt: field required", "code": 400}
        roles = [one.get("role") for one in body.get("messages", ())]
        if not all(isinstance(role, str) for role in roles):
            return 400, {"object": "error", "message": "role: input should be text", "code": 400}
        number = dialects.count(body)
        context = self.profile.context
        return 200, {"tokens": list(range(number)), "count": number, "max_model_len": context}

    def _abort(self, body: Any) -> None:
        rid = body.get("rid", "")
        self.aborts.append(rid)
        if self.aborts_work:
            for seen in self._held:
                if seen.rid.startswith(rid):
                    seen.abort.set()
        self._changed.set()

    # ---- one generation ----

    async def _generate(self, wire: Wire, received: Received) -> None:
        loop = asyncio.get_running_loop()
        try:
            body = received.json()
        except ValueError:
            await wire.answer(400, dialects.error_body(400, "JSON decode error"))
            return
        number = next(self._rids)
        job = Job.read(received.path, body, f"engine-{number}")
        if (wrong := self._invalid(job)) is not None:
            await wire.answer(400, dialects.error_body(400, wrong, job.path))
            return
        rank = body.get("routed_dp_rank", received.headers.get("x-data-parallel-rank", number))
        seen = Seen(received, job, int(rank) % self.profile.dp, wire, loop.time())
        self.seen.append(seen)
        self._held.append(seen)
        script = Play(seen, self._next_behaviour(seen), self._stepping, self._moved)
        play = loop.create_task(script.run())
        wire.on_gone = lambda: self._gone(seen, play)
        if wire.gone:
            wire.on_gone()
        self._moved()
        try:
            seen.how = await play
        except asyncio.CancelledError:
            seen.how = "broken" if wire.cut else "abandoned"
            wire.close()
        finally:
            wire.on_gone = None
            self._held.remove(seen)
            seen.ended_at = loop.time()
            seen.ended.set()
            self._changed.set()

    def _invalid(self, job: Job) -> str | None:
        """What the engine's tokenizer side refuses, in its words (0.5.12 and later)."""
        context, prompt = self.profile.context, max(job.prompts, default=0)
        if any(seen.rid == job.rid for seen in self._held):
            return f"Duplicate request ID detected: {job.rid}"
        if prompt >= context:
            return (
                f"The input ({prompt} tokens) is longer than the model's context length "
                f"({context} tokens)."
            )
        if job.cap < UNCAPPED and prompt + job.cap > context:
            return (
                f"Requested token count exceeds the model's maximum context length of {context} "
                f"tokens. You requested a total of {prompt + job.cap} tokens: {prompt} tokens from "
                f"the input messages and {job.cap} tokens for the completion."
            )
        return None

    def _moved(self) -> None:
        self.peak = max([self.peak, *(use.used for use in self.use())])
        self._changed.set()

    def _next_behaviour(self, seen: Seen) -> Behaviour:
        if (scripted := self.script(seen)) is not None:
            return scripted
        return self.queue.popleft() if self.queue else self.default

    def _gone(self, seen: Seen, play: asyncio.Task[str]) -> None:
        loop = asyncio.get_running_loop()
        seen.gone_at = loop.time()
        seen.gone.set()
        self._changed.set()
        if self.notice_s is not None:
            loop.call_later(self.notice_s, play.cancel)
