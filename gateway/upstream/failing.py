"""When questions that fail mean that a server is gone which was in use.

- **A door that is shut or strange**: `EVIDENCE` questions in a row refused, reset or answered with an
  error, and not one byte of a real request since the first.
- **A door that is open and silent**, as a server is for about 5.4 s after its scheduler was killed
  (measured on 0.5.17 and 0.5.23): /v1/models, which needs no scheduler, unanswered for
  `silent_for_s` in several questions, and not one byte of a real request since the first. In that
  window the streams usually break or the door shuts sooner; then something else speaks.

Failing polls while bytes flow mean nothing: a busy server is not a dead one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.upstream.ask import Wrong
from gateway.upstream.door import EVIDENCE

if TYPE_CHECKING:
    from gateway.upstream.ask import AskError


class Failing:
    """Times are the loop's clock. `silent_for_s`: see `Pace`."""

    def __init__(self, silent_for_s: float) -> None:
        self.in_a_row = 0
        """Questions in a row."""
        self._silent_for_s = silent_for_s
        self._since = 0.0  # when the first of them was asked

    def answered(self) -> None:
        """It is there."""
        self.in_a_row = 0

    def failed(
        self, error: AskError, *, asked_at: float, heard_at: float, now: float
    ) -> str | None:
        """A question of `asked_at` failed; the last byte of a real answer came at `heard_at`. Why the
        server counts as gone; None while it does not."""
        if not self.in_a_row or heard_at >= self._since:
            self._since, self.in_a_row = asked_at, 0
        self.in_a_row += 1
        if self.in_a_row < EVIDENCE:
            return None
        if error.wrong is not Wrong.SILENT:
            return f"{EVIDENCE} questions in a row failed, the last with: {error}"
        silent = now - self._since
        if silent < self._silent_for_s:
            return None
        return f"it accepts connections but has been silent for {silent:.0f} s"
