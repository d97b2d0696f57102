"""What the page of a database shows: its tasks, its networks, the roofs of this machine, and a
comparison with another database.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import exp, log

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ArgumentError
from tilesmith.records.database import Database, Explaining, TaskSummary, missing_text
from tilesmith.report.network_view import NetworkView, date_text, networks_of
from tilesmith.report.portfolio_svg import portfolio_svg
from tilesmith.report.roofs import Roof, roof_of
from tilesmith.report.task_view import Detail, TaskView, TaskViews, cut
from tilesmith.task.describe import shapes_text
from tilesmith.task.task import Measurement
from tilesmith.tune.open_build import limits_of
from tilesmith.tune.stored_portfolio import stored_portfolios

MAX_TASKS = 500  # the slowest ones are shown
MAX_PORTFOLIOS = 40  # those of the slowest tasks are shown
POINTS = 20_000  # of scatter plots, and of curves, on the whole page
_TASK_POINTS = 2000  # of one task, at most
_WITH_CODE = 40  # tasks whose code is on the page: compiling one takes up to a second
_PREDICTED = 12  # tasks for which a model is trained, which takes a second or two
_PREDICTIONS = 512  # candidates of one task


@dataclass(frozen=True, slots=True)
class Ratio:
    """The best time of a task in both databases, in microseconds. `ratio` is the other's over this
    one's: above 1 this one is faster. It corrects for the machine's speed if both have reference
    times, so it may differ from the quotient of the times. `low` and `high` are its limits if both
    times are anywhere in their 95 % intervals.
    """

    name: str
    here: float
    other: float
    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Comparison:
    other: str
    ratios: tuple[Ratio, ...]
    mean: float | None  # geometric
    note: str


@dataclass(frozen=True, slots=True)
class PortfolioView:
    """A function with open sizes. `picture` is SVG, in which all names are escaped."""

    name: str
    text: str
    picture: str


@dataclass(frozen=True, slots=True)
class RecordsView:
    place: str
    made: str  # the time of day
    tasks: tuple[TaskView, ...]
    networks: tuple[NetworkView, ...]
    roofs: tuple[Roof, ...]
    notes: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    portfolios: tuple[PortfolioView, ...] = ()


def records_view(
    db: Database,
    place: str,
    others: Sequence[tuple[str, Database]] = (),
    views: TaskViews | None = None,
) -> RecordsView:
    """Reads a database, and the best records of others to compare with. `place`, and what stands
    before the others, are their names on the page. With `views` of an earlier call, tasks that have
    not changed are not read again.
    """
    everything = db.tasks()
    current = [t for t in everything if t.key == t.task.key]
    if not current:
        outdated = " that today's code generator made" if everything else ""
        needs = missing_text(db.missing()) if isinstance(db, Explaining) else ""
        what = needs or "`tilesmith tune ... --db` adds some"
        raise ArgumentError(f"{place} holds no task{outdated}; {what}")
    current.sort(key=lambda t: -(t.best_seconds or 0.0))
    shown = current[:MAX_TASKS]
    notes = []
    if len(shown) < len(current):
        notes.append(f"{len(shown)} of {len(current)} tasks are shown, the slowest ones.")
    if len(current) < len(everything):
        notes.append(f"{len(everything) - len(current)} tasks of other code generators are not.")
    names, details, own = task_names(shown), _details(shown), views or TaskViews()
    roofs, roof_numbers = _roofs(shown)
    made = [
        own.of(db, t, names[t.key], roof_numbers[t.key], detail)
        for t, detail in zip(shown, details, strict=True)
    ]
    return RecordsView(
        place, date_text(time.time()), tuple(view for view, _ in made),
        networks_of([history for _, history in made]), roofs, tuple(notes),
        tuple(comparison(db, other, shown, names, cut(name)) for name, other in others),
        tuple(islice(_portfolios(db, shown), MAX_PORTFOLIOS)),
    )  # fmt: skip


def _portfolios(db: Database, tasks: Sequence[TaskSummary]) -> Iterator[PortfolioView]:
    for t in tasks:
        for p in stored_portfolios(db, t.task):
            if picture := portfolio_svg(p):
                limits = limits_of(p.func).items()
                ranges = ", ".join(f"{n} {low} to {high}" for n, (low, high) in limits)
                text = (
                    f"{len(p.members)} of {len(p.kernels)} kernels are kept; the worst regret at a "
                    f"sample is {max(p.regrets):.3f}. On average it takes {p.cost:.3f} of the time "
                    f"of the untuned kernel. On {t.task.target.label}."
                )
                yield PortfolioView(cut(f"{p.func.name}, {ranges}"), cut(text, 400), picture)


def task_names(tasks: Sequence[TaskSummary]) -> dict[str, str]:
    """A different name for each task: with the start of the key if several have the same name."""
    names = {t.key: cut(f"{t.task.func.name} {shapes_text(t.task.func)}") for t in tasks}
    counts = Counter(names.values())
    return {
        key: name if counts[name] == 1 else f"{name} ({key[:6]})" for key, name in names.items()
    }


def _details(tasks: Sequence[TaskSummary]) -> list[Detail]:
    """The slowest tasks get code and predictions; all share the points."""
    points = min(_TASK_POINTS, POINTS // len(tasks))
    # Models are trained where there is most to learn from.
    most = sorted(tasks, key=lambda t: t.failures - t.count)[:_PREDICTED]
    predicted = {t.key for t in most}
    return [
        Detail(points, k < _WITH_CODE, _PREDICTIONS if t.key in predicted else 0)
        for k, t in enumerate(tasks)
    ]


def _roofs(tasks: Sequence[TaskSummary]) -> tuple[tuple[Roof, ...], dict[str, int | None]]:
    """The roofs, and for each task the number of its own."""
    numbers: dict[Roof, int] = {}
    of_task: dict[str, int | None] = {}
    for t in tasks:
        roof = roof_of(t.task.target, t.task.func.outputs[0].dtype)
        of_task[t.key] = None if roof is None else numbers.setdefault(roof, len(numbers))
    return tuple(numbers), of_task


def comparison(
    db: Database,
    other: Database,
    tasks: Sequence[TaskSummary],
    names: Mapping[str, str],
    other_place: str,
) -> Comparison:
    """Times with and without reference times are on different scales, so they are not compared."""
    pairs = [(t, db.best(t.task), other.best(t.task)) for t in tasks]
    common = [(t, m, o) for t, m, o in pairs if m is not None and o is not None]
    ratios = tuple(_ratio(names[t.key], m, o) for t, m, o in common if m.is_normal is o.is_normal)
    mean = exp(sum(log(r.ratio) for r in ratios) / len(ratios)) if ratios else None
    note = f"{len(common)} of {len(tasks)} tasks have a time in both."
    if left_out := len(common) - len(ratios):
        note += f" {left_out} of them cannot be compared: only one has reference times."
    return Comparison(other_place, ratios, mean, note)


def _ratio(name: str, here: Measurement, other: Measurement) -> Ratio:
    (fastest, slowest), (least, most) = here.normal_confidence, other.normal_confidence
    ratio = other.normal_cost / here.normal_cost
    return Ratio(
        name, here.cost * 1e6, other.cost * 1e6, ratio, least / slowest, most / fastest
    )  # fmt: skip
