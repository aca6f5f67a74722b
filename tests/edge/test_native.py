"""Types on /generate, where the engine has no reader of its own. Each refused one ended a genuine 0.5.17,
or left all its requests without an answer, but for those that were a bare 500."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.edge.dialects.hazards import MOST_BIASED
from tests.edge.rig import CHAT, GENERATE, TEXT, chat

BIASED = {str(token): 1 for token in range(MOST_BIASED + 1)}


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"skip_special_tokens": 7}, "skip_special_tokens"),
        ({"spaces_between_special_tokens": []}, "spaces_between_special_tokens"),
        ({"ignore_eos": "perhaps"}, "ignore_eos"),
        ({"no_stop_trim": [1]}, "no_stop_trim"),
        ({"stream_interval": "often"}, "stream_interval"),
        ({"custom_params": 5}, "custom_params"),
        ({"temperature": [1]}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"logit_bias": {"5": "x"}}, "logit_bias"),
        ({"logit_bias": {"5": "1"}}, "logit_bias"),
        ({"logit_bias": {"5": None}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {"5": 1e39}}, "logit_bias"),
        ({"logit_bias": {"5": -1e39}}, "logit_bias"),
        ({"logit_bias": {"5": 3e38}, "temperature": 0.5}, "logit_bias"),
        ({"logit_bias": BIASED}, "logit_bias"),
    ],
)
async def test_a_sampling_parameter_of_another_type_is_refused(
    rig, params: Any, field: str
) -> None:
    for many in (False, True):
        given = [{}, params] if many else params
        text = ["a", "b"] if many else "a"
        got = await rig.post(GENERATE, {"text": text, "sampling_params": given})
        assert (got.status, got.code, got.error["param"]) == (400, "invalid_request", field)
    assert rig.engine.seen == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (path, value)
        for path in (CHAT, TEXT)
        for value in ({"5": "nan"}, {"5": "inf"}, {"5": 1e21}, {"5": [1]}, [1], BIASED)
    ],
)
async def test_a_bias_that_is_not_finite_is_refused(rig, path: str, value: Any) -> None:
    body = chat(max_tokens=2) if path == CHAT else {"prompt": "a", "max_tokens": 2}
    got = await rig.post(path, body | {"logit_bias": value})
    assert (got.status, got.code, got.error["param"]) == (400, "invalid_request", "logit_bias")
    assert rig.engine.seen == []


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"top_logprobs_num": [1]}, "top_logprobs_num"),
        ({"logprob_start_len": [0]}, "logprob_start_len"),
        ({"return_logprob": [True]}, "return_logprob"),
        ({"return_sampling_mask": [True]}, "return_sampling_mask"),
        ({"extra_key": ["a"]}, "extra_key"),
        ({"logprob_start_len": -2}, "logprob_start_len"),
        ({"text": ["a", "b"], "logprob_start_len": [0, -5]}, "logprob_start_len"),
        ({"text": ["a", "b"], "top_logprobs_num": [1]}, "top_logprobs_num"),
        ({"text": ["a", "b"], "logprob_start_len": [0, 0, 0]}, "logprob_start_len"),
    ],
)
async def test_a_list_of_another_length_and_a_start_before_the_first_token_are_refused(
    rig, fields: Any, field: str
) -> None:
    got = await rig.post(GENERATE, {"text": "a", "return_logprob": True, **fields})
    assert (got.status, got.code, got.error["param"]) == (400, "invalid_request", field)
    assert rig.engine.seen == []


async def test_what_is_meant_is_what_the_engine_is_told(rig) -> None:
    """However a switch or a number was written."""
    sent = {"skip_special_tokens": "false", "ignore_eos": 1, "min_new_tokens": "1", "top_k": 5.0}
    params = {
        "max_new_tokens": 2,
        "logit_bias": {"5": -100, "6": -1e20, "7": 1e9},
        "custom_params": {"a": [1]},
        **sent,
    }
    got = await rig.post(GENERATE, {"text": "a", "sampling_params": params})
    assert got.status == 200
    told = {"skip_special_tokens": False, "ignore_eos": True, "min_new_tokens": 1, "top_k": 5}
    assert rig.engine.seen[0].body["sampling_params"] == params | told
    body = {"text": ["a", "b"], "return_logprob": [True, False], "top_logprobs_num": [1, 0]}
    body["logprob_start_len"] = [-1, None]
    assert (await rig.post(GENERATE, body)).status == 200


@pytest.mark.parametrize(
    ("version", "status"),
    [("0.5.9", 200), ("0.5.10", 400), ("0.5.12", 400), ("0.5.17", 400), ("0.5.23", 200)],
)
async def test_log_probabilities_of_named_tokens_go_to_servers_that_survive_them(
    start, version: str, status: int
) -> None:
    """sgl-project/sglang#34719: where others are in the batch, the scheduler ends."""
    async with start(version=version) as rig:
        for named in ([1, 2], [[1], [2]]):
            text = ["a", "b"] if isinstance(named[0], list) else "a"
            body = {"text": text, "return_logprob": True, "token_ids_logprob": named}
            got = await rig.post(GENERATE, body)
            assert got.status == status
            assert status == 200 or got.error["param"] == "token_ids_logprob"
        body = {"text": "a", "return_logprob": True, "token_ids_logprob": []}
        assert (await rig.post(GENERATE, body)).status == 200
