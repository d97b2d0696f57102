"""Ctrl-C at a moment of our choosing: a piece of work is done whole, and a KeyboardInterrupt that
was lost is raised again.
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

    came: bool = False

    def check(self) -> None:
        if self.came:
            raise KeyboardInterrupt


@contextmanager
def noticed() -> Iterator[Interrupts]:
    """Python drops a KeyboardInterrupt that is raised while it collects garbage or runs a callback.
    Within this block Ctrl-C does what it did, and `check` raises it again.
    """
    interrupts = Interrupts()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield interrupts
        return

    def note(number: int, frame: FrameType | None) -> None:
        interrupts.came = True
        before(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def whole() -> Iterator[None]:
    """The block is not interrupted by a first Ctrl-C; a second one does interrupt it. Only the main
    thread is ever interrupted, so that elsewhere this does nothing.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came: list[tuple[int, FrameType | None]] = []

    def wait(number: int, frame: FrameType | None) -> None:
        if came:
            before(number, frame)
        came.append((number, frame))

    signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            before(*came[0])
