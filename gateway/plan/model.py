"""From a model's config.json to bytes: of a token in the KV cache, of a request's state, of a chunk.

The sums are SGLang's own (`DefaultPoolConfigurator` and `mamba_cache_per_req`, read in 0.5.17):

- GQA, MHA: max(1, kv_heads / tp) · (head_dim + v_head_dim) · full-attention layers · bytes
- MLA: (kv_lora_rank + qk_rope_head_dim) · layers · bytes; every rank keeps all of it
- Gated delta net (qwen3_next and kin), per request and layer:
  conv (value_dim + 2·key_dim)/tp · (kernel − 1) · 2, state value_heads/tp · v_dim · k_dim · 4
  (2 with mamba_ssm_dtype bfloat16), and one slot more than asked for

What the sums are not known for (sliding windows, sparse indexers, Mamba-2 mixers) is refused in words
instead of being guessed: there the bytes must be given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.plan.chain import GIB

KV_BYTES: Mapping[str, float] = {
    "auto": 2,  # the model's own dtype: 16 bits in all that are served
    "bfloat16": 2,
    "bf16": 2,
    "float16": 2,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}
"""Bytes of one KV value by --kv-cache-dtype. fp4 and mxfp8 keep scales beside it: not known here."""

CONV_BYTES = 2
"""The convolution's state is kept in bfloat16 (SGLANG_MAMBA_CONV_DTYPE's default)."""

STATE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}

ACTIVATION_BYTES = 2
MLP_BUFFERS = 3
HIDDEN_BUFFERS = 4
"""A prefill step holds, per token, gate and up projections and their product (3 × intermediate) and
about four hidden rows (residual, norm, attention in and out), 16 bits each: 0.28 GiB for 2,048
tokens of the 27B model of incident B, 1.1 GiB for 8,192."""


class ModelError(ValueError):
    """The config does not tell. The message says what to give instead."""


GIVE = "give --cell-bytes (and --state-gib) yourself, from the log of a start"


@dataclass(frozen=True, slots=True)
class Model:
    """What the chain needs of a model, for one rank."""

    kind: str  # "GQA" or "MLA", and "hybrid" where some layers keep a state instead
    cell_bytes: float  # of one token in the KV cache
    attention_layers: int  # that have a KV cache
    state_bytes: int  # of one state slot; 0: the model keeps none
    longest: int | None  # max_position_embeddings
    hidden: int
    intermediate: int


def read_model(
    config: Mapping[str, Any],
    *,
    kv_dtype: str = "auto",
    tp: int = 1,
    state_dtype: str | None = None,
) -> Model:
    """The bytes of a model. `config` is its config.json. Raises ModelError."""
    if kv_dtype not in KV_BYTES:
        known = ", ".join(KV_BYTES)
        wrong = f"The bytes of this KV dtype are not known; known: {known}."
        raise ModelError(wrong)
    if tp < 1:
        raise ModelError("The tensor-parallel size must be at least 1.")
    text = config.get("text_config")
    fields: Mapping[str, Any] = {**config, **text} if isinstance(text, Mapping) else config
    _refuse_unknown(fields)
    layers = _whole(fields, "num_hidden_layers")
    attention = _attention_layers(fields, layers)
    value_bytes = KV_BYTES[kv_dtype]
    if isinstance(fields.get("kv_lora_rank"), int):
        kind = "MLA"
        row = _whole(fields, "kv_lora_rank") + _whole(fields, "qk_rope_head_dim")
    else:
        kind = "GQA"
        heads = _whole(fields, "num_attention_heads")
        kv_heads = _whole(fields, "num_key_value_heads", heads)
        head = _whole(fields, "head_dim", _whole(fields, "hidden_size") // heads)
        row = max(1, kv_heads // tp) * (head + _whole(fields, "v_head_dim", head))
    hybrid = attention < layers
    return Model(
        kind=f"{kind} hybrid" if hybrid else kind,
        cell_bytes=row * attention * value_bytes,
        attention_layers=attention,
        state_bytes=_state(fields, layers - attention, tp, state_dtype) if hybrid else 0,
        longest=_maybe(fields, "max_position_embeddings"),
        hidden=_whole(fields, "hidden_size"),
        intermediate=_intermediate(fields) // tp,
    )


def state_gib(model: Model, slots: int) -> float:
    """Memory of the state cache: the engine allocates one slot more than it is told."""
    return 0.0 if model.state_bytes == 0 else model.state_bytes * (slots + 1) / GIB


def chunk_gib(tokens: int, hidden: int, intermediate: int) -> float:
    """Activations of a prefill step of that many tokens, GiB. What grows with the context comes on
    top and is not known here."""
    per_token = MLP_BUFFERS * intermediate + HIDDEN_BUFFERS * hidden
    return tokens * per_token * ACTIVATION_BYTES / GIB


def _refuse_unknown(fields: Mapping[str, Any]) -> None:
    if (
        fields.get("index_head_dim") is not None
        or fields.get("sparse_attention_config") is not None
    ):
        wrong = f"This model keeps an index beside its KV cache; {GIVE}."
        raise ModelError(wrong)
    kinds = set(_layer_types(fields))
    windowed = fields.get("use_sliding_window", True) and fields.get("sliding_window")
    if "sliding_attention" in kinds or (windowed and not kinds):
        wrong = f"This model has sliding-window layers, a pool of their own; {GIVE}."
        raise ModelError(wrong)
    if strange := kinds - {"full_attention", "linear_attention", "attention"}:
        names = ", ".join(sorted(map(str, strange)))
        wrong = f"This model has layers whose bytes are not known ({names[:80]}); {GIVE}."
        raise ModelError(wrong)
    if any(name in fields for name in ("hybrid_override_pattern", "mamba_num_heads", "ssm_cfg")):
        wrong = f"This model mixes in Mamba layers of another kind; {GIVE}."
        raise ModelError(wrong)


def _layer_types(fields: Mapping[str, Any]) -> list[Any]:
    for name in ("layer_types", "layers_block_type"):
        listed = fields.get(name)
        if isinstance(listed, list):
            return listed
    return []


def _attention_layers(fields: Mapping[str, Any], layers: int) -> int:
    kinds = _layer_types(fields)
    if kinds:
        return sum(1 for kind in kinds if kind != "linear_attention")
    every = _maybe(fields, "full_attention_interval")
    return layers if every is None else layers // every


def _state(fields: Mapping[str, Any], layers: int, tp: int, dtype: str | None) -> int:
    """Bytes of one slot of a gated delta net, all its layers."""
    keys = _whole(fields, "linear_key_head_dim")
    values = _whole(fields, "linear_value_head_dim")
    value_heads = _whole(fields, "linear_num_value_heads")
    key_heads = _whole(fields, "linear_num_key_heads")
    kernel = _whole(fields, "linear_conv_kernel_dim")
    named = dtype or fields.get("mamba_ssm_dtype") or "float32"
    if named not in STATE_BYTES:
        wrong = f"The state dtype must be one of {', '.join(STATE_BYTES)}."
        raise ModelError(wrong)
    conv = (value_heads * values + 2 * key_heads * keys) // tp * (kernel - 1) * CONV_BYTES
    state = value_heads // tp * values * keys * STATE_BYTES[named]
    return (conv + state) * layers


def _intermediate(fields: Mapping[str, Any]) -> int:
    """Width of what one token passes through: of experts, those chosen and the shared ones."""
    experts = _maybe(fields, "num_experts_per_tok")
    expert_width = _maybe(fields, "moe_intermediate_size")
    if experts and expert_width:
        shared = _maybe(fields, "shared_expert_intermediate_size") or 0
        shared += (_maybe(fields, "n_shared_experts") or 0) * expert_width
        return experts * expert_width + shared
    return _whole(fields, "intermediate_size")


def _maybe(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _whole(fields: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = _maybe(fields, name)
    if value is None:
        value = default
    if value is None:
        wrong = f"config.json does not say {name}; give --cell-bytes yourself."
        raise ModelError(wrong)
    return value
