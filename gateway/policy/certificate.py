"""Certificate and key of the data plane, read, checked, and swapped under a listener that is open."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from gateway.policy.problems import Finding, PolicyError, Problem
from gateway.policy.salvage import is_read

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.policy.schema import Tls


def problems(tls: Tls | None) -> list[Finding]:
    """What is wrong with the files, found by loading them."""
    return [] if tls is None else _context(tls)[1]


def context(tls: Tls) -> ssl.SSLContext:
    """A server's context for TLS 1.2 and later. Raises PolicyError."""
    made, found = _context(tls)
    if made is None:
        raise PolicyError([Problem("policy", f.path, "", f.wrong, f.remedy) for f in found])
    return made


def _context(tls: Tls) -> tuple[ssl.SSLContext | None, list[Finding]]:
    found = [
        _finding(name, path, f"cannot be read: {reason}", "check path and permissions")
        for name, path in (("cert", tls.cert), ("key", tls.key))
        if is_read(path) and (reason := _unreadable(path)) is not None
    ]
    if found or not is_read(tls.cert, tls.key):
        return None, found
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_alpn_protocols(["http/1.1"])
    try:
        made.load_cert_chain(tls.cert, tls.key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        wrong = _words(error)
        return None, [_finding("cert", tls.cert, wrong, "give a PEM certificate and its own key")]
    return made, []


def _no_password() -> str:
    msg = "locked"
    raise ValueError(msg)


def _words(error: ssl.SSLError | ValueError) -> str:
    if not isinstance(error, ssl.SSLError):
        return "cannot be used: the key is locked with a password"
    if error.reason == "KEY_VALUES_MISMATCH":
        return "does not belong to the key"
    return "cannot be used: certificate or key is not PEM, or damaged"


def _unreadable(path: Path) -> str | None:
    try:
        path.read_bytes()
    except OSError as error:
        return (error.strerror or type(error).__name__).lower()
    return None


def _finding(name: str, path: Path, wrong: str, remedy: str) -> Finding:
    return Finding(("tls", name), str(path), wrong, remedy)


class Presented:
    """The context a listener is opened with. `use` changes what new connections are shown.

    Loading another pair into a context that is in use could fail half-way, with the new certificate
    beside the old key; so each connection is handed a context that was loaded whole, at the moment
    of its hello.
    """

    def __init__(self, first: ssl.SSLContext) -> None:
        self.listening = first
        self._current = first
        first.sni_callback = self._hello

    def use(self, context: ssl.SSLContext) -> None:
        """From the next connection on."""
        self._current = context

    def _hello(self, socket: ssl.SSLSocket | ssl.SSLObject, *_: object) -> None:
        socket.context = self._current
