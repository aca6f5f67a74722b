"""Counts with the model's own files in this process: render, cut, look up, encode.

A small body is counted where it arrives; a larger one in one of a few threads, because the encoders
release the GIL and the event loop has other clients. Before these clients take turns (`line`), and
waiting bytes and time are bounded. Past either bound, and for texts that no context could hold, the
caller falls back to the byte bound; but who waits behind its own is told so (`Busy`): the bound
would call a prompt too long that is not, and what is in the way is that client's to stop.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from gateway.tokens.bound import prompts_bound
from gateway.tokens.counter import Unavailable
from gateway.tokens.encoders import Spec, Written, encode
from gateway.tokens.encoders.dsv4 import template_effort
from gateway.tokens.encoders.words import NO_WORDS, UNASKABLE, Words
from gateway.tokens.line import Line, Overtaken
from gateway.tokens.model import Busy, CountRefused
from gateway.tokens.profile import NotPrepared, Prepared, Profile, flattened, prepare
from gateway.tokens.template import RenderError
from gateway.tokens.vocabulary import OutOfTime, Unencodable

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from gateway.tokens.encoder import TextCounter
    from gateway.tokens.request import Media, Request
    from gateway.tokens.template import ChatTemplate

INLINE_BYTES: Final = 16 << 10
"""Bodies up to this are counted on the loop: about 1 ms, as much as a thread's hand-over costs."""
THREADS: Final = 2
"""One giant in one of them must not hold up everybody else."""
SPARE: Final = 1
"""One more, only for a client that has none under way: two giants of one client must not either. Beside 50
bodies of a megabyte of another client, 200 KB were counted in 0.07 to 0.32 s (0.05 alone); in one line for
all they waited for 10 s and were then not counted at all. (Two cores.)"""
NICENESS: Final = 5
"""Of the counting threads: a third of the event loop's weight where both want one processor."""
QUEUED_BYTES: Final = 256 << 20
"""Bodies in the threads and before them; they are in memory anyway, this bounds the wait. When it is
reached, the client with most gives way."""
SECONDS: Final = 10.0
"""Waiting for a thread included: after that the byte bound answers."""
WORK_SECONDS: Final = 3.0
"""Encoding of one body: 250,000 tokens take 0.05 to 0.2 s. What is slower is no text, and should
not hold up the next."""
LONGEST_TEXT: Final = 16 << 20
"""Characters above which nothing is encoded: no context holds a sixteenth of that in tokens."""


class Count(Protocol):
    """Counts a text, or its pieces and the special tokens between them; Unavailable."""

    def __call__(self, text: str, cut: tuple[list[str], int] | None = None, /) -> int: ...


def _give_way() -> None:
    """Let the event loop have the processor first: on Linux a thread has a niceness of its own."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


class LocalCounter:
    """Text counter and template (or encoder, `spec`) of one model, as one engine version uses them."""

    def __init__(
        self,
        text: TextCounter,
        template: ChatTemplate | None,
        profile: Profile,
        spec: Spec | None = None,
        words: Words = NO_WORDS,
    ) -> None:
        self._text = text
        self._template = template
        self._spec = spec
        self._words = words
        self.marks: Mapping[str, str] = {}
        """By modality, what stands for a medium in a prompt: one of them for each that is sent."""
        self._profile = profile
        self._threads = ThreadPoolExecutor(
            THREADS + SPARE, thread_name_prefix="count", initializer=_give_way
        )
        self._line = Line(THREADS, SPARE)

    @property
    def renders(self) -> bool:
        """Whether there is a template or an encoder: chats can be counted, not only estimated."""
        return self._template is not None or self._spec is not None

    @property
    def kin(self) -> Hashable:
        """The same for two that count alike."""
        template = None if self._template is None else self._template.kin
        words, marks = sorted(self._words.known.items()), sorted(self.marks.items())
        return self._text.kin, template, self._profile, self._spec, repr(words), repr(marks)

    @property
    def under_way(self) -> int:
        """Bodies that are counted in threads, or wait for one."""
        return self._line.texts

    async def count(self, request: Request, body_bytes: int, client: str) -> tuple[int, ...]:
        """Tokens of each prompt, placeholders of media included; Unavailable where it cannot say."""
        return await self._run(self.count_now, request, body_bytes, client)

    async def estimate(self, request: Request, body_bytes: int, client: str) -> tuple[int, ...]:
        """The same without a template: the texts' tokens and an allowance for what is around."""
        return await self._run(self.estimate_now, request, body_bytes, client)

    async def _run(
        self,
        work: Callable[[Request], tuple[int, ...]],
        request: Request,
        body_bytes: int,
        client: str,
    ) -> tuple[int, ...]:
        """`work` on the loop or in a thread, by size and within the bounds."""
        if body_bytes <= INLINE_BYTES:
            return work(request)
        line = self._line
        if not line.make_room(client, body_bytes, QUEUED_BYTES):
            raise Busy(line.waiting_of(client)) if line.has(client) else Unavailable("queue_full")
        running: asyncio.Future[tuple[int, ...]] | None = None
        try:
            async with asyncio.timeout(SECONDS):
                await line.turn(client, body_bytes)
                running = self._begun(partial(work, request), body_bytes, client)
                # Shielded: a thread cannot be stopped, and its place is taken until it ends.
                return await asyncio.shield(running)
        except Overtaken:
            raise Busy(line.waiting_of(client)) from None
        except TimeoutError:
            if running is None and line.has(client):
                raise Busy(line.waiting_of(client)) from None
            raise Unavailable("timeout") from None

    def _begun(
        self, work: Callable[[], tuple[int, ...]], body_bytes: int, client: str
    ) -> asyncio.Future[tuple[int, ...]]:
        try:
            running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        except RuntimeError:  # closed meanwhile
            self._line.leave(client, body_bytes)
            raise
        running.add_done_callback(lambda done: self._finished(done, body_bytes, client))
        return running

    def _finished(
        self, work: asyncio.Future[tuple[int, ...]], body_bytes: int, client: str
    ) -> None:
        self._line.leave(client, body_bytes)
        if not work.cancelled():
            work.exception()  # seen, even where nobody waits for it any more

    def close(self) -> None:
        """Let the threads end after what they are at."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def count_now(self, request: Request) -> tuple[int, ...]:
        """The same, in the calling thread and without bounds on the wait."""
        if request.chat is not None:
            if self._spec is not None:
                return (self._count_written(self.written(request.chat, self._spec), request.lead),)
            text, continued = self.rendered(request.chat)
            self._check_marks(text, request.media)
            count = self._counting(request.lead)
            return (count(text) + (count(continued) if continued else 0),)
        count = self._counting(request.lead if len(request.prompts) == 1 else None)
        for index, prompt in enumerate(request.prompts if request.media else ()):
            if isinstance(prompt, str):
                self._check_marks(prompt, [one for one in request.media if one.prompt == index])
        return tuple(
            prompt if isinstance(prompt, int) else self._text.prefix + count(prompt)
            for prompt in request.prompts
        )

    def _check_marks(self, text: str, media: Sequence[Media]) -> None:
        """Whether a prompt has a mark for more media than come with it, as where somebody has written one:
        the engine takes it for one of them, and answers a bare 500 (0.5.12-0.5.23). Schedulers have ended of such
        a mismatch (sgl-project/sglang#38022; not tried here). Without media it is a token as any. Raises CountRefused.
        """
        for modality, mark in self.marks.items() if media else ():
            sent = sum(one.modality == modality for one in media)
            if sent and text.count(mark) > sent:
                msg = (
                    f"The text has {mark!r} in it, which stands for {modality} data in this model, more often "
                    "than such data come with the request. Write it otherwise, with a space in it."
                )
                raise CountRefused(msg)

    def _count_written(self, written: Written, lead: list[tuple[int, int]]) -> int:
        count = self._counting(lead)
        total = count(written.text, written.pieces if written.marked else None)
        if written.continued:
            total += count(written.continued)
        return total + (self._text.prefix if written.framed else 0)

    def estimate_now(self, request: Request) -> tuple[int, ...]:
        """The estimate, in the calling thread."""
        return prompts_bound(request, self._counting())

    def _counting(self, lead: list[tuple[int, int]] | None = None) -> Count:
        """Counts texts until WORK_SECONDS from now, and fills `lead`; Unavailable.

        A text may come with its pieces and the number of special tokens between them.
        """
        until = time.monotonic() + WORK_SECONDS

        def count(text: str, cut: tuple[list[str], int] | None = None) -> int:
            if len(text) > LONGEST_TEXT:
                raise Unavailable("too_long")
            try:
                if cut is not None:
                    return self._text.count_pieces(*cut, until, lead)
                return self._text.count(text, until, lead)
            except OutOfTime:
                raise Unavailable("timeout") from None
            except Unencodable:
                raise Unavailable("unencodable") from None

        return count

    def segments(self, request: Request) -> list[tuple[str, int]]:
        """(text, tokens) of every added token and every piece between them, in order.

        Token ids have no text; special tokens put around plain text appear as an empty one.
        """
        found: list[tuple[str, int]] = []
        if request.chat is not None and self._spec is not None:
            return self._segments_written(self.written(request.chat, self._spec))
        if request.chat is not None:
            for text in self.rendered(request.chat):
                found += self._text.segments(text) if text else []
            return found
        for prompt in request.prompts:
            if isinstance(prompt, int):
                found.append(("", prompt))
                continue
            found += [("", self._text.prefix)] if self._text.prefix else []
            found += self._text.segments(prompt)
        return found

    def _segments_written(self, written: Written) -> list[tuple[str, int]]:
        found = [("", self._text.prefix)] if written.framed and self._text.prefix else []
        if written.marked:
            found += [
                (text, 1 if is_token else self._text.plain(text))
                for text, is_token in written.runs
                if text
            ]
        else:
            found += self._text.segments(written.text)
        return found + (self._text.segments(written.continued) if written.continued else [])

    def written(self, chat: Mapping[str, Any], spec: Spec) -> Written:
        """The prompt that encoder `spec` makes of `chat`; Unavailable."""
        try:
            return encode(spec, chat, self._profile, self._words)
        except NotPrepared as why:
            hidden = spec != "dsv32" and template_effort(chat) is not None
            raise Unavailable(UNASKABLE if hidden else str(why)) from None
        except RenderError:
            raise Unavailable("encoder_error") from None

    def rendered(self, chat: Mapping[str, Any]) -> tuple[str, str | None]:
        """(the prompt that the template makes of `chat`, text appended to it); Unavailable."""
        if self._template is None:
            raise Unavailable("no_template")
        try:
            prepared = prepare(chat, self._profile, self._template.content_format)
            return self._render(self._template, prepared), prepared.continued
        except NotPrepared as why:
            raise Unavailable(str(why)) from None
        except RenderError:
            raise Unavailable("template_error") from None

    def _render(self, template: ChatTemplate, prepared: Prepared) -> str:
        try:
            return template.render(prepared.messages, prepared.tools, prepared.arguments)
        except RenderError:
            tools = flattened(prepared.tools, self._profile.tools)
            if tools is None:
                raise
            return template.render(prepared.messages, tools, prepared.arguments)
