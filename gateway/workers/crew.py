"""The worker processes: started, heard, started anew after a pause when one ends, ended together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import gateway
from gateway.process import CUT, REFUSED
from gateway.tasks import spawn
from gateway.workers.order import READY, UP

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import FilteringBoundLogger

    from gateway.workers.order import Order

PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
"""Before a worker that ended is started anew; twice as long each time, to the longest. The first is what
it takes to see in the log that it happened; at the longest a worker that cannot live costs a start (a
second of one core) every half minute."""

STEADY_S = 60.0
"""Who has lived so long begins again with the first pause: what ended it was not its start."""

PATIENCE_S = 30.0
"""How long one that is started anew leaves new connections to the others until it can serve them: the
largest vocabulary is read in some seconds. Then it listens all the same: no server may be there at all,
and clients are to be told."""

ENDS_S = 8.0
"""What closing takes beside draining (`app.CUT_S`, its files, leases and connections), and some. Below the
10 s that deploy/systemd gives beside `drain_s`."""


COMMAND = (sys.executable, "-P", "-m", "gateway.workers")
"""A worker. -P: what lies in the working directory is not looked at."""


@dataclass(slots=True)
class Hand:
    """One place in the crew, and the process that has it now."""

    number: int
    process: asyncio.subprocess.Process | None = None
    starts: int = 0
    up: bool = False
    ready: bool = False  # it has been, once

    @property
    def life(self) -> str:
        """The name of this process among all that had this place or another."""
        return f"w{self.number}.{self.starts}"

    @property
    def alive(self) -> bool:
        """Whether its process is there."""
        return self.process is not None and self.process.returncode is None

    @property
    def turns_away(self) -> bool:
        """Whether it may take a connection and refuse it for want of a server it has yet to meet."""
        return self.alive and not self.ready and self.starts == 1


class Crew:
    """`start`, then `end`, each once."""

    def __init__(
        self,
        size: int,
        order: Callable[[Hand, float], Order],
        log: FilteringBoundLogger,
        *,
        heard: Callable[[], None],
        lost: Callable[[str], None],
    ) -> None:
        """`order` makes what a worker is told, from its place and its patience; `heard` is called when
        one has said something or has ended, `lost` with the name of a life that ended by itself."""
        self.hands = [Hand(number) for number in range(size)]
        self.refused = False
        """Whether one ended before it was up, at its first start, because of what it was told."""
        self._ending = asyncio.Event()
        self._order = order
        self._log = log
        self._heard = heard
        self._lost = lost
        self._tasks: list[asyncio.Task[None]] = []
        self._codes: list[int] = []

    @property
    def draining(self) -> bool:
        """Whether whoever ends now stays away."""
        return self._ending.is_set()

    def drain(self) -> None:
        """From now on."""
        self._ending.set()

    def start(self) -> None:
        """Start all of them, in the background."""
        self._tasks = [spawn(self._keep(hand), f"worker {hand.number}") for hand in self.hands]

    async def end(self, within_s: float) -> int:
        """Let all of them drain and end; the worst of their exit codes."""
        self.drain()
        self.tell(signal.SIGTERM, only_up=False)
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=within_s)
            if late:
                self._log.error("workers_killed", after_s=within_s, workers=len(late))
                self.tell(signal.SIGKILL, only_up=False)
                await asyncio.wait(late)
        return max(self._codes, default=0)

    def tell(self, sign: int, *, only_up: bool = True) -> None:
        """Send a signal. `only_up`: not to one that would still die of it."""
        for hand in self.hands:
            if hand.process is not None and hand.alive and (hand.up or not only_up):
                with contextlib.suppress(ProcessLookupError):
                    hand.process.send_signal(sign)

    def kill(self, life: str) -> bool:
        """End a worker that does not listen to reason, if that life goes on."""
        for hand in self.hands:
            if hand.process is not None and hand.alive and hand.life == life:
                hand.process.kill()
                return True
        return False

    # ---- inside ----------------------------------------------------------------------------------

    async def _keep(self, hand: Hand) -> None:
        pause, loop = PAUSE_S, asyncio.get_running_loop()
        while not self._ending.is_set():
            began = loop.time()
            try:
                code = await self._run(hand)
            except OSError as error:  # no memory or no process to be had, for the moment
                self._log.error("worker_not_started", worker=hand.number, reason=error.strerror)
                code = CUT
            if self._ending.is_set():
                # One that was still starting dies of the signal and had nothing to lose.
                self._codes.append(0 if code < 0 and not hand.up else min(abs(code), CUT))
                return
            if code == REFUSED and hand.starts == 1 and not hand.up:
                self.refused = True
                self._heard()
                return
            if loop.time() - began >= STEADY_S:
                pause = PAUSE_S
            self._lost(hand.life)
            self._log.error("worker_ended", worker=hand.number, code=code, started_anew_in_s=pause)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._ending.wait()
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _run(self, hand: Hand) -> int:
        """One life of a worker; its exit code, below nothing for a signal."""
        hand.starts += 1
        hand.up = hand.ready = False
        patience_s = 0.0 if hand.starts == 1 else PATIENCE_S
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=_environment(),
        )
        hand.process = process
        if process.stdin is None or process.stdout is None:
            msg = "a process without the pipes it was asked for"
            raise RuntimeError(msg)
        # It may have ended already: a pipe that is closed is a RuntimeError to uvloop.
        with contextlib.suppress(ConnectionError, RuntimeError):
            # Open as long as this process lives: its end tells the worker that we are gone.
            process.stdin.write(self._order(hand, patience_s).to_line())
            await process.stdin.drain()
        if self.draining:  # told to end before this one was there to be told
            self.tell(signal.SIGTERM, only_up=False)
        while word := (await process.stdout.readline()).strip():
            hand.up = hand.up or word == UP
            hand.ready = hand.ready or word == READY
            self._heard()
        code = await process.wait()
        self._heard()
        return code


def _environment() -> dict[str, str]:
    """Ours, and where this very program is found: a worker must not be that of another folder."""
    home = str(Path(gateway.__file__).parents[1])
    known = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": f"{home}{os.pathsep}{known}" if known else home}
