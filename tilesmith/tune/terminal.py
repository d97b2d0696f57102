"""Progress as a person reads it: one line that is written over on a terminal, plain lines now and
then elsewhere, and a curve at the end.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TextIO

from tilesmith.base.target import cpu
from tilesmith.measure.peak import peak_of
from tilesmith.tune.events import Progress

_EVERY_SECONDS = 5.0  # between plain lines


@dataclass
class Terminal:
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    _last: float = -1e9
    _curve: list[tuple[float, float]] = field(default_factory=list)

    def __call__(self, p: Progress) -> None:
        self._curve.append((p.seconds, p.gflops))
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
        parts = [p.task.func.name, f"{p.trials} trials"]
        if p.known:
            parts.append(f"{p.known} known")
        if p.best is not None:
            parts.append(f"best {p.best.cost * 1e6:.1f} us{_share_of_peak(p)}")
        parts.append(f"{p.rate:.1f} trials/s")
        if p.failures:
            parts.append(", ".join(f"{n} {kind}" for kind, n in p.failures.items()) + " failed")
        if p.finished:
            parts.append(f"{p.seconds:.1f} s in all")
        elif p.seconds_left is not None:
            parts.append(f"{p.seconds_left:.0f} s left")
        return "  ".join(parts)

    def _plot(self, width: int = 60, height: int = 8) -> str:
        """Best so far against time."""
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


def _share_of_peak(p: Progress) -> str:
    """In GFLOP/s and against what the cores of the target could do with operands in registers."""
    func, target = p.task.func, p.task.target
    if not func.flops:
        return ""
    said = f" {p.gflops:.1f} GFLOP/s"
    here = target.model == cpu().model and target.arch == cpu().arch
    peak = peak_of(func.outputs[0].dtype, target.num_cores) if here else None
    return said if peak is None else f"{said} ({1e11 * p.gflops / peak:.0f} % of peak)"
