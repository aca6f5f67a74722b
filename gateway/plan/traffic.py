"""What an audit holds a server against: the policy for it, and the traffic people expect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.policy.schema import Backend

HIDDEN = 5120
INTERMEDIATE = 17_408
"""The 27B model of incidents A and B, where a config is not given: its chunk takes 0.28 GiB."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Tokens and requests. None: nobody said."""

    backend: Backend  # what the policy says of this server
    admission: bool = True  # off: the gate forwards everything at once
    prompt: int | None = None  # a usual prompt
    requests: int | None = None  # that many of them at once
    hidden: int = HIDDEN
    intermediate: int = INTERMEDIATE

    @property
    def stated(self) -> bool:
        """Whether the traffic was told, so that falling short of it is a finding."""
        return self.prompt is not None and self.requests is not None
