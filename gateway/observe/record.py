"""The numbers of one request: enough to explain its decision, and nothing of what it said."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from gateway.core.model import Code, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

CapSource = Literal["asked", "clamped", "injected"]
Source = Literal["gateway", "upstream"]
Phase = Literal["door", "queue", "prefill", "stream", "done"]

PHASES: tuple[Phase, ...] = ("door", "queue", "prefill", "stream", "done")
OTHER = "other"
"""Stands for a name that is not in a closed set: a model nobody serves, a client unknown here."""

_FIRST_ERROR_STATUS = 400


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True)
class Record:
    """One request. Filled by whoever knows a number; None means it was never known.

    Times are milliseconds, sizes tokens unless named otherwise. Text fields hold our own words and
    names from policy or server, never words of the client.
    """

    id: str
    client: str = OTHER
    client_request_id: str | None = None  # the client's own x-request-id, once found clean
    at: datetime = field(default_factory=_now)  # arrival, wall clock
    dialect: str = OTHER
    model: str = OTHER  # see `served_or_other`
    streamed: bool = False

    # what was asked, and what was made of it
    prompts: int = 1
    n: int = 1
    prompt_tokens: int | None = None  # all prompts together
    count_method: str | None = None  # how they were counted
    cap_asked: int | None = None
    cap_forwarded: int | None = None
    cap_source: CapSource | None = None

    # where it ran, and at what price
    backend: str | None = None
    rank: int = 0
    kv_reserved: int | None = None
    kv_free_at_grant: int | None = None  # before the reservation was taken
    attempts: int = 0  # dispatches to a server; above 1: it pushed back before the first byte
    client_retry: int | None = None  # which retry this is, where the client says

    # what came of it
    outcome: Outcome | None = None
    code: Code | None = None
    reason: str | None = None
    needed: int | None = None
    available: int | None = None
    position: int | None = None
    eta_s: float | None = None
    retry_after_s: float | None = None
    upstream_status: int | None = None
    cached_tokens: int | None = None  # prompt tokens the server found in its prefix cache
    usage_prompt_tokens: int | None = None  # as the server counted them
    output_tokens: int | None = None
    queue_ms: float | None = None  # None: it never waited
    ttft_ms: float | None = None  # from arrival to the first byte of the answer
    tpot_ms: float | None = None  # mean time per output token after the first
    e2e_ms: float | None = None

    told: bool = False  # the journal has told of it

    @property
    def source(self) -> Source | None:
        """Who refused it: we, the server, or nobody."""
        if self.code is not None:
            return "gateway"
        if self.upstream_status is not None and self.upstream_status >= _FIRST_ERROR_STATUS:
            return "upstream"
        return None

    @property
    def phase(self) -> Phase:
        """How far it came."""
        if self.outcome is Outcome.COMPLETED:
            return "done"
        if self.ttft_ms is not None:
            return "stream"
        if self.kv_reserved is not None:
            return "prefill"
        return "door" if self.queue_ms is None else "queue"

    @property
    def count_drift(self) -> int | None:
        """Prompt tokens the server counted beyond ours; negative where we counted more."""
        if self.usage_prompt_tokens is None or self.prompt_tokens is None:
            return None
        return self.usage_prompt_tokens - self.prompt_tokens

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with the derived ones. Times are rounded to 0.01."""
        values = {name: getattr(self, name) for name in _FIELDS}
        for name, value in values.items():
            if (plain := _PLAIN.get(type(value))) is not None:
                values[name] = plain(value)
        values["source"], values["phase"] = self.source, self.phase
        return values


_PLAIN: dict[type, Callable[[Any], object]] = {
    float: lambda value: round(value, 2),
    datetime: lambda value: value.isoformat(timespec="milliseconds"),
    Code: str,
    Outcome: str,
}
"""How values that JSON does not know, or knows too precisely, are written."""
_FIELDS = tuple(f.name for f in fields(Record) if f.name != "told")


def served_or_other(model: object, served: Collection[str]) -> str:
    """The model's name if a server offers it, else `other`: a client may write anything there."""
    return model if isinstance(model, str) and model in served else OTHER
