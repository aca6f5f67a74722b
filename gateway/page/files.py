"""The files of the page, read once, and the headers that keep everything else out."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

from aiohttp import web

HEADERS = {
    # Only what this server sends; no inline script or style, no frame around it, no form.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

LANGUAGES = {"en": "en", "zh": "zh-Hans"}
"""What is offered, and how HTML names it. The first is the default."""

INDEX = "index.html"
_HTML_TAG = '<html lang="en">'
_NOT_MODIFIED = 304
_ACCEPT_BYTES = 1_000
"""Of a header that names languages; browsers send less than a hundred."""


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    kind: str
    etag: str

    @classmethod
    def of(cls, name: str, body: bytes) -> _File:
        kind = TYPES[name[name.rindex(".") :]]
        return cls(body, kind, f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"')


class Files:
    """GET / and GET /page/NAME. Only files of the package, by their names: no path is ever joined."""

    def __init__(self) -> None:
        found = {
            one.name: one.read_bytes()
            for one in resources.files(__package__).joinpath("static").iterdir()
            if one.is_file()
        }
        index = found.pop(INDEX).decode()
        self._pages = {
            short: _File.of(INDEX, index.replace(_HTML_TAG, f'<html lang="{name}">').encode())
            for short, name in LANGUAGES.items()
        }
        self._files = {name: _File.of(name, body) for name, body in found.items()}

    @property
    def names(self) -> frozenset[str]:
        """What lies beside the page."""
        return frozenset(self._files)

    async def index(self, request: web.Request) -> web.Response:
        """The page, in the language asked for: `?lang=`, else the browser's own."""
        asked = request.query.get("lang", "")
        accepted = request.headers.get("accept-language", "")
        short = asked if asked in LANGUAGES else language(accepted)
        headers = {"content-language": LANGUAGES[short], "vary": "accept-language"}
        return _answer(request, self._pages[short], headers)

    async def beside(self, request: web.Request) -> web.Response:
        """A script, style or picture of the page."""
        known = self._files.get(request.match_info["name"])
        if known is None:
            raise web.HTTPNotFound
        return _answer(request, known, {})


def language(accepted: str) -> str:
    """The offered language that an Accept-Language header (RFC 9110, 12.5.4) likes best."""
    best, weight = next(iter(LANGUAGES)), 0.0
    for part in accepted[:_ACCEPT_BYTES].split(","):
        tag, _, parameter = part.strip().partition(";")
        short = tag.strip().lower().split("-")[0]
        if short in LANGUAGES and (q := _weight(parameter)) > weight:
            best, weight = short, q
    return best


def _weight(parameter: str) -> float:
    name, _, value = parameter.strip().partition("=")
    if name != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0


def _answer(request: web.Request, known: _File, extra: dict[str, str]) -> web.Response:
    headers = {**HEADERS, **extra, "etag": known.etag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == known.etag:
        return web.Response(status=_NOT_MODIFIED, headers=headers)
    return web.Response(body=known.body, headers={**headers, "content-type": known.kind})
