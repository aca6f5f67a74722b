"""Clients of the OpenAI API that time what they get, and a sampler of what the engine feels.

Prompts are strings of random digits: Qwen's tokenizer makes every digit one token, so a prompt's
size is chosen exactly, and two prompts share no prefix for the radix cache to save.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import aiohttp

from tests.real.engine import MODEL_NAME, Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# Tokens the chat template adds around one user message (SGLang's own count, checked by a test).
TEMPLATE_TOKENS = 8

# Qwen3's end of turn. The tiny model's logits are nearly flat over its 151,936 tokens, so adding
# ln(151936 / 100) to this one makes it come at each step with a chance of about 1 in 100.
END_OF_TURN = "151645"
ONE_IN_100 = 7.33

# Requests over the server's loop after which all that was sent before has reached the scheduler: as
# in `side_by_side`.
ROUND_TRIPS = 50

# Three answers of 1,465 tokens, one after the other, take 77 s on a busy machine, and took over 150 s
# on one with a load of eleven; a test as a whole has 300 s.
CLIENT_TIMEOUT = aiohttp.ClientTimeout(total=280)


@dataclass(frozen=True)
class Reply:
    """One answer as its client saw it; times are seconds since the request was sent."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    first_byte_s: float
    total_s: float

    @property
    def streamed(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    def objects(self) -> Iterator[dict[str, Any]]:
        """The JSON body, or that of each SSE event."""
        if not self.streamed:
            yield json.loads(self.body)
            return
        for event in self.body.split(b"\n\n"):
            if event.startswith(b"data: ") and event != b"data: [DONE]":
                yield json.loads(event.removeprefix(b"data: "))

    @property
    def error(self) -> dict[str, Any] | None:
        """The error object, whether it is the answer or an event of it."""
        for one in self.objects():
            if "error" in one:
                found: dict[str, Any] = one["error"]
                return found
        return None

    @property
    def usage(self) -> dict[str, Any]:
        """The usage object; fails where there is none."""
        (found,) = [one["usage"] for one in self.objects() if one.get("usage")]
        return dict(found)

    @property
    def finish_reasons(self) -> list[str]:
        """Why each choice ended, in order of its end."""
        choices = [choice for one in self.objects() for choice in one.get("choices", ())]
        return [c["finish_reason"] for c in choices if c.get("finish_reason")]

    @property
    def complete(self) -> bool:
        """Answered, to a natural end."""
        if self.status != http.HTTPStatus.OK or self.error is not None:
            return False
        ended = self.body.endswith(b"data: [DONE]\n\n") if self.streamed else True
        return ended and bool(self.finish_reasons)

    def header(self, name: str) -> int:
        """An x-kvgate- header as a number."""
        return int(self.headers[f"x-kvgate-{name}"])


def digits(tokens: int, seed: int) -> str:
    """A text of exactly `tokens` tokens."""
    return "".join(random.Random(seed).choices("0123456789", k=tokens))


def chat_body(prompt_tokens: int, seed: int, **fields: Any) -> dict[str, Any]:
    """A chat request whose whole prompt, template included, is `prompt_tokens` long."""
    message = {"role": "user", "content": digits(prompt_tokens - TEMPLATE_TOKENS, seed)}
    return {"model": MODEL_NAME, "messages": [message], "temperature": 0} | fields


def streaming(body: dict[str, Any]) -> dict[str, Any]:
    """The same request, streamed and with usage."""
    return body | {"stream": True, "stream_options": {"include_usage": True}}


async def post(
    session: aiohttp.ClientSession,
    url: str,
    body: dict[str, Any],
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """POST `body` and read the answer to its end."""
    sent = time.monotonic()
    asked = session.post(url, json=body, headers=headers, timeout=CLIENT_TIMEOUT)
    async with asked as response:
        received = bytearray()
        first_byte_s = 0.0
        async for piece in response.content.iter_any():
            first_byte_s = first_byte_s or time.monotonic() - sent
            received += piece
        total_s = time.monotonic() - sent
        return Reply(response.status, response.headers, bytes(received), first_byte_s, total_s)


async def chats(base: str, bodies: list[dict[str, Any]]) -> list[Reply]:
    """POST all `bodies` to the chat route at once, each over a connection of its own."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        url = f"{base}/v1/chat/completions"
        return list(await asyncio.gather(*(post(session, url, body) for body in bodies)))


async def chats_in_one_pass(engine: Engine, bodies: list[dict[str, Any]]) -> list[Reply]:
    """The same straight to an engine, whose scheduler finds all of them waiting at once.

    It is frozen while they are sent: else the first few start while the others are still being
    tokenized, and on a busy machine the order of steps is another each time.
    """
    engine.freeze()
    try:
        asked = asyncio.create_task(chats(engine.url, bodies))
        # The server takes requests in the order of their arrival: who is answered came after all.
        for _ in range(ROUND_TRIPS):
            await asyncio.to_thread(engine.get, "/v1/models")
    finally:
        engine.thaw()
    return await asked


async def until(condition: Callable[[], bool], within_s: float, what: str) -> float:
    """Poll `condition` (off the loop) until it holds; the seconds that took, or a failure."""
    began = time.monotonic()
    while not await asyncio.to_thread(condition):
        if time.monotonic() - began > within_s:
            msg = f"not within {within_s:g} s: {what}"
            raise AssertionError(msg)
        await asyncio.sleep(0.02)
    return time.monotonic() - began


class LoadSampler:
    """Polls the engine's /v1/loads from a thread while a scenario runs.

    `waiting`, `running`, `used` are the largest values seen of the requests waiting in the engine,
    those running, and the KV tokens in use; `retractions` those logged meanwhile.
    """

    # Ten decode steps of the tiny model; a request the engine cannot start waits for hundreds.
    PERIOD_S = 0.02

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="load-sampler", daemon=True)
        self._retractions_before = 0
        self.samples = self.waiting = self.waiting_samples = self.running = self.used = 0
        self.retractions = 0

    def __enter__(self) -> Self:
        self._retractions_before = self._engine.retractions()
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join()
        self.retractions = self._engine.retractions() - self._retractions_before

    def _poll(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._engine.port, timeout=30)
        while not self._stop.wait(self.PERIOD_S):
            connection.request("GET", "/v1/loads")
            (load,) = json.loads(connection.getresponse().read())["loads"]
            self.samples += 1
            self.waiting = max(self.waiting, load["num_waiting_reqs"])
            self.waiting_samples += load["num_waiting_reqs"] > 0
            self.running = max(self.running, load["num_running_reqs"])
            self.used = max(self.used, load["num_used_tokens"])
        connection.close()

    def __str__(self) -> str:
        return (
            f"engine: at most {self.running} running, {self.waiting} waiting "
            f"(in {self.waiting_samples} of {self.samples} samples), "
            f"{self.used} KV tokens used; {self.retractions} retractions"
        )


def spread(seconds: list[float]) -> str:
    """Smallest, middle and largest of some times, for the report."""
    ordered = sorted(seconds)
    return f"{ordered[0]:.2f} / {ordered[len(ordered) // 2]:.2f} / {ordered[-1]:.2f} s"
