"""Crash reports: what a server was at when it died, as a file of numbers.

Sizes, books and times; no word of any request or answer, no key. Marks (see `marks`) let two reports be
compared, of one process or of those that share a store: the same mark is the same request.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson

from gateway.observe.rotated import NEW
from gateway.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gateway.core.model import View
    from gateway.edge.backends import Backend
    from gateway.edge.flight import Flight

Scene = dict[str, Any]
"""Plain values for JSON."""

KEEP = 32
"""Reports kept in the folder, the oldest go first: some 10 kB each, and an operator reads the
first and the last of a series."""

FILE_MODE, FOLDER_MODE = 0o600, 0o700
"""Whose requests were in flight is nobody's but the operator's."""

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def scene_of(
    backend: Backend,
    reason: str,
    flights: Sequence[Flight],
    view: View,
    deaths: Sequence[float],
) -> Scene:
    """The scene now. `deaths` are those of the last minutes (loop's clock)."""
    now = backend.now()
    facts, loads = backend.facts, backend.loads
    return {
        "report": "kvgate crash report 1",
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "gate": VERSION,
        "backend": backend.name,
        "reason": reason,
        "engine": None
        if facts is None
        else {
            "version": facts.version_text,
            "models": list(facts.models),
            "pool_tokens": facts.pool_tokens,
            "page": facts.page,
            "context": facts.context,
            "ranks": facts.dp,
            "max_running": facts.max_running,
            "prefill_chunk": facts.chunk,
        },
        "earlier_deaths_s_ago": [round(now - at, 1) for at in deaths],
        "pools": [
            {
                "rank": pool.pool.rank,
                "lingering_tokens": pool.lingering,
                **{
                    name: {
                        "limit": getattr(pool, name).limit,
                        "reserved": getattr(pool, name).reserved,
                        "used": getattr(pool, name).used,
                    }
                    for name in ("kv", "prefill", "slots")
                },
            }
            for pool in view.pools
            if pool.pool in backend.pools
        ],
        "loads": None
        if loads is None
        else {
            "came_s_ago": round(backend.loads_age_s, 2),
            "ranks": [
                {
                    "rank": one.rank,
                    "running": one.running,
                    "waiting": one.waiting,
                    "used_tokens": one.used,
                    "waiting_uncached_tokens": one.waiting_uncached,
                    "age_s": None if one.age_s is None else round(one.age_s, 2),
                }
                for one in loads.ranks
            ],
        },
        "waiting_here": {"requests": view.queue.requests, "tokens": view.queue.tokens},
        "in_flight": [_flight(flight, now) for flight in flights],
    }


def _flight(flight: Flight, now: float) -> dict[str, Any]:
    record, demand = flight.record, flight.lease.grant.demand
    return {
        "id": record.id,
        "rid": flight.rid,
        "client": record.client,
        "dialect": record.dialect,
        "model": record.model,
        "streamed": record.streamed,
        "rank": record.rank,
        "prompt_tokens": record.prompt_tokens,
        "prompts": record.prompts,
        "n": record.n,
        "max_tokens": demand.cap,
        "kv_reserved": demand.kv,
        "generated": flight.lease.generated,
        "attempt": record.attempts,
        "sent_s_ago": round(now - flight.at, 3),
        "client_left": flight.lease.ended,
    }


def marked(scene: Scene, marks: Sequence[bytes]) -> Scene:
    """The scene with the marks of its flights, which are made only when a server did die."""
    for row, mark in zip(scene["in_flight"], marks, strict=True):
        row["mark"] = mark.hex()
    return scene


def check(folder: Path) -> None:
    """Whether reports can be written there, or the folder be made. Makes nothing. Raises OSError."""
    there = next(one for one in (folder, *folder.parents) if one.exists())
    if not there.is_dir():
        words = f"{there} is a file, and must be a folder"
        raise NotADirectoryError(errno.ENOTDIR, words)
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, f"{there} may not be written to")


def write(folder: Path, scene: Scene) -> Path:
    """Write a report, whole or not at all, and drop the oldest beyond `KEEP`. Raises OSError."""
    folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    stamp = re.sub(r"[^0-9T]", "", scene["at"].partition("+")[0])
    path = folder / f"crash-{stamp}-{_UNSAFE.sub('_', scene['backend'])}.json"
    unfinished = path.with_suffix(".part")
    try:
        with os.fdopen(os.open(unfinished, NEW, FILE_MODE), "wb") as file:
            file.write(orjson.dumps(scene, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
    for old in sorted(folder.glob("crash-*.json"))[:-KEEP]:
        old.unlink(missing_ok=True)
    return path
