"""What one look at everything found: the gate's books, each server, each card, at one time.

Plain values without behaviour. The fields are the columns of the collector's CSV files, in their
order, and part of what people script against: new ones are added at the end. None means that it is
not known, and is an empty cell.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class ServerLook:
    """One server, its data-parallel ranks added up. Tokens, requests, seconds; a limit of 0 is none.

    A request that may run on several servers waits for each of them.
    """

    server: str
    state: str  # starting, connecting, ready, stalled, down, or held after a crash loop
    deaths: int = 0  # with requests in flight, since the gate started
    # the gate's ledgers
    kv_limit: int = 0
    kv_reserved: int = 0
    kv_used: int = 0
    kv_lingering: int = 0  # held for requests whose client left
    kv_foreign: int = 0  # in use by requests that did not come through the gate
    prefill_limit: int = 0
    prefill_tokens: int = 0  # prompt tokens handed over that are likely still to be read
    slots_limit: int = 0
    slots_allowed: int = 0  # of these now, by the pace of decoding
    running: int = 0  # sequences handed over and not ended
    reading: int = 0  # requests of these that have no first token yet
    reading_oldest_s: float = 0.0  # since the first of these was handed over
    writing: int = 0  # requests that generate
    # who waits in the gate for this server, and for what
    waits_kv: int = 0
    waits_prefill: int = 0
    waits_slots: int = 0
    waits_client: int = 0  # their own client's limits or share
    waits_turn: int = 0  # nothing but their turn
    waits_prefill_tokens: int = 0  # the same of those that wait for the prefill before them
    waits_oldest_s: float = 0.0  # of these but the client's
    waits_client_oldest_s: float = 0.0
    waiting_client: str | None = None  # the client that most of `waits_client` are of
    # speed, since the last look
    generated_tokens: int = 0
    stream_tok_s: float | None = None  # median of one sequence; streams that wrote all the time
    prefill_tok_s: float | None = None  # as learned from first tokens, cached prompts included
    # what the engine says
    engine_running: int | None = None
    engine_waiting: int | None = None
    engine_used: int | None = None
    engine_pool: int | None = None
    engine_pending: int | None = None  # prompt tokens it has still to read
    engine_tok_s: float | None = None
    engine_age_s: float | None = None  # of these numbers
    engine_hit_rate: float | None = None
    engine_retracted: int | None = None  # requests, since its start
    engine_prompt_tokens: int | None = None  # since its start, as the next two
    engine_cached_tokens: int | None = None
    engine_generated_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class GateLook:
    """The gate. Totals are since its start."""

    state: str
    queue_requests: int = 0
    queue_tokens: int = 0
    queue_bytes: int = 0
    queue_oldest_s: float = 0.0
    admitted: int = 0
    completed: int = 0
    rejected: int = 0
    client_limited: int = 0  # of these by client_limit
    no_backend: int = 0  # of these by no_backend
    cancelled: int = 0
    failed: int = 0
    abandoned: int = 0  # requests whose client left and that are not known to be gone, now
    cards: int | None = None
    cards_note: str | None = None  # why there are none


@dataclass(frozen=True, slots=True)
class CardLook:
    """One GPU of this machine, by NVML."""

    card: int
    name: str
    utilisation: float | None = None  # per cent of the last sample period with a kernel running
    memory_used: int | None = None  # bytes
    memory_total: int | None = None  # bytes
    power_w: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """Everything, at `at` (wall clock, UTC)."""

    at: datetime
    gate: GateLook
    servers: tuple[ServerLook, ...] = ()
    cards: tuple[CardLook, ...] = ()


def columns(kind: type[ServerLook | GateLook | CardLook]) -> tuple[str, ...]:
    """The columns of a kind of row, without the time."""
    return tuple(field.name for field in fields(kind))


def waits(look: ServerLook) -> int:
    """Who waits for this server, here and inside it, for anything but their own client's limits."""
    here = look.waits_kv + look.waits_prefill + look.waits_slots + look.waits_turn
    return here + (look.engine_waiting or 0)
