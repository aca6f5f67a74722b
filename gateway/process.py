"""A gate as a process: its signals, its open files, its start, its end and its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import math
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.lease.store import StoreError
from gateway.tasks import spawn

if sys.platform != "win32":
    import resource

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import FilteringBoundLogger

    from gateway.app import App

REFUSED = 2
"""The exit code of a gate that cannot start as it is told to."""

CUT = 1
"""... of one that had to cut requests when it stopped."""

YOUNG = 5_000
"""New objects before the collector looks at them (Python's own 700 is for small programs): a request
that waits has a hundred, and looking at those again and again frees nothing."""


STDOUT = 1

FILES_BESIDE = 128
"""Open files beside those of requests: listeners, polls, records, the tokenizer, the control plane."""


TO_SERVERS = 4_096
"""Connections to servers that clients leave room for, where that is not more than half of all: as many
requests as one engine runs at once by default at most (`max_running_requests`, 0.5.6-0.5.23)."""


MEMORY_BESIDE = 256 << 20
"""What a gate takes beside the bodies that wait: some 100 MiB when it has started, its tokenizer, and the
bodies that come and go. Of each worker as much again."""

UNLIMITED = 1 << 60
"""Groups of the older kind say a number of this size where there is no limit."""


async def serve(
    make: Callable[[], App],
    *,
    ready: Callable[[App], None],
    listening: Callable[[App, asyncio.Event], None] | None = None,
) -> int:
    """Run the gate that `make` makes until SIGTERM or SIGINT; its exit code. `listening` is called
    when it listens, with the event that stops it, `ready` once a server takes work."""
    try:
        app = make()
    except StoreError as error:
        print(f"kvgate: {error}", file=sys.stderr)  # noqa: T201
        return REFUSED
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        """Ctrl-C; once more by who does not want to wait. SIGTERM is sent twice by programs, not people."""
        if stop.is_set():
            app.draining.hurry()
        stop.set()

    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, interrupted)
    loop.add_signal_handler(
        signal.SIGHUP, lambda: spawn(app.reload.now("SIGHUP"), "reload on SIGHUP")
    )
    app.listeners.most_connections = enough_files(app.policy.queue.max_requests, app.log)
    if app.seat is None:  # else it is the supervisor's
        enough_memory(app.policy.queue.max_bytes, 1, app.log)
    try:
        await app.start()
    except OSError as error:
        print(cannot_listen(error), file=sys.stderr)  # noqa: T201
        await app.close()  # one of the two may be open, and uvloop would wait for it
        return REFUSED
    if listening is not None:
        listening(app, stop)
    told = spawn(_tell_when_ready(app, ready), "tell when ready")
    await stop.wait()
    told.cancel()
    drained = await app.stop()
    return CUT if drained.cut else 0


def cannot_listen(error: OSError) -> str:
    """Why, and what to do."""
    why = error.strerror or error
    remedy = {
        errno.EADDRINUSE: "end what listens there, or choose others with --listen and --control",
        errno.EACCES: "choose ports from 1024 on with --listen and --control, or let it have these",
    }.get(
        error.errno or 0,
        "give --listen and --control an address that this machine has, such as 127.0.0.1 or 0.0.0.0",
    )
    return f"kvgate: cannot listen: {why}; {remedy}"


def enough_files(waiting: int, log: FilteringBoundLogger) -> float:
    """Raise the limit of open files to what the system allows, and say so if it is too low. Returns
    how many clients may be connected, so that those who run have connections to servers left.

    A waiting request has one connection, a running one two; as many may run as wait.
    """
    if sys.platform == "win32":
        return math.inf
    needed = 3 * waiting + FILES_BESIDE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = float("inf") if hard == resource.RLIM_INFINITY else hard
    if soft not in {hard, resource.RLIM_INFINITY} and soft < needed:
        soft = needed if needed <= most else hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft != resource.RLIM_INFINITY and soft < needed:
        log.warning(
            "few_open_files",
            limit=soft,
            needed=needed,
            reason="with a full queue connections will be refused; raise it: ulimit -n",
        )
    if soft == resource.RLIM_INFINITY:
        return math.inf
    left = soft - FILES_BESIDE
    return max(soft // 4, left - min(left // 2, TO_SERVERS))


def enough_memory(waiting: int, workers: int, log: FilteringBoundLogger) -> None:
    """Say so where a full queue of `waiting` bytes would be the end of this container or service: the
    kernel would kill it, and everybody's answers with it, at the busiest moment."""
    limit, needed = memory_limit(), waiting + workers * MEMORY_BESIDE
    if limit is not None and limit < needed:
        log.warning(
            "little_memory",
            limit=limit,
            needed=needed,
            reason="a full queue may take more than this container or service is allowed, and the kernel "
            "would end it: raise its limit, or lower `queue.max_bytes`",
        )


def memory_limit(root: Path = Path("/")) -> int | None:
    """The least limit of the control groups this process is in, bytes; None where there is none."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    limits: list[int] = []
    for line in lines:
        number, _, rest = line.partition(":")
        kinds, _, path = rest.partition(":")
        if number == "0" and not kinds:
            top, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in kinds.split(","):
            top, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        own = top / path.lstrip("/")
        for group in (
            own,
            *own.parents,
        ):  # in a container the path may be of the machine's, not of its own
            with contextlib.suppress(OSError, ValueError):
                limits.append(int((group / name).read_text()))
            if group == top:
                break
    return min((limit for limit in limits if limit < UNLIMITED), default=None)


def say_ready(listen: str, control: str) -> None:
    """The one line on stdout. By a thread, and past Python's buffers: whoever reads it may have stopped (a
    terminal after Ctrl-S, a script that hangs), and a loop that waited with it would serve nobody."""
    line = f"kvgate ready on {listen}, control on {control}\n"
    threading.Thread(target=_write, args=(line.encode(),), name="ready line", daemon=True).start()


def _write(line: bytes) -> None:
    with contextlib.suppress(OSError):  # nobody is there to read it
        os.write(STDOUT, line)


async def _tell_when_ready(app: App, ready: Callable[[App], None]) -> None:
    """From here on a request is served, not refused for want of a server."""
    await app.fleet.open.wait()
    # What is here now stays: looking through it for garbage stopped the loop for 0.1-0.2 s at a time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG)
    ready(app)
