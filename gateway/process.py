"""A gate as a process: its signals, its open files, its start, its end and its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import signal
import sys
import threading
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
    app.most_connections = enough_files(app.policy.queue.max_requests, app.log)
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
    remedy = "end what listens there, or choose others with --listen and --control"
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
