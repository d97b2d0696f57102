"""Waits that a user would wonder about: one line on the logger "tilesmith" when something takes
longer than some seconds, with what is waited for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

LOGGER = logging.getLogger("tilesmith")
_LONG_SECONDS = 4.0  # after which a wait is told


@contextmanager
def told_wait(what: str, seconds: float | None = None) -> Iterator[None]:
    """Logs a warning, which Python shows unless logging is set up otherwise, if the body takes
    longer than `seconds`, by default 4.
    """
    after = _LONG_SECONDS if seconds is None else seconds
    timer = Timer(after, LOGGER.warning, (f"{after:.0f} s so far: %s", what))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
