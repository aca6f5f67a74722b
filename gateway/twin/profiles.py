"""Boxes the twin can be: memory, speed and pool of real machines, each number with its source.

Where a number is a fit rather than a reading, its comment says what it was fitted to.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from gateway.twin.lengths import LengthSource, endless, talkative
from gateway.twin.steps import Activations, Speed

KIB = 1 << 10
GIB = 1 << 30
UNBOUNDED = Activations(headroom=float("inf"))


@dataclass(frozen=True, slots=True)
class Profile:
    """One box with its launch arguments. Tokens, seconds, bytes."""

    name: str
    model: str
    pool: int  # max_total_num_tokens
    context: int
    speed: Speed
    activations: Activations = UNBOUNDED
    page: int = 1
    chunk: int | None = 2048  # --chunked-prefill-size
    max_prefill: int = 16384  # --max-prefill-tokens, SGLang's default
    max_running: int = 1024
    max_queued: int | None = None  # --max-queued-requests
    conservativeness: float = 1.0  # --schedule-conservativeness
    policy: str = "fcfs"  # or "lpm"
    mixed_chunk: bool = False  # --enable-mixed-chunk
    radix: bool = True
    block: int = 64  # tokens per cache block
    new_tokens_limit: int | None = None  # SGLANG_MAX_NEW_TOKENS_LIMIT, 0.5.17 and later
    dry_pool_kills: bool = False  # a pool run dry in decode ends the process: see `engine`
    restart_s: float = 45.0  # death to ready
    pools_after_restart: tuple[int, ...] = ()  # taken in turn; empty: `pool` again
    images: bool = True  # the model sees; one that does not refuses pictures at the door
    lengths: LengthSource = field(default_factory=lambda: talkative(300))

    def with_(self, **changes: Any) -> Profile:  # noqa: ANN401 - the fields' own types
        """A copy with other launch arguments."""
        return replace(self, **changes)


_RTX3090_27B = Speed(
    weights=17.67e9,  # incident B: weights of the 27B W4A16 model in memory
    bandwidth=0.85 * 936e9,  # RTX 3090 data sheet; 85 % is what memory-bound kernels reach
    cell=32 * KIB,  # incident B: its three pool sizes fit 32 KiB a token within 0.5 %
    # Incident A: "100K in 77 s", 1,300 tokens/s. Its other figure, 20,000 tokens in 2.0 s, would be
    # 540 TFLOP/s on a card of 142, so that prompt was cached.
    flops=70e12,
    per_token=54e9,  # 2 x 27e9 parameters
)


def _rtx3090(name: str, pool: int, context: int, headroom_gib: float, **more: Any) -> Profile:  # noqa: ANN401
    """A 24 GB card with the 27B model. `headroom_gib` is what the memory fraction left free."""
    return Profile(
        name=name,
        model="Qwen3.8-27B-W4A16",
        pool=pool,
        context=context,
        speed=_RTX3090_27B,
        activations=Activations(
            headroom=headroom_gib * GIB,
            # MLP gate, up and product in bf16, 3 x 17408 x 2 bytes, plus residual streams of width
            # 5120: 0.28 GiB for a chunk of 2048.
            per_token=145 * KIB,
            # Fitted. Incident B: 0.65 GiB dies of a long conversation below 119K tokens, so at
            # least 3.3 KiB; 1.09 GiB survives the 105K of a full pool, so at most 8 KiB.
            per_context=5 * KIB,
        ),
        chunk=2048,  # SGLang's default for cards below 35 GB
        max_running=24,  # its default CUDA graph batch for such cards; incident A ran three
        # Incident A: over-committing the pool ended in CUDA out of memory, not in a retraction.
        dry_pool_kills=True,
        restart_s=60.0,  # assumed: loading 17.67 GB from disk and capturing graphs
        **more,
    )


RTX3090_GPU0 = _rtx3090(
    "rtx3090-27b",
    pool=67_375,  # incident A
    context=69_632,  # incident A, GPU0
    headroom_gib=1.49,  # incident A: free after start at fraction 0.91
    new_tokens_limit=32_000,  # incident A: SGLANG_MAX_NEW_TOKENS_LIMIT of that day
    pools_after_restart=(70_045, 73_898),  # incident A: it differs at every start
)
RTX3090_GPU1 = _rtx3090(
    "rtx3090-27b-gpu1",
    pool=105_256,  # incident B, fraction 0.93, which is incident A's GPU1
    context=102_400,
    headroom_gib=1.09,
    new_tokens_limit=32_000,
)
RTX3090_95 = _rtx3090(
    "rtx3090-27b-f95",
    pool=120_079,  # incident B, fraction 0.95
    context=119_000,
    headroom_gib=0.65,
)

L20X4 = Profile(
    name="l20x4-27b",
    model="Qwen3.6-27B",
    # Incident C: 486K tokens at the peak were "never over 43 %" of the pool.
    pool=1_130_000,
    context=262_144,
    speed=Speed(
        weights=54e9,  # 27e9 parameters in bf16
        bandwidth=0.7 * 4 * 864e9,  # L20 data sheet, four cards; 70 % after TP4 over PCIe
        cell=32 * KIB,  # same architecture as the 3090's, fp8 KV
        flops=0.4 * 4 * 119.5e12,  # L20 data sheet, bf16 dense; 40 % after TP4 over PCIe
        per_token=54e9,
        attention=4 * 24 * 256 * 16,  # 4 x heads x head size x full-attention layers
        overhead=0.006,  # two all-reduces a layer without NVLink
    ),
    chunk=4096,  # incident C
    max_running=44,  # incident C, before the remedy (then 10)
    lengths=talkative(500),
)

A100_8B = Profile(
    name="a100-80g-8b",
    model="Llama-3.1-8B-Instruct",
    # (0.88 x 80e9 - 16e9) / 131072: SGLang's default fraction on an 80 GB card, bf16 KV.
    pool=415_000,
    context=131_072,
    speed=Speed(
        weights=16e9,  # 8e9 parameters in bf16
        bandwidth=0.8 * 2.0e12,  # A100 80G data sheet, 2.0 TB/s
        cell=131_072,  # 32 layers x 8 KV heads x 128 x 2 x 2 bytes
        flops=0.55 * 312e12,  # data sheet, bf16 dense
        per_token=16e9,
        attention=4 * 4096 * 32,  # 4 x hidden size x layers
    ),
    chunk=8192,  # SGLang's default for cards of 80 GB
    max_running=256,
)

A10_8B = Profile(
    name="a10-8b",
    model="Llama-3.1-8B-Instruct",
    pool=32_768,  # what 24 GB leave beside 16 GB of weights: 4 GiB of bf16 KV
    context=8192,
    speed=Speed(
        weights=16e9,
        bandwidth=0.83 * 600e9,  # A10 data sheet
        cell=131_072,
        flops=0.56 * 125e12,  # data sheet, bf16 dense
        per_token=16e9,
        attention=4 * 4096 * 32,
    ),
    chunk=2048,
    max_running=256,
)

TINY_CPU = Profile(
    name="tiny-cpu",
    model="tiny",
    pool=2048,
    context=8192,
    # The genuine SGLang CPU server of `make test-real`, greedy: 196, 338, 458 and 721 tokens/s at 1,
    # 2, 4 and 8 sequences, fitted by 4.3 ms a step and 0.85 ms a sequence; prefill 4,600 tokens/s.
    speed=Speed(
        weights=0.0,
        bandwidth=1.0,
        cell=0.0,
        flops=1.0,
        per_token=1 / 4600,
        overhead=0.0043,
        per_sequence=0.00085,
    ),
    block=4,  # pages of one token there: short shared beginnings count in a pool this small
    restart_s=20.0,  # measured: 17.5 to 26 s from launch to ready
    images=False,
    lengths=endless,  # random weights hardly ever stop
)

PROFILES = {
    profile.name: profile
    for profile in (RTX3090_GPU0, RTX3090_GPU1, RTX3090_95, L20X4, A100_8B, A10_8B, TINY_CPU)
}
