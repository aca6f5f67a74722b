"""From files, options and environment to one checked `Policy`, or to every mistake at once.

Theory of operation: all sources are merged into one plain mapping first (option over environment
over file over default), remembering where each value came from; then the whole is validated, and
whatever is well formed is checked against its neighbours and the outside (key variables, files)
even if other parts are broken. One run shows all there is to mend.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from gateway.policy import certificate, checks, clients, document
from gateway.policy.explain import explain
from gateway.policy.leases import Leases
from gateway.policy.origins import BESIDE_OTHERS, EVERY
from gateway.policy.problems import ABSENT, Finding, Loc, PolicyError, Problem, shown
from gateway.policy.routing import RouteRule
from gateway.policy.salvage import is_read, salvaged
from gateway.policy.schema import Backend, Client, Limits, Policy, Tls
from gateway.policy.section import Section
from gateway.policy.types import Address, ModelName, ServerUrl, listed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

S = TypeVar("S", bound=Section)

_COMMAND_LINE = "command line"
_ANY_LOOPBACK_PORT = "127.0.0.1:0"


def load_policy(
    path: Path | str | None = None,
    *,
    backends: Sequence[str] = (),
    listen: str | None = None,
    control: str | None = None,
    tokenizer: Path | str | None = None,
    workers: int | None = None,
    text: bytes | None = None,
    env: Mapping[str, str] = os.environ,
) -> Policy:
    """The policy of one start of the gate.

    `path` is the policy file (else KVGATE_POLICY, else none); `backends` are the URLs of
    `--backend`. They replace the file's list, but a URL that the file lists too keeps the settings
    it has there. `listen` and `control` win over KVGATE_LISTEN and KVGATE_CONTROL, those over the
    file; KVGATE_LOG sets the log level. `tokenizer` serves every backend, `workers` wins over the
    file. `text` stands in for what the file `path` holds, where it came another way. Options are
    relative to the working directory, paths in the file to the file.

    Raises PolicyError with every mistake; its text is ready to be printed before exit code 2.
    """
    chosen = path or env.get("KVGATE_POLICY") or None
    sources = _Sources(None if chosen is None else Path(chosen))
    sources.read(text)
    sources.servers(backends)
    sources.put(("listen",), env.get("KVGATE_LISTEN"), "KVGATE_LISTEN")
    sources.put(("control",), env.get("KVGATE_CONTROL"), "KVGATE_CONTROL")
    sources.put(("observe", "log_level"), env.get("KVGATE_LOG", "").lower(), "KVGATE_LOG")
    sources.put(("listen",), listen, "--listen")
    sources.put(("control",), control, "--control")
    sources.put(("workers",), workers, "--workers")
    if tokenizer is not None:
        sources.tokenizer(str(Path(tokenizer).absolute()))
    policy, found = _validate(sources, env)
    if policy is None or found:
        raise PolicyError([sources.problem(f) for f in sorted(found, key=sources.line)])
    return policy


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a policy file, for editors and `kvgate schema`."""
    schema: dict[str, Any] = _one_paragraph(Policy.model_json_schema())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _one_paragraph(node: Any) -> Any:  # noqa: ANN401  # JSON
    """The schema without the line breaks that descriptions have in our source."""
    if isinstance(node, dict):
        return {key: _one_paragraph(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_one_paragraph(item) for item in node]
    return " ".join(node.split()) if isinstance(node, str) else node


@dataclass(slots=True)
class _Sources:
    """The merged mapping, and where each part of it was said."""

    path: Path | None
    data: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    origin: dict[Loc, str] = field(default_factory=dict)  # of what did not come from the file
    document: document.Document = field(default_factory=lambda: document.Document(_COMMAND_LINE))

    @property
    def context(self) -> dict[str, Path]:
        return {} if self.path is None else {"base": self.path.absolute().parent}

    def read(self, given: bytes | None = None) -> None:
        """Take the policy file, or what is given for it, as the base of the mapping."""
        if self.path is None:
            return
        self.document = document.Document(str(self.path))
        try:
            text = (self.path.read_bytes() if given is None else given).decode()
        except (OSError, UnicodeDecodeError) as error:
            reason, remedy = "not utf-8 text", "save it as UTF-8"
            if isinstance(error, OSError):
                reason = (error.strerror or "").lower()
                remedy = "check the path of the policy file"
            self._find(f"cannot be read: {reason}", remedy)
            return
        self.document = document.read(text, str(self.path))
        self.findings += self.document.findings
        data = self.document.data
        if isinstance(data, dict):
            self.data = dict(data)
        elif data is not None:
            self._find("is not a mapping", "start with lines such as backends: or listen:")

    def _find(self, wrong: str, remedy: str) -> None:
        self.findings.append(Finding((), ABSENT, wrong, remedy))

    def put(self, loc: Loc, value: str | int | None, source: str) -> None:
        """Overlay one value; an empty environment variable counts as unset."""
        if value is None or value == "":
            return
        target = self.data
        for part in loc[:-1]:
            inner = target.get(str(part))
            if inner is not None and not isinstance(inner, dict):
                return  # a broken section is reported as such
            target[str(part)] = target = dict(inner or {})
        target[str(loc[-1])] = value
        self.origin[loc] = source

    def servers(self, urls: Sequence[str]) -> None:
        """Overlay the URLs of --backend, each with what the file says about it."""
        if not urls:
            unread = any(not finding.loc for finding in self.findings)
            if self.data.get("backends") in (None, [], "") and not unread:
                self.findings.append(
                    Finding(
                        ("backends",),
                        ABSENT,
                        "is empty: there is no server to stand in front of",
                        "list one there, or give --backend http://HOST:PORT",
                    )
                )
            return
        written = self.data.get("backends")
        known = {}
        for raw in written if isinstance(written, list) else []:
            if isinstance(raw, dict) and (url := _lenient(ServerUrl, raw.get("url"))) is not None:
                known[url] = raw
        self.data["backends"] = [
            {**known.get(_lenient(ServerUrl, url), {}), "url": url} for url in urls
        ]
        for i in range(len(urls)):
            self.origin["backends", i] = "--backend"

    def tokenizer(self, directory: str) -> None:
        """Overlay --tokenizer on every backend."""
        listed = self.data.get("backends")
        if not isinstance(listed, list):
            return
        self.data["backends"] = [
            {**raw, "tokenizer": directory} if isinstance(raw, dict) else raw for raw in listed
        ]
        for i in range(len(listed)):
            self.origin["backends", i, "tokenizer"] = "--tokenizer"

    def line(self, finding: Finding) -> int:
        """Sort key: the file from top to bottom; what has no line first."""
        place = self._where(finding).rpartition(":")[2]
        return int(place) if place.isdigit() else 0

    def problem(self, finding: Finding) -> Problem:
        """A finding with the place people know it by."""
        return Problem(
            self._where(finding),
            finding.path,
            shown(finding.loc, finding.value),
            finding.wrong,
            finding.remedy,
        )

    def _where(self, finding: Finding) -> str:
        if finding.line is not None:
            return f"{self.document.name}:{finding.line}"
        loc = finding.loc
        while loc:
            if loc in self.origin:
                return self.origin[loc]
            loc = loc[:-1]
        return self.document.where(finding.loc)


def _validate(sources: _Sources, env: Mapping[str, str]) -> tuple[Policy | None, list[Finding]]:
    """The policy if its shape is right, and everything that is wrong with it."""
    found = list(sources.findings)
    policy = None
    try:
        policy = Policy.model_validate(sources.data, context=sources.context)
    except ValidationError as error:
        unreadable = {f.loc for f in found if f.line is None}
        found += [f for f in explain(error, Policy) if f.loc not in unreadable]
    backends = _items(Backend, sources.data.get("backends"), sources.context)
    callers = _items(Client, sources.data.get("clients"), sources.context)
    listen = _address(sources.data, "listen")
    found += checks.between(backends, callers, listen, _address(sources.data, "control"))
    found += checks.aliases(_names(sources.data.get("models")))
    found += checks.routes(
        _items(RouteRule, sources.data.get("routes"), sources.context),
        _written_names(sources.data.get("backends"), backends),
        _written_names(sources.data.get("clients"), callers, if_none=checks.ANYONE),
    )
    found += checks.open_door(
        listen, keyed=_has_keys(sources.data), allowed=sources.data.get("allow_open") is True
    )
    found += checks.media(salvaged(Limits, sources.data.get("limits"), sources.context))
    leases = salvaged(Leases, sources.data.get("leases"), sources.context)
    found += clients.gather(backends, callers, env, leases)[1]
    found += _tokenizers(backends)
    found += certificate.problems(salvaged(Tls, sources.data.get("tls"), sources.context))
    if not any(finding.wrong == BESIDE_OTHERS[0] for finding in found):
        found += _pages(sources.data.get("cors"))
    return policy, found


def _items(kind: type[S], raw: object, context: Mapping[str, Path]) -> dict[int, S]:
    """What can be read of the items of a list, by index."""
    if not isinstance(raw, list):
        return {}
    parsed = ((i, salvaged(kind, item, context)) for i, item in enumerate(raw))
    return {i: item for i, item in parsed if item is not None}


def _lenient(kind: Any, raw: object, context: Mapping[str, Path] | None = None) -> Any:  # noqa: ANN401
    try:
        return TypeAdapter(kind).validate_python(raw, context=context)
    except ValidationError:
        return None


def _address(data: Mapping[str, Any], name: str) -> str:
    """A well-formed address, the default where there is none, a harmless one where it is broken."""
    if name not in data:
        return str(Policy.model_fields[name].default)
    return _lenient(Address, data[name]) or _ANY_LOOPBACK_PORT


def _written_names(
    raw: object, parsed: Mapping[int, Backend] | Mapping[int, Client], if_none: str | None = None
) -> set[str] | None:
    """Names of the entries of a list, also of those that cannot be used: nobody is missing who is there.
    None where it is no list."""
    if raw is not None and not isinstance(raw, list):
        return None
    written = {
        str(entry["name"]) for entry in raw or () if isinstance(entry, dict) and "name" in entry
    }
    names = written | {item.name for item in parsed.values() if is_read(item.name)}
    return names or ({if_none} if if_none else set())


def _names(raw: object) -> dict[str, tuple[str, ...]]:
    """What of a mapping of names is well formed: every alias, with those of its models that are."""
    pairs = raw.items() if isinstance(raw, dict) else ()
    return {
        alias: tuple(name for item in listed(said) if (name := _lenient(ModelName, item)))
        for alias, said in pairs
    }


def _pages(raw: object) -> list[Finding]:
    """A * beside others, of which one is broken: then nobody has looked at all of them together."""
    pages = [page.strip() if isinstance(page, str) else page for page in listed(raw)]
    if EVERY not in pages or len(pages) == 1:
        return []
    return [Finding(("cors",), pages, *BESIDE_OTHERS)]


def _has_keys(data: Mapping[str, Any]) -> bool:
    written = data.get("clients")
    entries = written if isinstance(written, list) else []
    ways = ("key_env", "key_file", "key_sha256")
    return any(isinstance(raw, dict) and any(map(raw.get, ways)) for raw in entries)


def _tokenizers(backends: Mapping[int, Backend]) -> list[Finding]:
    return [
        Finding(
            ("backends", i, "tokenizer"),
            str(backend.tokenizer),
            "is not a directory with a tokenizer.json",
            "give the directory of the served model, or leave the line out",
        )
        for i, backend in backends.items()
        if backend.tokenizer
        and is_read(backend.tokenizer)
        and not (backend.tokenizer / "tokenizer.json").is_file()
    ]
