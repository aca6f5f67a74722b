"""What must hold between the values of a policy. Pure: no file, no environment.

The functions take lists with gaps (index → item), and items of which some fields are broken (see
`salvage`), so that one mistake in a backend does not hide what else is wrong with it or between the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.policy.problems import Finding
from gateway.policy.salvage import is_read
from gateway.policy.types import host_port, is_here, is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from gateway.policy.bounds import Limits
    from gateway.policy.problems import Loc
    from gateway.policy.routing import RouteRule
    from gateway.policy.schema import Backend, Client

ANYONE = "anyone"
CROSS_ERROR = "kvgate_between"
"""Error type of the findings of this module where pydantic reports them."""


def between(
    backends: Mapping[int, Backend], clients: Mapping[int, Client], listen: str, control: str
) -> list[Finding]:
    """Every contradiction between values that are well formed by themselves."""
    same_url = _twice("backends", "url", ((i, b.url) for i, b in backends.items()), _at)
    repeated = {f.loc[1] for f in same_url}  # names that are made from the URL are equal as well
    found = [
        *same_url,
        *_twice(
            "backends",
            "name",
            (
                (i, b.name)
                for i, b in backends.items()
                if i not in repeated or "name" in b.model_fields_set
            ),
        ),
        *_twice("clients", "name", ((i, c.name) for i, c in clients.items())),
        *_twice(
            "clients",
            "header",
            (
                (i, (h.name, h.value))
                for i, c in clients.items()
                for h in c.header
                if is_read(h.name, h.value)
            ),
        ),
        *_twice("clients", "address", ((i, n) for i, c in clients.items() for n in c.address)),
    ]
    for i, backend in backends.items():
        found += _backend(("backends", i), backend)
        if not is_read(backend.url):
            continue
        server = urlsplit(backend.url)
        if any(is_here(one, server.hostname or "", server.port or 0) for one in (listen, control)):
            found.append(
                Finding(
                    ("backends", i, "url"),
                    backend.url,
                    "is this gate's own address",
                    "write the address of the SGLang server, or let the gate listen on another port",
                )
            )
    for i, client in clients.items():
        found += _client(("clients", i), client)
    if is_here(listen, *host_port(control)):
        found.append(
            Finding(
                ("control",),
                control,
                "is the data plane's address too",
                "give the control plane a port of its own, where it answers however busy the other is",
            )
        )
    return found


def _twice(
    section: str,
    field: str,
    values: Iterable[tuple[int, object]],
    meant: Callable[[object], object] = lambda value: value,
) -> list[Finding]:
    """Values of which an earlier one says the same; `meant` is what tells two of them apart."""
    first: dict[object, int] = {}
    found = []
    for i, value in values:
        if not is_read(value):
            continue
        same = meant(value)
        if same in first:
            found.append(
                Finding(
                    (section, i, field),
                    value,
                    f"is already used by {section}[{first[same]}]",
                    "make them different or remove one",
                )
            )
        first.setdefault(same, i)
    return found


def _at(url: object) -> object:
    """The server behind a URL: its memory would be promised twice under two names."""
    return str(url).replace("//localhost:", "//127.0.0.1:", 1)


def _backend(loc: Loc, backend: Backend) -> list[Finding]:
    found = []
    if backend.api_key_env and backend.api_key_file:
        found.append(
            Finding(
                (*loc, "api_key_file"),
                str(backend.api_key_file),
                "stands beside api_key_env",
                "keep one of the two",
            )
        )
    default, largest = backend.default_output_tokens, backend.max_output_tokens
    if not is_read(default, largest):
        return found
    if default != "auto" and largest != "auto" and default > largest:
        found.append(
            Finding(
                (*loc, "default_output_tokens"),
                default,
                f"is above max_output_tokens ({largest})",
                "lower it or raise max_output_tokens",
            )
        )
    return found


TRIMMED = frozenset({"/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"})
"""Routes whose bodies are turns that can be told apart."""

WAYS = ("key_env", "key_file", "key_sha256", "header", "address")
"""Fields by which a client is known."""


def _client(loc: Loc, client: Client) -> list[Finding]:
    found = []
    ways = [way for way in WAYS if getattr(client, way)]
    if client.name == ANYONE and ways:
        found.append(
            Finding(
                (*loc, ways[0]),
                _way_value(client, ways[0]),
                f"cannot belong to {ANYONE}, who is everybody not known otherwise",
                "remove it, or give this client another name",
            )
        )
    if is_read(client.name) and client.name != ANYONE and not ways:
        found.append(
            Finding(
                (*loc, "name"),
                client.name,
                "names a client that nothing would recognise",
                f"add {', '.join(WAYS[:-1])} or {WAYS[-1]}; only {ANYONE} goes without",
            )
        )
    found += _overflow(loc, client)
    default, largest = client.default_output_tokens, client.max_output_tokens
    if not is_read(default, largest):
        return found
    if default is not None and largest is not None and default > largest:
        found.append(
            Finding(
                (*loc, "default_output_tokens"),
                default,
                f"is above max_output_tokens ({largest})",
                "lower it or raise max_output_tokens",
            )
        )
    return found


def _overflow(loc: Loc, client: Client) -> list[Finding]:
    """Trimming for a client that calls nothing which is trimmed."""
    if client.overflow != "trim" or not is_read(client.routes):
        return []
    if not client.routes or not TRIMMED.isdisjoint(client.routes):
        return []
    wrong = "has nothing to trim: this client may call no route with turns"
    remedy = f"add {' or '.join(sorted(TRIMMED))} to its routes, or leave it out"
    return [Finding((*loc, "overflow"), client.overflow, wrong, remedy)]


def _way_value(client: Client, way: str) -> object:
    value = getattr(client, way)
    return {} if way == "header" else list(value) if isinstance(value, tuple) else str(value)


def keyed(clients: Iterable[Client]) -> bool:
    """Whether at least one client has a key."""
    return any(client.key_env or client.key_file or client.key_sha256 for client in clients)


def all_keyed(clients: Sequence[Client]) -> bool:
    """Whether nobody is let in by anything but a key: an address is the same for all pages on a machine, and a
    page may send any header to the origin that it is of."""
    return bool(clients) and all(keyed((client,)) for client in clients)


def media(limits: Limits | None) -> list[Finding]:
    """Hosts named where none need be."""
    if (
        limits is None
        or not is_read(limits.media)
        or limits.media != "any"
        or not limits.media_hosts
    ):
        return []
    wrong = "stand beside `media: any`, which passes every host"
    remedy = "write `media: data` to pass these alone, `public` to pass them as well, or leave the list out"
    return [Finding(("limits", "media_hosts"), str(limits.media_hosts), wrong, remedy)]


def aliases(models: Mapping[str, Sequence[str]]) -> list[Finding]:
    """Aliases of aliases, since one step is all there is, and models that stand in a list twice."""
    found = []
    for alias, targets in models.items():
        for target in dict.fromkeys(targets):
            if target in models:
                named = ", ".join(models[target]) or "not an alias"
                remedy = f"write the name the server has: {named}"
                found.append(Finding(("models", alias), target, "is an alias itself", remedy))
            if targets.count(target) > 1:
                wrong = "stands there twice, and is tried once"
                found.append(Finding(("models", alias), target, wrong, "remove one of the two"))
    return found


def routes(
    rules: Mapping[int, RouteRule],
    servers: Collection[str] | None,
    callers: Collection[str] | None,
) -> list[Finding]:
    """Names that nobody has (None: who there is cannot be read), and rules that nothing reaches."""
    found = []
    takes_all: int | None = None
    for i, rule in rules.items():
        found += [
            _nobody(("routes", i, "to"), name, "server", servers)
            for name in rule.to
            if servers is not None and name not in servers
        ]
        found += [
            _nobody(("routes", i, "when", "client"), name, "client", callers)
            for name in (rule.when.client if is_read(rule.when) else ())
            if callers is not None and name not in callers
        ]
        if not is_read(rule.when):
            continue
        if takes_all is not None:
            wrong = f"is never reached: routes[{takes_all}] takes every request"
            found.append(Finding(("routes", i), {}, wrong, "move it up, or remove one of the two"))
        elif not rule.when.model_fields_set:
            takes_all = i
    return found


def _nobody(loc: Loc, name: str, what: str, known: Collection[str]) -> Finding:
    names = ", ".join(sorted(known)) or "none"
    return Finding(loc, name, f"is not the name of a {what}", f"{what}s here: {names}")


def open_door(listen: str, *, keyed: bool, allowed: bool) -> list[Finding]:
    """A data plane open to the network without a single key, unless the operator said so."""
    if keyed or allowed or is_loopback(listen):
        return []
    return [
        Finding(
            ("listen",),
            listen,
            "is reachable from the network and no client has a key",
            "give clients keys (key_env, key_file or key_sha256), listen on 127.0.0.1, or set allow_open: true",
        )
    ]
