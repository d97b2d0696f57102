"""Two observers of tuning networks. NetworkTable shows it: on a terminal and in a notebook a table
that is rewritten after every step, elsewhere a plain line every 5 s, and the tasks at the end.
NetworkNotes stores which tasks a run has, how often each network runs them, and which is next.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import field, replace
from math import isfinite, isnan
from typing import TextIO

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import RecordsError
from tilesmith.graph.layer_notes import LayerNote, PrecisionReport
from tilesmith.records.database import Database
from tilesmith.records.networks import (
    LayerUse,
    NetworkStep,
    NetworkUse,
    store_network_step,
    store_network_uses,
)
from tilesmith.task.network import TaskTuning
from tilesmith.task.task import Task
from tilesmith.tune.network_run import NetworkProgress, NetworkRun
from tilesmith.tune.progress import NotebookOutput, notebook_output

_EVERY_SECONDS = 5.0  # between plain lines
_SIZE = 80, 24  # columns and lines without a terminal
_FEWEST = 5  # rows of the table on any terminal
_NUMBERS = 45  # columns of a row beside the name
_MOST_NAMES = 3  # networks that the first line names; more are added up


@dataclass
class NetworkTable:
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    notebook: NotebookOutput | None = field(default_factory=notebook_output)
    _last: float = -1e9
    _drawn: int = 0  # lines of the table on the screen

    def __call__(self, p: NetworkProgress) -> None:
        if self.notebook is not None:
            columns, height = self._size
            lines = [_headline(p), *_table(p, columns, None if p.finished else height - 4)]
            self.notebook.write("\n".join(lines), last=p.finished)
            return
        if self.stream.isatty():
            self._draw(p)
        elif p.finished:
            self._write([_headline(p), *_table(p, None, None)])
        elif p.seconds - self._last >= _EVERY_SECONDS:
            self._last = p.seconds
            self._write([_headline(p)])
        self.stream.flush()

    def _draw(self, p: NetworkProgress) -> None:
        columns, height = self._size
        rows = None if p.finished else max(_FEWEST, height - 4)
        lines = [_headline(p), *_table(p, columns, rows)]
        # Back to the first line of the last table; whatever was below it is erased.
        up = f"\x1b[{self._drawn}F\x1b[J" if self._drawn else ""
        self.stream.write(up)
        self._write(line[:columns] for line in lines)
        self._drawn = 0 if p.finished else len(lines)

    def _write(self, lines: Iterator[str] | list[str]) -> None:
        self.stream.write("".join(f"{line}\n" for line in lines))

    @property
    def _size(self) -> tuple[int, int]:
        """One column stays free: some terminals start a new line after the last column."""
        try:
            size = os.get_terminal_size(self.stream.fileno())
            columns, lines = size.columns, size.lines
        except (OSError, ValueError):  # no terminal
            columns, lines = 0, 0
        return (columns or _SIZE[0]) - 1, lines or _SIZE[1]


def _headline(p: NetworkProgress) -> str:
    """What is known of the networks, in one line."""
    each = [*zip(p.networks, p.latency, strict=True)]
    if len(each) > _MOST_NAMES:
        each = [(f"all {len(each)}", sum(p.latency))]
    parts = [f"{name} {_time(latency)}" if isfinite(latency) else name for name, latency in each]
    if waiting := _num_unmeasured(p):
        several = f"{waiting} of {sum(t.weight > 0 for t in p.tasks)} tasks"
        parts.append(f"{several} use drafts" if p.finished else f"{several} not measured yet")
    parts.append(f"{p.trials} trials")
    if p.finished:
        parts.append(f"{p.seconds:.1f} s in all")
    elif p.budget.seconds is not None:
        parts.append(f"{max(0.0, p.budget.seconds - p.seconds):.0f} s left")
    else:
        parts.append(f"{p.seconds:.0f} s")
    return "  ".join(parts)


def _num_unmeasured(p: NetworkProgress) -> int:
    return sum(t.weight > 0 and not isfinite(t.best) for t in p.tasks)


def _table(p: NetworkProgress, columns: int | None, rows: int | None) -> Iterator[str]:
    """The tasks that take most of the time first, at most so many. Those that were not measured
    have no row: nothing is known of them but that there are drafts.
    """
    total = sum(t.latency for t in p.tasks if t.weight and isfinite(t.best)) or 1.0
    order = sorted(
        (k for k, t in enumerate(p.tasks) if t.weight and isfinite(t.best)),
        key=lambda k: p.tasks[k].latency,
    )
    if not order:
        return
    shown = order[::-1] if rows is None else order[: -rows - 1 : -1]
    width = max(len(p.tasks[k].label) for k in shown)
    if columns is not None:
        width = min(width, max(8, columns - _NUMBERS))
    yield f"{'task':{width}}  {'weight':>6}  {'share':>6}  {'best':>10}  {'trials':>6}  {'gain':>5}"
    for k in shown:
        yield _row(p.tasks[k], total, width) + (" <" if k == p.current else "")
    if len(shown) < len(order):
        yield f"and {len(order) - len(shown)} more"


def _row(t: TaskTuning, total: float, width: int) -> str:
    name = t.label
    name = name if len(name) <= width else name[: width - 3] + "..."
    share, best, gain = f"{100 * t.latency / total:.1f} %", _time(t.best), f"{t.gain:.2f}"
    return f"{name:{width}}  {t.weight:6g}  {share:>6}  {best:>10}  {t.trials:6}  {gain:>5}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 0.01 else f"{seconds * 1e6:.1f} us"


class NetworkNotes:
    """An observer. A task is noted when it has a measurement, and again if its weights change. The
    next step is noted beside the first task that was.
    """

    def __init__(
        self, run: NetworkRun, database: Database, reports: Sequence[PrecisionReport] = ()
    ) -> None:
        """`reports` are those of the networks, in their order."""
        self._run, self._database = run, database
        self._layers = {
            name: {n.name: _use_of(n) for n in report.layers}
            for name, report in zip(run.networks, reports, strict=False)
        }
        self._started = time.time() - run.seconds
        # Reports read the state of a task under the names of its first statement.
        self._first = {s.key: s.task for s in database.tasks()}
        self._noted: dict[int, tuple[float, ...]] = {}

    def _counts(self) -> list[int]:
        """How many tasks each network has."""
        weights = [t.weights for t in self._run.tasks]
        return [sum(w > 0 for w in each) for each in zip(*weights, strict=True)]

    def __call__(self, progress: NetworkProgress) -> None:
        for k, (t, tuner) in enumerate(zip(self._run.tasks, self._run.tuners, strict=True)):
            old = self._noted.get(k)
            if old == t.weights or not (tuner.trials or tuner.known):
                continue
            if old is None and not t.weight:
                continue
            uses = [
                NetworkUse(
                    name,
                    int(weight),
                    self._started,
                    tuner.run.key,
                    t.places,
                    count,
                    self._layers_at(name, t.places),
                )
                for name, weight, count in zip(
                    self._run.networks, t.weights, self._counts(), strict=True
                )
                if weight
            ]
            # Measurements go to the same place: if it is gone, the run ends because of them.
            with suppress(RecordsError):
                store_network_uses(self._database, self._task(k), self._started, uses)
            self._noted[k] = t.weights
        if self._noted:
            with suppress(RecordsError):
                task = self._task(next(iter(self._noted)))
                store_network_step(self._database, task, _next_step(progress))

    def _layers_at(self, network: str, places: Sequence[Sequence[str]]) -> tuple[LayerUse, ...]:
        known = self._layers.get(network, {})
        return tuple(known[n] for nodes in places for n in nodes if n in known)

    def _task(self, k: int) -> Task:
        task = self._run.tasks[k].task
        return self._first.get(task.key, task)


def _use_of(n: LayerNote) -> LayerUse:
    error, share = (None if isnan(x) else x for x in (n.error, n.share))
    return LayerUse(n.name, n.precision, error, share, n.why)


def _next_step(p: NetworkProgress) -> NetworkStep:
    latency = sum(p.latency)
    now = NetworkStep(
        p.networks, time.time(), p.seconds, p.budget.seconds, p.trials,
        latency if isfinite(latency) else None,
    )  # fmt: skip
    if p.following is None:
        return now
    t, chosen = p.tasks[p.following.task], p.following
    best = t.best if isfinite(t.best) else None
    # It was chosen before the step that has just ended, which may have been its own.
    gain = None if chosen.gain is None else min(chosen.gain, max(0.0, t.best - t.bound))
    return replace(
        now, key=t.task.key, label=t.label, weight=int(t.weight), best=best, bound=t.bound or None,
        reason=chosen.reason, gain=gain,
    )  # fmt: skip
