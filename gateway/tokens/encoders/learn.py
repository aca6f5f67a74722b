"""Learns the sentences of a model from prompts that its server wrote.

The server is asked for the token ids of small chats of ours, each of which needs one sentence. The
encoder writes the same chat with a hole where it has to be: what is fixed before, between and
behind the holes must be there to the letter, once, and then what fills a hole is the sentence.
Nothing is taken on trust: with what was learned the encoder must write a second chat of the same
kind, with other tools, schema or text, as the server did, else it is forgotten. So a server that
writes chats in another way teaches nothing, and those chats are counted by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, Final

from gateway.tokens.encoders import Spec, Written, encode
from gateway.tokens.encoders.words import Token, Words
from gateway.tokens.profile import NotPrepared
from gateway.tokens.spelling import Unspelled

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gateway.tokens.profile import Profile
    from gateway.tokens.spelling import Spelling

    Chat = Mapping[str, Any]

MOST_IDS: Final = 8 << 10
"""Tokens of an answer that is read: ours are asked with some hundred characters and need some
hundred tokens more."""
MOST_BYTES: Final = 64 << 10
"""UTF-8 bytes of all sentences together: DeepSeek's are under 4,000."""

_SYSTEM: Final = {"role": "system", "content": "Be brief."}
_USER: Final = {"role": "user", "content": "Weather in Zürich, as json?"}
_OFF: Final = {"chat_template_kwargs": {"thinking": False}}
_ON: Final = {"chat_template_kwargs": {"thinking": True}}
_CITY: Final = {"type": "object", "properties": {"city": {"type": "string"}}}
_HOUR: Final = {"type": "object", "properties": {"hour": {"type": "integer"}, "z": {}}}


def _tool(name: str, parameters: Chat) -> dict[str, Any]:
    function = {"name": name, "description": f"Looks <up> {name}.", "parameters": parameters}
    return {"type": "function", "function": function}


def _answer(schema: Chat) -> dict[str, Any]:
    named = {"name": "answer", "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": named}, **_OFF}


@dataclass(frozen=True, slots=True)
class Probe:
    """Two chats that need the same sentence: one to learn it from, one to try it on."""

    kind: str  # in words, after "chats"
    chats: tuple[Chat, Chat]


def _twice(kind: str, first: Chat, second: Chat | None = None) -> Probe:
    """One with a system message, one without and with another question."""
    other = {"role": "user", "content": "And tomorrow, as json?"}
    chats = (
        {"messages": [_SYSTEM, _USER], **first},
        {"messages": [other], **(first if second is None else second)},
    )
    return Probe(kind, chats)


_ANY_JSON: Final = {"response_format": {"type": "json_object"}, **_OFF}
PROBES: Final = (
    Probe(
        "without a system message",
        ({"messages": [_USER], **_OFF}, {"messages": [_USER, _SYSTEM, _USER], **_OFF}),
    ),
    _twice(
        "with tools",
        {"tools": [_tool("weather", _CITY)], **_OFF},
        {"tools": [_tool("time", _HOUR), _tool("weather", _CITY)], **_OFF},
    ),
    Probe(
        "with developers",
        (
            {"messages": [_SYSTEM, {"role": "developer", "content": "Be kind."}], **_OFF},
            {"messages": [_USER, {"role": "developer", "content": "Be precise."}], **_OFF},
        ),
    ),
    _twice("with schemas to answer in", _answer(_CITY), _answer(_HOUR)),
    _twice("that ask for JSON", _ANY_JSON),
    *(
        _twice(f"that think with {effort} effort", {"reasoning_effort": effort, **_ON})
        for effort in ("low", "high", "max")
    ),
)
"""In this order: what the first teaches may be part of all that follow. Some engines refuse to answer
in JSON where no message speaks of it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The ids that the server made of a chat."""

    chat: Chat
    ids: Sequence[int]


class Hole(str):
    """Where a sentence is to be; its text is its name."""

    __slots__ = ()


class _Open(Words):
    """Holes for what is not known."""

    def say(self, name: str) -> tuple[str, ...]:
        return self.known[name] if name in self.known else (Hole(name),)


def holes(spec: Spec, chat: Chat, profile: Profile) -> frozenset[str]:
    """The names of the sentences in `chat`; none where it is not written at all."""
    try:
        written = encode(spec, chat, profile, _Open())
    except NotPrepared:
        return frozenset()
    return frozenset(part for part in written.parts if isinstance(part, Hole))


def asked(spec: Spec, profiles: Iterable[Profile]) -> list[Chat]:
    """The chats to ask the server about: those that need a sentence in any of `profiles`."""
    known = list(profiles)
    return [
        chat
        for probe in PROBES
        if any(holes(spec, probe.chats[0], profile) for profile in known)
        for chat in probe.chats
    ]


def lacking(spec: Spec, profile: Profile, words: Words) -> list[str]:
    """The kinds of chats that cannot be written with `words`."""
    return [
        probe.kind
        for probe in PROBES
        if not holes(spec, probe.chats[0], profile) <= words.known.keys()
    ]


def learn(
    spec: Spec, profile: Profile, answers: Sequence[Answer], spelling: Spelling, prefix: int
) -> Words:
    """What `answers` teach of a server that writes as `profile`; `prefix` tokens precede a text."""
    told = {id(each): _told(spec, profile, each, spelling, prefix) for each in answers}
    firsts = [probe.chats[0] for probe in PROBES]
    known: dict[str, tuple[str, ...]] = {}
    for each in answers:
        atoms = told[id(each)]
        if each.chat in firsts and atoms is not None:
            written = encode(spec, each.chat, profile, _Open(known))
            known.update(fill(_atoms(written.parts, written), atoms) or {})
    confirmed: set[str] = set()
    wrong: set[str] = set()
    for each in answers:
        names = holes(spec, each.chat, profile)
        if not names or not names <= known.keys():
            continue
        written = encode(spec, each.chat, profile, Words(known))
        if _atoms(written.parts, written) != told[id(each)]:
            wrong |= names
        elif each.chat not in firsts:
            confirmed |= names
    kept = {name: parts for name, parts in known.items() if name in confirmed - wrong}
    size = sum(len(part.encode()) for parts in kept.values() for part in parts)
    return Words(kept if size <= MOST_BYTES else {})


def _told(
    spec: Spec, profile: Profile, answer: Answer, spelling: Spelling, prefix: int
) -> list[str] | None:
    """The prompt that the server wrote, in atoms; None where that cannot be said."""
    try:
        written = encode(spec, answer.chat, profile, _Open())
        ids = answer.ids[prefix if written.framed else 0 :]
        parts = [Token(text) if is_added else text for text, is_added in spelling.parts(ids)]
    except (NotPrepared, Unspelled):
        return None
    return _atoms(parts, written)


def _atoms(parts: Iterable[str], written: Written) -> list[str]:
    """Characters, holes and, where the encoder marks them, special tokens."""
    found: list[str] = []
    for part in parts:
        whole = isinstance(part, Hole) or (written.marked and isinstance(part, Token))
        found += [part] if whole else part
    return found


def fill(pattern: list[str], atoms: list[str]) -> dict[str, tuple[str, ...]] | None:
    """What is in `atoms` where `pattern` has holes; None unless the rest is there just once."""
    at = [index for index, atom in enumerate(pattern) if isinstance(atom, Hole)]
    if not at:
        return None
    head, tail = pattern[: at[0]], pattern[at[-1] + 1 :]
    end = len(atoms) - len(tail)
    if end < len(head) or atoms[: len(head)] != head or atoms[end:] != tail:
        return None
    found: dict[str, tuple[str, ...]] = {}
    start = len(head)
    for hole, following in pairwise(at):
        between = pattern[hole + 1 : following]
        places = [
            place
            for place in range(start, end - len(between) + 1)
            if atoms[place : place + len(between)] == between
        ]
        if len(places) != 1:
            return None
        found[pattern[hole]] = _parts(atoms[start : places[0]])
        start = places[0] + len(between)
    found[pattern[at[-1]]] = _parts(atoms[start:end])
    return found


def _parts(atoms: list[str]) -> tuple[str, ...]:
    """Special tokens, and the texts between them in one piece."""
    found: list[str] = []
    for is_token, run in groupby(atoms, lambda atom: isinstance(atom, Token)):
        several = list(run)
        found += several if is_token else ["".join(several)]
    return tuple(found)
