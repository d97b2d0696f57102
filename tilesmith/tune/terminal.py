"""Shows progress: on a terminal and in a notebook one line that is rewritten, elsewhere a plain
line every 5 s, and a curve at the end.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TextIO

from tilesmith.base.target import cpu
from tilesmith.measure.peak import peak_of
from tilesmith.tune.events import Progress
from tilesmith.tune.notebook import NotebookOutput, notebook_output

_EVERY_SECONDS = 5.0  # between plain lines
_COLUMNS = 80  # width of a line without a terminal
_MIN_NAME = 16  # columns that a function's name keeps before other parts are left out


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
