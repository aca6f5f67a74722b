"""The part of a policy for several gates in front of the same servers."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from gateway.policy.section import Section
from gateway.policy.types import EnvName, Name, bad, filled

_REMEDY = "write redis://HOST:PORT/0, rediss://HOST:PORT/0 or unix:///path/to/socket"


def _store_url(value: str) -> str:
    text = value.strip()
    filled(text)
    try:
        parts = urlsplit(text)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        raise bad("is not a URL", _REMEDY) from None
    if parts.scheme not in {"redis", "rediss", "unix"} or re.search(r"\s", text):
        raise bad("is not the URL of a Redis or Valkey server", _REMEDY)
    if parts.username is not None or parts.password is not None:
        raise bad(
            "holds credentials, and policy files are copied",
            "take them out and name the password in leases.password_env",
        )
    if parts.query or parts.fragment:
        raise bad("has a query or fragment", _REMEDY)
    if not (parts.path if parts.scheme == "unix" else parts.hostname and has_port):
        raise bad("is a URL without a host", _REMEDY)
    return text


StoreUrl = Annotated[str, AfterValidator(_store_url)]


class Leases(Section):
    """Several gates in front of the same servers share each server's budget by leases in a Redis or
    Valkey server (see docs/scale.md). Needs `pip install kvgate[redis]`. All of them name the same
    servers by the same names."""

    url: StoreUrl
    """The store: redis://HOST:PORT/0, rediss://… for TLS, or unix:///path. No default: without it
    there is nothing to share by."""

    password_env: EnvName | None = None
    """Environment variable with the store's password. Default none: one on a private network has
    none. Never the password itself: policy files are copied and committed."""

    ttl_s: float = Field(default=60.0, ge=10, le=3600)
    """How long a lease is, seconds; the same in every gate. So long, less 15 %, a gate that does not
    reach the store goes on as it was; so long the share of a gate that was killed is nobody's; and so
    long nothing new is started after the store was empty. Default 60: a store that is restarted or
    moved is back by then. At least 10, so that two or three renewals may be lost."""

    prefix: Name = "kvgate"
    """What the store's keys begin with. Default kvgate. Gates in front of other servers that use the
    same store need another."""
