"""The world in which the cases are told, and a second server where a case needs one.

One server with a pool of 100,000 tokens, pages of one, a context of 32,768; no answer above 8,192
tokens, 4,096 where the client said nothing; 32,768 prompt tokens in prefill; eight may wait. Each
case names what differs. A hundredth of the pool and a page are never promised, and each sequence
is charged one page more than its prompt and cap: `LIMIT` and `kv` say the same in numbers.

Every test ends with the quiesce check of `tests.edge.rig`: ledgers zero, nobody waiting, one record
for each request, nothing logged as an error, the engine never over its pool.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.edge import rig as rigs
from tests.fakes.sglang import FakeSGLang

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.edge.rig import Got, Rig

POOL = 100_000
LIMIT = POOL - 1 - POOL // 100
ENGINE: dict[str, Any] = {"pool": POOL, "context": 32_768}
POLICY: dict[str, Any] = {
    "backend": {
        "max_output_tokens": 8192,
        "default_output_tokens": 4096,
        "prefill_tokens": 32_768,
    },
    "queue": {"max_requests": 8, "max_wait_s": 30.0},
    "reservation": "declared",  # so that what is held can be summed in the head
    "observe": {"recent": 1000},
}


def kv(prompt: int, cap: int, page: int = 1) -> int:
    """What one sequence is charged."""
    return -(-prompt // page) * page + -(-cap // page) * page + page


def ids(prompt: int, cap: int | None = None, **fields: Any) -> dict[str, Any]:
    """A text completion of token ids: its length needs no counting."""
    body = {"prompt": [1] * prompt, "stream": True, **fields}
    return body if cap is None else body | {"max_tokens": cap}


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes`, one level deep."""
    both = {**base, **changes}
    for name, value in base.items():
        if isinstance(value, dict) and isinstance(changes.get(name), dict):
            both[name] = {**value, **changes[name]}
    return both


@asynccontextmanager
async def world(
    tmp_path: Path, policy: dict[str, Any] | None = None, *, quiet: bool = True, **engine: Any
) -> AsyncIterator[Rig]:
    """The world of the cases; `policy` and `engine` say what differs."""
    whole = merged(POLICY, policy or {})
    async with rigs.running(tmp_path, whole, quiet=quiet, **{**ENGINE, **engine}) as rig:
        yield rig


def together(rig: Rig, path: str, bodies: list[Any], **kwargs: Any) -> list[asyncio.Task[Got]]:
    """Send all of `bodies` in one turn of the loop."""
    return [asyncio.ensure_future(rig.post(path, body, **kwargs)) for body in bodies]


@asynccontextmanager
async def two_servers(
    tmp_path: Path, policy: dict[str, Any] | None = None, **engine: Any
) -> AsyncIterator[tuple[Rig, FakeSGLang]]:
    """A gate before two servers: the rig knows the first, the second comes beside it.

    They serve models m0 and m1; a request for another name may run on either.
    """
    changes = {**ENGINE, **engine}
    async with FakeSGLang(**changes, model="m1") as second:
        extra = merged(POLICY, policy or {})
        beside = {"url": second.url, "name": "gpu1", **extra["backend"]}
        extra["more"] = [beside]
        async with rigs.running(tmp_path, extra, **changes, model="m0") as rig:
            await rig.until(lambda: all(backend.ready for backend in rig.app.fleet))
            yield rig, second
            await rig.until(lambda: not second._held)
