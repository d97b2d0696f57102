"""What others do while kernels are measured: a piece of work in, done in another thread on cores
where it disturbs no measurement.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Self

# Python lets one thread at a time run, and by default for 5 ms: as long as a measurement of several
# messages back and forth may take.
_TURN_SECONDS = 0.0005


class Overlap:
    """Runs `work` from the beginning of a `with` block; it has ended when the block has."""

    def __init__(self, work: Callable[[], None], cores: Collection[int]) -> None:
        self._work, self._cores = work, cores
        self._thread = threading.Thread(target=self._run, name="tilesmith-overlap", daemon=True)
        self._error: BaseException | None = None
        self._turn = sys.getswitchinterval()

    def _run(self) -> None:
        with suppress(OSError):  # a core may have gone off line
            os.sched_setaffinity(0, self._cores)  # of this thread alone
        try:
            self._work()
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        """Until the work is done; its error is raised here."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        sys.setswitchinterval(_TURN_SECONDS)
        self._thread.start()
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        try:
            self._thread.join()
        finally:
            sys.setswitchinterval(self._turn)
        if kind is None:
            self.wait()
