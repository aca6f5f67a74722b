"""Policy and facts to the core's values."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.model import UNBOUNDED, ClientRule, PoolLimits, QueueRule, Quota
from gateway.policy.compile import client_rules, pool_limits, queue_rule
from gateway.policy.schema import Backend, Client, Policy, Queue
from gateway.policy.schema import Quota as PolicyQuota

URL = "http://127.0.0.1:30000"


@dataclass(frozen=True)
class Server:
    pool_tokens: int = 67_375
    page: int = 1
    context: int = 69_632
    max_input: int = 67_369
    max_running: int | None = 48
    chunk: int | None = 2048
    max_prefill: int | None = 16_384
    speculative_reserve: int = 0
    conservativeness: float = 1.0
    radix_disabled: bool = False
    adapters_at_once: int | None = None
    is_generation: bool = True


def test_without_a_policy_the_server_decides() -> None:
    assert pool_limits(Backend(url=URL), Server(speculative_reserve=4)) == PoolLimits(
        kv_tokens=67_375 - 1 - 674,
        page=1,
        context=69_632,
        max_input=67_369,
        max_prompt=None,
        default_output=None,
        max_output=None,
        prefill_tokens=2048,
        slots=48,
        speculative=4,
        forecast=True,
        conservativeness=1.0,
        tpot_s=0.1,
        compile_s=10.0,
    )


def test_how_cautious_the_server_and_the_policy_are_is_passed_on() -> None:
    backend = Backend(url=URL, tpot_s="off", compile_s="off")
    limits = pool_limits(backend, Server(conservativeness=0.3))
    assert (limits.conservativeness, limits.tpot_s, limits.compile_s) == (0.3, None, math.inf)


def test_adapters_that_run_together_are_the_server_s_number():
    assert pool_limits(Backend(url=URL), Server(adapters_at_once=3)).kinds == 3
    assert pool_limits(Backend(url=URL), Server()).kinds == UNBOUNDED


def test_a_server_without_a_prefix_cache_is_known_as_one():
    assert pool_limits(Backend(url=URL), Server()).caches
    assert not pool_limits(Backend(url=URL), Server(radix_disabled=True)).caches
    assert pool_limits(Backend(url=URL), Server(), forecast=False).forecast is False


def test_a_policy_narrows() -> None:
    backend = Backend(
        url=URL,
        max_output_tokens=16_384,
        default_output_tokens=4096,
        max_prompt_tokens=60_000,
        max_image_prompt_tokens=16_000,
        slots=10,
        prefill_tokens=30_000,
        kv_slack=0.0,
    )
    limits = pool_limits(backend, Server(page=64))
    assert limits.kv_tokens == 67_375 - 64
    assert (limits.max_output, limits.default_output, limits.max_prompt) == (16_384, 4096, 60_000)
    assert limits.max_image_prompt == 16_000
    assert (limits.slots, limits.prefill_tokens) == (10, 30_000)


def test_slots_are_never_more_than_the_server_runs() -> None:
    assert pool_limits(Backend(url=URL, slots=100), Server()).slots == 48
    assert pool_limits(Backend(url=URL, slots=100), Server(max_running=None)).slots == 100
    assert pool_limits(Backend(url=URL), Server(max_running=None)).slots == PoolLimits(1).slots


@pytest.mark.parametrize(
    ("chunk", "max_prefill", "tokens"),
    [
        (8192, 16_384, 8192),
        (512, 16_384, 2048),
        (None, 16_384, 16_384),
        (-1, 16_384, 16_384),
        (None, 1024, 2048),
        (None, None, PoolLimits(1).prefill_tokens),
    ],
)
def test_prefill_is_one_chunk_of_the_server(
    chunk: int | None, max_prefill: int | None, tokens: int
) -> None:
    assert (
        pool_limits(Backend(url=URL), Server(chunk=chunk, max_prefill=max_prefill)).prefill_tokens
        == tokens
    )


def test_a_server_that_only_reads_gets_the_next_chunk_while_it_reads_one() -> None:
    embeds = Server(is_generation=False)
    assert pool_limits(Backend(url=URL), embeds).prefill_tokens == 2 * 2048
    assert pool_limits(Backend(url=URL, prefill_tokens=5_000), embeds).prefill_tokens == 5_000
    unknown = Server(is_generation=False, chunk=None, max_prefill=None)
    assert pool_limits(Backend(url=URL), unknown).prefill_tokens == PoolLimits(1).prefill_tokens


@given(st.integers(0, 10_000_000), st.integers(1, 256), st.floats(0, 0.5))
def test_a_page_and_the_slack_are_always_kept_back(pool: int, page: int, slack: float) -> None:
    kv = pool_limits(
        Backend(url=URL, kv_slack=slack), Server(pool_tokens=pool, page=page)
    ).kv_tokens
    assert kv >= 0
    if kv:
        assert pool - kv >= page + pool * slack
        assert pool - kv < page + pool * slack + 1.001


def test_client_rules() -> None:
    assert client_rules(Policy()) == {"anyone": ClientRule("anyone")}
    policy = Policy(
        clients=(
            Client(
                name="a", key_env="A", weight=2.0, max_inflight=3, max_held_tokens=4, max_waiting=5
            ),
            Client(name="anyone", max_inflight=1),
        )
    )
    assert client_rules(policy) == {
        "a": ClientRule("a", 2.0, 3, 4, 5),
        "anyone": ClientRule("anyone", max_inflight=1),
    }


def test_queue_rule_and_that_the_defaults_of_policy_and_core_agree() -> None:
    assert queue_rule(Policy()) == QueueRule()
    queue = Queue(max_requests=1, max_tokens=2, max_bytes=3, max_wait_s=4.0)
    assert queue_rule(Policy(queue=queue)) == QueueRule(1, 2, 3, 4.0)


def test_a_client_s_caps_and_quota_reach_the_core() -> None:
    client = Client(
        name="anyone",
        default_output_tokens=5,
        max_output_tokens=6,
        quota=PolicyQuota(tokens=7, window_s=8.0),
    )
    (rule,) = client_rules(Policy(clients=(client,))).values()
    assert (rule.default_output, rule.max_output, rule.quota) == (5, 6, Quota(7, 8.0))
