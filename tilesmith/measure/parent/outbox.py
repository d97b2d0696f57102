"""Measurements of a batch on their way out: each is given to a listener once, in small groups, as
soon as nothing about it will change.
"""

from __future__ import annotations

import time

from tilesmith.measure.protocol import Listener
from tilesmith.task.task import Measurement

_EVERY_SECONDS = 0.5  # storing a group takes a listener some milliseconds


class Outbox:
    """`measured` holds them by the keys of their candidates."""

    def __init__(self, listener: Listener | None) -> None:
        self._listener = listener
        self.measured: dict[str, Measurement] = {}
        self._waiting: list[Measurement] = []
        self._sent = time.monotonic()

    def put(self, m: Measurement) -> None:
        self.measured[m.candidate.key] = m
        self.tell(m)
        if time.monotonic() - self._sent >= _EVERY_SECONDS:
            self.send()

    def tell(self, m: Measurement) -> None:
        """For the listener only: it is no answer to what was asked."""
        self._waiting.append(m)

    def send(self) -> None:
        self._sent = time.monotonic()
        if self._listener is None or not self._waiting:
            return
        group, self._waiting = self._waiting, []
        self._listener(group)
