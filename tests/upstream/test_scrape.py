"""The few numbers taken from an engine's /metrics. The sample is of a real 0.5.23, made shorter."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.ask import AskError
from gateway.upstream.discover import METRICS_LIMIT, metrics
from gateway.upstream.scrape import RankSignals, parse_metrics
from tests.fakes.profile import Profile
from tests.fakes.profile import metrics as metrics_of
from tests.upstream.scripted import Scripted, ScriptedClient, status

SAMPLE = (Path(__file__).parent / "data" / "metrics-0.5.23.txt").read_bytes()
LABELS = 'engine_type="unified",model_name="tiny",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
RECENT, OLD = (0, 5, 23), (0, 5, 6)


def total(value: object, labels: str = LABELS) -> bytes:
    return f"sglang:num_retracted_requests_total{{{labels}}} {value}\n".encode()


def last(value: object, labels: str = LABELS) -> bytes:
    return f"sglang:num_retracted_reqs{{{labels}}} {value}\n".encode()


def ratio(value: object, labels: str = LABELS) -> bytes:
    return f"sglang:new_token_ratio{{{labels}}} {value}\n".encode()


def test_a_real_server_before_its_first_retraction() -> None:
    """The counter is not listed yet: it is zero, so that the first one shows."""
    assert parse_metrics(SAMPLE, RECENT) == {0: RankSignals(retracted=0.0, ratio=0.7)}
    assert parse_metrics(SAMPLE + total(2.0), RECENT)[0].retracted == 2.0


def test_the_counter_from_0_5_12_the_gauge_before() -> None:
    both = last(3.0) + total(8.0)
    assert parse_metrics(both, RECENT)[0].retracted == 8.0
    assert parse_metrics(both, None)[0].retracted == 8.0
    assert parse_metrics(last(3.0), RECENT)[0].retracted == 0.0
    assert parse_metrics(last(3.0), OLD)[0].retracted == 3.0


def test_ranks_are_told_apart_and_series_of_one_rank_taken_together() -> None:
    one, other = f'dp_rank="1",{LABELS}', f'{LABELS},dp_rank="0",priority="5"'
    body = total(1, one) + total(2, other) + total(4, other.replace("5", "6"))
    body += ratio(0.3, one) + ratio(0.5, one.replace('tp_rank="0"', 'tp_rank="1"'))
    assert parse_metrics(body, RECENT) == {0: RankSignals(6.0, None), 1: RankSignals(1.0, 0.5)}


def test_a_label_that_looks_like_one_of_ours_is_none() -> None:
    tricky = 'model_name="a} 9 dp_rank=\\"7\\",",not_dp_rank="5",tp_rank="0"'
    assert parse_metrics(total(2, tricky), RECENT) == {0: RankSignals(2.0, None)}


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "", "x", "1e999"])
def test_numbers_that_make_no_sense_are_no_news(value: str) -> None:
    assert parse_metrics(total(value) + ratio(value), RECENT) == {}


@pytest.mark.parametrize("value", [0, 1.01])
def test_a_ratio_no_engine_has_is_none(value: float) -> None:
    """0 is a gauge nobody has set yet; taken, it would fill the pool with promises."""
    assert parse_metrics(total(1) + ratio(value), RECENT)[0].ratio is None


@given(
    st.binary()
    | st.lists(
        st.sampled_from(
            [b"sglang:", b"new_token_ratio", b"{", b"}", b'"', b"\\", b" 1", b"\n", b"\xff"]
        )
    ).map(b"".join)
)
def test_no_bytes_make_it_raise(body: bytes) -> None:
    parse_metrics(body, RECENT)
    parse_metrics(b"sglang:num_retracted_reqs" + body, OLD)


def test_the_fake_engine_speaks_as_the_real_one() -> None:
    two = Profile(version="0.5.23", dp=2)
    said = parse_metrics(metrics_of(two, [0, 3], 0.25), two.number)
    assert said == {0: RankSignals(0.0, 0.25), 1: RankSignals(3.0, 0.25)}


async def test_asked_with_the_key_and_a_bound() -> None:
    client = ScriptedClient()
    limits = []

    class Noted(Scripted):
        async def read_all(self, limit: int) -> bytes:
            limits.append(limit)
            return self.body

    client.override["/metrics"] = Noted(body=SAMPLE)
    said = await metrics(client, RECENT, api_key="k", timeout_s=1)
    assert said[0].ratio == 0.7
    assert limits == [METRICS_LIMIT]
    assert client.headers[-1] == (("authorization", "Bearer k"),)


async def test_a_look_that_fails_is_an_ask_error() -> None:
    client = ScriptedClient()
    client.override["/metrics"] = status(500)
    with pytest.raises(AskError):
        await metrics(client, RECENT, api_key=None, timeout_s=1)
