"""Cards people have, and what is free on them once a server has begun to load.

`total_mib` is what nvidia-smi calls total. Of an RTX 3090's 24,576 MiB, torch saw 23.54 GiB and
23.2 GiB were free when SGLang measured (incidents A and B): 0.8 GiB go to the driver, the CUDA
context and the communicator. The same 0.8 GiB are taken off every card here, so trust these numbers
to some 0.3 GiB; a desktop on the card takes about 0.7 more. `--measured` is better.
"""

from __future__ import annotations

from dataclasses import dataclass

TAKEN_GIB = 0.8
DESKTOP_GIB = 0.7
"""Xorg, GNOME and a browser on the first card of incident A; it differs at every start."""


@dataclass(frozen=True, slots=True)
class Card:
    """One kind of GPU."""

    name: str
    total_mib: int

    @property
    def available_gib(self) -> float:
        """Free at the engine's first measurement, GiB, an estimate."""
        return round(self.total_mib / 1024 - TAKEN_GIB, 2)


CARDS = {
    card.name: card
    for card in (
        Card("t4", 15_360),
        Card("rtx4080", 16_376),
        Card("l4", 23_034),
        Card("a10", 23_028),
        Card("rtx3090", 24_576),
        Card("rtx4090", 24_564),
        Card("rtx5090", 32_607),
        Card("a100-40", 40_960),
        Card("l20", 46_068),
        Card("l40s", 46_068),
        Card("a6000", 49_140),
        Card("h100", 81_559),
        Card("a100-80", 81_920),
        Card("h20", 97_871),
        Card("h200", 143_771),
    )
}

CHUNKS = ((35, 2048), (60, 4096), (160, 8192))
LARGEST_CHUNK = 16_384


LATER_CHUNKS = ((20, 2048), (60, 4096), (160, 8192))
"""From `LATER_FROM` on."""
LATER_FROM = (0, 5, 23)


def default_chunk(card_gib: float, version: tuple[int, int, int] | None = None) -> int:
    """The prefill chunk SGLang picks for a card of that nominal size when none is given
    (_handle_gpu_memory_settings, 0.5.6 to 0.5.23). Without a version as before 0.5.23."""
    chunks = LATER_CHUNKS if version is not None and version >= LATER_FROM else CHUNKS
    return next((chunk for below, chunk in chunks if card_gib < below), LARGEST_CHUNK)
