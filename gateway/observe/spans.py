"""A request as OpenTelemetry sees it: one span, with its phases as children. Pure.

Made of its record, after it has ended: what its spans can say is what the record says, no prompt,
answer or key. `traces` sends them. Names are those of the GenAI semantic conventions where they have one
(https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/), else `kvgate.…`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

from gateway.core.model import Outcome
from gateway.observe.record import OTHER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gateway.observe.record import Record

    Attributes = dict[str, str | int | float | bool]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PARENT: Final = re.compile(
    r"(?!ff|00-.{52}-)([0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2}))(?:-.*)?"
)
_EMBEDS: Final = ("embeddings", "ollamaembed", "ollamaembeddings")
_ONLY_READ: Final = frozenset({*_EMBEDS, "classify", "score", "rerank"})
"""Dialects that generate nothing: the engine's part is prefill alone."""
_OPERATIONS: Final = (
    dict.fromkeys(("text", "generate", "ollamagenerate"), "text_completion")
    | {name: name for name in _ONLY_READ}
    | dict.fromkeys(_EMBEDS, "embeddings")
)
"""`gen_ai.operation.name` of each dialect that is not a chat."""
_FIRST_ERROR_STATUS: Final = 400


@dataclass(frozen=True, slots=True)
class Span:
    """One span. Times are nanoseconds since 1970 UTC; `error` is None where nothing went wrong."""

    name: str
    start: int
    end: int
    attributes: Attributes
    error: str | None = None
    kind: Literal["CLIENT", "INTERNAL"] = "INTERNAL"


def parent_of(headers: Sequence[str]) -> str | None:
    """The parent in a request's `traceparent` headers, as version 00 writes it; None where there is
    not one valid one (W3C Trace Context, section 3.2)."""
    found = _PARENT.fullmatch(headers[0]) if len(headers) == 1 else None
    if found is None or not int(found[2], 16) or not int(found[3], 16):
        return None
    return found[1]


def spans(record: Record, server: str | None = None) -> list[Span]:
    """The request's span, then its phases, which follow one another and cover it. None before its
    end is known. `server` is the URL of where it ran."""
    if record.e2e_ms is None:
        return []
    start = (record.at - _EPOCH) // timedelta(microseconds=1) * 1000
    error = _error(record)
    attributes = dict(_attributes(record, server))
    operation = attributes["gen_ai.operation.name"]
    name = str(operation if record.model == OTHER else f"{operation} {record.model}")
    if error is not None:
        attributes["error.type"] = error
    phases = list(_phases(record))
    starts = [0]
    for _, begins_ms in phases[1:]:  # rounding must not let one begin before the one before it
        starts.append(max(starts[-1], min(_ns(begins_ms), _ns(record.e2e_ms))))
    ends = [*starts[1:], _ns(record.e2e_ms)]
    return [Span(name, start, start + ends[-1], attributes, error, "CLIENT")] + [
        Span(phase, start + begins, start + ends_, {}, error if i == len(phases) - 1 else None)
        for i, ((phase, _), begins, ends_) in enumerate(zip(phases, starts, ends, strict=True))
    ]


def _ns(ms: float) -> int:
    return round(ms * 1e6)


def _phases(record: Record) -> Iterator[tuple[str, float]]:
    """Names, and where each begins, ms after the arrival; each lasts until the next one."""
    at = record.door_ms or 0.0
    left_the_queue = (
        record.outcome is Outcome.CANCELLED and record.door_ms is not None and not record.backend
    )
    if record.door_ms is not None or record.backend is None:
        yield "door", 0.0
    if record.queue_ms is not None or left_the_queue:
        yield "queue", at
        at += record.queue_ms or 0.0
    if record.backend is None or record.outcome is Outcome.EVICTED:
        return
    apart = record.streamed or record.dialect in _ONLY_READ
    yield ("prefill" if apart else "generate"), at
    if record.ttft_ms is not None:
        yield "decode", record.ttft_ms


def _error(record: Record) -> str | None:
    """A word of a closed set for what went wrong. A client that left is not an error of ours."""
    if record.outcome is Outcome.CANCELLED:
        return None
    if record.code is not None:
        return record.code.value
    status = record.upstream_status
    if status is not None and status >= _FIRST_ERROR_STATUS:
        return str(status)
    return None if record.outcome is Outcome.COMPLETED else "upstream_error"


def _attributes(record: Record, server: str | None) -> Iterator[tuple[str, Any]]:
    url = None if server is None else urlsplit(server)
    input_tokens = record.usage_prompt_tokens
    values = {
        "gen_ai.operation.name": _OPERATIONS.get(record.dialect, "chat"),
        "gen_ai.provider.name": "sglang",
        "gen_ai.request.model": None if record.model == OTHER else record.model,
        "gen_ai.request.max_tokens": (
            record.cap_asked if record.cap_forwarded is None else record.cap_forwarded
        ),
        "gen_ai.request.choice.count": None if record.n == 1 else record.n,
        "gen_ai.request.stream": record.streamed,
        "gen_ai.usage.input_tokens": record.prompt_tokens if input_tokens is None else input_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "gen_ai.response.time_to_first_chunk": (
            None if record.ttft_ms is None else record.ttft_ms / 1000
        ),
        "server.address": None if url is None else url.hostname,
        "server.port": None if url is None else url.port,
        "http.response.status_code": record.upstream_status,
        "kvgate.request.id": record.id,
        "kvgate.client": record.client,
        "kvgate.session": record.session,
        "kvgate.dialect": record.dialect,
        "kvgate.outcome": None if record.outcome is None else record.outcome.value,
        "kvgate.code": None if record.code is None else record.code.value,
        "kvgate.backend": record.backend,
        "kvgate.rank": None if record.backend is None else record.rank,
        "kvgate.attempts": record.attempts,
        "kvgate.max_tokens.asked": record.cap_asked,
        "kvgate.max_tokens.source": record.cap_source,
        "kvgate.kv.reserved": record.kv_reserved,
        "kvgate.kv.free": record.kv_free_at_grant,
        "kvgate.needed": record.needed,
        "kvgate.available": record.available,
        "kvgate.queue.position": record.position,
        "kvgate.retry": record.retry,
        "kvgate.retry_after": record.retry_after_s,
        "kvgate.tools_left_out": record.tools_left_out,
    }
    return ((name, value) for name, value in values.items() if value is not None)
