"""What a policy file may say. Every field tells its meaning, its unit and why its default is so.

Theory of operation: the models are frozen and strict and forbid unknown keys, so a policy that
loads means what it says. They hold no secret: a key is *named* here (an environment variable or a
file) and read by `clients`. What must hold between fields is in `checks`. The docstring under a
field is its description in `kvgate schema`.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from gateway.policy import checks
from gateway.policy.bounds import Caps, Limits, Queue
from gateway.policy.callers import Client, HeaderMatch, Quota
from gateway.policy.hosts import Names  # noqa: TC001 - pydantic reads it
from gateway.policy.leases import Leases
from gateway.policy.origins import Origins  # noqa: TC001 - pydantic reads it
from gateway.policy.routing import RouteRule
from gateway.policy.section import Section
from gateway.policy.types import (
    MOST,
    Address,
    Admission,
    CollectorUrl,
    Count,
    CountOrAuto,
    EnvName,
    FilePath,
    ModelName,
    ModelNames,
    Name,
    Seconds,
    SecondsOrOff,
    ServerUrl,
    name_of_url,
)


def _name_from_url(data: dict[str, Any]) -> str:
    return name_of_url(data["url"])


class Backend(Section):
    """One SGLang server. Only `url` is needed: the rest is read from the server."""

    url: ServerUrl
    """The server's root, http or https, without /v1 and without credentials (URLs appear in logs
    and on the status page). No default: there is nothing to stand in front of without it."""

    name: Name = Field(default_factory=_name_from_url)
    """How logs, headers and metrics call this server. Default: the URL's host and port, which is
    unique and says where to look."""

    api_key_env: EnvName | None = None
    """Environment variable with the key this server wants, sent as a bearer token. Default none:
    SGLang asks for no key unless started with --api-key. Never the key itself: policy files are
    copied and committed."""

    api_key_file: FilePath | None = None
    """File with the key this server wants, in place of api_key_env (mounted secrets). Default none as well."""

    max_output_tokens: CountOrAuto = "auto"
    """Largest output cap per sequence, tokens; a larger request is clamped and told so in
    x-kvgate-clamped-from. Default auto: what context and pool leave beside the prompt, because a
    smaller number would be a guess about somebody's work."""

    default_output_tokens: CountOrAuto = "auto"
    """Output cap given to a request that sends none, tokens. SGLang itself would give a chat all
    that is left of the pool, so two such requests cannot run side by side. Default auto: a quarter
    of the pool, prompt included, but never less than min(8,192, pool/8) and never more than
    16,384; then whatever context and pool leave. A quarter, so that several such requests run at
    once; 8,192, because that holds a whole source file written by an agent; 16,384, because that
    is above the 99th percentile (14,446 tokens) of the outputs of a reasoning model (ServeGen,
    DeepSeek-R1 trace), so no thought is cut for no reason. max_output_tokens applies as well."""

    max_prompt_tokens: CountOrAuto = "auto"
    """Longest prompt sent to this server, tokens; a longer one is refused at once. Default auto:
    the server's own max_req_input_len. Set it where long prefills have killed the server: prefill
    scratch memory is outside the KV pool."""

    max_image_prompt_tokens: CountOrAuto = "auto"
    """Longest prompt with images, videos or sounds in it. Default auto: as any. Set it where such prompts have
    killed the server: some models do not read them in chunks, so scratch memory grows with all of it."""

    slots: CountOrAuto = "auto"
    """Requests running at once, per data-parallel rank. Default auto: the server's effective maximum,
    which it never raises. Set it lower where many long decodes at once crawl."""

    prefill_tokens: CountOrAuto = "auto"
    """Prompt tokens in prefill at once, per data-parallel rank; one longer prompt goes alone.
    Default auto: one prefill chunk of the server (chunked_prefill_size, or max_prefill_tokens
    where chunking is off), at least 2,048: the engine works on one chunk a step, so more would
    only wait inside it, where nobody can bound, order or withdraw it. Two where the server generates
    nothing (embeddings, scores): with one it would stand still between two."""

    compile_s: SecondsOrOff = 10.0
    """Seconds of one core that grammars (JSON schemas, regular expressions, tools that must be called) may take
    to be compiled at once, per data-parallel rank; a longer one goes alone. Default 10: one schema with a
    `maxLength` of 256 takes 9 s of one core, and eight at once stopped every stream of a machine with two
    cores for 13 s. What was compiled once is free. off: where the engine does not compile (llguidance), or
    has cores to spare."""

    tpot_s: SecondsOrOff = 0.1
    """Seconds per output token to keep: where three of four streams, or of the answers in one
    piece that came, are not as fast, fewer run at once (learned, every 5 s; never fewer than 4, and never below three times what this server shows
    at its best, so a slow machine is not starved). Default 0.1, ten tokens a second, twice the
    speed of reading. off: only memory limits."""

    kv_slack: float = Field(default=0.01, ge=0, le=0.5)
    """Part of the KV pool never promised, 0 to 0.5. Default 0.01: the engine holds pages nobody
    asked for (one step of look-ahead for each running request, an abort that takes effect a step
    late, a health probe's token); a hundredth of a 67,000-token pool is 670 tokens, some six pages
    of 16 for each of 7 running requests."""

    tokenizer: FilePath | None = None
    """Directory with tokenizer.json and tokenizer_config.json of the served model, to count
    prompts here. Default none: the path the server reports if it exists on this machine, else the
    server's own /tokenize, else an upper bound from the bytes."""

    tokenizer_engine: Literal["default", "fast"] = "default"
    """What encodes texts here: default, or fast (fastokens, `pip install kvgate[fast]`), which is
    some five times faster on long new texts and is used only if it counts 3,000 texts alike at
    start. Default default: fastokens keeps words of what it encodes in a cache that cannot be
    switched off, so words of prompts may stay in the gate's memory, and takes up to 0.6 GB."""


class Observe(Section):
    """What is written down. Never prompts, replies or keys."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity logged. Default info: one line a request and every change of a server's
    state. KVGATE_LOG overrides."""

    records: FilePath | None = None
    """File for one JSON line a request with every number of its decision. Default none: a service
    should not fill a disk nobody offered."""

    records_max_bytes: Count = 64 << 20
    """Size at which the records file is rotated before its day is over, bytes. Default 64 MiB: some
    70,000 requests of about 900 bytes, and small enough to open."""

    records_keep: int = Field(default=14, ge=0, le=MOST)
    """Rotated files kept beside the current one, compressed (`records-2026-11-29.1.jsonl.gz`); those
    older than 7 days go in any case. Default 14: two a day for a week, some 200 MiB in all, as they
    shrink to a sixth or less."""

    collect: FilePath | None = None
    """Folder for the evidence of every moment: CSV rows of servers, gate and GPUs, minutes with their
    verdicts, latest.json (see docs/evidence.md). Rotated daily, compressed, kept 7 days. Default
    none: a service does not fill a disk nobody offered; a day of minutes is kept in memory all the
    same."""

    collect_every_s: Seconds = 5.0
    """Between two looks, seconds. Default 5: twelve to a minute, as often as the servers' own gauges
    move (every 40 decode steps). One costs some three milliseconds of processor time with 200
    requests running and 60 waiting, and so less than a thousandth of one core."""

    collect_max_bytes: int = Field(default=256 << 20, ge=1 << 20, le=MOST)
    """Most the folder's files may have together, bytes; the oldest go first. Default 256 MiB: two
    servers write some 12 MB a day and a week of that is below 20 MB once compressed, so the cap is
    for a box with many. At least 1 MiB: below that hardly an hour fits."""

    crash_reports: FilePath | None = None
    """Folder for a JSON file each time a server dies with requests in flight: how many, how large,
    what the books held and what the server last said it held. Default none, as for records. The
    last 32 are kept."""

    otlp: CollectorUrl | None = None
    """An OpenTelemetry collector's root, http or https, to which a trace of each request goes by OTLP
    over HTTP (http://127.0.0.1:4318; see docs/evidence.md). Needs `pip install kvgate[otel]`. Default
    none: a service does not talk to machines nobody named, and the package is not small."""

    recent: Count = 200
    """Finished requests kept in memory for the status page. Default 200: a screenful with room to
    scroll; a record takes two or three kilobytes of memory."""


class Tls(Section):
    """Encryption of the data plane, TLS 1.2 and later. Files that change are read again and hold
    from the next connection on; a pair that does not fit together changes nothing."""

    cert: FilePath
    """PEM file with the certificate and what leads to its root. No default: it is the machine's."""

    key: FilePath
    """PEM file with the private key, without a password. No default, for the same reason."""


class Policy(Section):
    """Everything an operator may decide. An empty file with one `--backend` is a good policy."""

    backends: tuple[Backend, ...] = Field(default=(), strict=False)
    """The servers. Default none, so that a policy can be tried on any server with --backend; where
    neither names one, loading fails."""

    clients: tuple[Client, ...] = Field(default=(), strict=False)
    """Who may call, and how much of the server is theirs. Default: everybody is one client named
    `anyone` without limits of its own, and the gate listens on loopback only."""

    models: dict[ModelName, ModelNames] = Field(default={})
    """Other names for models: {alias: name a server serves}. A request for the alias goes to the
    servers of that model, and is told its real name. A list of names is in order: the first model that
    has a server on which the request fits, busy or not, so that a prompt too long for the context or
    pool of one goes to a larger one. Default none. A name that is neither served nor
    an alias goes to any server, as SGLang itself takes any: with several models, give each name
    that clients send an entry."""

    routes: tuple[RouteRule, ...] = Field(default=(), strict=False)
    """Which requests go to which servers, read from the top. Default none: any server that has the
    model, the one with most room. Not looked at while admission is off or shadow."""

    queue: Queue = Queue()
    """How much may wait, and how long. Defaults: see there."""

    limits: Limits = Limits()
    """Bounds on single requests and on the way to the server. Defaults: see there."""

    caps: Caps = Caps()
    """Rules for output caps. Defaults: see there."""

    observe: Observe = Observe()
    """What is written down. Defaults: see there."""

    reservation: Literal["forecast", "declared"] = "forecast"
    """How much of a request's cap is charged to the KV ledger. forecast, the default: what answers
    are likely to take, all together, learned from each client's own and bounded so that the pool
    holds; and never more than the engine itself would start at once. declared: the whole cap, the
    true worst case: the engine never retracts, and a pool of long caps stays half empty (in the
    laboratory a fifth of the answers per second where clients send max_tokens 4096)."""

    state: FilePath | None = None
    """File in which the gate keeps what it learned of its servers over its own restarts: the part of
    each pool that retractions and deaths left to plan with. A few hundred bytes, written at most
    every 30 s and when the gate stops. Default none: a service should not write where nobody
    offered; without it that part is learned anew."""

    leases: Leases | None = None
    """Sharing the servers with other gates. Default none: one gate has all of them. Not looked at while
    admission is off or shadow."""

    admission: Admission = "on"
    """on, the default: decide and enforce. off: forward the very bytes of every request to the
    least busy server, count, cap and hold nothing; still one record and one log line each. shadow:
    forward them as off does and decide beside it as on would; records, metrics and /status say what
    would have become of each. Default on: it is what the gate is for. Off is for the day somebody
    suspects the gate, shadow for the days before it is trusted."""

    workers: int = Field(default=1, ge=1, le=64)
    """Processes that serve the one port, sharing the servers as several gates do (see docs/scale.md). Default
    1: one process decides with everything before it; more, at most one a core, where that one's core
    is busy. --workers overrides. At most 64: each has the servers' counts and a tokenizer of its own."""

    listen: Address = "127.0.0.1:8080"
    """HOST:PORT of the data plane. Default loopback: without keys an open port gives the server to
    everybody on the network. KVGATE_LISTEN and --listen override."""

    tls: Tls | None = None
    """Certificate and key of the data plane, then HTTPS only. Default none: many have a proxy for it."""

    cors: Origins = ()
    """Web pages that may call from a browser: their origins (https://chat.example), or "*" for every
    page. Default none: what a page may not do, no page of a stranger can do in the browser of somebody
    who reaches the gate."""

    control: Address = "127.0.0.1:8081"
    """HOST:PORT of the control plane (page, status, metrics, probes, drain). Default loopback: it
    has no keys, and whoever reaches it may drain the gate. KVGATE_CONTROL and --control
    override."""

    control_hosts: Names = ()
    """Names beside localhost, addresses and this machine's own by which browsers and others call a control plane
    on loopback (a proxy before it that keeps the name it was called by). Default none: a name of a stranger's may
    be made to mean 127.0.0.1, so that a page of his reads /status (DNS rebinding). Looked at on loopback only."""

    allow_open: bool = False
    """Listen beyond loopback although no client has a key. Default false: being open should be a
    decision, not an oversight."""

    drain_s: Seconds = 25.0
    """How long running requests may finish after SIGTERM or POST /drain, seconds; then they are
    cancelled and counted. Default 25: Kubernetes kills 30 s after SIGTERM, systemd after 90."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """For policies built in code: `load` reports the same findings with file and line."""
        found = checks.between(
            dict(enumerate(self.backends)), dict(enumerate(self.clients)), self.listen, self.control
        )
        found += checks.aliases(self.models)
        found += checks.media(self.limits)
        found += checks.routes(
            dict(enumerate(self.routes)),
            {one.name for one in self.backends},
            {one.name for one in self.clients} or {checks.ANYONE},
        )
        found += checks.open_door(
            self.listen,
            keyed=checks.keyed(self.clients),
            allowed=self.allow_open,
        )
        if found:
            text = "; ".join(f"{f.path}: {f.wrong}" for f in found)
            raise PydanticCustomError(checks.CROSS_ERROR, "{text}", {"text": text})
        return self


__all__ = [
    "ANYONE",
    "Backend",
    "Caps",
    "Client",
    "HeaderMatch",
    "Leases",
    "Limits",
    "Observe",
    "Policy",
    "Queue",
    "Quota",
    "RouteRule",
    "Tls",
]

ANYONE = checks.ANYONE
"""Name of the client that stands for everybody without a key or header of their own."""
