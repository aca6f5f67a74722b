"""Bytes of a token, of a state, of a chunk, from config.json."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.plan.cards import CARDS, default_chunk
from gateway.plan.model import ModelError, chunk_gib, read_model, state_gib

GQA = {
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
}
HYBRID = {  # 48 gated delta nets and 16 full attentions, as the 27B of incident B
    "text_config": {
        "num_hidden_layers": 64,
        "full_attention_interval": 4,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "linear_num_value_heads": 48,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    }
}
MLA = GQA | {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_hidden_layers": 27}


def test_gqa():
    model = read_model(GQA)
    assert model.cell_bytes == 8 * (128 + 128) * 36 * 2
    assert (model.kind, model.state_bytes, model.longest) == ("GQA", 0, 40960)
    assert read_model(GQA, kv_dtype="fp8_e5m2").cell_bytes == model.cell_bytes / 2
    assert read_model(GQA, tp=4).cell_bytes == model.cell_bytes / 4
    assert read_model(GQA, tp=16).cell_bytes == model.cell_bytes / 8  # a head is not split


def test_mla_is_not_split():
    assert read_model(MLA).cell_bytes == (512 + 64) * 27 * 2
    assert read_model(MLA, tp=8).cell_bytes == (512 + 64) * 27 * 2
    assert read_model(MLA).kind == "MLA"


def test_hybrid_of_incident_b():
    model = read_model(HYBRID, kv_dtype="fp8_e5m2")
    assert model.cell_bytes == 32 * 1024  # what the measured pools imply
    assert (model.kind, model.attention_layers) == ("GQA hybrid", 16)
    conv, state = (48 * 128 + 2 * 16 * 128) * 3 * 2, 48 * 128 * 128 * 4
    assert model.state_bytes == 48 * (conv + state)
    assert state_gib(model, 9) == pytest.approx(10 * model.state_bytes / 2**30)
    half = read_model(HYBRID, state_dtype="bfloat16")
    assert half.state_bytes == 48 * (conv + state // 2)
    listed = {
        "text_config": HYBRID["text_config"]
        | {"layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16}
    }
    assert read_model(listed).cell_bytes == read_model(HYBRID).cell_bytes


def test_a_chunk_of_incident_b():
    assert chunk_gib(2048, 5120, 17408) == pytest.approx(0.28, abs=0.01)
    assert chunk_gib(8192, 5120, 17408) == pytest.approx(1.11, abs=0.01)


def test_experts_count_those_chosen():
    moe = GQA | {"num_experts_per_tok": 8, "moe_intermediate_size": 768}
    assert read_model(moe).intermediate == 8 * 768


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"sliding_window": 4096}, "sliding-window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
        ({"index_head_dim": 128}, "an index"),
        ({"layer_types": ["conv", "full_attention"]}, "not known"),
        ({"mamba_num_heads": 8}, "Mamba"),
        ({"full_attention_interval": 4}, "linear_key_head_dim"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
    ],
)
def test_what_is_not_known_is_said(fields, said):
    with pytest.raises(ModelError, match=said):
        read_model(GQA | fields)


def test_a_window_that_is_off_is_none():
    off = GQA | {"sliding_window": 4096, "use_sliding_window": False}
    assert read_model(off).cell_bytes == read_model(GQA).cell_bytes


noise = st.one_of(
    st.none(), st.integers(-4, 300), st.text(max_size=5), st.lists(st.text(max_size=4))
)


@given(st.dictionaries(st.sampled_from([*GQA, *HYBRID["text_config"], "text_config"]), noise))
def test_odd_configs_are_read_or_refused(odd):
    with contextlib.suppress(ModelError):
        assert read_model(GQA | odd).cell_bytes >= 0


def test_cards():
    assert CARDS["rtx3090"].available_gib == pytest.approx(23.2)
    assert default_chunk(24) == 2048
    assert [default_chunk(gib) for gib in (16, 46, 80, 180)] == [2048, 4096, 8192, 16384]


@pytest.mark.parametrize(
    ("version", "chunks"),
    [
        ((0, 5, 22), [2048, 2048, 2048, 4096, 8192, 16384]),
        ((0, 5, 23), [2048, 4096, 4096, 4096, 8192, 16384]),
    ],
)
def test_the_chunk_is_that_of_the_version(version, chunks):
    """memory_hook.py of 0.5.23: 4,096 from 20 GiB on, where it was 2,048 up to 35."""
    assert [default_chunk(gib, version) for gib in (16, 24, 32, 46, 80, 180)] == chunks
