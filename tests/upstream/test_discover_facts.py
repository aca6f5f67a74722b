"""The parsers, over real answers of three SGLang versions, the shape of a fourth, and noise."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.facts import NotSGLangError, parse_server, parse_version
from gateway.upstream.loads import parse_loads
from tests.fakes import profile
from tests.fakes.profile import Profile, RankUse, Start

REAL: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data" / "sglang_answers.json").read_text()
)
"""Answers of CPU servers, pool 2048, trimmed of arguments that nothing here reads."""


def real(version: str) -> dict[str, Any]:
    return copy.deepcopy(REAL[version])


def facts(answers_of: str = "0.5.17", /, **args: Any):
    answers = real(answers_of)
    return parse_server(answers["server_info"] | args, answers["models"], answers["model_info"])


@pytest.mark.parametrize(
    ("version", "chunk"), [("0.5.12", 2048), ("0.5.17", 2048), ("0.5.23", 4096)]
)
def test_real_answers(version, chunk):
    got = facts(version)
    assert got.version == tuple(map(int, version.split(".")))
    assert got.version_text == version
    assert got.models == ("tiny",)
    assert got.model_path == got.tokenizer_path == "/models/tiny-qwen3"
    assert (got.model_type, got.chat_template) == ("qwen3", "")
    assert (got.context, got.pool_tokens, got.max_input) == (8192, 2048, 2042)
    assert (got.max_running, got.page, got.dp, got.chunk) == (1024, 1, 1, chunk)
    assert (got.max_prefill, got.speculative_reserve, got.max_queued) == (16384, 0, None)
    assert (got.metrics_enabled, got.radix_disabled) == (True, False)
    assert (got.is_generation, got.has_images) == (True, False)
    assert got.warnings == ()


def test_oldest_version_has_no_effective_limit():
    old = Profile(version="0.5.6", pool=4096)
    info = profile.server_info(old, Start(1, 0.5))
    got = parse_server(info, profile.models(old), profile.model_info(old))
    assert (got.version, got.pool_tokens, got.max_running) == ((0, 5, 6), 4096, None)
    shared = parse_server(info | {"max_running_requests": 64, "dp_size": 4})
    assert shared.max_running == 16  # the argument is for all ranks together


def test_no_key_survives():
    keys = {"api_key": "sk-one", "admin_api_key": "sk-two", "launch_command": "--api-key sk-one"}
    answers = real("0.5.23")
    answers["server_info"]["internal_states"][0] |= keys
    got = parse_server(answers["server_info"] | keys, answers["models"], answers["model_info"])
    assert "sk-" not in repr(got)


def test_context_falls_back():
    answers = real("0.5.17")
    info = answers["server_info"]
    assert parse_server(info | {"context_length": 5000}).context == 5000
    assert parse_server(info).context == 2042 + 6  # what the longest prompt implies
    assert parse_server(info).models == ("tiny",)


def test_adapters_are_not_models():
    answers = real("0.5.17")
    adapter = {"id": "tiny:style", "parent": "tiny", "max_model_len": None}
    answers["models"]["data"].insert(0, adapter)
    got = parse_server(answers["server_info"], answers["models"])
    assert (got.models, got.context) == (("tiny",), 8192)


def test_the_smallest_rank_counts():
    answers = real("0.5.17")
    info = answers["server_info"]
    small = copy.deepcopy(info["internal_states"][0])
    small["memory_usage"]["token_capacity"] = 1500
    small["effective_max_running_requests_per_dp"] = 7
    info["internal_states"].append(small)
    got = parse_server(info | {"dp_size": 2})
    assert (got.dp, got.pool_tokens, got.max_running) == (2, 1500, 7)


@pytest.mark.parametrize(
    ("version", "algorithm", "reserve"),
    [
        ("0.5.6", "EAGLE", 5),
        ("0.5.6", "NGRAM", 5),
        ("0.5.12", "EAGLE3", 4 * 3),
        ("0.5.23", "NEXTN", 4 * 3),
        ("0.5.23", "NGRAM", 5),
        ("0.5.23", None, 0),
    ],
)
def test_speculative_reserve(version, algorithm, reserve):
    got = facts(
        version=version,
        speculative_algorithm=algorithm,
        speculative_num_draft_tokens=5,
        speculative_eagle_topk=4,
        speculative_num_steps=3,
    )
    assert got.speculative_reserve == reserve


def test_chunked_prefill_off():
    got = facts(chunked_prefill_size=-1)
    assert got.chunk is None
    assert any("Chunked prefill is off" in warning for warning in got.warnings)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"allow_auto_truncate": True}, "auto-truncate"),
        ({"max_queued_requests": 8}, "max-queued-requests"),
        ({"version": "0.5.2"}, "older than 0.5.6"),
        ({"version": "0.6.0"}, "newer than 0.5.23"),
        ({"version": None}, "does not say its version"),
        ({"disaggregation_mode": "decode"}, "separate servers"),
        ({"skip_tokenizer_init": True}, "token ids only"),
        ({"is_embedding": True}, "does not generate"),
    ],
)
def test_warnings_in_words(args, words):
    assert any(words in warning for warning in facts(**args).warnings)


def test_another_start_has_another_key():
    base = facts("0.5.17").started_key
    assert facts("0.5.17").started_key == base
    assert facts("0.5.17", startup_time={"scheduler_e2e": 4.6}).started_key != base
    old = facts("0.5.12")
    assert facts("0.5.12", random_seed=2).started_key != old.started_key
    assert facts("0.5.12", max_total_num_tokens=2000).started_key != old.started_key


@pytest.mark.parametrize("body", [None, [], "x", {}, {"version": "0.5.17"}, {"object": "list"}])
def test_no_pool_is_not_sglang(body):
    with pytest.raises(NotSGLangError, match="max_total_num_tokens"):
        parse_server(body)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.5.17", (0, 5, 17)),
        ("v0.5.17.post1", (0, 5, 17)),
        ("0.5.17rc1", (0, 5, 17)),
        ("0.5", None),
        ("main", None),
        ("", None),
    ],
)
def test_versions(text, version):
    assert parse_version(text) == version


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
info_keys = sorted(REAL["0.5.23"]["server_info"])
load_keys = [*REAL["0.5.23"]["v1_loads"]["loads"][0], "num_reqs", "num_tokens"]


@given(st.dictionaries(st.sampled_from(info_keys), json_values), json_values, json_values)
def test_any_odd_field_is_survived(odd, models, model_info):
    answers = real("0.5.23")
    try:
        got = parse_server(answers["server_info"] | odd, models, model_info)
    except NotSGLangError:
        return
    assert got.pool_tokens > 0
    assert got.context > 0
    assert got.max_input > 0
    assert got.dp > 0


@given(st.lists(st.dictionaries(st.sampled_from(load_keys), json_values)), json_values)
def test_any_odd_load_is_survived(rows, timestamp):
    for body in (rows, {"loads": rows, "timestamp": timestamp}):
        if (got := parse_loads(body)) is not None:
            assert all(0 <= r.used <= r.total and r.running >= 0 for r in got.ranks)


# ---- loads ----


@pytest.mark.parametrize("version", ["0.5.12", "0.5.17", "0.5.23"])
def test_real_idle_loads(version):
    got = parse_loads(real(version)["v1_loads"])
    assert got is not None
    (rank,) = got.ranks
    assert (rank.rank, rank.running, rank.waiting, rank.used, rank.total) == (0, 0, 0, 0, 0)
    assert rank.pool_tokens == 2048
    snapshot = version != "0.5.12"
    assert (rank.age_s is not None) == snapshot
    assert (rank.waiting_uncached, rank.prefilled) == ((0, 2) if snapshot else (None, None))
    took = {"0.5.17": 0.011159, "0.5.23": 0.015362}
    assert rank.prefill_s == took.get(version), "for these two tokens"


def test_age_is_by_the_servers_own_clock():
    got = parse_loads(real("0.5.23")["v1_loads"])
    assert got is not None
    assert got.age_s == pytest.approx(0.032, abs=0.001)  # 1795963266.2818 - …266.2497


def test_old_loads_count_both_together():
    got = parse_loads([{"dp_rank": None, "num_reqs": 5, "num_waiting_reqs": 2, "num_tokens": 900}])
    assert got is not None
    (rank,) = got.ranks
    assert (rank.rank, rank.running, rank.waiting) == (0, 3, 2)
    assert (rank.used, rank.total, rank.pool_tokens, rank.age_s) == (900, 900, None, None)


def test_ranks_come_in_order_and_add_up():
    two = Profile(dp=2)
    body = profile.loads(two, [RankUse(1, 0, 10, 10), RankUse(2, 3, 20, 50)])
    body["loads"].reverse()
    got = parse_loads(body)
    assert got is not None
    assert [rank.rank for rank in got.ranks] == [0, 1]
    assert (got.running, got.waiting, got.used) == (3, 3, 30)


@pytest.mark.parametrize("body", [None, {}, [], "x", {"loads": []}, {"loads": [{"dp_rank": 0}]}])
def test_not_loads(body):
    assert parse_loads(body) is None
