"""What a gate has learned of its servers, kept in a file over its own restarts.

One thing so far: how much of each pool is planned with (`core.envelope`). It was paid for with
retractions and deaths, and a gate that forgot it would pay again.

    {"version": 1, "servers": {"gpu0": {
        "started_as": {"engine": "0.5.17", "model": "/models/m", "pool_tokens": 67375, "ranks": 1},
        "ranks": {"0": {"share": 0.95}}}}}

A server that is not what it was (another engine, model or pool) has all to learn anew: its entry is
ignored. The file is a help and no more: whatever is wrong with it, the gate starts and serves. One
that cannot be read is put aside as FILE.old when the first new one is written, in case it was
somebody else's.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from typing import TYPE_CHECKING, Any

import orjson

from gateway.core.envelope import LEAST_SHARE
from gateway.disk import Clerk
from gateway.observe.rotated import FOLDER_MODE, NEW
from gateway.tasks import spawn
from gateway.upstream.fields import as_dict, as_positive

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from structlog.typing import FilteringBoundLogger

    from gateway.edge.backend import Backend
    from gateway.gate import Gate
    from gateway.upstream.facts import ServerFacts

VERSION = 1

EVERY_S = 30.0
"""Between two writes at least. In that time a share grows by a thousandth (`GROWTH_PER_S`)."""

DIGITS = 3
"""Of a share as written: finer ones would be noise, and a write for nothing."""

LIMIT = 1 << 20
"""Bytes read at most: a server takes some 200, so a larger file is not ours."""

MODE = 0o600
"""Read by the next gate, and by nobody else."""

Document = dict[str, Any]


class NotOursError(ValueError):
    """The file is not one that this gate can read. The message says why."""


class Memory:
    """See the module. With no path nothing is read, written or said. Nothing here raises."""

    def __init__(self, path: Path | None, gate: Gate, log: FilteringBoundLogger) -> None:
        self._path = path
        self._gate = gate
        self._log = log
        self._backends: tuple[Backend, ...] = ()
        self._entries: dict[str, Any] = {}  # from the file, of servers not met yet
        self._met: set[str] = set()
        self._written: Document | None = None
        self._put_aside = False
        self._failed = False  # the last write
        self._disk = Clerk("state file")
        self._ending = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self, backends: Iterable[Backend]) -> None:
        """Read the file, and begin to keep it. Before any server is watched."""
        self._backends = tuple(backends)
        if self._path is None:
            return
        try:
            document = await self._disk.do(load, self._path)
        except FileNotFoundError:
            document = {}
        except (OSError, NotOursError) as error:
            self._put_aside = not isinstance(error, IsADirectoryError)
            document = {}
            self._warn("state_not_read", error)
        servers = as_dict(document.get("servers"))
        self._entries = {
            one.name: servers[one.name] for one in self._backends if one.name in servers
        }
        self._written = document
        self._task = spawn(self._keep(), "state file")

    async def stop(self) -> None:
        """Write what is new, a last time."""
        if self._task is not None:
            self._ending.set()
            await self._task

    def follow(self, backends: Iterable[Backend]) -> None:
        """These are the servers from now on."""
        self._backends = tuple(backends)

    def met(self, backend: Backend, facts: ServerFacts) -> None:
        """A server is up and its pools are known: what was learned of it holds again.

        Only at the first time: from then on the books know better.
        """
        if backend.name in self._met:
            return
        self._met.add(backend.name)
        entry = as_dict(self._entries.pop(backend.name, None))
        if not entry:
            return
        if entry.get("started_as") != _identity(facts):
            self._log.info("state_of_another_server", backend=backend.name)
            return
        ranks = as_dict(entry.get("ranks"))
        for pool in backend.pools:
            share = as_positive(as_dict(ranks.get(str(pool.rank))).get("share"))
            if share is not None and LEAST_SHARE <= share <= 1.0:
                self._gate.recall(pool, share)

    async def _keep(self) -> None:
        while not self._ending.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S):
                    await self._ending.wait()
            await self._write()

    async def _write(self) -> None:
        document = self._document()
        if self._path is None or document == self._written or not document["servers"]:
            return
        try:
            await self._disk.do(save, self._path, document, put_aside=self._put_aside)
        except OSError as error:
            if not self._failed:
                self._warn("state_not_written", error)
            self._failed = True
        else:
            self._written, self._failed, self._put_aside = document, False, False

    def _document(self) -> Document:
        servers = dict(self._entries)
        for backend in self._backends:
            if backend.facts is not None and backend.name in self._met:
                servers[backend.name] = {
                    "started_as": _identity(backend.facts),
                    "ranks": {
                        str(pool.rank): {"share": round(self._gate.share(pool), DIGITS)}
                        for pool in backend.pools
                    },
                }
        return {"version": VERSION, "servers": servers}

    def _warn(self, event: str, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        self._log.warning(event, path=str(self._path), reason=reason or type(error).__name__)


def load(path: Path) -> Document:
    """The document in `path`. Raises OSError, and NotOursError where it is none of ours."""
    with path.open("rb") as file:
        data = file.read(LIMIT + 1)
    if len(data) > LIMIT:
        msg = f"it is larger than {LIMIT} bytes: not a state file"
        raise NotOursError(msg)
    try:
        document = as_dict(orjson.loads(data))
    except orjson.JSONDecodeError as error:
        msg = "it is not JSON; all is learned anew"
        raise NotOursError(msg) from error
    version = document.get("version")
    if type(version) is not int or version != VERSION:
        msg = f"it is not a state file of version {VERSION}; all is learned anew"
        raise NotOursError(msg)
    return document


def save(path: Path, document: Document, *, put_aside: bool = False) -> None:
    """Write `document` to `path`, whole or not at all. Raises OSError, also where a device, a pipe or a folder
    stands there: with /dev/null root would take the machine's own away."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is there and no file; name one, or leave `state` out")
    unfinished = path.with_name(path.name + ".part")
    path.parent.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    try:
        with os.fdopen(os.open(unfinished, NEW, MODE), "wb") as file:
            file.write(orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE))
            file.flush()
            os.fsync(file.fileno())
        if put_aside:
            path.replace(path.with_name(path.name + ".old"))
        unfinished.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def _identity(facts: ServerFacts) -> dict[str, Any]:
    """What a server must still be for what was learned of it to hold."""
    return {
        "engine": facts.version_text,
        "model": facts.model_path,
        "pool_tokens": facts.pool_tokens,
        "ranks": facts.dp,
    }
