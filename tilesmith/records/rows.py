"""Converts measurements to rows of plain values, and back. A row is complete: the measurement can
be rebuilt from it and the row of its task.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple, get_args, get_type_hints

from tilesmith.base.errors import TilesmithError
from tilesmith.base.identity import digest
from tilesmith.base.process import version_of
from tilesmith.ir.serialize import function_to_json
from tilesmith.schedule.trace import Trace
from tilesmith.task.task import (
    Budget,
    Candidate,
    Failure,
    Measurement,
    Moment,
    Task,
    TuningRun,
    standing_of,
)

_MACHINE = "machine"  # beside the versions: the machine of a fleet that took the measurement


class TaskRow(NamedTuple):
    statement: str
    name: str
    func: str
    target: str
    fingerprint: str
    codegen: str
    key: str


class RecordRow(NamedTuple):
    identity: str  # a hash of the content, equal for equal records
    candidate: str
    trace: str
    samples: str
    cost: float | None
    standing: int  # first key of the order of `trust`; normal_cost is the second
    failure: str | None
    failure_text: str
    contended: bool
    confirmed: bool
    build_seconds: float
    at: float
    versions: str
    reference_samples: str
    normal_cost: float | None  # lower is better
    run: str | None  # key of the run that measured it
    run_seconds: float | None  # since the run's start
    trial: int | None  # number within the run, see Moment


class RunRow(NamedTuple):
    key: str
    strategy: str
    settings: str
    seed: str  # text, because it may be any integer
    budget_trials: int | None
    budget_seconds: float | None
    budget_patience: int | None
    started: float
    seconds: float  # from the start to the last measurement
    machine: str
    codegen: str


class Entry(NamedTuple):
    """A record with everything needed to understand it in another database."""

    task: TaskRow
    record: RecordRow
    run: RunRow | None = None


def _columns(row: type) -> dict[str, tuple[type, ...]]:
    """The types that the value of each column may have."""
    wider: dict[type, tuple[type, ...]] = {float: (float, int), bool: (bool, int)}
    return {
        name: tuple(t for one in get_args(hint) or (hint,) for t in wider.get(one, (one,)))
        for name, hint in get_type_hints(row).items()
    }


_COLUMNS = {row: _columns(row) for row in (TaskRow, RecordRow, RunRow)}


def require_sound(row: TaskRow | RecordRow | RunRow) -> None:
    """Raises a ValueError that names a column whose value is of another type, or not text: a
    damaged file may have anything anywhere.
    """
    for value, (name, types) in zip(row, _COLUMNS[type(row)].items(), strict=True):
        if type(value) not in types:
            raise ValueError(f"its {name} is of type {type(value).__name__}")
        if type(value) is str and not value.isascii():
            value.encode()  # raises a UnicodeEncodeError for bytes that are not text


def is_sound(row: TaskRow | RecordRow | RunRow) -> bool:
    try:
        require_sound(row)
    except ValueError:
        return False
    return True


def task_row(task: Task) -> TaskRow:
    return TaskRow(
        statement=task.statement,
        name=_clean(task.func.name),
        func=function_to_json(task.func),
        target=task.target.to_json(),
        fingerprint=task.target.fingerprint,
        codegen=task.codegen,
        key=task.key,
    )


def run_row(moment: Moment) -> RunRow:
    r = moment.run
    return RunRow(
        key=r.key,
        strategy=_clean(r.strategy),
        settings=_clean(r.settings),
        seed=str(r.seed),
        budget_trials=None if r.budget.trials is None else int(r.budget.trials),
        budget_seconds=None if r.budget.seconds is None else float(r.budget.seconds),
        budget_patience=None if r.budget.patience is None else int(r.budget.patience),
        started=r.started,
        seconds=moment.seconds,
        machine=_clean(r.machine),
        codegen=r.codegen,
    )


def run_of(row: RunRow) -> TuningRun:
    budget = Budget(row.budget_trials, row.budget_seconds, row.budget_patience)
    return TuningRun(
        row.key, row.strategy, row.settings, int(row.seed), budget, row.started, row.machine,
        row.codegen,
    )  # fmt: skip


def record_row(m: Measurement) -> RecordRow:
    made_by = versions()
    if m.machine:
        made_by = json.dumps({**json.loads(made_by), _MACHINE: _clean(m.machine)}, sort_keys=True)
    return row_of(m, m.candidate.key, m.candidate.trace.to_json(), made_by)


def row_of(m: Measurement, candidate: str, trace: str, made_by: str) -> RecordRow:
    """The row of a measurement whose trace is given as text, since it may be unreadable here."""
    samples = json.dumps(list(map(float, m.seconds)))
    references = json.dumps(list(map(float, m.references)))
    cost, normal_cost = float(m.cost), float(m.normal_cost)
    kind = None if m.failure is None else _clean(m.failure.kind)
    text = "" if m.failure is None else _clean(m.failure.text)
    identity = digest(
        candidate,
        samples,
        repr((kind, text, bool(m.contended), bool(m.confirmed))),
        repr((float(m.build_seconds), float(m.when))),
    )
    return RecordRow(
        identity=identity,
        candidate=candidate,
        trace=trace,
        samples=samples,
        reference_samples=references,
        cost=cost if math.isfinite(cost) else None,
        normal_cost=normal_cost if math.isfinite(normal_cost) else None,
        standing=int(standing_of(m)),
        failure=kind,
        failure_text=text,
        contended=bool(m.contended),
        confirmed=bool(m.confirmed),
        build_seconds=float(m.build_seconds),
        at=float(m.when),
        versions=made_by,
        run=None if m.moment is None else m.moment.run.key,
        run_seconds=None if m.moment is None else float(m.moment.seconds),
        trial=None if m.moment is None else m.moment.trial,
    )


def measurement(
    row: RecordRow,
    task: Task,
    runs: Mapping[str, TuningRun] | None = None,
) -> Measurement:
    """Raises one of UNREADABLE if the row cannot be read: its trace needs what the task's parts
    have not, it has invalid values that an older version accepted, or it is damaged.
    """
    require_sound(row)
    run = (runs or {}).get(row.run or "")
    m = Measurement(
        candidate=Candidate(task, Trace.from_json(row.trace, task.parts)),
        seconds=tuple(json.loads(row.samples)),
        failure=None if row.failure is None else Failure(row.failure, row.failure_text),
        contended=bool(row.contended),
        confirmed=bool(row.confirmed),
        build_seconds=row.build_seconds,
        when=row.at,
        references=tuple(json.loads(row.reference_samples)),
        moment=None if run is None else Moment(run, row.run_seconds or 0.0, row.trial or 0),
        machine=_machine_of(row.versions),
    )
    if m.seconds and not m.cost < math.inf:
        raise ValueError(f"its seconds are {row.samples}")
    return m


def _machine_of(made_by: str) -> str:
    return str(json.loads(made_by).get(_MACHINE, "")) if _MACHINE in made_by else ""


# What reading a row may raise: the content may come from anywhere.
UNREADABLE = (
    *(TilesmithError, ValueError, TypeError, AttributeError),
    *(LookupError, ArithmeticError, AssertionError, RecursionError),
)


@cache
def versions() -> str:
    """The versions of everything that affects timings, as JSON. LLVM comes with llvmlite, whose
    version is known without importing it.
    """
    by_package = {"python": platform.python_version()}
    for package in ("tilesmith", "llvmlite"):
        if (version := version_of(package)) is not None:
            by_package[package] = version
    return json.dumps(by_package, sort_keys=True)


def _clean(text: str) -> str:
    """The text without characters that databases reject: NUL, and unpaired surrogates."""
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\x00")
