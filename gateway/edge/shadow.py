"""`admission: shadow`: the very bytes go through at once, and beside them the gate decides.

The decision is a task of its own: it counts, takes a ticket and waits for a grant as a request does
under `on`, and whatever comes of it is written into the record and nowhere else. The reservation is
held for as long as the real answer runs, so that the books see the same traffic. An answer that
ends while its shadow waits takes it out of the queue; the wait noted is then the least it could be.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from gateway.core.model import Code, Outcome
from gateway.edge.dialects import Invalid
from gateway.gate import Shed
from gateway.tasks import spawn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.core.model import Ticket
    from gateway.gate import Gate, Lease
    from gateway.observe.record import Record


class Shadow:
    """Stands where a lease would be, see `booked.Booked`. No method raises.

    `ask` reads and counts the request; it may raise Invalid and Shed. `failed` is told of a fault
    in the shadow itself, once a fault.
    """

    def __init__(
        self,
        gate: Gate,
        record: Record,
        ask: Callable[[], Awaitable[tuple[Ticket, object]]],
        failed: Callable[[], None],
    ) -> None:
        self.ended = False
        self._gate = gate
        self._record = record
        self._failed = failed
        self._lease: Lease | None = None  # once granted
        self._since: float | None = None  # when it came to the gate, the gate's clock
        self._speaking = False
        self._generated = 0
        self._task = spawn(self._decide(ask), f"shadow {record.id}")

    def first_token(self) -> None:
        """The first output of the real answer came."""
        self._speaking = True
        if self._lease is not None:
            self._quietly(self._lease.first_token)

    def true_up(self, generated: int) -> None:
        """So many tokens so far, over all sequences."""
        self._generated = generated
        if self._lease is not None:
            self._quietly(partial(self._lease.true_up, generated))

    def cached(self, tokens: int) -> None:
        """What the server had of the prompt, the shadow's server too."""
        if self._lease is not None:
            self._quietly(partial(self._lease.cached, tokens))

    def end(self, outcome: Outcome) -> None:
        """The real answer is over, and the shadow with it."""
        if self.ended:
            return
        self.ended = True
        if self._lease is not None:
            self._quietly(partial(self._lease.end, outcome))
        self._task.cancel()
        if self._record.shadow is None:
            self._unfinished()

    def abandon(self, outcome: Outcome) -> None:
        """It ended for the client. What runs on upstream was not sent by leave of the books."""
        self.end(outcome)

    async def _decide(self, ask: Callable[[], Awaitable[tuple[Ticket, object]]]) -> None:
        try:
            ticket, _ = await ask()
            self._since = self._gate.now()
            # No grace: nothing of the shadow is sent, so nothing of it can linger upstream.
            async with self._gate.admit(ticket, grace_s=0.0) as lease:
                self._granted(lease)
                await asyncio.Event().wait()  # until `end` cancels
        except Invalid:
            self._refused(Code.INVALID_REQUEST, None)
        except Shed as shed:
            self._refused(shed.refusal.code, shed.queued_s)
        except Exception:  # noqa: BLE001  # as in `_quietly`
            self._since = None  # nothing can be said of its wait
            self._failed()

    def _granted(self, lease: Lease) -> None:
        grant = lease.grant
        self._lease = lease
        self._record.shadow = "wait" if grant.queued_s else "admit"
        self._record.shadow_wait_ms = grant.queued_s * 1000
        self._record.shadow_cap = grant.demand.cap
        # A real answer may have been running for as long as its shadow waited.
        if self._speaking:
            lease.first_token()
        lease.true_up(self._generated)

    def _refused(self, code: Code, queued_s: float | None) -> None:
        self._record.shadow = "refuse"
        self._record.shadow_code = code
        self._record.shadow_wait_ms = None if queued_s is None else queued_s * 1000

    def _unfinished(self) -> None:
        """The real answer ended first: still waiting, or not even counted."""
        if self._since is None:
            self._record.shadow = "undecided"
        else:
            self._record.shadow = "wait"
            self._record.shadow_wait_ms = (self._gate.now() - self._since) * 1000

    def _quietly(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception:  # noqa: BLE001  # a fault of the shadow must not reach the answer
            self._failed()
