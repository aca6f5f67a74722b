"""From the policy that holds to one that was just read: what changes, and what can not while we run.

What is bound to a socket, an open file or a server's own connection stays as it is until the gate is
started again, and is named; everything else holds at once. The outcome is checked as a whole: a
new client list beside an old listening address may be one that no file would have passed.
Pure: no file, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from gateway.policy import checks
from gateway.policy.problems import Finding, PolicyError, Problem, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gateway.policy.schema import Backend, Policy

FIXED = {
    "listen": "the socket is open",
    "control": "the socket is open",
    "admission": "requests that went through uncounted would run beside a full pool",
    "state": "the file is being kept",
    "leases": "what is granted now was granted by them",
    "workers": "the processes are running",
}
"""Fields of the policy that hold until the gate is started again, each with its reason."""

FIXED_OBSERVE = frozenset(
    {
        "records",
        "records_max_bytes",
        "records_keep",
        "crash_reports",
        "recent",
        "collect",
        "collect_every_s",
        "collect_max_bytes",
        "otlp",
    }
)
"""Files that are open, rings that are full, a collector that is sent to."""

FIXED_LIMITS = frozenset({"connect_s", "stall_s"})
"""Each server's connections and its watch were made with them."""

FIXED_BACKEND = frozenset({"url", "api_key_env", "api_key_file", "tokenizer", "tokenizer_engine"})
"""What a server's connections, its watch and its counter were made with. A server that is to be
asked differently without a restart is taken out, and added anew once it is gone."""


@dataclass(frozen=True, slots=True)
class Change:
    """`policy` is what holds from now on. The rest are dotted paths, for people."""

    policy: Policy
    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]


def change(
    now: Policy, wanted: Policy, where: str, leaving: Mapping[str, str] | None = None
) -> Change:
    """What becomes of `now` when `wanted` is read from `where`.

    `leaving` are servers (name → URL) that were taken out earlier and are not gone yet. Raises
    PolicyError where the two cannot be brought together; `passing` where they can once those are gone.
    """
    found = list(_clashes(now, wanted))
    early = list(_too_early(now, wanted, leaving or {}))
    policy = _effective(now, wanted)
    found += checks.between(
        dict(enumerate(policy.backends)),
        dict(enumerate(policy.clients)),
        policy.listen,
        policy.control,
    )
    found += checks.open_door(
        policy.listen, keyed=checks.keyed(policy.clients), allowed=policy.allow_open
    )
    if found or early:
        told = [
            Problem(where, f.path, shown(f.loc, f.value), f.wrong, f.remedy) for f in found + early
        ]
        raise PolicyError(told, passing=not found)
    return Change(policy, _differences(now, policy), _differences(policy, wanted))


def _effective(now: Policy, wanted: Policy) -> Policy:
    known = {backend.name: backend for backend in now.backends}
    return wanted.model_copy(
        update={
            **{name: getattr(now, name) for name in FIXED},
            # What a connection is shown may change; whether the socket speaks TLS at all may not.
            "tls": wanted.tls if now.tls and wanted.tls else now.tls,
            "observe": _keep(now.observe, wanted.observe, FIXED_OBSERVE),
            "limits": _keep(now.limits, wanted.limits, FIXED_LIMITS),
            "backends": tuple(
                _keep(known[one.name], one, FIXED_BACKEND) if one.name in known else one
                for one in wanted.backends
            ),
        }
    )


def _keep(now: Any, wanted: Any, fields: frozenset[str]) -> Any:  # noqa: ANN401  # sections alike
    return wanted.model_copy(update={name: getattr(now, name) for name in fields})


def _clashes(now: Policy, wanted: Policy) -> Iterator[Finding]:
    """Servers that go by another name."""
    names = {backend.url: backend.name for backend in now.backends}
    known = set(names.values())
    for i, backend in enumerate(wanted.backends):
        if backend.name not in known and backend.url in names:
            yield _clash(
                i,
                backend,
                f"is another name for the server that is called {names[backend.url]} since the start",
                f"call it {names[backend.url]}, or start the gate anew",
            )


def _too_early(now: Policy, wanted: Policy, leaving: Mapping[str, str]) -> Iterator[Finding]:
    """Servers that come back before they are gone."""
    known = {backend.name for backend in now.backends} | {backend.url for backend in now.backends}
    urls = {url: name for name, url in leaving.items()}
    for i, backend in enumerate(wanted.backends):
        if backend.name in known or backend.url in known:
            continue
        if backend.name in leaving or backend.url in urls:
            name = urls.get(backend.url, backend.name)
            yield _clash(
                i,
                backend,
                f"comes back before it is gone: requests may still run on {name}, which was taken out",
                "nothing to do: it is tried again until /status lists it no more, seconds where "
                "nothing runs there",
            )


def _clash(i: int, backend: Backend, wrong: str, remedy: str) -> Finding:
    return Finding(("backends", i, "name"), backend.name, wrong, remedy)


# ---- telling the difference ------------------------------------------------------------------

_NAMED = frozenset({"backends", "clients"})
"""Lists whose entries are known by their names, wherever they stand."""


def _differences(before: Policy, after: Policy) -> tuple[str, ...]:
    """Paths of what is not the same. Only paths: a value may be one nobody should read."""
    old, new = dict(_leaves(before)), dict(_leaves(after))
    paths: dict[str, None] = {}
    for path in [*new, *(gone for gone in old if gone not in new)]:
        if path in old and path in new:
            if old[path] != new[path]:
                paths[path] = None
            continue
        # A section that one of the two leaves out, or an entry that came or went.
        outer = [at for at in (*old, *new) if path != at and path.startswith(f"{at}.")]
        inner = any(at.startswith(f"{path}.") for at in (*old, *new))
        came_or_went = f"{_entry(path)} ({'added' if path in new else 'removed'})"
        paths[outer[0] if outer else path if inner else came_or_went] = None
    return tuple(paths)


def _entry(path: str) -> str:
    section, _, rest = path.partition("[")
    return f"{section}[{rest.partition(']')[0]}]" if rest else section


def _leaves(section: BaseModel, at: str = "") -> Iterator[tuple[str, object]]:
    for name in type(section).model_fields:
        value, path = getattr(section, name), f"{at}.{name}" if at else name
        if isinstance(value, BaseModel):
            yield from _leaves(value, path)
        elif path in _NAMED:
            for one in value:
                yield from _leaves(one, f"{path}[{one.name}]")
        else:
            yield path, value
