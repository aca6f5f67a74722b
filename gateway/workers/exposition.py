"""The workers' metrics as one exposition: each family once, each sample with its worker.

What comes in is the text format (0.0.4) as our own library writes it: `# HELP`, `# TYPE`, then the
samples of that family. Families keep the order in which they are first met.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

LABEL = "worker"
_HELP, _TYPE = "# HELP ", "# TYPE "


@dataclass(slots=True)
class _Family:
    head: list[str] = field(default_factory=list)
    samples: list[str] = field(default_factory=list)


def merged(expositions: Iterable[tuple[int, str]]) -> str:
    """One exposition of those of several workers (number, text)."""
    families: dict[str, _Family] = {}
    for number, text in expositions:
        family = _Family()
        for line in text.splitlines():
            if line.startswith((_HELP, _TYPE)):
                name = line.split(" ", 3)[2]
                family = families.setdefault(name, _Family())
                if not any(line[: len(_HELP)] == known[: len(_HELP)] for known in family.head):
                    family.head.append(line)
            elif line and not line.startswith("#"):
                family.samples.append(_labelled(line, number))
    lines = (line for family in families.values() for line in (*family.head, *family.samples))
    return "".join(f"{line}\n" for line in lines)


def gauge(name: str, about: str, values: Iterable[tuple[int, float]], kind: str = "gauge") -> str:
    """A family of the supervisor's own, a sample for each worker."""
    samples = "".join(f'{name}{{{LABEL}="{number}"}} {value:g}\n' for number, value in values)
    return f"{_HELP}{name} {about}\n{_TYPE}{name} {kind}\n{samples}"


def _labelled(sample: str, number: int) -> str:
    """A sample begins with its name; a brace or a blank ends that."""
    label = f'{LABEL}="{number}"'
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f"{name}{{{label},{rest}"
    name, _, value = sample.partition(" ")
    return f"{name}{{{label}}} {value}"
