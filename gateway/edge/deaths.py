"""What the gate learns from a server's life and death, and what it does about it.

**Ready means that it has generated since it was reached.** A new connection, a new start, the end of
a standstill: until then the server is on trial (`core.quarantine.Ramp`) and gets one prompt at a time
and few requests, whatever it says of itself. The proof is the first token of a request of ours, an
answer in one piece, or the engine's own count of prefilled or generated tokens that has grown. At
first contact a count above zero is enough: then it generated before this gate came, and its scheduler
has just answered. SGLang's own warm-up sees to that at its start.

**Death.** The moment a server is suspected, the scene is put down: what was in flight, how full the books
were. Most suspicions are nothing and the scene is dropped. If the server has died, then once:

- each request that was in flight gets a strike; with two it is refused (`core.quarantine`), here and
  by other processes of the gate that hear of it (`common`),
- the next start begins with one prompt at a time, and stops short of what was in prefill,
- after three such deaths in ten minutes the server is left alone for a while, and an operator is
  told so in plain words, in the log and in /status,
- the scene becomes a crash report, where a folder for them is named.

A server that goes down with nothing in flight has died of something else, or was restarted: that
is logged and nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from gateway.core.model import UNBOUNDED, Code, Refusal
from gateway.core.quarantine import CrashLoop, Quarantine, Ramp
from gateway.disk import Clerk
from gateway.edge.crashes import check, marked, scene_of, write
from gateway.edge.failures import Failures
from gateway.edge.marks import Marks
from gateway.edge.overruns import Overruns
from gateway.edge.truncations import Truncations
from gateway.tasks import spawn
from gateway.upstream.starts import SEVERAL

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from structlog.typing import FilteringBoundLogger

    from gateway.core.model import PoolLimits
    from gateway.edge.backends import Backend
    from gateway.edge.crashes import Scene
    from gateway.edge.flight import Flight
    from gateway.edge.reaper import Reaper
    from gateway.gate import Gate
    from gateway.upstream.facts import ServerFacts
    from gateway.upstream.loads import LoadsFacts


@dataclass(slots=True)
class _Memory:
    """Of one server."""

    loop: CrashLoop = field(default_factory=CrashLoop)
    ramp: Ramp | None = None
    scene: Scene | None = None
    flights: tuple[Flight, ...] = ()
    in_prefill: int = 0
    died: bool = False  # under load, since it was last let in
    first: bool = False  # it was reached for the first time
    counts: dict[str, int] = field(default_factory=dict)  # the engine's own, since it was reached


class Deaths:
    """One memory for all servers of a fleet. Nothing here raises, or awaits but `start`."""

    def __init__(
        self,
        gate: Gate,
        reaper: Reaper,
        log: FilteringBoundLogger,
        folder: Path | None,
        secret: str = "",
    ) -> None:
        """`secret`: see `Marks`."""
        self.marks = Marks(secret)
        self.quarantine = Quarantine(gate.core.others)
        self.on_strike: Callable[[], None] = lambda: None
        """Told that somebody was in flight at a death."""
        self.failures = Failures(gate, log)
        self._truncations = Truncations(log)
        self._overruns = Overruns(log)
        self._gate = gate
        self._reaper = reaper
        self._log = log
        self._folder = folder
        self._disk = Clerk("crash reports")
        self._of: dict[str, _Memory] = {}

    async def start(self) -> None:
        """Say now what would keep a report from being written, not at the death it would be of."""
        if self._folder is not None:
            try:
                await self._disk.do(check, self._folder)
            except OSError as error:
                self._warn("crash_reports_not_possible", self._folder, error)

    # ---- what the watch sees ---------------------------------------------------------------------

    def suspected(self, backend: Backend, reason: str) -> None:
        """It may have died, for `reason`: put down the scene."""
        self._log.warning("server_doubted", backend=backend.name, reason=reason)
        memory = self._memory(backend)
        memory.flights = self._reaper.flights(backend)
        view = self._gate.view()
        memory.in_prefill = sum(
            pool.prefill.reserved for pool in view.pools if pool.pool in backend.pools
        )
        memory.scene = scene_of(backend, reason, memory.flights, view, memory.loop.deaths)

    def acquitted(self, backend: Backend) -> None:
        """It has not: the same process is there and at work."""
        memory = self._memory(backend)
        memory.scene, memory.flights = None, ()
        self.failures.acquitted(backend)

    def died(self, backend: Backend, reason: str) -> None:
        """It has."""
        memory, now = self._memory(backend), self._gate.now()
        flights, memory.flights = memory.flights, ()
        scene, memory.scene = memory.scene, None
        self.failures.died(backend)
        self._log.warning(
            "server_died", backend=backend.name, reason=reason, in_flight=len(flights)
        )
        if not flights:
            return
        memory.died = True
        backend.deaths += 1
        memory.loop.died(now)
        memory.ramp = memory.ramp or Ramp(UNBOUNDED)
        memory.ramp.died(memory.in_prefill, UNBOUNDED)
        marks = [self.marks.of_flight(flight) for flight in flights]
        start = "" if backend.facts is None else f"{backend.name} {backend.facts.started_key}"
        self.quarantine.died(marks, now, start)
        self.on_strike()
        if scene is not None and self._folder is not None:
            _ = spawn(
                self._report(self._folder, marked(scene, marks)), f"crash report {backend.name}"
            )

    def away(self, backend: Backend, reason: str) -> None:
        """It can not be used now, and is asked again until it can."""
        self._log.warning("server_away", backend=backend.name, url=backend.url, reason=reason)

    def opened(self, backend: Backend, facts: ServerFacts, notes: tuple[str, ...]) -> None:
        """It takes work from now on; `notes` is what its operator should know."""
        if SEVERAL in notes:
            self._log.error(
                "several_servers", backend=backend.name, url=backend.url, reason=SEVERAL
            )
        self._log.info(
            "server_ready",
            backend=backend.name,
            engine=facts.version_text,
            models=list(facts.models),
            pool_tokens=facts.pool_tokens,
            ranks=facts.dp,
            context_tokens=facts.context,
            notes=list(notes),
        )

    def stalled(self, backend: Backend, reason: str) -> None:
        """It does not move. Nothing is written off, and nothing held against anybody."""
        self._log.warning("server_stalled", backend=backend.name, reason=reason)

    def lost(self, backend: Backend, requests: int) -> None:
        """It runs nothing and has not answered these: some queue inside it dropped them."""
        self._log.warning("requests_lost", backend=backend.name, requests=requests)

    def returned(self, backend: Backend) -> float:
        """A server is back. How many seconds to leave it alone."""
        memory = self._memory(backend)
        if not memory.died:
            return max(0.0, memory.loop.until - self._gate.now())
        memory.died = False
        pause = memory.loop.returned(self._gate.now())
        if pause:
            where = f"; see the crash reports in {self._folder}" if self._folder else ""
            backend.held = (
                f"it died {len(memory.loop.deaths)} times within 10 minutes, each time with "
                f"requests in flight. Nothing is sent to it for {pause:.0f} s. Look at its own "
                f"log for the cause (mostly out of memory in a prefill){where}"
            )
            self._log.error("crash_loop", backend=backend.name, reason=backend.held, hold_s=pause)
        return pause

    # ---- slow start ------------------------------------------------------------------------------

    def reached(self, backend: Backend, *, first: bool = False) -> None:
        """It was reached, began to move, or is to show anew that it works: from now on it is on
        trial. `first`: this gate has never seen it before."""
        memory = self._memory(backend)
        memory.first, memory.counts = first, {}
        memory.ramp = memory.ramp or Ramp(UNBOUNDED, allowed=UNBOUNDED)
        memory.ramp.reached()
        backend.on_trial = True

    def narrowed(self, backend: Backend, limits: PoolLimits) -> PoolLimits:
        """The limits of a pool of this server for now: less at once on trial and after a death."""
        ramp = self._memory(backend).ramp
        if ramp is None:
            return limits
        ramp.full = limits.prefill_tokens
        sequences = UNBOUNDED if ramp.sequences is None else ramp.sequences
        return replace(limits, prefill_tokens=ramp.prefill, trial=sequences)

    def prefilled(self, backend: Backend) -> bool:
        """A prompt came through there. Whether the limits have changed by that."""
        return self._grown(backend, Ramp.prefilled)

    def counted(self, backend: Backend, loads: LoadsFacts) -> bool:
        """The engine's own counts have come. Whether the limits have changed by that."""
        memory = self._memory(backend)
        if memory.ramp is None or memory.ramp.proven:
            return False
        said = {
            "prefilled": [rank.prefilled for rank in loads.ranks],
            "generated": [one.generated_tokens for one in backend.said.values()],
        }
        moved = False
        for name, by_rank in said.items():
            known = [count for count in by_rank if count is not None]
            if not known:
                continue  # not said yet: it would seem to grow when it is
            before = memory.counts.setdefault(name, 0 if memory.first else sum(known))
            moved |= sum(known) > before
        return moved and self._grown(backend, Ramp.generated)

    def _grown(self, backend: Backend, step: Callable[[Ramp], None]) -> bool:
        memory = self._memory(backend)
        if (ramp := memory.ramp) is None:
            return False
        before = ramp.prefill, ramp.sequences
        step(ramp)
        backend.on_trial = not ramp.proven
        if ramp.done:
            memory.ramp = None
        return memory.ramp is None or (ramp.prefill, ramp.sequences) != before

    # ---- quarantine ------------------------------------------------------------------------------

    def refusal(self, mark: Callable[[], bytes]) -> Refusal | None:
        """The refusal of a request that was in flight at two deaths. `mark` makes its mark, and is
        called only while anything is remembered."""
        if not self.quarantine:
            return None
        of, now = mark(), self._gate.now()
        deaths = self.quarantine.deaths(of, now)
        if not self.quarantine.refuses(of, now):
            return None
        return Refusal(
            Code.QUARANTINED,
            f"a server died {deaths} times while this request was in flight, and no server has "
            "answered it since",
        )

    def served(self, flight: Flight, *, failed: bool, cut: bool) -> None:
        """It was answered to its end, well or not; `cut`: that was its cap."""
        self.failures.answered(flight, failed=failed)
        now = self._gate.now()
        self._overruns.look(flight.record, now)
        if cut:
            self._truncations.cut(flight.record, partial(self.marks.of_flight, flight), now)
        if self.quarantine:
            self.quarantine.served(self.marks.of_flight(flight), now)

    # ---- inside ----------------------------------------------------------------------------------

    def _memory(self, backend: Backend) -> _Memory:
        return self._of.setdefault(backend.name, _Memory())

    async def _report(self, folder: Path, scene: Scene) -> None:
        try:
            path = await self._disk.do(write, folder, scene)
        except OSError as error:
            self._warn("crash_report_not_written", folder, error)
        else:
            self._log.info("crash_report", path=str(path))

    def _warn(self, event: str, folder: Path, error: OSError) -> None:
        self._log.warning(event, path=str(folder), reason=error.strerror or type(error).__name__)
