"""What a prompt points to: which strings make the engine open something, and which of them pass.

SGLang takes pictures, sounds and videos as texts, and decides by how a text begins what it does with it
(`load_image`, `load_audio`, `load_video` of 0.5.6, 0.5.12, 0.5.17 and 0.5.23, read side by side):

| the text | image | video | audio |
|---|---|---|---|
| `http://…`, `https://…`, in small letters | fetched, redirects followed | the same | the same |
| `data:…` | decoded | decoded | decoded |
| `file://…` | read (0.5.12 on) | read | read (0.5.12 on) |
| anything that begins with `/` | read (0.5.12 on); 0.5.6 looks at the end | read, if it is there | read |
| anything that ends in `.png`, `.jpg`, … | read (0.5.6; some models of others) | read, if it is there | read |
| another scheme (`rtmp://h/etc/passwd`, `HTTP://…`) | taken for base64 | given to the decoder, which fetches it, where the path is a file | taken for the name of a file |
| anything else | base64 | read if there is such a file, else base64 | read: never base64 |

So three kinds pass, each told by its first letters exactly as the engine tells them: addresses of http and
https, data URLs, and bare base64 that can be no name of a file, since it is longer than any (4,096 bytes) or
begins as pictures and videos do. The rest is refused, whatever the policy says, as it is the server's own
disk that is read. Which addresses pass is the policy's (`limits.media`): by default those of the open internet
(`policy.hosts`), as the engine fetches from where it stands.

Where such texts stand, in all of these versions: parts of a chat's messages (image_url, video_url, audio_url; as an object with
`url`, or as the text itself), of `input` and of a call's `output` in responses, of `query` and `documents` of
rerank; `image` and `video` of an embedding's items; `image_data`, `video_data` and `audio_data` of /generate,
single or in lists of lists (a video may be a list of frames), each a text or an object; a `source` with a `url`
in an image of Anthropic's, also within a tool's result. `input_audio` and a `source` of type base64 are made
data URLs by the engine. Documents, search results and tools' arguments are text to it, and may name any host.

Only the first few hundred characters of an address are looked at, and the first 4,096 of a bare text: a video
of 60 MB costs what a word costs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway.edge.dialects import Invalid
from gateway.policy import hosts
from gateway.policy.problems import dotted
from gateway.tokens import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gateway.edge.dialects import Body
    from gateway.policy.schema import Limits

FETCHED: Final = ("http://", "https://")
DATA: Final = "data:"

LONGEST_PATH: Final = 4_096
"""Bytes of the longest name of a file that Linux opens (PATH_MAX)."""

LONGEST_HOST: Final = 300
"""Characters in which host and port must end: a name has 253 at most."""

_BASE64: Final = re.compile(r"[A-Za-z0-9+/=]*")
_MAGIC: Final = (
    *("/9j/", "iVBOR", "R0lGO", "UklGR"),  # JPEG, PNG, GIF, WebP and AVI
    *("Qk0", "Qk1", "Qk2", "Qk3", "SUkq", "TU0AK"),  # BMP, TIFF
    *("AAAA", "GkXfo"),  # MP4, AVIF, HEIC; Matroska and WebM
)
"""How base64 of pictures and videos begins. Also what is short begins so, and no folder of a server does."""

_KEYS: Final = ("image_url", "video_url", "audio_url", "image", "video", "audio")
"""Of a part of a message."""
_ANY_KEY: Final = frozenset(_KEYS)

_INNER: Final = ("url", "image", "video", "audio", "data", "path")
"""Of an object that stands where a text may stand."""

_SOUND: Final = frozenset({"audio", "audio_url", "audio_data"})
_LISTS: Final = ("image_data", "video_data", "audio_data")
_END: Final = re.compile(r"[/?#]")


Where = tuple[str | int, ...]


class Pointer(NamedTuple):
    """One text that the engine opens. `where` is its place in the body: keys and numbers."""

    where: Where
    text: str
    sound: bool


def check(kind: Kind, body: Body, limits: Limits) -> None:
    """Raises Invalid for what the engine would open and should not."""
    finder = _FINDERS.get(kind)
    for pointer in finder(body) if finder is not None else ():
        if (wrong := fault(pointer.text, limits, sound=pointer.sound)) is not None:
            msg = f"{dotted(pointer.where)} {wrong}"
            raise Invalid(msg, str(pointer.where[0]))


def fault(text: str, limits: Limits, *, sound: bool = False) -> str | None:
    """What is wrong with a text that stands for a picture, a video or a sound; None where it passes."""
    if text.startswith(DATA) or not text:
        return None
    for scheme in FETCHED:
        if text.startswith(scheme):
            return _address(text[len(scheme) : len(scheme) + LONGEST_HOST], limits)
    if sound:
        return _BARE_SOUND
    return None if _is_base64(text) else _NO_ADDRESS


_NO_ADDRESS: Final = (
    "is no address of http or https, no data URL and no base64 of a picture or video; files of the server's own and "
    "other schemes are not opened through this gate. Send the thing itself, as data:image/png;base64,…"
)
_BARE_SOUND: Final = (
    "is no address of http or https and no data URL, so the server would take it for a file of its own. "
    "Send the sound itself, as data:audio/wav;base64,…"
)
_ODD: Final = (
    "is an address whose host is not written plainly. Write http:// or https://, a host of letters, digits, dots and "
    "hyphens (an international name as xn--…), perhaps :PORT, and no user; or send the thing itself as a data URL"
)
_ONLY_DATA: Final = (
    "is an address, and here the server fetches none. Send the thing itself, as data:image/png;base64,…; who runs "
    "this gate may list the host in limits.media_hosts"
)


def _address(rest: str, limits: Limits) -> str | None:
    if limits.media == "any":
        return None
    try:
        host, port = hosts.split(_END.split(rest, maxsplit=1)[0])
    except hosts.NoHost:
        return _ODD
    if hosts.listed_in(host, port, limits.media_hosts):
        return None
    if limits.media == "data":
        return _ONLY_DATA
    if (why := hosts.why_inside(host)) is None:
        return None
    return (
        f"is an address whose host {why}, and the server would fetch it from inside its network. Send the thing "
        "itself, as data:image/png;base64,…; who runs this gate may list the host in limits.media_hosts"
    )


def _is_base64(text: str) -> bool:
    if not _BASE64.fullmatch(text[:LONGEST_PATH]):
        return False
    # A colon may come late: four thousand letters before it would be a scheme, to Python's parser.
    return text.startswith(_MAGIC) or (len(text) > LONGEST_PATH and ":" not in text)


# ---- where they stand --------------------------------------------------------------------------


def _under(value: object, where: Where, *, sound: bool) -> Iterator[Pointer]:
    """Every text in what may be a text, an object, or lists of them, however deep."""
    stack: list[tuple[object, Where, bool]] = [(value, where, sound)]
    while stack:
        item, at, heard = stack.pop()
        if isinstance(item, str):
            yield Pointer(at, item, heard)
        elif isinstance(item, list):
            stack.extend((one, (*at, i), heard) for i, one in enumerate(item))
        elif isinstance(item, dict):
            stack.extend(
                (item[key], (*at, key), heard or key in _SOUND) for key in _INNER if key in item
            )


def _part(part: object, *where: str | int) -> Iterator[Pointer]:
    if isinstance(part, dict) and not _ANY_KEY.isdisjoint(part):
        for key in _KEYS:
            if (value := part.get(key)) is not None:
                yield from _under(value, (*where, key), sound=key in _SOUND)


def _parts(content: object, *where: str | int) -> Iterator[Pointer]:
    for i, part in _dicts(content):
        if not _ANY_KEY.isdisjoint(part):  # most are texts
            yield from _part(part, *where, i)


def _dicts(values: object) -> Iterator[tuple[int, dict[str, Any]]]:
    if isinstance(values, list):
        for i, one in enumerate(values):
            if isinstance(one, dict):
                yield i, one


def _listed(items: object, field: str) -> Iterator[tuple[int, list[Any]]]:
    """Those of `items` that have a list of parts, and most have a text."""
    for i, item in _dicts(items):
        content = item.get(field)
        if isinstance(content, list):
            yield i, content


def _chat(body: Body) -> Iterator[Pointer]:
    for i, content in _listed(body.get("messages"), "content"):
        yield from _parts(content, "messages", i, "content")


def _messages(body: Body) -> Iterator[Pointer]:
    for i, content in _listed(body.get("messages"), "content"):
        for j, block in _dicts(content):
            yield from _source(block, "messages", i, "content", j)
        for j, inner in _listed(content, "content"):
            if content[j].get("type") == "tool_result":
                for k, block in _dicts(inner):
                    yield from _source(block, "messages", i, "content", j, "content", k)


def _source(block: Mapping[str, Any], *where: str | int) -> Iterator[Pointer]:
    source = block.get("source") if block.get("type") == "image" else None
    if isinstance(source, dict) and source.get("type") != "base64":
        yield from _under(source.get("url"), (*where, "source", "url"), sound=False)


def _responses(body: Body) -> Iterator[Pointer]:
    for i, item in _dicts(body.get("input")):
        yield from _part(item, "input", i)
        for field in ("content", "output"):
            if not isinstance(inner := item.get(field), str):
                yield from _parts(inner, "input", i, field)
                yield from _part(inner, "input", i, field)


def _generate(body: Body) -> Iterator[Pointer]:
    for field in _LISTS:
        yield from _under(body.get(field), (field,), sound=field in _SOUND)


def _input(body: Body) -> Iterator[Pointer]:
    yield from _parts(body.get("input"), "input")


def _rerank(body: Body) -> Iterator[Pointer]:
    yield from _parts(body.get("query"), "query")
    documents = body.get("documents")
    for i, document in enumerate(documents if isinstance(documents, list) else ()):
        if not isinstance(document, str):
            yield from _parts(document, "documents", i)


_FINDERS: Final[Mapping[Kind, Callable[[Body], Iterator[Pointer]]]] = {
    Kind.CHAT: _chat,
    Kind.MESSAGES: _messages,
    Kind.RESPONSES: _responses,
    Kind.GENERATE: _generate,
    Kind.INPUT: _input,
    Kind.RERANK: _rerank,
}
