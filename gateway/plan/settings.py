"""A server's arguments in one shape, whether it runs or is only meant to.

/server_info holds every argument, keys among them, and from 0.5.23 the launch line as well; only the
arguments a check reads are copied (`launch.KEPT`), and of keys whether they are set.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gateway.plan.launch import KEPT, KEYS, LaunchError, LaunchLine, Value, read_launch
from gateway.policy.compile import PoolFacts
from gateway.upstream.facts import MAX_REQ_LEN_ABOVE_INPUT, ServerFacts, parse_server
from gateway.upstream.fields import as_dict, as_list

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.plan.options import Version

LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")
SERVER_DEFAULT_HOST = "127.0.0.1"
PREFILL_DEFAULT = 16_384
"""SGLang's max_prefill_tokens where none is given (0.5.6-0.5.23)."""

SANE = 1e15
"""Above every number of tokens, bytes or seconds there is; JSON and the shell know more."""

EMPTY = ("", "null", "none")


@dataclass(frozen=True, slots=True)
class Settings:
    """What is known of one server."""

    live: bool  # read from a server; else from a launch line
    version: Version | None
    args: Mapping[str, Value]
    keyed: bool  # --api-key is set
    admin_keyed: bool
    keys_on_line: frozenset[str] = frozenset()  # keys given as options: every user reads them
    line: LaunchLine | None = None
    pool: PoolFacts | ServerFacts | None = None  # None: the pool is not known
    headroom_gib: float | None = None  # free on the card once it had started
    environment: Mapping[str, str] = field(default_factory=dict)

    def on(self, name: str) -> bool:
        """Whether a switch is on."""
        return self.args.get(name) is True

    def number(self, name: str) -> float | None:
        """A number, None where it is not set or none."""
        value = self.args.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if abs(value) < SANE else None

    def whole(self, name: str) -> int | None:
        """A whole number."""
        number = self.number(name)
        return None if number is None else int(number)

    def text(self, name: str) -> str:
        """A word; empty where it is not set."""
        value = self.args.get(name)
        return value if isinstance(value, str) and value.lower() not in EMPTY else ""

    @property
    def host(self) -> str:
        """The address it listens on."""
        return self.text("host") or SERVER_DEFAULT_HOST

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return self.host in LOOPBACK or self.host.startswith("127.")

    @property
    def context(self) -> int | None:
        """Longest request, tokens; None where the model's own rules and is not known."""
        return self.pool.context if self.live and self.pool else self.whole("context_length")

    @property
    def on_gpu(self) -> bool:
        """Whether the memory of a card is at stake."""
        return self.text("device") != "cpu"


def of_server(
    info: object,
    models: object = None,
    model_info: object = None,
    *,
    headroom_gib: float | None = None,
) -> Settings:
    """From the bodies of /server_info, /v1/models and /model_info. Raises NotSGLangError."""
    facts = parse_server(info, models, model_info)
    args = as_dict(info)
    states = [as_dict(state) for state in as_list(args.get("internal_states"))]
    free = as_dict(as_dict(states[0] if states else None).get("memory_usage")).get(
        "startup_available"
    )
    if headroom_gib is None and isinstance(free, int | float) and not isinstance(free, bool):
        headroom_gib = float(free)
    return Settings(
        live=True,
        version=facts.version,
        args={
            name: value[:64] if isinstance(value, str) else value
            for name, value in args.items()
            if name in KEPT and isinstance(value, bool | int | float | str)
        },
        keyed=bool(args.get(KEYS[0])),
        admin_keyed=bool(args.get(KEYS[1])),
        keys_on_line=_keys_on(args.get("launch_command")),
        pool=facts,
        headroom_gib=headroom_gib,
    )


def of_launch(
    line: LaunchLine, *, pool_tokens: int | None = None, headroom_gib: float | None = None
) -> Settings:
    """From a launch line. `pool_tokens`: the pool, where the caller knows or has computed it;
    else what --max-total-tokens says."""
    settings = Settings(
        live=False,
        version=line.version,
        args=line.args,
        keyed="api_key" in line.keys,
        admin_keyed="admin_api_key" in line.keys,
        keys_on_line=frozenset(line.keys),
        line=line,
        headroom_gib=headroom_gib,
        environment=line.environment,
    )
    bounds = [n for n in (pool_tokens, settings.whole("max_total_tokens")) if n and n > 0]
    if not bounds:
        return settings
    return replace(settings, pool=_pool(settings, min(bounds)))


def _keys_on(command: object) -> frozenset[str]:
    """The keys in the launch command that a server tells (from 0.5.23), without its program."""
    try:
        return frozenset(read_launch(f"sglang serve {command}").keys)
    except LaunchError:
        return frozenset()


def _pool(settings: Settings, tokens: int) -> PoolFacts:
    context = settings.whole("context_length") or tokens
    chunk = settings.whole("chunked_prefill_size")
    running, ranks = settings.whole("max_running_requests"), settings.whole("dp_size") or 1
    topk = settings.whole("speculative_eagle_topk") or 0
    steps = settings.whole("speculative_num_steps") or 0
    draft = settings.whole("speculative_num_draft_tokens") or 0
    drafts = bool(settings.text("speculative_algorithm"))
    return PoolFacts(
        pool_tokens=tokens,
        page=max(1, settings.whole("page_size") or 1),
        context=context,
        max_input=max(min(context, tokens) - 1 - MAX_REQ_LEN_ABOVE_INPUT, 1),
        max_running=None if running is None else max(1, running // max(1, ranks)),
        chunk=chunk if chunk is None or chunk > 0 else None,
        max_prefill=settings.whole("max_prefill_tokens") or PREFILL_DEFAULT,
        speculative_reserve=max(topk * steps, draft) if drafts else 0,
        conservativeness=max(settings.number("schedule_conservativeness") or 1.0, 0.0),
    )
