"""Grammars that lead to a place where nothing may come next.

Every token of the vocabulary is then ruled out, the chances of all are no numbers, and the scheduler ends
with everybody's answers (0.5.17 with its own sampler of PyTorch; a request at temperature 0 is only cut
off). xgrammar 0.1.27, 0.2.1 and 0.2.7 compile such grammars without a word:

- a rule that must begin with itself (`root ::= root`), or has an empty choice of letters (`[]`);
- in a JSON schema, a `$ref` that leads back to itself with nothing written in between;
- a single token that ends answers, or that the tokenizer does not have (0.5.17 and 0.5.23), where it
  stands alone. Which these are is not known here, so no grammar names single tokens.

What may go on for ever (`root ::= "a" root`) is none: the cap ends it. Of patterns and JSON schemas without
`$ref` none of some hundred odd ones did it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterable

_PIECE: Final = re.compile(
    r'(?P<text>"(?:[^"\\\n]++|\\.)*+"?|/(?:[^/\\\n]++|\\.)++/?)|(?P<letters>\[(?:[^\]\\\n]++|\\.)*+\]?)'
    r"|(?P<comment>\#[^\n]*+|//[^\n]*+)|(?P<rule>[A-Za-z_.\-][A-Za-z0-9_.\-]*+)\s*+::=|(?P<look>\(\s*+=)"
    r"|(?P<call>(?:Exclude)?Token\s*+\([\d\s,]*\))|(?P<name>[A-Za-z_.\-][A-Za-z0-9_.\-]*+)"
    r"|\{\s*+(?P<least>\d++)\s*+(?:,\s*+(?P<most>\d*+)\s*+)?+\}|(?P<mark>[()|*?+])"
)
"""What an EBNF is made of. Anything else begins nothing; a name before brackets is a rule."""

NO_LETTERS: Final = "[]"

TOKEN: Final = re.compile(r"\bToken\s*\(")


@dataclass(slots=True)
class _Choice:
    """Alternatives, each a row of what comes one after the other; the last is being read."""

    rows: list[list[_Item]] = field(default_factory=lambda: [[]])


@dataclass(slots=True)
class _Item:
    """A rule's name, a choice in brackets, or something that begins (`None`); `may`: it may be left out."""

    what: str | _Choice | None
    may: bool = False


def rule_without_beginning(text: str) -> str | None:
    """The name of a rule of an EBNF that can neither begin with a letter nor be empty; None if there is
    none. An empty choice of letters is told as itself. Each rule is looked at once, however many there are."""
    rules: dict[str, _Choice] = {}
    if (found := _read(text, rules)) is not None:
        return found
    choices = _all(rules)
    empty = _empty(choices, rules)
    users: dict[int, list[int]] = {}
    begins: list[int] = []
    for one in choices:
        for row in one.rows:
            for item in row:
                to = _of(item, rules)
                if to is not None:
                    users.setdefault(id(to), []).append(id(one))
                elif item.what is None or isinstance(item.what, str):
                    begins.append(id(one))
                if not (item.may or (to is not None and id(to) in empty)):
                    break
    alive = _reached(begins, users) | empty
    return next((name for name, one in rules.items() if id(one) not in alive), None)


def has_more(text: str, pieces: int) -> bool:
    """Whether an EBNF is made of more than so many pieces."""
    return next(islice(_PIECE.finditer(text), pieces, None), None) is not None


def _all(rules: dict[str, _Choice]) -> list[_Choice]:
    """The rules, and the choices in brackets within them."""
    found, left = [], [*rules.values()]
    while left:
        found.append(one := left.pop())
        left.extend(item.what for row in one.rows for item in row if isinstance(item.what, _Choice))
    return found


def _of(item: _Item, rules: dict[str, _Choice]) -> _Choice | None:
    """What an item leads to; a rule that is not there the engine's parser refuses."""
    return rules.get(item.what) if isinstance(item.what, str) else item.what


def _empty(choices: list[_Choice], rules: dict[str, _Choice]) -> set[int]:
    """Those that may be empty: one row of each has nothing, or nothing that must not be."""
    users: dict[int, list[tuple[int, int]]] = {}  # of what: whose row waits for it, and which
    left: list[int] = []  # of each row, how many are waited for
    ready: list[int] = []
    for one in choices:
        for row in one.rows:
            must = [item for item in row if not item.may]
            leads = [_of(item, rules) for item in must]
            if None in leads:
                continue
            for to in leads:
                users.setdefault(id(to), []).append((id(one), len(left)))
            left.append(len(leads))
            if not leads:
                ready.append(id(one))
    done: set[int] = set()
    while ready:
        if (this := ready.pop()) in done:
            continue
        done.add(this)
        for user, row_ in users.get(this, ()):
            left[row_] -= 1
            if left[row_] == 0:
                ready.append(user)
    return done


def _reached(begins: list[int], users: dict[int, list[int]]) -> set[int]:
    done: set[int] = set()
    left = begins
    while left:
        if (this := left.pop()) not in done:
            done.add(this)
            left.extend(users.get(this, ()))
    return done


def _read(text: str, rules: dict[str, _Choice]) -> str | None:
    """Fill `rules`; what is told is an empty choice of letters."""
    open_: list[_Choice] = [_Choice()]
    looks = 0  # brackets within what is only looked at
    for piece in _PIECE.finditer(text):
        kind, what = str(piece.lastgroup), piece[0]
        if piece["rule"]:
            open_, looks = [rules.setdefault(piece["rule"], _Choice())], 0
            if open_[0].rows[-1]:
                open_[0].rows.append([])
            continue
        row = open_[-1].rows[-1]
        if looks:
            looks += what.count("(") - what.count(")") if kind in {"mark", "look"} else 0
        elif kind == "letters" and what == NO_LETTERS:
            return NO_LETTERS
        elif kind == "mark":
            _mark(what, open_)
        elif piece["least"]:
            _times(row, piece["least"], piece["most"])
        elif (item := _item(kind, what)) is not None:
            row.append(item)
            looks = int(kind == "look")
    return None


def _item(kind: str, what: str) -> _Item | None:
    """What a piece is in its row; what is only looked at is nothing."""
    if kind == "name":
        return _Item(what)
    if kind == "look" or what == '""':
        return _Item(_Choice())
    return _Item(None) if kind in {"text", "letters", "call"} else None


_DIGITS: Final = 9
"""Of a number of repeats; of more it is not asked whether it is 0."""


def _times(row: list[_Item], least: str, most: str | None) -> None:
    """What stands right before is repeated: not at all, if need be not at all, or at least once."""
    if row and int(least[:_DIGITS]) == 0:
        row[-1].may = True
        if most is None or (most and int(most[:_DIGITS]) == 0):
            row[-1] = _Item(_Choice())


def _mark(mark: str, open_: list[_Choice]) -> None:
    rows = open_[-1].rows
    if mark == "(":
        inner = _Choice()
        rows[-1].append(_Item(inner))
        open_.append(inner)
    elif mark == ")":
        if len(open_) > 1:
            open_.pop()
    elif mark == "|":
        rows.append([])
    elif mark in "*?" and rows[-1]:
        rows[-1][-1].may = True


_WAYS: Final = ("anyOf", "oneOf")


def ref_without_end(root: object) -> bool:
    """Whether a `$ref` in the JSON schema `root` leads back to itself before anything is written."""
    parts = [one for one in _parts(root) if _kind(one) is not None]
    if not parts:
        return False
    known: dict[str, object] = {}
    waits: dict[int, list[int]] = {}  # by what: who
    missing = {id(one): 0 for one in parts}
    done: set[int] = set()
    ready: list[int] = []
    for one in parts:
        leads, every = _leads(one, root, known)
        missing[id(one)] = len(leads) if every else 1
        for to in leads:
            if id(to) in missing:
                waits.setdefault(id(to), []).append(id(one))
            else:
                missing[id(one)] -= 1
        if missing[id(one)] <= 0:
            ready.append(id(one))
    while ready:
        this = ready.pop()
        if this in done:
            continue
        done.add(this)
        for other in waits.get(this, ()):
            missing[other] -= 1
            if missing[other] <= 0:
                ready.append(other)
    return len(done) < len(missing)


def _kind(one: dict[str, Any]) -> str | None:
    """What of a schema decides where it leads to; None where it writes something itself."""
    if isinstance(one.get("$ref"), str):
        return "$ref"
    for name in (*_WAYS, "allOf"):
        if isinstance(given := one.get(name), list) and given:
            return name
    return None


def _leads(one: dict[str, Any], root: object, known: dict[str, object]) -> tuple[list[Any], bool]:
    """Where a schema leads to, and whether all of these have to come out."""
    kind = _kind(one)
    if kind == "$ref":
        ref = one["$ref"]
        if ref not in known:
            known[ref] = _at(root, ref)
        return [known[ref]], True
    return one[str(kind)], kind == "allOf"


def _at(root: object, ref: str) -> object:
    """What a reference within the schema names; None where that is nothing."""
    if not ref.startswith("#"):
        return None
    at = root
    for raw in filter(None, ref.removeprefix("#").split("/")):
        plain = unquote(raw).replace("~1", "/").replace("~0", "~")
        if isinstance(at, dict):
            at = at[raw] if raw in at else at.get(plain)
        elif isinstance(at, list) and raw.isascii() and raw.isdigit() and len(raw) < _DIGITS:
            at = at[int(raw)] if int(raw) < len(at) else None
        else:
            return None
    return at


def _parts(root: object) -> Iterable[dict[str, Any]]:
    """All objects in a schema, whatever they are there."""
    left = [root]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            yield one
            left.extend(one.values())
        elif isinstance(one, list):
            left.extend(one)


def patterns(root: object) -> list[str]:
    """The patterns of a JSON schema, those of names of fields as well."""
    found = []
    for one in _parts(root):
        if isinstance(text := one.get("pattern"), str):
            found.append(text)
        if isinstance(named := one.get("patternProperties"), dict):
            found.extend(named)
    return found


_SHORT: Final = frozenset(("integer", "number", "boolean", "null"))
"""Types of which a field costs next to nothing."""


def optional(root: object) -> Iterable[int]:
    """Of each object in a JSON schema, how many fields may be left out."""
    for one in _parts(root):
        if not isinstance(fields := one.get("properties"), dict):
            continue
        required = one.get("required")
        must = (
            {name for name in required if isinstance(name, str)}
            if isinstance(required, list)
            else set()
        )
        yield sum(name not in must and _is_long(field) for name, field in fields.items())


def _is_long(field: object) -> bool:
    if not isinstance(field, dict):
        return True
    kind = field.get("type")
    return not (isinstance(kind, str) and kind in _SHORT) and not {"enum", "const"} & field.keys()


def lengths(root: object) -> set[tuple[float | None, float | None]]:
    """The different bounds of texts in a JSON schema: (least, most)."""
    return {
        (one.get("minLength"), one.get("maxLength")) for one in _parts(root) if _is_bounded(one)
    }


def _is_bounded(one: dict[str, Any]) -> bool:
    bounds = (one.get("minLength"), one.get("maxLength"))
    return bounds != (None, None) and all(isinstance(each, int | float | None) for each in bounds)
