"""What an audit found: how bad, the number behind it, and what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Severity(StrEnum):
    """Errors and warnings make the thing checked fall short; notes are good to know."""

    ERROR = "error"  # it will not start, will crash, or is open to whoever reaches it
    WARNING = "warning"  # a promise to clients rests on luck
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing. `code` is stable, for scripts; no text repeats a value that could be a secret."""

    severity: Severity
    code: str
    subject: str  # the option, argument or thing it is about
    found: str  # one sentence, with the number
    remedy: str  # one sentence

    def as_json(self) -> dict[str, str]:
        """For `--json`."""
        return {name: str(value) for name, value in asdict(self).items()}


_ORDER = {severity: place for place, severity in enumerate(Severity)}


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Errors, warnings, notes; each in the order found."""
    return sorted(findings, key=lambda finding: _ORDER[finding.severity])


def falls_short(findings: Iterable[Finding]) -> bool:
    """Whether anything but notes was found."""
    return any(finding.severity is not Severity.NOTE for finding in findings)
