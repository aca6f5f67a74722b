"""The supervisor: it takes the addresses, keeps the table, starts the workers and ends them.

start: addresses → folder → table → workers → control plane → ready line, once all of them take work.
stop: workers drain, each by itself → control plane, table, folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from aiohttp import web

from gateway.edge import ids
from gateway.lease.local import Counter
from gateway.lease.redis import RedisStore
from gateway.lease.store import StoreError
from gateway.lease.tables import Tables
from gateway.policy.change import change
from gateway.policy.notes import control_open
from gateway.policy.types import host_port
from gateway.process import REFUSED, cannot_listen, enough_memory, say_ready
from gateway.reload import Reload
from gateway.tasks import spawn
from gateway.workers.asking import Asking
from gateway.workers.crew import ENDS_S, Crew
from gateway.workers.front import Front
from gateway.workers.order import Order, control_socket, table_socket
from gateway.workers.watchdog import Watchdog

if TYPE_CHECKING:
    from gateway.policy.change import Change
    from gateway.policy.schema import Policy
    from gateway.policy.source import Loaded, Source
    from gateway.workers.crew import Hand

CLOSE_S = 1.0
"""How long open pages may keep the control plane when all is over."""

LONGEST_PATH = 100
"""Bytes of a Unix socket's path that every system takes (Linux 107, macOS 103)."""


async def supervise(policy: Policy, source: Source) -> int:
    """Serve with `policy.workers` processes until told to stop; the exit code."""
    if not hasattr(socket, "SO_REUSEPORT"):
        return _refuse(
            "kvgate: several workers need SO_REUSEPORT, which this system has not: workers: 1"
        )
    async with contextlib.AsyncExitStack() as closing:
        try:
            await _try_store(policy)
            control = _bound(*host_port(policy.control), shared=False)
            closing.callback(control.close)
            # Taken first by itself: with SO_REUSEPORT another gate's workers would be no hindrance.
            first = _bound(*host_port(policy.listen), shared=False)
            name = first.getsockname()
            first.close()
            port = int(name[1])
            held = _bound(host_port(policy.listen)[0], port, shared=True)
            closing.callback(held.close)
        except StoreError as error:
            return _refuse(f"kvgate: {error}")
        except OSError as error:
            return _refuse(cannot_listen(error))
        folder = Path(tempfile.mkdtemp(prefix="kvgate-"))  # 0700: who is in it may grant
        closing.callback(shutil.rmtree, folder, ignore_errors=True)
        if len(str(control_socket(folder, policy.workers))) > LONGEST_PATH:
            return _refuse(
                f"kvgate: {folder} is too long for a socket; set TMPDIR to a shorter one"
            )
        return await Supervisor(policy, source, control, port, folder).run()


class Supervisor:
    """See the module; addresses are taken, and the folder is there."""

    def __init__(
        self, policy: Policy, source: Source, control: socket.socket, port: int, folder: Path
    ) -> None:
        self._policy = policy
        self._source = source
        self._control = control
        self._listen = host_port(policy.listen)[0], port
        self._folder = folder
        self._log = structlog.get_logger("kvgate")
        self._stop = asyncio.Event()
        self._told = False
        self._crew = Crew(
            policy.workers, self._order, self._log, heard=self._heard, lost=self._lost
        )
        self._tables = Tables()
        self._reload = Reload(source, policy, self._adopt, self._log)

    async def run(self) -> int:
        """Until a signal, or until a worker cannot start as it is told to."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        loop.add_signal_handler(signal.SIGINT, self._interrupted)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        counter = Counter(self._tables, table_socket(self._folder))
        asking = Asking(self._folder, self._policy.workers)
        runner = web.AppRunner(
            Front(self._crew, asking, self._reload).app(),
            access_log=None,
            handle_signals=False,
            shutdown_timeout=CLOSE_S,
            handler_cancellation=True,  # a page that is closed ends its way to the worker
        )
        await counter.start()
        watching = spawn(Watchdog(self._crew, asking, self._log).run(), "watchdog")
        try:
            await runner.setup()
            ids.on_all_of(runner)
            await web.SockSite(runner, self._control, backlog=1024).start()
            enough_memory(self._policy.queue.max_bytes, self._policy.workers, self._log)
            self._crew.start()
            self._reload.start()
            self._log.info(
                "supervising",
                workers=self._policy.workers,
                listen=self._listen_url,
                control=self._control_url,
            )
            if why := control_open(self._policy):
                self._log.info("control_open", control=self._control_url, reason=why)
            await self._stop.wait()
            code = await self._crew.end(self._policy.drain_s + ENDS_S)
            self._log.info("workers_ended", code=code)
        finally:
            watching.cancel()
            await self._reload.stop()
            await asking.close()
            await runner.cleanup()
            await counter.stop()
        return REFUSED if self._crew.refused else code

    # ---- inside ----------------------------------------------------------------------------------

    def _order(self, hand: Hand, patience_s: float) -> Order:
        return Order(
            number=hand.number,
            of=len(self._crew.hands),
            replica=hand.life,
            folder=self._folder,
            listen=self._listen,
            patience_s=patience_s,
            policy=self._policy,
            source=self._source,
        )

    def _heard(self) -> None:
        """A worker has said something, or has ended."""
        hands = self._crew.hands
        if self._crew.refused:
            self._stop.set()
        elif (
            not self._told and any(h.ready for h in hands) and not any(h.turns_away for h in hands)
        ):
            self._told = True
            say_ready(self._listen_url, self._control_url)

    def _lost(self, life: str) -> None:
        """A worker ended by itself, and the system closed its connections: what it had running is
        abandoned, and held for as long as the policy holds that where no server confirms its end.
        Mostly the others have seen the end in the server's count before; on a server that is never
        without young requests that count does not come clear for minutes."""
        asyncio.get_running_loop().call_later(
            self._policy.limits.release_grace_s, self._tables.forget, life
        )

    def _interrupted(self) -> None:
        """See `process.serve`. In a terminal the workers have heard it as well."""
        if self._stop.is_set():
            self._crew.tell(signal.SIGINT)
        self._stop.set()

    def _hang_up(self) -> None:
        _ = spawn(self._reload.now("SIGHUP"), "reload on SIGHUP")
        self._crew.tell(signal.SIGHUP)

    def _adopt(self, wanted: Loaded) -> Change:
        """What a worker that is started anew will serve by. Raises PolicyError."""
        where = "policy" if self._reload.file is None else str(self._reload.file)
        told = change(self._policy, wanted.policy, where)
        self._policy = told.policy
        return told

    @property
    def _listen_url(self) -> str:
        scheme = "http" if self._policy.tls is None else "https"
        return f"{scheme}://{_written(*self._listen)}"

    @property
    def _control_url(self) -> str:
        return f"http://{_written(*self._control.getsockname()[:2])}"


def _written(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bound(host: str, port: int, *, shared: bool) -> socket.socket:
    """A socket that has an address and does not listen yet. Raises OSError where it is taken."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made


async def _try_store(policy: Policy) -> None:
    """Raises StoreError where workers could not use the store that the policy names."""
    if policy.leases is not None and policy.admission == "on":
        await RedisStore(policy.leases.url).close()


def _refuse(why: str) -> int:
    print(why, file=sys.stderr)  # noqa: T201
    return REFUSED
