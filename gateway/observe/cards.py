"""The GPUs of this machine by NVML (`pip install kvgate[gpu]`), asked in a thread of their own.

NVML calls take milliseconds on a good day and hang on a bad one (a card that has fallen off the
bus); then the last answer grows old and is not given any more. Without the package, the driver or a
card there is nothing to ask, and `note` says which.
"""

from __future__ import annotations

import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from gateway.observe.looks import CardLook

if TYPE_CHECKING:
    from collections.abc import Callable

NO_PACKAGE: Final = "no nvidia-ml-py"
NO_DRIVER: Final = "no NVIDIA driver"
NO_CARD: Final = "no card"
SILENT: Final = "NVML does not answer"

STALE = 3.0
"""Intervals after which an answer is too old to stand for now."""


class Cards:
    """Asks every `interval_s` seconds from `start` to `stop`. `looks` never blocks."""

    def __init__(
        self, interval_s: float, *, load: Callable[[], Any] = lambda: import_module("pynvml")
    ) -> None:
        self.note: str | None = NO_PACKAGE
        """Why there are no cards; None where there are."""
        self._interval_s = interval_s
        self._load = load
        self._nvml: Any = None
        self._stopping = threading.Event()
        self._last: tuple[float, tuple[CardLook, ...]] = (time.monotonic(), ())

    def start(self) -> None:
        """Load NVML in the thread and begin to ask, where there is anything to ask."""
        try:
            self._nvml = self._load()
        except ImportError:
            return
        self.note = SILENT  # until it has answered
        threading.Thread(target=self._run, name="cards", daemon=True).start()

    def stop(self) -> None:
        """Ask no more; a call that hangs is left behind."""
        self._stopping.set()

    def looks(self) -> tuple[CardLook, ...]:
        """The cards as they were at the last answer; none where that is too old."""
        at, cards = self._last
        if not cards:
            return ()
        if time.monotonic() - at > STALE * self._interval_s:
            self.note = SILENT
            return ()
        self.note = None
        return cards

    def _run(self) -> None:
        nvml = self._nvml
        try:
            nvml.nvmlInit()
        except nvml.NVMLError:
            self.note = NO_DRIVER
            return
        try:
            while not self._stopping.is_set():
                self._ask()
                self._stopping.wait(self._interval_s)
        finally:
            nvml.nvmlShutdown()

    def _ask(self) -> None:
        nvml = self._nvml
        try:
            count = nvml.nvmlDeviceGetCount()
            cards = tuple(self._card(index) for index in range(count))
        except nvml.NVMLError:
            return  # the last answer grows old
        if not cards:
            self.note = NO_CARD
        self._last = time.monotonic(), cards

    def _card(self, index: int) -> CardLook:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        name = nvml.nvmlDeviceGetName(handle)

        def ask(call: Callable[[], Any]) -> Any:  # noqa: ANN401  # NVML has no types
            try:
                return call()
            except nvml.NVMLError:  # a number this card does not have
                return None

        memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        used, total = (None, None) if memory is None else (memory.used, memory.total)
        milliwatts = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        return CardLook(
            card=index,
            name=name.decode() if isinstance(name, bytes) else str(name),
            utilisation=ask(lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
            memory_used=used,
            memory_total=total,
            power_w=None if milliwatts is None else milliwatts / 1000,
            temperature_c=ask(
                lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
            ),
        )
