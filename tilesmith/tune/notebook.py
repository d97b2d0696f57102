"""An output of a notebook's cell whose content is replaced while work goes on."""

from __future__ import annotations

import sys
import time
from typing import Any

from tilesmith.base.html import html_text

_EVERY_SECONDS = 0.3  # between updates: each is a message to the browser


class NotebookOutput:
    """Shows a text in place of the one before. Texts that follow too soon are left out, except for
    the last one.
    """

    def __init__(self, show: Any) -> None:
        self._show = show  # IPython.display.display
        self._handle: Any = None
        self._last = 0.0

    def write(self, text: str, last: bool = False) -> None:
        now = time.monotonic()
        if not last and now - self._last < _EVERY_SECONDS:
            return
        self._last = now
        forms = {"text/plain": text, "text/html": html_text(text)}
        if self._handle is None:
            self._handle = self._show(forms, raw=True, display_id=True)
        else:
            self._handle.update(forms, raw=True)


def notebook_output() -> NotebookOutput | None:
    """An output of the cell that runs; None outside of a notebook. A notebook's process has loaded
    IPython before us, so nothing is imported here, and IPython in a terminal has no kernel.
    """
    module: Any = sys.modules.get("IPython")
    get_ipython = getattr(module, "get_ipython", None)
    shell = None if get_ipython is None else get_ipython()
    if getattr(shell, "kernel", None) is None:
        return None
    return NotebookOutput(module.display.display)
