"""What the page of a database shows of one task, as numbers and text, thinned so that the page
stays small for any number of records.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TilesmithError
from tilesmith.records.database import Database, TaskSummary
from tilesmith.records.networks import (
    NetworkStep,
    NetworkUse,
    latest_step,
    network_uses,
    places_in,
)
from tilesmith.report.decisions import Decisions, decisions_of, evenly
from tilesmith.report.network_view import RunCurve, TaskHistory, date_text, history_of
from tilesmith.report.predictions import Predictions, predictions_of
from tilesmith.report.schedule_text import schedule_lines
from tilesmith.runtime.build import compile_for
from tilesmith.task.describe import places_text
from tilesmith.task.task import (
    Candidate,
    Measurement,
    Ranking,
    Task,
    curve_of,
    failures_by_kind,
)

NAME_LETTERS = 120  # of a name on the page
_RUNS = 10  # the latest ones of a task
_LETTERS = 12_000  # of one text


@dataclass(frozen=True, slots=True)
class FailureCount:
    kind: str
    count: int
    text: str  # of the first one


@dataclass(frozen=True, slots=True)
class BestText:
    """The loops, schedule and code of the best candidate, and diffs from the second best to it."""

    loops: str
    loops_changes: str
    schedule: str
    schedule_changes: str
    source: str


@dataclass(frozen=True, slots=True)
class TaskView:
    """`best`, its 95 % `interval`, and `second`, that of the runner-up, are in microseconds.
    `intensity` is FLOP per byte of the arrays, each counted once. `roof` is the number of the
    machine's roof, if it is known. `places` says which nodes of a network it computes.
    """

    name: str
    key: str
    places: str
    machine: str
    measured: int
    failed: int
    best: float | None
    interval: tuple[float, ...]
    second: float | None
    flops: float
    intensity: float
    roof: int | None
    curves: tuple[RunCurve, ...]
    failures: tuple[FailureCount, ...]
    decisions: Decisions
    predictions: Predictions | None
    text: BestText | None


@dataclass(frozen=True, slots=True)
class Detail:
    """How much of a task is shown: points of its charts; whether the code of its best candidate is;
    and points of predictions, for which a model must be trained.
    """

    points: int
    has_code: bool
    predictions: int


@dataclass(frozen=True, slots=True)
class _Known:
    """What tells whether the records of a task have changed."""

    count: int
    failures: int
    best_seconds: float | None
    uses: tuple[NetworkUse, ...]


@dataclass(frozen=True, slots=True)
class _Kept:
    known: _Known
    detail: Detail
    predicted_at: int  # the number of measurements when its predictions were made
    view: TaskView
    history: TaskHistory


class TaskViews:
    """Makes views, and keeps them for as long as the records of their tasks stay the same.
    Predictions are made again when there are a quarter more records, so that watching a run does
    not take the processor from it.
    """

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._tasks: dict[str, Task] = {}

    def step(self, db: Database) -> NetworkStep | None:
        """What a run that tunes some of the tasks seen so far does next, which is read at once."""
        return latest_step(db, [*self._tasks.values()])

    def of(
        self, db: Database, summary: TaskSummary, name: str, roof: int | None, detail: Detail
    ) -> tuple[TaskView, TaskHistory]:
        self._tasks[summary.key] = summary.task
        uses = network_uses(db, summary.task)
        known = _Known(summary.count, summary.failures, summary.best_seconds, uses)
        kept = self._kept.get(summary.key)
        if kept is None or (kept.known, kept.detail) != (known, detail):
            kept = self._kept[summary.key] = _made(db, summary, known, detail, kept)
        return replace(kept.view, name=name, roof=roof), kept.history


def _made(
    db: Database, summary: TaskSummary, known: _Known, detail: Detail, old: _Kept | None
) -> _Kept:
    task, measured = summary.task, db.of(summary.task)
    every = Ranking(measured).ranked
    if old is not None and old.detail == detail and len(measured) < 1.25 * old.predicted_at:
        predictions, predicted_at = old.view.predictions, old.predicted_at
    else:
        predictions, predicted_at = None, len(measured)
        if detail.predictions:
            predictions = predictions_of(measured, every, detail.predictions)
    ranked = _two_best(every)
    best = ranked[0] if ranked else None
    flops = task.func.flops
    view = TaskView(
        name="",
        key=summary.key,
        places=cut(places_text(places_in(known.uses))),
        machine=cut(task.target.label),
        measured=summary.count,
        failed=summary.failures,
        best=None if best is None else best.cost * 1e6,
        interval=() if best is None else tuple(1e6 * s for s in best.confidence),
        second=_second(ranked),
        flops=float(flops),
        intensity=flops / max(1, task.func.nbytes),
        roof=None,
        curves=_curves(measured, max(2, detail.points // _RUNS)),
        failures=tuple(
            FailureCount(cut(kind), count, cut(text, 300))
            for kind, (count, text) in failures_by_kind(measured).items()
        ),
        decisions=decisions_of(measured, detail.points),
        predictions=predictions,
        text=_text(ranked) if detail.has_code and ranked else None,
    )
    history = history_of(measured if known.uses else (), known.uses)
    return _Kept(known, detail, predicted_at, view, history)


def _two_best(ranked: Sequence[Measurement]) -> list[Measurement]:
    """The best and the next other program. Candidates that compile to the same code have the very
    same samples.
    """
    others = (m for m in ranked if m.seconds != ranked[0].seconds)
    return [*ranked[:1], *islice(others, 1)]


def _second(ranked: Sequence[Measurement]) -> float | None:
    """The time of the second best at the machine's speed of the best; None on another scale."""
    if len(ranked) < 2 or ranked[0].is_normal is not ranked[1].is_normal:
        return None
    best, second = ranked[:2]
    return second.normal_cost / best.normal_cost * best.cost * 1e6


def _curves(measured: Sequence[Measurement], points: int) -> tuple[RunCurve, ...]:
    by_run: dict[str, list[Measurement]] = {}
    for m in measured:
        if m.moment is not None:
            by_run.setdefault(m.moment.run.key, []).append(m)
    runs = sorted(by_run.values(), key=lambda ms: ms[0].moment.run.started if ms[0].moment else 0)
    out = []
    for own in runs[-_RUNS:]:
        curve, moments = curve_of(own), [m.moment for m in own if m.moment is not None]
        if not curve:
            continue
        curve = tuple(evenly(curve, points))
        end = max(m.seconds for m in moments), max(m.trial for m in moments), curve[-1][2]
        seconds, trials, costs = zip(*curve, end, strict=True)
        run = moments[0].run
        out.append(
            RunCurve(
                f"{cut(run.strategy)}, seed {cut(str(run.seed), 20)}",
                date_text(run.started),
                tuple(round(s, 3) for s in seconds),
                trials,
                tuple(float(f"{c * 1e6:.5g}") for c in costs),
            )
        )
    return tuple(out)


def _text(ranked: Sequence[Measurement]) -> BestText:
    schedules = [schedule_lines(m.candidate.trace) for m in ranked]
    loops = [_loops(m.candidate) for m in ranked]
    return BestText(
        cut("\n".join(loops[0]), _LETTERS),
        cut(_changes(loops), _LETTERS),
        cut("\n".join(schedules[0]), _LETTERS),
        cut(_changes(schedules), _LETTERS),
        cut(_source(ranked[0].candidate), _LETTERS),
    )


def _loops(candidate: Candidate) -> list[str]:
    """The loop nest; the reason if there is none, such as a part that is not installed."""
    try:
        return str(candidate.trace.apply(candidate.task.func)).splitlines()
    except (TilesmithError, ImportError) as e:
        return [f"the schedule cannot be applied here: {e}"]


def _source(candidate: Candidate) -> str:
    """The generated code; the reason if there is none, such as a compiler that is not installed."""
    try:
        func = candidate.trace.apply(candidate.task.func)
        return compile_for(candidate.task, func).source
    except (TilesmithError, ImportError, OSError) as e:
        return f"no code can be generated here: {e}"


def _changes(texts: Sequence[Sequence[str]]) -> str:
    """What the best (+) has that the second best (-) has not, and the other way round, with three
    lines around it. Only the beginning of long texts is compared, because the time grows with the
    square of the lines.
    """
    if len(texts) < 2:
        return ""
    best, second = (t[:2000] for t in texts)
    return "\n".join(difflib.unified_diff(second, best, "runner-up", "best", lineterm=""))


def cut(text: str, letters: int = NAME_LETTERS) -> str:
    """The beginning of a text, and how long it was if that is not all."""
    return text if len(text) <= letters else f"{text[:letters]}... ({len(text)} characters)"
