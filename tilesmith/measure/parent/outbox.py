"""Hands measurements to a listener before their batch is done: in small groups, each measurement
once.
"""

from __future__ import annotations

import time

from tilesmith.measure.protocol import Listener
from tilesmith.task.task import Measurement

_SEND_SECONDS = 0.5  # between two groups; a listener takes some milliseconds to store one


class Outbox:
    """`measured` holds the batch's measurements by the keys of their candidates."""

    def __init__(self, listener: Listener | None) -> None:
        self._listener = listener
        self.measured: dict[str, Measurement] = {}
        self._waiting: list[Measurement] = []
        self._sent = time.monotonic()

    def put(self, m: Measurement) -> None:
        self.measured[m.candidate.key] = m
        self.tell(m)
        if time.monotonic() - self._sent >= _SEND_SECONDS:
            self.send()

    def tell(self, m: Measurement) -> None:
        """Reports a measurement of a candidate outside of this batch, to the listener only."""
        self._waiting.append(m)

    def send(self) -> None:
        self._sent = time.monotonic()
        if self._listener is None or not self._waiting:
            return
        group, self._waiting = self._waiting, []
        self._listener(group)
