"""Ctrl-C that ends an answer and leaves the engine as it is."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts(enabled: bool) -> Iterator[list[int]]:
    """Collect Ctrl-C in a list instead of raising in the middle of a step; the second one raises all the same.

    Args:
        enabled: else Ctrl-C does what it always does.
    """
    pressed: list[int] = []

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        if len(pressed) > 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_interrupt) if enabled else None
    try:
        yield pressed
    finally:
        if enabled:
            signal.signal(signal.SIGINT, before)
