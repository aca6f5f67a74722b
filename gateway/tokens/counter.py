"""Counts the prompt tokens of a request: exactly where it can, and never not at all.

Three ways, best first. A local tokenizer renders and counts as the engine does (`local`). Failing
that, the server's own /v1/tokenize is asked (`remote`): the engine's number, but it blocks the
engine's HTTP loop for the length of the tokenisation, so only a few at a time, small ones, and not
for long; a server that takes no chats counts a chat's texts, which is an estimate. Failing that, the bytes bound it (`bound`), scaled by what `usage` has taught (`meter`).
Whatever goes wrong in a better way is counted and the next way answers: a client sees a number or,
for a body without a prompt, a refusal, never an error of ours. Media are added at their own price.
"""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from gateway.core.model import Lead
from gateway.tokens.bound import chat_outline, prompts_bound
from gateway.tokens.encoders.words import NOT_LEARNED, UNASKABLE
from gateway.tokens.faults import FAULTS, Unreadable, refused
from gateway.tokens.images import MediaRules, media_tokens, pixels_of
from gateway.tokens.line import Line
from gateway.tokens.meter import Correction, Meter
from gateway.tokens.model import Accuracy, Busy, Counted, CountRefused, Kind, Method
from gateway.tokens.request import Request, read

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from gateway.tokens.anthropic import Conversion

REMOTE_SECONDS: Final = 2.0
"""How long the engine's /v1/tokenize may take; it answers 100k tokens in about 0.5 s when idle."""
REMOTE_BYTES: Final = 1 << 20
"""Largest body asked about remotely: the engine tokenises on its HTTP loop, 0.3 s a MB."""
REMOTE_AT_ONCE: Final = 2
"""Questions in flight: more would queue on that same loop. Clients take turns (`line`)."""
BOUND_INLINE: Final = 1 << 18
"""Body bytes up to which the byte bound is taken on the loop: 1 ms at most, for non-ASCII text."""
RECOVER: Final = 64
"""Right answers in a row after which a counter that erred is called exact again."""


LATE: Final = "remote_timeout"
"""The reason for which there was no count this time, and may be one the next."""


class Unavailable(Exception):
    """This way of counting cannot answer this request now; the reason is a metric label."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


Way = Callable[[Request, int, str], Awaitable[tuple[int, ...]]]
"""Counts the prompts of a request whose body has so many bytes, for a client; raises Unavailable, and Busy
where that client's turn does not come."""


Known = dict["Hashable", tuple[tuple[int, ...], list[tuple[int, int]]] | str]
"""By kin, what was counted of one body: tokens of its prompts, and their lead; or why it could not be."""


MOST_IDS = 262_208
"""Token ids where the vocabulary is not known: the largest in use is Gemma 3's, with its padding. One
beyond its vocabulary ends the engine's scheduler (0.5.17)."""


class LocalCount(Protocol):
    """A tokenizer and perhaps a template in this process."""

    @property
    def renders(self) -> bool:
        """Whether it has a template for chats."""

    @property
    def under_way(self) -> int:
        """Bodies that are being counted elsewhere than on the loop, or wait for it."""

    async def count(self, request: Request, body_bytes: int, client: str) -> tuple[int, ...]:
        """Tokens of each prompt without media; Unavailable where it cannot say."""

    async def estimate(self, request: Request, body_bytes: int, client: str) -> tuple[int, ...]:
        """The same where there is no template for chats; Unavailable likewise."""

    def segments(self, request: Request) -> list[tuple[str, int]]:
        """(text, tokens) of the pieces of the prompts, in order; Unavailable likewise."""


class Counter:
    """The counter of one served model. Loop-confined, except where `local` goes off the loop."""

    def __init__(
        self,
        *,
        local: LocalCount | None = None,
        remote: Callable[[dict[str, Any]], Awaitable[int]] | None = None,
        conversion: Conversion | None = None,
        media: MediaRules | None = None,
        exact: bool = True,
        remote_takes_chats: bool = True,
        ids: int | None = None,
        notes: tuple[str, ...] = (),
        kin: Hashable = None,
    ) -> None:
        """`exact` tells whether calibration believed `local`; `notes` is what people should read.
        `kin` is the same for those that count alike where they are believed, None where none does.

        `ids` is one more than the largest token id of the model, None where that is not known.
        `remote_takes_chats` is false of servers before 0.5.12, which count plain text only.
        """
        self._local = local
        self._ids = ids or MOST_IDS
        self._remote = remote
        self._remote_takes_chats = remote_takes_chats
        self._conversion = conversion
        self._media = media or MediaRules()
        self._kin = kin
        # A local estimate is close: believe that it is low, never that it is high.
        self._corrections = {Method.ESTIMATE: Correction(floor=1.0), Method.BOUND: Correction()}
        self._meter = Meter()
        self._exact = exact
        self._streak = 0  # local counts in a row that were the engine's own number
        self._remote_line = Line(REMOTE_AT_ONCE)
        self._fallbacks: Tally[str] = Tally()
        self._notes = notes

    @property
    def notes(self) -> tuple[str, ...]:
        """What was found at start: where the tokenizer came from, what disagreed."""
        return self._notes

    @property
    def kin(self) -> Hashable:
        """Of counters with the same one any may be asked: they say the same. Two microseconds to compare."""
        return self if self._kin is None or not self._exact else self._kin

    @property
    def fallbacks(self) -> Mapping[str, int]:
        """How often a better way could not answer, by reason."""
        return dict(self._fallbacks)

    @property
    def under_way(self) -> int:
        """Bodies that are being counted, or wait for it. What is counted at once is never seen."""
        return self._remote_line.texts + (self._local.under_way if self._local is not None else 0)

    @property
    def accuracy(self) -> Accuracy:
        """Our numbers against the engine's since start, and the correction now in force."""
        if self._exact and (self._local or self._remote):
            return self._meter.snapshot(None)
        estimates = self._local or (self._remote and not self._remote_takes_chats)
        basis = Method.ESTIMATE if estimates else Method.BOUND
        return self._meter.snapshot(self._corrections[basis])

    async def count(
        self,
        kind: Kind,
        body: Mapping[str, Any],
        body_bytes: int,
        client: str = "",
        *,
        known: Known | None = None,
    ) -> Counted:
        """Tokens of each prompt in `body`, which was `body_bytes` long on the wire. Clients take turns.

        `known` is what others have counted of this body: of those that are alike only the first counts, and what
        each believes of that is its own. Raises CountRefused where the body has no prompt, and nothing else on any input; and Busy where
        too much of this client waits to be counted.
        """
        request = read(kind, body, self._conversion)
        if request.largest_id >= self._ids:
            msg = f"Token id {request.largest_id}: the largest here is {self._ids - 1}."
            raise CountRefused(msg)
        pixels = pixels_of(request)
        basis, prompts, why = await self._best(request, body_bytes, client, known)
        in_text = 0 if basis is Method.BOUND else 1
        extra, media_exact = media_tokens(request, self._media, in_text)
        images = sum(item.modality == "image" for item in request.media)
        method, raw = basis, sum(prompts)
        if basis is not Method.EXACT:
            prompts = self._corrected(basis, prompts)
            if basis is Method.BOUND and sum(prompts) < raw:
                method = Method.ESTIMATE
        elif not media_exact:
            method = Method.BOUND
        elif request.rough:
            method = Method.ESTIMATE
        prompts = _framed(prompts, request)
        whole = tuple(tokens + extra.get(index, 0) for index, tokens in enumerate(prompts))
        lead = Lead.of(request.lead)  # of what a thread has got to, where it was too slow
        media_total = sum(extra.values())
        late = why == LATE
        fault = "" if late else why
        rough = request.rough
        return Counted(
            whole, method, images, media_total, raw, basis, rough, lead, fault, late, *pixels
        )

    def segments(self, kind: Kind, body: Mapping[str, Any]) -> list[tuple[str, int]]:
        """(text, tokens) of every added token and piece between them, for people who look.

        Blocking. CountRefused as in `count`; Unavailable without a tokenizer or a template.
        """
        if self._local is None:
            raise Unavailable("no_tokenizer")
        return self._local.segments(read(kind, body, self._conversion))

    def observe(self, counted: Counted, prompt_tokens: int) -> int:
        """Take the engine's `usage.prompt_tokens`, summed over the prompts.

        Returns ours − engine's: negative is an under-count, to be alarmed. A count that was held
        to be exact and is not makes this counter an estimating one until it has been right again
        `RECOVER` times in a row.
        """
        error = self._meter.observe(counted.total, prompt_tokens)
        if counted.media and counted.method is not Method.EXACT:
            return error  # a ceiling says nothing about the text
        actual = prompt_tokens - counted.media
        if counted.basis is not Method.BOUND:
            self._streak = self._streak + 1 if counted.raw == actual else 0
            if self._streak == 0:
                self._exact = False
            elif self._streak >= RECOVER:
                self._exact = True
            self._corrections[Method.ESTIMATE].learn(counted.raw, actual)
        else:
            self._corrections[Method.BOUND].learn(counted.raw, actual)
        return error

    async def _best(
        self, request: Request, body_bytes: int, client: str, known: Known | None
    ) -> tuple[Method, tuple[int, ...], str]:
        """The best way that answers, its numbers before correction and media, and where only the bytes
        do, what is wrong with the body, or LATE."""
        if all(isinstance(prompt, int) for prompt in request.prompts) and request.chat is None:
            return Method.EXACT, tuple(int(prompt) for prompt in request.prompts), ""
        local, fault, late = self._local, "", ""
        ways = self._ways(request, known)
        for name, method, way in ways:
            try:
                return method, await way(request, body_bytes, client), ""
            except Unreadable as said:
                self._fallbacks["remote_refused"] += 1
                fault = fault or refused(said)
            except Unavailable as why:
                self._fallbacks[why.reason] += 1
                fault = fault or FAULTS.get(why.reason, "")
                late = late or (LATE if why.reason == LATE else "")
                if local is not None and why.reason in (NOT_LEARNED, UNASKABLE):
                    # Behind the server, or in its place.
                    at = 1 if why.reason == UNASKABLE else len(ways)
                    ways[at:] = [("estimate", Method.ESTIMATE, local.estimate)]
            except (Busy, CountRefused):
                raise
            except Exception:  # noqa: BLE001 - a client gets a number whatever breaks in ours
                self._fallbacks[f"{name}_error"] += 1
        return Method.BOUND, await bounded(request, body_bytes), fault or late

    def _ways(self, request: Request, known: Known | None) -> list[tuple[str, Method, Way]]:
        """Those there are for this request, the best first."""
        local, remote = self._local, self._remote
        ways: list[tuple[str, Method, Way]] = []
        if local is not None:
            believed = Method.EXACT if self._exact else Method.ESTIMATE
            count = (
                local.count
                if known is None or self._kin is None
                else partial(self._once, local, known)
            )
            ways.append(("local", believed, count))
        outlined = request.chat is not None and not self._remote_takes_chats
        if remote is not None and not outlined:
            ways.append(("remote", Method.EXACT, partial(self._ask, remote)))
        if local is not None and request.chat is not None and not local.renders:
            ways.append(("estimate", Method.ESTIMATE, local.estimate))
        elif remote is not None and outlined:
            ways.append(("remote", Method.ESTIMATE, partial(self._ask, remote)))
        return ways

    async def _once(
        self, local: LocalCount, known: Known, request: Request, body_bytes: int, client: str
    ) -> tuple[int, ...]:
        found = known.get(self._kin)
        if found is None:
            try:
                prompts = await local.count(request, body_bytes, client)
                found = prompts, request.lead
            except Unavailable as why:
                found = why.reason
            known[self._kin] = found
        if isinstance(found, str):
            raise Unavailable(found)
        prompts, request.lead[:] = found
        return prompts

    async def _ask(
        self,
        remote: Callable[[dict[str, Any]], Awaitable[int]],
        request: Request,
        body_bytes: int,
        client: str,
    ) -> tuple[int, ...]:
        if body_bytes > REMOTE_BYTES:
            raise Unavailable("remote_too_large")
        try:
            # Waiting for a turn counts too: a burst is worth a moment, a bound is a long guess.
            async with asyncio.timeout(REMOTE_SECONDS):
                await self._remote_line.turn(client, body_bytes)
                try:
                    return await self._asked(remote, request)
                finally:
                    self._remote_line.leave(client, body_bytes)
        except TimeoutError:
            raise Unavailable(LATE) from None

    async def _asked(
        self, remote: Callable[[dict[str, Any]], Awaitable[int]], request: Request
    ) -> tuple[int, ...]:
        if request.chat is not None and self._remote_takes_chats:
            return (await remote(tokenize_chat(request.chat)),)
        if request.chat is not None:
            text, added = chat_outline(request.chat)
            return (added + await remote({"prompt": text}),)
        return tuple([await _ask_text(remote, prompt) for prompt in request.prompts])

    def _corrected(self, basis: Method, prompts: tuple[int, ...]) -> tuple[int, ...]:
        """Each prompt moved by what was learned, but never above what its bytes allow."""
        correction = self._corrections[basis]
        moved = (correction.apply(tokens) for tokens in prompts)
        if basis is Method.BOUND:
            return tuple(min(new, old) for new, old in zip(moved, prompts, strict=True))
        return tuple(moved)


def _framed(prompts: tuple[int, ...], request: Request) -> tuple[int, ...]:
    """Each prompt with what the engine puts around it."""
    query, rest = (prompts[0], prompts[1:]) if request.shared else (0, prompts)
    if not query and not request.frame:
        return prompts
    return tuple(query + tokens + request.frame for tokens in rest)


async def _ask_text(remote: Callable[[dict[str, Any]], Awaitable[int]], prompt: str | int) -> int:
    return prompt if isinstance(prompt, int) else await remote({"prompt": prompt})


# What /v1/tokenize takes of a chat (entrypoints/openai/protocol.py, 0.5.12 and later). The last
# three are passed on as they are, to the class that a chat itself is read into.
_TOKENIZE_FIELDS: Final = (
    "messages",
    "tools",
    "tool_choice",
    "reasoning_effort",
    "continue_final_message",
    "chat_template_kwargs",
    "reasoning",
    "response_format",
    "task",
)


def tokenize_chat(chat: Mapping[str, Any]) -> dict[str, Any]:
    """The body that asks a server's /v1/tokenize for the length of `chat`."""
    return {name: chat[name] for name in _TOKENIZE_FIELDS if name in chat}


async def bounded(request: Request, body_bytes: int) -> tuple[int, ...]:
    """The byte bound, off the loop where the body is large."""
    if body_bytes <= BOUND_INLINE:
        return prompts_bound(request)
    return await asyncio.to_thread(prompts_bound, request)
