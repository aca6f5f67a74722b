"""fastokens, an optional engine: several times faster than tiktoken, used only when asked for.

It keeps words of the texts it encodes in a cache that nothing switches off, so a client's words may
lie in this process's memory long after the request. Whoever asks for it (`tokenizer_engine: fast`)
takes that for the speed. Whether it counts alike is tried out at every load; one difference, and
it is not used.
"""

from __future__ import annotations

import importlib
import math
import random
from typing import TYPE_CHECKING, Any, Final

from gateway.tokens.blocks import counted
from gateway.tokens.nfc import EndlessRun, nfc
from gateway.tokens.vocabulary import Unencodable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gateway.tokens.encoder import Encoder

PROBES: Final = 3_000
"""Texts compared at load, about 1 s: enough that each script, and each kind of border between
letters, digits, marks and spaces, comes up hundreds of times."""

# Where scripts live that tokenizers treat differently, and where code points are unassigned.
_RANGES: Final = (
    (0x20, 0x7F), (0x80, 0x600), (0x600, 0x1000), (0x1000, 0x3100), (0x3100, 0xD7FF),
    (0xE000, 0x10000), (0x10000, 0x20000), (0x20000, 0x110000),
)  # fmt: skip
_SPACES: Final = " \n\t\r\u00a0\u3000"


class FastEncoder:
    """Counts with fastokens, and with `judge` what fastokens will not take."""

    def __init__(self, engine: Any, judge: Encoder) -> None:  # noqa: ANN401 - has no types here
        self._encode = engine.encode_batch_flat
        self._judge = judge

    @property
    def cuts(self) -> bool:
        """As `judge`."""
        return self._judge.cuts

    @property
    def nfc(self) -> bool:
        """As `judge`."""
        return self._judge.nfc

    def count(self, text: str, until: float = math.inf) -> int:
        """Tokens of `text`."""
        try:
            if self.nfc:
                text = nfc(text)
        except EndlessRun:
            raise Unencodable from None
        return counted(text, lambda block: self._block(block, until), until, cuts=self.cuts)

    def _block(self, text: str, until: float) -> int:
        try:
            ids, _ = self._encode([text])
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # noqa: BLE001 - its limits, or a panic, which is no Exception
            return self._judge.count(text, until)
        return len(ids) // 4  # ids are 32 bits each


def fast_encoder(content: bytes, judge: Encoder, words: Sequence[str]) -> tuple[Encoder, str]:
    """(fastokens if it is here and counts as `judge` does, else `judge`; a note for people).

    `content` is the tokenizer.json, `words` some of its vocabulary. Takes seconds.
    """
    try:
        engine = importlib.import_module("fastokens").Tokenizer.from_json_str(content.decode())
    except ImportError:
        return (
            judge,
            "tokenizer_engine is fast but fastokens is not here: pip install kvgate[fast].",
        )
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it makes of the file, the gate starts
        return judge, f"fastokens cannot load this tokenizer ({type(error).__name__}): not used."
    fast = FastEncoder(engine, judge)
    differ = sum(fast.count(text) != judge.count(text) for text in probes(words))
    if differ:
        return judge, f"fastokens counts {differ:,} of {PROBES:,} texts differently: not used."
    return fast, f"Counting with fastokens: equal on all of {PROBES:,} texts tried."


def probes(words: Sequence[str]) -> Iterator[str]:
    """Texts of words, characters of all scripts, digits, spaces and runs, the same every time."""
    rng = random.Random(2026)  # noqa: S311 - for variety, not for secrets

    def characters() -> str:
        low, high = rng.choice(_RANGES)
        return "".join(chr(rng.randrange(low, high)) for _ in range(rng.randrange(1, 8)))

    makers = (
        lambda: rng.choice(words),
        lambda: " ".join(rng.choices(words, k=4)),
        characters,
        lambda: str(rng.randrange(10 ** rng.randrange(1, 9))),
        lambda: "".join(rng.choices(_SPACES, k=rng.randrange(1, 6))),
        lambda: rng.choice("aA1 .-=\n的\u0301é") * rng.randrange(1, 40),
        lambda: rng.choice(("'s", "'LL", "n't", "\r\n", "e\u0301", "...", "](", "//", "。，")),
    )
    for _ in range(PROBES):
        parts = (rng.choice(makers)() for _ in range(rng.randrange(2, 40)))
        yield "".join(parts)
