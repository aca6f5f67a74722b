"""What is right as it stands in a policy and may yet not be meant: told once, at the start and by `check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.policy.types import is_loopback

if TYPE_CHECKING:
    from gateway.policy.schema import Policy

CONTROL_OPEN = (
    "the control plane has no keys: who reaches this address reads /status and may drain the gate or have "
    "its policy read again; that is as it should be where a published port, a network policy or a firewall "
    "says who does, else set `control: 127.0.0.1:8081`"
)
"""Not that it is wrong: in a container the port is published to some, and probes come from outside."""


def control_open(policy: Policy) -> str | None:
    """What to say of a control plane that others than this machine may reach."""
    return None if is_loopback(policy.control) else CONTROL_OPEN


def notes(policy: Policy) -> list[str]:
    """Each a line: the place, and what to know of it."""
    why = control_open(policy)
    return [] if why is None else [f"control = {policy.control!r}: {why}"]
