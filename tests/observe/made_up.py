"""What the tests of this folder share: views and records made up."""

from __future__ import annotations

from typing import Any

from gateway.core.model import (
    ClientView,
    Code,
    LedgerView,
    Outcome,
    PoolId,
    PoolLimits,
    PoolView,
    QueueView,
    View,
)
from gateway.observe.record import Record


def view(backend: str = "gpu0", client: str = "agents") -> View:
    """Two ranks of one server, one client, a queue; every number different."""
    pools = tuple(
        PoolView(
            pool=PoolId(backend, rank),
            open=rank == 0,
            paused_until=0.0,
            limits=PoolLimits(1000),
            kv=LedgerView(limit=1000 + rank, reserved=300 + rank, used=200 + rank),
            prefill=LedgerView(limit=1 << 30, reserved=50 + rank, used=0),
            slots=LedgerView(limit=10 + rank, reserved=3 + rank, used=2),
            lingering=70 + rank,
        )
        for rank in (0, 1)
    )
    return View(pools, (ClientView(client, 300, 3, 4),), QueueView(5, 6000, 7000, 8.5))


def finished(**changes: Any) -> Record:
    """A streamed chat that completed, with every number set."""
    values: dict[str, Any] = {
        "id": "r1",
        "client": "agents",
        "dialect": "openai",
        "model": "qwen",
        "streamed": True,
        "prompt_tokens": 19_000,
        "count_method": "tokenizer",
        "cap_forwarded": 8192,
        "cap_source": "injected",
        "backend": "gpu0",
        "kv_reserved": 27_193,
        "kv_free_at_grant": 66_700,
        "attempts": 1,
        "outcome": Outcome.COMPLETED,
        "upstream_status": 200,
        "usage_prompt_tokens": 19_004,
        "output_tokens": 640,
        "queue_ms": 120.0,
        "ttft_ms": 2500.0,
        "tpot_ms": 21.456,
        "e2e_ms": 16_000.0,
    }
    return Record(**(values | changes))


def refused(code: Code = Code.QUEUE_FULL, **changes: Any) -> Record:
    """A request refused at the door."""
    values: dict[str, Any] = {
        "id": "r2",
        "client": "agents",
        "outcome": Outcome.REJECTED,
        "code": code,
    }
    return Record(**(values | changes))
