"""What observers of a tuning run receive, a Progress after every batch, and what shows it: on a
terminal and in a notebook one line that is rewritten, elsewhere a plain line every 5 s, and a curve
at the end. Other work whose parts are counted has a progress bar.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import Any, TextIO

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TuneError
from tilesmith.base.given import checks_given
from tilesmith.base.html import html_text
from tilesmith.base.target import cpu
from tilesmith.measure.this_machine import peak_of
from tilesmith.task.task import Budget, Measurement, Task

_CELL_SECONDS = 0.3  # between updates of a notebook: each is a message to the browser
_EVERY_SECONDS = 5.0  # between plain lines
_COLUMNS = 80  # width of a line without a terminal
_MIN_NAME = 16  # columns that a function's name keeps before other parts are left out


@checks_given(error=TuneError)
@dataclass(frozen=True, slots=True)
class Progress:
    """`trials` counts those of this run; `known` those that the database had before."""

    task: Task
    budget: Budget
    seconds: float
    trials: int
    known: int
    failures: Mapping[str, int]  # counts by kind
    best: Measurement | None
    latest: tuple[Measurement, ...]
    finished: bool = False

    @property
    def gflops(self) -> float:
        """The best kernel's rate; 0 while there is none."""
        return self.task.func.flops / self.best.cost / 1e9 if self.best else 0.0

    @property
    def rate(self) -> float:
        """Trials per second."""
        return self.trials / max(self.seconds, 1e-3)

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until the budget is spent; None if unknown."""
        left = []
        if self.budget.seconds is not None:
            left.append(self.budget.seconds - self.seconds)
        if self.budget.trials is not None and self.trials:
            left.append((self.budget.trials - self.known - self.trials) / self.rate)
        return max(0.0, min(left)) if left else None


Observer = Callable[[Progress], None]


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
        if not last and now - self._last < _CELL_SECONDS:
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


@dataclass
class Terminal:
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    notebook: NotebookOutput | None = field(default_factory=notebook_output)
    _last: float = -1e9
    _curve: list[tuple[float, float]] = field(default_factory=list)

    def __call__(self, p: Progress) -> None:
        self._curve.append((p.seconds, p.gflops))
        if self.notebook is not None:
            text = self._line(p) + ("\n" + self._plot() if p.finished else "")
            self.notebook.write(text.rstrip("\n"), last=p.finished)
            return
        live = self.stream.isatty()
        if p.finished:
            if live:
                self.stream.write("\r\x1b[K")
            self.stream.write(self._line(p) + "\n" + self._plot())
        elif live:
            self.stream.write("\r\x1b[K" + self._line(p))
        elif p.seconds - self._last >= _EVERY_SECONDS:
            self._last = p.seconds
            self.stream.write(self._line(p) + "\n")
        self.stream.flush()

    def _line(self, p: Progress) -> str:
        """As much as fits on a line. First the end of a long name is left out, then how candidates
        failed, then the least important figures.
        """
        room, name = self._width, p.task.func.name
        least = 2 + min(len(name), _MIN_NAME)
        parts = self._parts(p, kinds=True)
        if least + _length(parts) > room:
            parts = self._parts(p, kinds=False)
        while least + _length(parts) > room and max(parts)[0] > 0:
            parts.remove(max(parts))
        name = _shortened(name, room - _length(parts) - 2)
        return "  ".join([name, *(text for _, text in parts)])

    def _parts(self, p: Progress, kinds: bool) -> list[tuple[int, str]]:
        """The parts of the line with a number each: higher ones are left out first, 0 never."""
        parts = [(0, f"{p.trials} trials"), (5, f"{p.rate:.1f}/s")]
        if p.known:
            parts.append((4, f"{p.known} known"))
        if p.best is not None:
            parts.append((0, f"best {_time(p.best.cost)}"))
            parts += [(2 + n, text) for n, text in enumerate(_share_of_peak(p))]
        if p.failures:
            each = ", ".join(f"{n} {kind}" for kind, n in p.failures.items())
            parts.append((1, f"{each if kinds else sum(p.failures.values())} failed"))
        if p.finished:
            parts.append((0, f"{p.seconds:.1f} s in all"))
        elif p.seconds_left is not None:
            parts.append((0, f"{p.seconds_left:.0f} s left"))
        return parts

    @property
    def _width(self) -> int:
        """One column stays free: some terminals start a new line after the last column."""
        try:
            columns = os.get_terminal_size(self.stream.fileno()).columns
        except (OSError, ValueError):  # no terminal
            columns = 0
        return (columns or _COLUMNS) - 1

    def _plot(self, height: int = 8) -> str:
        """Best so far against time."""
        width = min(60, max(20, self._width - 10))
        points = [(t, g) for t, g in self._curve if g > 0]
        if len(points) < 3:
            return ""
        end, top = points[-1][0], points[-1][1]
        columns = []
        for x in range(width):
            reached = [g for t, g in points if t <= end * (x + 1) / width]
            columns.append(round(height * reached[-1] / top) if reached else 0)
        rows = []
        for y in range(height, 0, -1):
            label = f"{top * y / height:8.1f} |"
            rows.append(label + "".join("#" if c >= y else " " for c in columns).rstrip())
        rows.append(" " * 9 + "+" + "-" * width)
        rows.append(f"{'GFLOP/s':>9} 0 s{f'{end:.0f} s':>{width - 3}}")
        return "\n".join(rows) + "\n"


def _share_of_peak(p: Progress) -> list[str]:
    """The rate in GFLOP/s, and its share of the cores' peak with operands in registers."""
    func, target = p.task.func, p.task.target
    if not func.flops:
        return []
    parts = [f"{p.gflops:.1f} GFLOP/s"]
    here = (target.kind, target.model, target.arch) == ("cpu", cpu().model, cpu().arch)
    peak = peak_of(func.outputs[0].dtype, target.num_cores) if here else None
    return parts if peak is None else [*parts, f"{1e11 * p.gflops / peak:.0f} % of peak"]


def _time(seconds: float) -> str:
    if seconds >= 0.1:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.1f} us"


def _length(parts: list[tuple[int, str]]) -> int:
    return sum(len(text) for _, text in parts) + 2 * (len(parts) - 1)


def _shortened(name: str, most: int) -> str:
    return name if len(name) <= most else name[: max(1, most - 3)] + "..."


@contextmanager
def progress_bar(what: str, show: bool | None = None) -> Iterator[Callable[[int, int], None]]:
    """Gives a function of (done, all). By default it shows on a terminal and in a notebook."""
    notebook = None if show is False else notebook_output()
    if notebook is not None:
        yield lambda done, total: notebook.write(f"{what}: {done} of {total}", done == total)
        return
    if show is False or (show is None and not sys.stderr.isatty()):
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        job = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(job, completed=done, total=total)
