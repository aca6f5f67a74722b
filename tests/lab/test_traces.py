"""Traces: read, cut, scaled, and the shipped ones intact."""

import pytest

from gateway.lab.traces import Arrival, Trace, read, shipped


def test_csv_and_jsonl_give_the_same(tmp_path):
    table = tmp_path / "a.csv"
    table.write_text("t_ms,prompt_tokens,output_tokens,client,block_ids\n1500,10,20,me,0 4-6\n")
    lines = tmp_path / "b.jsonl"
    lines.write_text(
        '{"t_ms": 1500, "prompt_tokens": 10, "output_tokens": 20, "client": "me", '
        '"block_ids": "0 4-6"}\n'
    )
    expected = (Arrival(1.5, 10, 20, "me", (0, 4, 5, 6)),)
    assert read(table).arrivals == read(lines).arrivals == expected


def test_a_bad_record_is_named(tmp_path):
    table = tmp_path / "bad.csv"
    table.write_text("t_ms,prompt_tokens,output_tokens\n0,1,1\n5,many,1\n")
    with pytest.raises(ValueError, match=r"bad.csv, record 2: .*many"):
        read(table)


@pytest.mark.parametrize(
    ("name", "requests"),
    [
        ("azure2023_conv", 19_366),
        ("azure2023_code", 8_819),
        ("mooncake_conversation", 12_031),
        ("mooncake_synthetic", 3_993),
    ],
)
def test_shipped_traces_are_whole_and_in_order(name, requests):
    trace = shipped(name)
    assert len(trace.arrivals) == requests
    times = [item.at for item in trace.arrivals]
    assert times == sorted(times)


def test_a_rate_is_reached_by_thinning_or_by_speed():
    trace = Trace("t", tuple(Arrival(index / 10, 5, 5) for index in range(2000)))
    assert trace.at_rate(3.0, seed=1).rate == pytest.approx(3.0, rel=0.1)
    assert trace.at_rate(40.0, seed=1).rate == pytest.approx(40.0, rel=0.01)
    assert trace.at_rate(3.0, seed=1) == trace.at_rate(3.0, seed=1)
    assert trace.at_rate(3.0, seed=1) != trace.at_rate(3.0, seed=2)


def test_a_window_starts_at_zero_and_a_cap_cuts():
    trace = Trace("t", tuple(Arrival(float(index), 5, 100 * index) for index in range(10)))
    cut = trace.window(3.0, 4.0).capped(500)
    assert [item.at for item in cut.arrivals] == [0.0, 1.0, 2.0, 3.0]
    assert [item.output for item in cut.arrivals] == [300, 400, 500, 500]
