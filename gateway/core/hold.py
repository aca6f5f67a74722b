"""One reservation: what it takes of a pool, and what was seen of its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.core.mirror import CLIP

if TYPE_CHECKING:
    from gateway.core.lengths import Lengths
    from gateway.core.model import Demand
    from gateway.core.ttft import Prediction


@dataclass(slots=True)
class Hold:
    """One reservation."""

    client: str
    demand: Demand
    prompt: int  # prompt tokens that really occupy KV, all sequences
    since: float
    streamed: bool
    generated: int = 0  # all sequences; of an answer that is not streamed, an estimate
    prefilling: bool = True
    prefilled_by: float | None = None  # where no first token will be seen: when it should be in
    lingering: bool = False
    linger_until: float = 0.0
    lengths: Lengths | None = None  # what this answer adds to; None: nothing is forecast here
    seen: int = 0  # tokens streamed over all sequences; `generated` follows it, see `refresh`
    looked: int = -1  # of these, at the last look by the clock, see `rounds`
    silent: int = 0  # looks in a row that found no more
    bucket: int = -1  # of lengths, entered so far
    decoding_since: float = 0.0
    prediction: Prediction | None = None
    hoped: int = 0  # prompt tokens that the server may have in its cache, see prefix
    uncached: int = 0  # prompt tokens it likely has to read
    timed: bool = True  # its times tell how fast the server is
    compile_s: float | None = None  # that its grammar takes before, see compiling

    @property
    def used(self) -> int:
        """KV tokens known to be occupied: the prompt once prefilled, and what was streamed."""
        most = self.demand.worst or self.demand.kv
        return 0 if self.prefilling else min(self.prompt + max(self.generated, self.seen), most)

    @property
    def prefill(self) -> int:
        """Tokens of the prefill budget that it takes: none while its grammar is compiled, as nothing reads it
        then. When it is read it is one more than was planned, and there are few such at once (`Pool.compiles`)."""
        return self.demand.prefill if self.compile_s is None else 0

    @property
    def to_read(self) -> int:
        """Of these, what likely has to be read."""
        return self.uncached if self.compile_s is None else 0

    @property
    def each(self) -> int:
        """Tokens generated per sequence."""
        return self.generated // max(self.demand.slots, 1)

    @property
    def told(self) -> int:
        """Tokens streamed per sequence."""
        return self.seen // max(self.demand.slots, 1)

    def finished(self) -> None:
        """It was answered to its end: its length counts, unless its cap cut it."""
        if self.lengths is not None and 0 < self.told < self.demand.cap:
            self.lengths.ended(self.bucket)

    @property
    def occupied(self) -> int:
        """KV tokens in use, or soon: the prompts in whole pages, and what was produced. Where nothing
        is forecast, what is charged."""
        if self.lengths is None:
            return self.demand.kv
        return self.demand.prompt_kv + self.generated

    @property
    def growth(self) -> int:
        """What the engine thinks it may still produce, tokens."""
        return self.demand.slots * min(max(self.demand.cap - self.each, 0), CLIP)
