"""`kvgate audit`: a live server's real arguments, or a launch line, against the traffic policy.

    kvgate audit http://127.0.0.1:30000 --policy policies/dual-3090.yaml
    kvgate audit --command "python -m sglang.launch_server --model-path …" --engine-version 0.5.17
    kvgate audit --info server_info.json --prompt-tokens 19000 --requests 3

Nothing is sent to a server but three GETs. Keys are never shown, wherever they stand; a key that the
server wants is named with --key-env. Exit codes: 0 nothing but notes, 1 errors or warnings, 2 usage.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any, Final

from gateway.cli.usage import UsageError, engine_version, server_url
from gateway.plan.audit import audit
from gateway.plan.cards import CARDS
from gateway.plan.chain import OVERHEAD_GIB
from gateway.plan.findings import Finding, Severity, falls_short
from gateway.plan.launch import LaunchError, read_launch
from gateway.plan.model import ModelError, read_model
from gateway.plan.options import said
from gateway.plan.settings import Settings, of_launch, of_server
from gateway.plan.traffic import HIDDEN, INTERMEDIATE, Traffic
from gateway.policy.load import load_policy
from gateway.policy.problems import PolicyError
from gateway.policy.schema import Backend, Policy
from gateway.upstream.ask import AskError, ask, bearer
from gateway.upstream.client import Client
from gateway.upstream.errors import UpstreamError
from gateway.upstream.facts import NotSGLangError

OK, SHORT, USAGE = 0, 1, 2
CONNECT_S: Final = 5.0  # as the gate's own default
ANSWER_S: Final = 30.0  # /server_info waits for a forward step; a long prefill chunk takes seconds
NOBODY: Final = "http://127.0.0.1:30000"  # where no server is meant: SGLang's own default
GONE: Final = (404, 405)
KEY: Final = "name the environment variable that holds the key with --key-env"


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    p = argparse.ArgumentParser(
        prog="kvgate audit", description="A server's arguments against the traffic policy."
    )
    p.add_argument("url", nargs="?", metavar="URL", help="a running server's root")
    p.add_argument(
        "--command", metavar="LINE", help="instead: a launch line; - reads it from stdin"
    )
    p.add_argument(
        "--info",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="instead: a saved /server_info; /v1/models and /model_info beside it, in any order",
    )
    p.add_argument("--policy", type=Path, metavar="FILE", help="else the defaults hold")
    p.add_argument(
        "--backend", metavar="NAME", help="the policy's entry, where the URL does not tell"
    )
    p.add_argument("--key-env", metavar="NAME", help="environment variable with the server's key")
    p.add_argument("--engine-version", metavar="X.Y.Z", help="of the launch line")
    p.add_argument("--prompt-tokens", type=int, metavar="P", help="a usual prompt")
    p.add_argument("--requests", type=int, metavar="N", help="that many at once")
    p.add_argument("--pool-tokens", type=int, metavar="N", help="of the launch line: its KV pool")
    p.add_argument("--headroom-gib", type=float, metavar="G", help="free once it has started")
    p.add_argument("--card", choices=sorted(CARDS), help="estimates the headroom of a launch line")
    p.add_argument("--model", type=Path, metavar="CONFIG_JSON", help="for the size of a chunk")
    p.add_argument("--json", nargs="?", const="-", metavar="PATH", help="JSON, to stdout or PATH")
    return p


def run(argv: list[str]) -> int:
    """Read, judge, show."""
    options = parser().parse_args(argv)
    try:
        settings = _settings(options)
        findings = audit(settings, _traffic(options))
        _tell(options.json, settings, findings)
    except PolicyError as error:
        sys.stderr.write(f"{error}\n")
        return USAGE
    except (UsageError, LaunchError, ModelError) as error:
        sys.stderr.write(f"kvgate audit: {error}\n")
        return USAGE
    except BrokenPipeError:
        raise  # whoever reads the output has read enough
    except OSError as error:
        sys.stderr.write(f"kvgate audit: {error.filename or 'the output'}: {error.strerror}.\n")
        return USAGE
    return SHORT if falls_short(findings) else OK


def _settings(options: argparse.Namespace) -> Settings:
    given = [x for x in (options.url, options.command, options.info) if x is not None]
    if len(given) != 1:
        raise UsageError("Give one of URL, --command LINE or --info FILE.")
    for name in ("prompt_tokens", "requests", "pool_tokens"):
        if (value := getattr(options, name)) is not None and value < 1:
            needed = f"--{name.replace('_', '-')} must be at least 1; {value} was given."
            raise UsageError(needed)
    if options.command is not None:
        return _from_line(options)
    try:
        if options.url is not None:
            return asyncio.run(_from_server(options))
        return of_server(*_saved(options.info), headroom_gib=options.headroom_gib)
    except NotSGLangError as error:
        raise UsageError(_sentence(str(error))) from None


def _from_line(options: argparse.Namespace) -> Settings:
    text = sys.stdin.read() if options.command == "-" else options.command
    named = options.engine_version
    line = read_launch(text, None if named is None else engine_version(named))
    headroom = options.headroom_gib
    fraction = line.args.get("mem_fraction_static")
    if headroom is None and options.card is not None and isinstance(fraction, float):
        headroom = CARDS[options.card].available_gib * (1 - fraction) - OVERHEAD_GIB
    return of_launch(line, pool_tokens=options.pool_tokens, headroom_gib=headroom)


async def _from_server(options: argparse.Namespace) -> Settings:
    url = server_url(options.url, KEY)
    key = None
    if options.key_env is not None:
        key = os.environ.get(options.key_env)
        if not key:
            raise UsageError("The environment variable that --key-env names is not set.")
    client = Client(url, connect_timeout_s=CONNECT_S)
    headers = bearer(key)
    try:
        info = await _first(client, ("/server_info", "/get_server_info"), headers)
        models = await _first(client, ("/v1/models",), headers)
        model = await _first(client, ("/model_info", "/get_model_info"), headers)
    except AskError as error:
        needs_key = error.status in {401, 403}
        raise UsageError(
            "The server wants a key: name the environment variable that holds it with --key-env."
            if needs_key
            else f"The server did not tell its arguments: {_sentence(str(error))}"
        ) from None
    except UpstreamError as error:
        needed = f"The server did not tell its arguments: {_sentence(str(error))}"
        raise UsageError(needed) from None
    finally:
        await client.close()
    return of_server(info, models, model, headroom_gib=options.headroom_gib)


async def _first(
    client: Client, targets: tuple[str, ...], headers: tuple[tuple[str, str], ...]
) -> object:
    """The JSON of the first route the server knows; None where it knows none."""
    for target in targets:
        try:
            return await ask(client, target, headers, timeout_s=ANSWER_S)
        except AskError as error:
            if error.status not in GONE:
                raise
    return None


def _traffic(options: argparse.Namespace) -> Traffic:
    policy = Policy() if options.policy is None else load_policy(options.policy)
    hidden, intermediate = HIDDEN, INTERMEDIATE
    if options.model is not None:
        path = options.model / "config.json" if options.model.is_dir() else options.model
        config = _json(path)
        model = read_model(config if isinstance(config, dict) else {})
        hidden, intermediate = model.hidden, model.intermediate
    return Traffic(
        backend=_backend(policy, options),
        admission=policy.admission == "on",
        prompt=options.prompt_tokens,
        requests=options.requests,
        hidden=hidden,
        intermediate=intermediate,
    )


def _backend(policy: Policy, options: argparse.Namespace) -> Backend:
    """The policy's entry for this server: by name, by URL, else its only one."""
    if options.backend is not None:
        named = [backend for backend in policy.backends if backend.name == options.backend]
        if not named:
            names = ", ".join(b.name for b in policy.backends) or "none"
            needed = f"The policy has no backend of that name; it has: {names}."
            raise UsageError(needed)
        return named[0]
    url = NOBODY if options.url is None else server_url(options.url, KEY)
    matching = [backend for backend in policy.backends if backend.url == url]
    if matching and options.url is not None:
        return matching[0]
    if len(policy.backends) == 1:
        return policy.backends[0]
    if policy.backends:
        names = ", ".join(backend.name for backend in policy.backends)
        needed = f"The policy has several backends; name one with --backend: {names}."
        raise UsageError(needed)
    return Backend(url=url)


def _json(path: Path) -> object:
    """A file's JSON; a saved HTTP answer may have its head before it."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if text.startswith("HTTP/"):
        text = text.replace("\r\n", "\n").partition("\n\n")[2]
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        needed = f"{path} must hold JSON."
        raise UsageError(needed) from None


def _saved(paths: list[Path]) -> tuple[object, object, object]:
    """The bodies of /server_info, /v1/models and /model_info, told apart by what they hold."""
    info, models, model = None, None, None
    for path in paths:
        body = _json(path)
        if isinstance(body, dict) and "data" in body:
            models = body
        elif isinstance(body, dict) and "is_generation" in body:
            model = body
        else:
            info = body
    return info, models, model


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _tell(path: str | None, settings: Settings, findings: list[Finding]) -> None:
    counts = {s.value: sum(f.severity is s for f in findings) for s in Severity}
    version = "version not said" if settings.version is None else said(settings.version)
    if path is not None:
        result: dict[str, Any] = {
            "source": "server" if settings.live else "launch line",
            "version": None if settings.version is None else version,
            "counts": counts,
            "findings": [finding.as_json() for finding in findings],
        }
        text = json.dumps(result, indent=2, ensure_ascii=False) + "\n"
        if path == "-":
            sys.stdout.write(text)
            return
        Path(path).write_text(text, encoding="utf-8")
    summary = ", ".join(f"{n} {name}{'' if n == 1 else 's'}" for name, n in counts.items())
    sys.stdout.write(
        f"SGLang {version}, from its {'server' if settings.live else 'launch line'}: {summary}\n"
    )
    for finding in findings:
        sys.stdout.write(f"\n{finding.severity.upper():8} {finding.subject}: {finding.found}\n")
        sys.stdout.write(f"         → {finding.remedy}\n")
