"""Boxes the twin can be: memory, speed and pool of real machines, each number with its source."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gateway.twin.lengths import LengthSource, talkative
from gateway.twin.steps import Activations, Speed

KIB = 1 << 10
GIB = 1 << 30
NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Profile:
    """One box with its launch arguments. Tokens, seconds, bytes."""

    name: str
    model: str
    pool: int  # max_total_num_tokens
    context: int
    speed: Speed
    activations: Activations = Activations(headroom=NEVER)
    page: int = 1
    chunk: int | None = 2048  # --chunked-prefill-size
    max_prefill: int = 16384  # --max-prefill-tokens, SGLang's default
    max_running: int = 1024
    max_queued: int | None = None
    conservativeness: float = 1.0
    policy: str = "fcfs"
    mixed_chunk: bool = False
    radix: bool = True
    block: int = 64  # tokens per cache block the twin's tokenizer forms
    new_tokens_limit: int | None = None  # SGLANG_MAX_NEW_TOKENS_LIMIT, 0.5.17 and later
    dry_pool_kills: bool = False  # decode without a free page ends the process, see `engine`
    restart_s: float = 45.0  # death to ready
    pools_after_restart: tuple[int, ...] = ()
    lengths: LengthSource = field(default_factory=lambda: talkative(300))

    def with_(self, **changes: object) -> Profile:
        """A copy with other launch arguments."""
        return replace(self, **changes)  # type: ignore[arg-type]


_RTX3090_27B = Speed(
    weights=17.67e9,  # incident B: weights of Qwen3.8-27B W4A16 in memory
    bandwidth=0.85 * 936e9,  # RTX 3090 data sheet; 85 % is what memory-bound kernels reach
    cell=32 * KIB,  # incident B: three pool sizes fit 32 KiB a token within 0.5 %
    flops=70e12,  # incident A: 100K tokens of prefill in 77 s, at 54 GFLOP a token
    per_token=54e9,  # 2 x 27e9 parameters
)

RTX3090_GPU0 = Profile(
    name="rtx3090-27b",
    model="Qwen3.8-27B-W4A16",
    pool=67_375,  # incident A
    context=69_632,  # incident A, GPU0
    speed=_RTX3090_27B,
    activations=Activations(
        headroom=1.49 * GIB,  # incident A: free after start at fraction 0.91
        # MLP gate, up and activation in bf16, 3 x 17408 x 2, and residual streams: 0.28 GiB at 2048.
        per_token=145 * KIB,
        per_context=3.6 * KIB,  # incident B: 0.65 GiB dies near 119K, 1.09 GiB lives at 102K
    ),
    chunk=2048,  # SGLang's default for cards below 35 GB
    max_running=48,
    new_tokens_limit=32_000,  # incident A: SGLANG_MAX_NEW_TOKENS_LIMIT of that day
    dry_pool_kills=True,
    restart_s=60.0,
    pools_after_restart=(70_045, 73_898),  # incident A: it differs at every start
)

TINY_CPU = Profile(
    name="tiny-cpu",
    model="tiny",
    pool=2048,
    context=8192,
    # Greedy decode measured at 196, 338, 458 and 721 tokens/s for 1, 2, 4 and 8 sequences on the
    # genuine CPU server: 4.3 ms a step and 0.85 ms a sequence. Prefill about 4,600 tokens/s.
    speed=Speed(
        weights=0.0, bandwidth=1.0, cell=0.0, flops=1.0, per_token=1 / 4600, overhead=0.0043,
        per_sequence=0.00085,
    ),
    restart_s=20.0,
)

PROFILES = {profile.name: profile for profile in (RTX3090_GPU0, TINY_CPU)}


def profile_named(name: str) -> Profile:
    """The profile called `name`. Raises KeyError with the names there are."""
    try:
        return PROFILES[name]
    except KeyError:
        message = f"no profile {name!r}; there are: {', '.join(sorted(PROFILES))}"
        raise KeyError(message) from None
