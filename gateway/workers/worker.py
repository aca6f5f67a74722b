"""One worker: a gate with a seat, which ends when its supervisor does.

It says two words on its standard output, a line each: `up` when it listens and may be sent signals,
`ready` once a server takes its work. Standard input begins with its order and ends with the supervisor.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from typing import TYPE_CHECKING

import uvloop

from gateway.app import App
from gateway.lease.local import LocalStore
from gateway.observe.log import always, close_aside, configure, write_aside
from gateway.process import CUT, serve
from gateway.seat import Seat
from gateway.workers.order import READY, UP, Order, control_socket, table_socket

if TYPE_CHECKING:
    from pathlib import Path

TTL_S = 5.0
"""How long a worker's lease is. The table cannot be gone while workers live, so no outage is to be bridged
(the 60 s of a store on the network); a killed worker's share comes back the sooner. Not shorter: a lease
is used for 4.25 s, and a worker or supervisor that finds no processor must be able to miss two of the
renewals, one a second, before it starts nothing."""

GONE_S = 5.0
"""How long a worker without a supervisor may take to cut what runs, tell its clients and abort it
upstream (`app.CUT_S` for each): then it ends as it is."""

STDIN, STDOUT = 0, 1


def main() -> int:
    """Until a signal, or until the supervisor is gone."""
    order = Order.of_line(_line())
    always(worker=order.number)
    write_aside()
    configure(order.policy.observe.log_level)
    shares = order.policy.leases is None
    seat = Seat(
        number=order.number,
        of=order.of,
        listen=order.listen,
        control=control_socket(order.folder, order.number),
        store=LocalStore(table_socket(order.folder)) if shares else None,
        ttl_s=TTL_S,
        replica=order.replica,
        patience_s=order.patience_s,
    )

    def up(app: App, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        watch = threading.Thread(
            target=_end_with_supervisor, args=(app, stop, loop, order.folder), daemon=True
        )
        watch.start()
        _say(UP)

    return uvloop.run(
        serve(
            lambda: App(order.policy, order.source, seat),
            ready=lambda _: _say(READY),
            listening=up,
        )
    )


def _line() -> bytes:
    """The order. Byte by byte past Python's buffers: what comes after it is waited for elsewhere."""
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = os.read(STDIN, 1)
        if not piece:
            raise SystemExit(CUT)  # gone before it said anything
        line += piece
    return bytes(line)


def _say(word: bytes) -> None:
    os.write(STDOUT, word + b"\n")


def _end_with_supervisor(
    app: App, stop: asyncio.Event, loop: asyncio.AbstractEventLoop, folder: Path
) -> None:
    """A thread, so that a busy loop does not keep it from seeing the end."""
    while os.read(STDIN, 1):
        pass

    def end() -> None:
        app.log.error(
            "supervisor_gone", reason="nothing can be granted without it; what runs is cut"
        )
        app.draining.limit_s = 0.0  # the port must be free for whoever is started next
        stop.set()

    shutil.rmtree(folder, ignore_errors=True)  # nobody else will
    loop.call_soon_threadsafe(end)
    time.sleep(GONE_S)
    close_aside()
    os._exit(CUT)
