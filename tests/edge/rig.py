"""A whole gate in front of a fake engine, on loopback, and the check that nothing is left over.

`async with running() as rig:` gives a gate that is ready. On leaving, whatever the test did must
have come to rest within two seconds: every ledger zero, nobody waiting, nobody being buried, one
record for each request, nothing logged as an error, and never more at the engine than its pool.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from gateway.app import App
from gateway.policy.source import Source
from tests.fakes.sglang import FakeSGLang
from tests.hangup import hang_up

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

REST_S = 2.0
SOON_S = 5.0
"""What is waited for comes in milliseconds; other tests run beside this one, on as many cores as there are."""
READY_S = 20.0
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
GENERATE = "/generate"
COUNT = "/v1/messages/count_tokens"
API_CHAT, API_GENERATE = "/api/chat", "/api/generate"
API_EMBED, API_EMBEDDINGS = "/api/embed", "/api/embeddings"


@dataclass(frozen=True)
class Got:
    """A whole answer."""

    status: int
    headers: Any  # a multidict: any case
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json()["error"]

    @property
    def code(self) -> str:
        """Of an error; Ollama's has it beside its text."""
        error = self.error
        return str((self.json() if isinstance(error, str) else error)["code"])


class Rig:
    """A running gate, its engine and a client."""

    def __init__(self, app: App, engine: FakeSGLang, http: aiohttp.ClientSession) -> None:
        self.app = app
        self.engine = engine
        self.http = http
        self.largest_pool = engine.profile.pool
        self.handled = 0
        self.stopping: asyncio.Future[Any] | None = None

    def stop(self) -> asyncio.Future[Any]:
        """Stop the gate, once; what became of the requests."""
        if self.stopping is None:
            self.stopping = asyncio.ensure_future(self.app.stop())
        return self.stopping

    @property
    def port(self) -> int:
        return int(self.app.listen_url.rpartition(":")[2])

    # ---- asking ----

    async def post(self, path: str = CHAT, body: Any = None, **kwargs: Any) -> Got:
        """POST a JSON body (or bytes, as they are) and read the whole answer."""
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        headers = {"content-type": "application/json", **kwargs.pop("headers", {})}
        url = self.app.listen_url + path
        async with self.http.post(url, data=data, headers=headers, **kwargs) as answer:
            return Got(answer.status, answer.headers.copy(), await answer.read())

    async def chat(self, words: int = 16, **fields: Any) -> Got:
        return await self.post(CHAT, chat(words, **fields))

    async def control(self, path: str, method: str = "GET") -> Got:
        async with self.http.request(method, self.app.control_url + path) as answer:
            return Got(answer.status, answer.headers.copy(), await answer.read())

    async def status(self) -> Any:
        return (await self.control("/status")).json()

    @asynccontextmanager
    async def socket(self) -> AsyncIterator[Peer]:
        """A connection to the data plane, byte by byte."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield Peer(reader, writer)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def raw(self, data: bytes, within_s: float = 2.0) -> bytes:
        """Send bytes, return all that comes until the gate closes."""
        async with self.socket() as peer:
            await peer.send(data)
            async with asyncio.timeout(within_s):
                return await peer.rest()

    # ---- looking ----

    @property
    def records(self) -> list[dict[str, Any]]:
        """Newest first."""
        return self.app.records.recent()

    @property
    def reserved(self) -> int:
        """KV tokens reserved, all pools together."""
        return sum(pool.kv.reserved for pool in self.app.gate.view().pools)

    async def until(self, condition: Any, within_s: float = SOON_S) -> None:
        """Return once `condition()` holds; fail when it does not in time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + within_s
        while not condition():
            assert loop.time() < end, f"not within {within_s} s: {self.left_over()}"
            await asyncio.sleep(0.005)
        await asyncio.sleep(0)  # a request's end is told of in the turn of the loop after it

    async def ready(self) -> None:
        """Wait until a server takes work; the first time, what counts is imported."""
        await self.until(lambda: self.app.fleet.any_ready, READY_S)

    async def queued(self, number: int = 1) -> None:
        """Wait until so many requests wait."""
        await self.until(lambda: self.app.gate.view().queue.requests == number)

    def left_over(self) -> dict[str, Any]:
        """What is not at rest; empty when all is."""
        gate = self.app.gate
        view = gate.view()
        held = {
            str(pool.pool): (pool.kv.reserved, pool.prefill.reserved, pool.slots.reserved)
            for pool in view.pools
            if pool.kv.reserved or pool.prefill.reserved or pool.slots.reserved
        }
        found: dict[str, Any] = {
            "held": held,
            "queue": view.queue.requests or view.queue.tokens or view.queue.bytes,
            "clients": view.clients,
            "waiters": len(gate._waiters),
            "holding": gate.holding,
            "dying": self.app.reaper.dying,
            "at the engine": [one.rid for one in self.engine._held],
        }
        running = sum(backend.sequences for backend in self.app.fleet)
        found["believed running"] = running
        return {name: what for name, what in found.items() if what}

    async def at_rest(self, within_s: float = REST_S) -> None:
        """The quiesce check."""
        await self.until(lambda: not self.left_over(), within_s)
        records = self.records
        assert len(records) == self.handled, "one record for each request"
        assert len({record["id"] for record in records}) == len(records)
        assert all(record["outcome"] for record in records)
        # Of one metric: to collect all of them takes longer than most tests.
        own = self.app.metrics.registry.restricted_registry(["kvgate_observe_errors_total"])
        parts = {sample.labels["part"] for one in own.collect() for sample in one.samples}
        assert parts <= {"shadow"}, "which one test breaks on purpose"
        assert self.engine.peak <= self.largest_pool


@dataclass
class Peer:
    """A raw client connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next answer."""
        async with asyncio.timeout(5):
            raw = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = raw.decode("latin-1").strip().split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in lines)
        return int(first.split()[1]), fields

    async def rest(self) -> bytes:
        """All that comes until the gate closes."""
        parts = []
        try:
            while data := await self.reader.read(1 << 16):
                parts.append(data)
        except ConnectionError:
            parts.append(b"<reset>")
        return b"".join(parts)

    def reset(self) -> None:
        """Go away without a word."""
        hang_up(self.writer.transport)


def chat(words: int = 16, **fields: Any) -> dict[str, Any]:
    """A chat of `words` + 4 tokens, by the fake engine's rule."""
    content = " ".join(["w"] * words)
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], **fields}


def request(path: str, body: Any, *extra: str, method: str = "POST") -> bytes:
    """A request as bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "host: gate", f"content-length: {len(data)}", *extra]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + data


def lines(body: bytes) -> list[Any]:
    """The objects of a stream of Ollama's."""
    return [json.loads(line) for line in body.splitlines()]


def events(body: bytes) -> list[Any]:
    """The JSON of each event; the text of those that are none."""
    found = []
    for event in body.split(b"\n\n"):
        if event.startswith(b"data: "):
            text = event.removeprefix(b"data: ")
            found.append(text.decode() if text == b"[DONE]" else json.loads(text))
    return found


class _Errors(logging.Handler):
    """Collects what libraries log as errors: an unhandled exception in a handler is one."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):  # bytes that are no HTTP: answered with 400
            self.lines.append(f"{record.getMessage()} {error!r}")

    def unhandled(self, _loop: Any, what: dict[str, Any]) -> None:
        """What reached the loop, but for tasks of the fake that were cancelled with their server."""
        if not isinstance(what.get("exception"), asyncio.CancelledError):
            self.lines.append(str(what))


@asynccontextmanager
async def running(
    tmp_path: Path, policy: dict[str, Any] | None = None, *, quiet: bool = True, **engine: Any
) -> AsyncIterator[Rig]:
    """A gate that is ready, before an engine made from `engine`; `policy` adds to the file."""
    async with FakeSGLang(**engine) as fake:
        source = written(tmp_path, fake.url, policy or {})
        app = App(source.load(), source)
        errors = _Errors()
        logging.getLogger().addHandler(errors)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(errors.unhandled)
        try:
            await app.start()
        except BaseException:
            await app.close()  # uvloop waits for ever to close with a listener left open
            raise
        connector = aiohttp.TCPConnector(limit=0)
        http = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(10))
        rig = Rig(app, fake, http)
        _count_requests(rig)
        try:
            await rig.ready()
            yield rig
            if quiet:
                await rig.at_rest()
        finally:
            await http.close()
            await rig.stop()
            logging.getLogger().removeHandler(errors)
        assert errors.lines == []


def _count_requests(rig: Rig) -> None:
    generate = rig.app.data._generate

    async def counted(*args: Any) -> Any:
        rig.handled += 1
        return await generate(*args)

    rig.app.data._generate = counted  # type: ignore[method-assign]


def written(tmp_path: Path, url: str, extra: dict[str, Any]) -> Source:
    """The policy file of a gate before an engine at `url`, written."""
    document = {
        "drain_s": 0.2,
        "listen": "127.0.0.1:0",
        "control": "127.0.0.1:0",
        "reservation": "declared",  # sums one can check by hand; see test_forecast for the default
        **extra,
        "backends": [
            {"url": url, "name": "gpu0", **extra.get("backend", {})},
            *extra.get("more", []),
        ],
    }
    document.pop("more", None)
    document.pop("backend", None)
    path = tmp_path / "policy.yaml"  # JSON is YAML
    path.write_text(json.dumps(document))
    return Source(path, env={})


def _policy(tmp_path: Path, url: str, extra: dict[str, Any]) -> Any:
    return written(tmp_path, url, extra).load()


__all__ = [
    "API_CHAT",
    "API_EMBED",
    "API_EMBEDDINGS",
    "API_GENERATE",
    "CHAT",
    "COUNT",
    "GENERATE",
    "TEXT",
    "Got",
    "Peer",
    "Rig",
    "chat",
    "events",
    "lines",
    "request",
    "running",
    "written",
]
