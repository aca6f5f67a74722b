"""When what a server held is gone, by how its door was found.

Shut, in `EVIDENCE` questions in a row: its machine says that nobody listens, so nothing it was at can
reach anybody any more. Where there is no way to the door (no name, no route, no answer) it may all be
there yet, and answers still come in over the connections that are open: that takes a while.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.upstream.discover import Kind

EVIDENCE = 2
"""Questions in a row that must fail: one may have met a kept connection that was just closed."""


class Door:
    """`cut_off_s`: how long no way to it must be found; see `Pace`."""

    def __init__(self, cut_off_s: float) -> None:
        self.was_shut = False
        """Once at least since it was open."""
        self._cut_off_s = cut_off_s
        self._shut = 0  # questions in a row
        self._cut_off_since: float | None = None
        self._gone = False

    def opened(self) -> None:
        """The server can be used."""
        self.was_shut = self._gone = False
        self._shut, self._cut_off_since = 0, None

    def failed(self, kind: Kind, now: float) -> bool:
        """It can not, for that reason. Whether what it held is gone: said once."""
        shut = kind == "unreachable"
        self.was_shut |= shut
        self._shut = self._shut + 1 if shut else 0
        if kind != "no_way":
            self._cut_off_since = None
        elif self._cut_off_since is None:
            self._cut_off_since = now
        since = self._cut_off_since
        cut_off = since is not None and now - since >= self._cut_off_s
        if self._gone or not (cut_off or self._shut >= EVIDENCE):
            return False
        self._gone = True
        return True
