"""A YAML text as plain data that remembers in which line each value stood.

Read with PyYAML's safe resolver, in two steps: compose the node tree, then walk it ourselves, since
the ready-made constructor forgets lines and lets the second of two equal keys win in silence.
Aliases and merge keys work; a value that contains itself does not, nor do aliases of aliases that come
to more than anybody writes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from gateway.policy.problems import ABSENT, Finding, Loc, holds_secret

MOST_VALUES = 100_000
"""What a text may hold, aliases written out. A policy has hundreds; nine lines of aliases make millions,
which take minutes and all memory to walk through."""


@dataclass(slots=True)
class Document:
    """`data` is the text's value; `lines` maps the path of each value to its 1-based line."""

    name: str
    data: Any = None
    lines: dict[Loc, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def where(self, loc: Loc) -> str:
        """`file:line` of a value, or of the nearest thing around it that has a line."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        return f"{self.name}:{self.lines[loc]}" if loc in self.lines else self.name


def read(text: str, name: str) -> Document:
    """Parse one YAML document. Mistakes are in `findings`; `data` is what could be read."""
    document = Document(name)
    loader = None
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is not None:
            document.data = _Walk(loader, document).value(node, ())
    except yaml.YAMLError as error:
        document.findings.append(_syntax(error, document))
    except RecursionError:
        wrong = "is not YAML that can be read: it is nested too deeply"
        document.findings.append(Finding((), ABSENT, wrong, "close brackets that are left open"))
    except _TooMuch:
        wrong = f"holds more than {MOST_VALUES:,} values, aliases written out"
        document.findings.append(Finding((), ABSENT, wrong, "use fewer aliases"))
    finally:
        if loader is not None:
            loader.dispose()
    return document


def _syntax(error: yaml.YAMLError, document: Document) -> Finding:
    # Only the mark's line and the parser's words: its snippet would quote the text.
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        document.lines[()] = mark.line + 1
    problem = getattr(error, "problem", None) or "it holds characters YAML does not allow"
    if holds_secret(problem):  # it names aliases and tags
        problem = "it does not parse"
    alias = getattr(error, "context", None) == "while scanning an alias"
    remedy = 'put a * into quotes: "*"' if alias else "mend the line (or the one above it)"
    return Finding((), ABSENT, f"is not YAML: {problem}", remedy)


_MEANT_OTHERWISE = re.compile(r"[-+]?(0[0-7_]+|[0-9_]+(:[0-9_.]+)+)")
"""A number to the base of 8 or 60."""
_MERGE = "tag:yaml.org,2002:merge"


class _TooMuch(Exception):
    """More than MOST_VALUES."""


class _Walk:
    """One pass over the node tree. Raises _TooMuch."""

    def __init__(self, loader: yaml.SafeLoader, document: Document) -> None:
        self._loader = loader
        self._document = document
        self._within: list[yaml.Node] = []
        self._seen = 0

    def value(self, node: yaml.Node, loc: Loc) -> Any:  # noqa: ANN401  # YAML holds anything
        self._seen += 1
        if self._seen > MOST_VALUES:
            raise _TooMuch
        self._document.lines.setdefault(loc, node.start_mark.line + 1)
        if any(node is outer for outer in self._within):
            self._find(loc, "contains itself", "write the value out instead of the alias")
            return None
        self._within.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, loc)
            if isinstance(node, yaml.SequenceNode):
                return [self.value(item, (*loc, i)) for i, item in enumerate(node.value)]
            return self._scalar(node, loc)
        finally:
            self._within.pop()

    def _mapping(self, node: yaml.MappingNode, loc: Loc) -> dict[str, Any]:
        first: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            line = key.start_mark.line + 1
            if key.value in first:
                wrong = f"was already said in line {first[key.value]}"
                self._find((*loc, key.value), wrong, "keep one of the two", line)
            first.setdefault(key.value, line)
        self._loader.flatten_mapping(node)
        result = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._find(loc, "has a key that is not a word", "write NAME: VALUE")
                continue
            self._document.lines[*loc, key.value] = key.start_mark.line + 1
            result[key.value] = self.value(value, (*loc, key.value))
        return result

    def _scalar(self, node: yaml.Node, loc: Loc) -> Any:  # noqa: ANN401  # YAML holds anything
        try:
            value = self._loader.construct_object(node)
        # A bad tag, an impossible date; a word that is tagged as a truth value or a time.
        except (yaml.YAMLError, ValueError, KeyError, AttributeError):
            self._find(loc, "is not a value YAML knows", "put it into quotes")
            return None
        if isinstance(value, int | float) and _MEANT_OTHERWISE.fullmatch(node.value):
            wrong = "is read to the base of 8 or 60, as it begins with 0 or has colons (YAML 1.1)"
            self._find(loc, wrong, "write the number in decimal, or put a text into quotes")
            return None
        return value

    def _find(self, loc: Loc, wrong: str, remedy: str, line: int | None = None) -> None:
        self._document.findings.append(Finding(loc, ABSENT, wrong, remedy, line))
