"""What the page of a database shows, as numbers and text: one `TaskView` per task, thinned so that
the page stays small for any number of records.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log

from tilesmith.base.errors import ArgumentError, TilesmithError
from tilesmith.base.target import cpu
from tilesmith.measure.peak import peak_of
from tilesmith.records.database import Database, TaskSummary
from tilesmith.report.decisions import Decisions, decisions_of, evenly
from tilesmith.report.machine_name import machine_and_cores
from tilesmith.report.schedule_text import schedule_lines
from tilesmith.runtime.build import compile_function
from tilesmith.task.curve import curve_of
from tilesmith.task.ranking import Ranking
from tilesmith.task.task import Candidate, Measurement, failures_by_kind

MAX_TASKS = 500  # the slowest ones are shown
_POINTS = 20_000  # of scatter plots, and of curves, on the whole page
_RUNS = 10  # the latest ones of a task
_WITH_CODE = 40  # tasks whose code is on the page: compiling one takes up to a second
_LETTERS = 12_000  # of one text


@dataclass(frozen=True, slots=True)
class RunCurve:
    """The best time so far of one run: after `seconds` and `trials`, `best` in microseconds."""

    label: str
    seconds: tuple[float, ...]
    trials: tuple[int, ...]
    best: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class FailureCount:
    kind: str
    count: int
    text: str  # of the first one


@dataclass(frozen=True, slots=True)
class BestText:
    """The schedule and code of the best candidate, and a diff from the second best to it."""

    schedule: str
    schedule_changes: str
    source: str
    source_changes: str


@dataclass(frozen=True, slots=True)
class TaskView:
    """`best` is in microseconds. `intensity` is FLOP per byte of the arrays, each counted once."""

    name: str
    key: str
    machine: str
    measured: int
    failed: int
    best: float | None
    gflops: float | None
    intensity: float
    curves: tuple[RunCurve, ...]
    failures: tuple[FailureCount, ...]
    decisions: Decisions
    text: BestText | None


@dataclass(frozen=True, slots=True)
class Peak:
    label: str
    gflops: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """The other database's best time of a task over this one's: above 1 this one is faster."""

    name: str
    ratio: float


@dataclass(frozen=True, slots=True)
class Comparison:
    other: str
    ratios: tuple[Ratio, ...]
    mean: float | None  # geometric
    note: str


@dataclass(frozen=True, slots=True)
class RecordsView:
    place: str
    tasks: tuple[TaskView, ...]
    peaks: tuple[Peak, ...]
    notes: tuple[str, ...]
    comparison: Comparison | None


def records_view(
    db: Database, place: str, other: Database | None = None, other_place: str = ""
) -> RecordsView:
    """Reads a database, and the best records of another one to compare with. `place` and
    `other_place` are their names on the page.
    """
    everything = db.tasks()
    current = [t for t in everything if t.key == t.task.key]
    if not current:
        outdated = " that today's code generator made" if everything else ""
        raise ArgumentError(f"{place} holds no task{outdated}; `tilesmith tune ... --db` adds some")
    current.sort(key=lambda t: -(t.best_seconds or 0.0))
    shown = current[:MAX_TASKS]
    notes = []
    if len(shown) < len(current):
        notes.append(f"{len(shown)} of {len(current)} tasks are shown, the slowest ones.")
    if len(current) < len(everything):
        notes.append(f"{len(everything) - len(current)} tasks of older code generators are not.")
    points = _POINTS // len(shown)
    named = _names(shown)
    tasks = tuple(
        _task_view(db, t, named[t.key], points, with_code=k < _WITH_CODE)
        for k, t in enumerate(shown)
    )
    compared = None if other is None else _comparison(db, other, shown, named, other_place)
    return RecordsView(place, tasks, _peaks(shown), tuple(notes), compared)


def _names(tasks: Sequence[TaskSummary]) -> dict[str, str]:
    """A different name for each task: with the start of the key if several have the same name."""
    names = [t.task.func.name for t in tasks]
    return {
        t.key: name if names.count(name) == 1 else f"{name} ({t.key[:6]})"
        for t, name in zip(tasks, names, strict=True)
    }


def _task_view(
    db: Database, summary: TaskSummary, name: str, points: int, with_code: bool
) -> TaskView:
    task, measured = summary.task, db.of(summary.task)
    ranking = Ranking(measured)
    best, flops = ranking.best, task.func.flops
    return TaskView(
        name, summary.key, machine_and_cores(task.target), summary.count, summary.failures,
        None if best is None else best.cost * 1e6,
        None if best is None else flops / best.cost / 1e9,
        flops / max(1, task.func.nbytes),
        _curves(measured, max(2, points // _RUNS)),
        tuple(FailureCount(k, n, _cut(text, 150)) for k, (n, text) in
              failures_by_kind(measured).items()),
        decisions_of(measured, min(2000, points)),
        _text(ranking.ranked[:2]) if with_code and best is not None else None,
    )  # fmt: skip


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
                f"{run.strategy}, seed {run.seed}",
                tuple(round(s, 3) for s in seconds),
                trials,
                tuple(_digits(c * 1e6) for c in costs),
            )
        )
    return tuple(out)


def _digits(x: float) -> float:
    return float(f"{x:.5g}")


def _text(ranked: Sequence[Measurement]) -> BestText:
    schedules = [schedule_lines(m.candidate.trace) for m in ranked]
    sources = [_source(m.candidate) for m in ranked]
    return BestText(
        _cut("\n".join(schedules[0])),
        _cut(_changes(schedules)),
        _cut("\n".join(sources[0])),
        _cut(_changes(sources)),
    )


def _source(candidate: Candidate) -> list[str]:
    """The generated code; the reason if there is none, such as a compiler that is not installed."""
    try:
        func = candidate.trace.apply(candidate.task.func)
        return compile_function(func, candidate.task.target).source.splitlines()
    except (TilesmithError, ImportError, OSError) as e:
        return [f"no code can be generated here: {e}"]


def _changes(texts: Sequence[Sequence[str]]) -> str:
    """What the best (+) has that the second best (-) has not, and the other way round. Only the
    beginning of long texts is compared, because the time grows with the square of the lines.
    """
    if len(texts) < 2:
        return ""
    best, second = (t[:2000] for t in texts)
    return "\n".join(line.rstrip("\n") for line in difflib.unified_diff(
        second, best, "second best", "best", n=1))  # fmt: skip


def _cut(text: str, letters: int = _LETTERS) -> str:
    return text if len(text) <= letters else f"{text[:letters]}\n... ({len(text)} characters)"


def _peaks(tasks: Sequence[TaskSummary]) -> tuple[Peak, ...]:
    """The peak rates of the tasks that were measured on this machine; others cannot be known."""
    out: dict[str, float] = {}
    for t in tasks:
        target, d = t.task.target, t.task.func.outputs[0].dtype
        here = target.kind == "cpu" and target.num_cores <= cpu().num_cores
        if not here or target.fingerprint != cpu(target.num_cores).fingerprint:
            continue
        if (rate := peak_of(d, target.num_cores)) is not None:
            out[f"peak of {d}, {machine_and_cores(target)}"] = rate / 1e9
    return tuple(Peak(label, rate) for label, rate in out.items())


def _comparison(
    db: Database,
    other: Database,
    tasks: Sequence[TaskSummary],
    names: Mapping[str, str],
    other_place: str,
) -> Comparison:
    """Times with and without reference times are on different scales, so they are not compared."""
    pairs = [(t, db.best(t.task), other.best(t.task)) for t in tasks]
    common = [(t, m, o) for t, m, o in pairs if m is not None and o is not None]
    ratios = tuple(
        Ratio(names[t.key], o.normal_cost / m.normal_cost)
        for t, m, o in common
        if m.is_normal is o.is_normal
    )
    mean = exp(sum(log(r.ratio) for r in ratios) / len(ratios)) if ratios else None
    note = f"{len(common)} of {len(tasks)} tasks have a time in both."
    if left_out := len(common) - len(ratios):
        note += f" {left_out} of them cannot be compared: only one has reference times."
    return Comparison(other_place, ratios, mean, note)
