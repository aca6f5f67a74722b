"""How a mistake in a policy is told: where, what was found, what is wrong with it, what to do.

A value is shown only if it cannot be a secret: keys pasted into the wrong line are the commonest
accident of all, and error texts end up in tickets and chats.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Loc = tuple[str | int, ...]
"""Path to a value: keys and list indexes."""


class Absent:
    """Stands for a value that is not there (None can be written in YAML)."""


ABSENT: Final = Absent()


@dataclass(frozen=True, slots=True)
class Finding:
    """A mistake, before anybody knows which file and line it stands in."""

    loc: Loc
    value: object
    wrong: str
    remedy: str
    line: int | None = None  # where the value's own line would mislead

    @property
    def path(self) -> str:
        """The dotted path, such as `backends[0].url`."""
        return dotted(self.loc)


@dataclass(frozen=True, slots=True)
class Problem:
    """A mistake, ready to be shown. `found` is redacted and empty where there is no value."""

    where: str  # file:line, an option or an environment variable
    path: str
    found: str
    wrong: str
    remedy: str

    def __str__(self) -> str:
        subject = f"{self.where}: {self.path}".removesuffix(": ")
        value = f" = {self.found}" if self.found else ""
        return f"{subject}{value}: {self.wrong}; {self.remedy}"


class PolicyError(Exception):
    """A policy that cannot be used. Its text names every mistake, one a line, and no secret.

    `passing`: nothing is wrong with it but its moment; the same policy can be used later.
    """

    def __init__(self, errors: Sequence[Problem], *, passing: bool = False) -> None:
        self.errors = list(errors)
        self.passing = passing
        count = "1 mistake" if len(self.errors) == 1 else f"{len(self.errors)} mistakes"
        super().__init__(
            "\n".join([f"policy not usable, {count}:", *(f"  {e}" for e in self.errors)])
        )


def dotted(loc: Loc) -> str:
    """`("backends", 0, "url")` as `backends[0].url`."""
    text = ""
    for part in loc:
        word = str(part) if not holds_secret(str(part)) else "(not shown)"
        text += f"[{part}]" if isinstance(part, int) else f".{word}" if text else word
    return text


# ---- showing values -----------------------------------------------------------------------

_SECRET_NAME = re.compile(
    r"(?i)(^|[_-])(api)?(keys?|token|secret|passw(or)?d|auth(orization)?|cookie|bearer)($|[_-])"
)
_NOT_SECRET_NAME = re.compile(r"(?i)(key_env|key_file|_tokens|max_token)")
_SECRET_VALUE = re.compile(r"(?i)\b(sk|pk|hf|gsk|ghp|xox[a-z]|bearer|basic)[-_ ]\S+")
_RANDOM = re.compile(r"['\"]?(?=\S*\d)(?=\S*[A-Za-z])[A-Za-z0-9+=_.-]{20,}['\"]?")
"""A run of 20 or more letters and digits mixed: rather a key than a word."""
_QUERY = re.compile(r"\?\S+")
_USERINFO = re.compile(r"//[^/@\s]*@")
_LONGEST = 60


def shown(loc: Loc, value: object) -> str:
    """The value as people may see it, shortened; secrets and whole sections only by their kind."""
    if value is ABSENT:
        return ""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if value is None or isinstance(value, bool | float | int):
        return "nothing" if value is None else str(value).lower()
    text = str(value)
    name = next((str(part) for part in reversed(loc) if isinstance(part, str)), "")
    if _looks_secret(name, text):
        return "(not shown: may be a secret)"
    text = _QUERY.sub("?(not shown)", _USERINFO.sub("//(not shown)@", text))
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")


def _looks_secret(name: str, text: str) -> bool:
    if _SECRET_NAME.search(name) and not _NOT_SECRET_NAME.search(name):
        return True
    if name.endswith("key_env"):
        return not re.fullmatch(r"[A-Z_][A-Z0-9_]*", text)
    return holds_secret(text)


def holds_secret(text: str) -> bool:
    """Whether a text may hold a key: a known prefix, or a long run of mixed letters and digits."""
    return bool(_SECRET_VALUE.search(text) or any(map(_RANDOM.fullmatch, text.split())))
