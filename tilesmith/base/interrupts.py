"""Controls when Ctrl-C takes effect: delays it until a block is complete, and raises one again that
Python lost.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass(slots=True)
class Interrupts:
    """Whether Ctrl-C was pressed."""

    pressed: bool = False

    def check(self) -> None:
        if self.pressed:
            raise KeyboardInterrupt


@contextmanager
def noticed() -> Iterator[Interrupts]:
    """Python drops a KeyboardInterrupt that is raised during garbage collection or in a callback.
    Within this block Ctrl-C works as usual, and `check` raises it again if it was lost.
    """
    interrupts = Interrupts()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield interrupts
        return

    def note(number: int, frame: FrameType | None) -> None:
        interrupts.pressed = True
        before(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def whole() -> Iterator[None]:
    """The block is not interrupted by a first Ctrl-C, but by a second one. Only the main thread is
    ever interrupted, so elsewhere this does nothing.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    signals: list[tuple[int, FrameType | None]] = []

    def wait(number: int, frame: FrameType | None) -> None:
        if signals:
            before(number, frame)
        signals.append((number, frame))

    signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if signals:
            before(*signals[0])
