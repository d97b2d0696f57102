"""Runs a function in a thread while the caller measures, on cores where it does not disturb the
measurement.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Self

# Python switches threads every 5 ms by default. Measuring exchanges many short messages, each of
# which would wait that long.
_SWITCH_SECONDS = 0.0005


class Overlap:
    """Runs `work` from the beginning of a `with` block; the block ends when both are done."""

    def __init__(self, work: Callable[[], None], cores: Collection[int]) -> None:
        self._work, self._cores = work, cores
        self._thread = threading.Thread(target=self._run, name="tilesmith-overlap", daemon=True)
        self._error: BaseException | None = None
        self._switch_seconds = sys.getswitchinterval()

    def _run(self) -> None:
        with suppress(OSError):  # a core may be offline now
            os.sched_setaffinity(0, self._cores)  # affects this thread only
        try:
            self._work()
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        """Until the work is done; raises its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        sys.setswitchinterval(_SWITCH_SECONDS)
        self._thread.start()
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        try:
            self._thread.join()
        finally:
            sys.setswitchinterval(self._switch_seconds)
        if kind is None:
            self.wait()
