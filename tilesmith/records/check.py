"""Validates one line of an imported file and converts it to database rows, or raises an error that
says why the line is not a record. Nothing is checked again after this.
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from functools import lru_cache
from math import inf
from typing import Any

from tilesmith.base.identity import digest
from tilesmith.base.target import Target
from tilesmith.ir.deserialize import function_from_json
from tilesmith.ir.intrinsics import INTRINSICS
from tilesmith.ir.notes import NOTES, RETIRED
from tilesmith.ir.serialize import compact
from tilesmith.ir.verify import verify
from tilesmith.records.rows import Entry, TaskRow, require_sound, row_of, run_row
from tilesmith.schedule.kinds import Annotate
from tilesmith.schedule.trace import PRIMITIVES, Trace
from tilesmith.task.task import (
    FAILURES,
    Budget,
    Candidate,
    Failure,
    Measurement,
    Moment,
    Task,
    TuningRun,
    statement_key,
    task_key,
)

LINE_VERSION = 1
# Far more than any record has. What takes longer to check than to send is refused.
_MOST_SAMPLES = 100_000
_MOST_VALUES = 10_000  # nodes of the expressions of a Function
_MOST_STEPS = 1000
_MOST_NBYTES = 1 << 50  # bytes of a Function's buffers, more than any machine has
_MAX_TEXT = 100_000  # characters of a text about a run
_LATEST = 1e11  # seconds since 1970, some thousand years from now
_KNOWN = {p.name for p in PRIMITIVES}
_UNITS = {i.name for i in INTRINSICS}
_NOTES = {n.key for n in (*NOTES, *RETIRED)}


def read_line(line: str, apply: bool = True) -> Entry:
    """Raises one of rows.UNREADABLE. `apply` also checks that the trace is a schedule of its task,
    which takes some milliseconds.
    """
    data = json.loads(line)
    if not isinstance(data, dict):
        raise ValueError(f"it is {_short(data)}, not an object")
    if data["version"] != LINE_VERSION:
        raise ValueError(f"it is of version {data['version']!r}, this library reads {LINE_VERSION}")
    codegen = data["codegen"]
    if not isinstance(codegen, str) or not 0 < len(codegen) <= 100:
        raise ValueError(f"codegen is {_short(codegen)}")
    match data["func"]:
        case {"values": list(values)} if len(values) > _MOST_VALUES:
            raise ValueError(f"its Function has {len(values)} values, more than {_MOST_VALUES}")
    func, target = compact(data["func"]), compact(data["target"])
    task, statement, key = task_of(func, target, codegen)
    failure = None if data["failure"] is None else _failure(data["failure"])
    seconds = _samples(data["seconds"], "seconds")
    references = _samples(data.get("references", []), "references")  # absent in older lines
    if references and len(references) != len(seconds):
        raise ValueError(f"there are {len(seconds)} seconds and {len(references)} references")
    trace = _trace(data["trace"], task, apply and bool(seconds) and failure is None)
    m = Measurement(
        candidate=Candidate(task, Trace()),  # a placeholder: the steps may be a user's own
        seconds=seconds,
        failure=failure,
        contended=_flag(data, "contended"),
        confirmed=_flag(data, "confirmed"),
        build_seconds=_number(data, "build_seconds", inf),
        when=_number(data, "when", _LATEST),
        references=references,
    )
    moment = _moment(data, codegen)  # absent in older lines
    m = replace(m, moment=moment)
    row = row_of(m, digest(statement, trace), trace, _versions(data["versions"]))
    fingerprint = task.target.fingerprint
    task_row = TaskRow(statement, task.func.name, func, target, fingerprint, codegen, key)
    if moment is None:
        return _storable(Entry(task_row, row))
    last = replace(moment, seconds=_number(data["run"], "seconds", inf))
    return _storable(Entry(task_row, row, run_row(last)))


def _storable(entry: Entry) -> Entry:
    """The entry, if all of its texts can be stored: databases reject the character NUL, and what is
    no text.
    """
    for row in entry:
        if row is not None:
            require_sound(row)
            for name, value in row._asdict().items():
                if isinstance(value, str) and "\0" in value:
                    raise ValueError(f"{name} is {_short(value)}, with a NUL in it")
    return entry


@lru_cache(256)  # lines of one task are next to each other
def task_of(func: str, target: str, codegen: str) -> tuple[Task, str, str]:
    """The task, its statement key and its key, both for that version of the code generator."""
    task = Task(function_from_json(func), Target.from_json(target))
    verify(task.func)
    nbytes = 0
    for b in (*task.func.params, *task.func.buffers):
        size = b.size.const
        if size is None:
            raise ValueError(f"the size of {b.name} is open; what is measured has numbers")
        if any((n := e.const) is None or n < 0 for e in b.shape):
            raise ValueError(f"the shape of {b.name} is {[str(e) for e in b.shape]}")
        nbytes += size * b.dtype.bits // 8
    if nbytes > _MOST_NBYTES:
        raise ValueError(f"its buffers take {nbytes} bytes")
    _check_target(task.target)
    parts = task.func, task.target, codegen
    return task, statement_key(*parts), task_key(*parts)


def _check_target(target: Target) -> None:
    if target.kind not in ("cpu", "cuda", "opencl"):
        raise ValueError(f"the target's kind is {target.kind!r}; cpu, cuda and opencl are known")
    for f in fields(Target):
        match getattr(target, f.name):
            case int(n):
                least = 1 if f.name in ("num_cores", "vector_bits", "warp_size") else 0
                if not least <= n < 1 << 63:
                    raise ValueError(f"the target's {f.name} is {n}")
            case str(text) if len(text) > 1000:
                raise ValueError(f"the target's {f.name} has {len(text)} characters")
            case frozenset(names) if not all(isinstance(n, str) for n in names):
                raise ValueError(f"the target's {f.name} are {sorted(map(repr, names))}")


def _trace(data: Any, task: Task, apply: bool) -> str:
    """The trace as text. A trace that was timed must be a schedule of the task. That is checked
    only if all steps are built-in ones.
    """
    text = json.dumps(data, allow_nan=False)
    if not isinstance(data, dict) or not isinstance(data.get("steps"), list):
        raise ValueError("its trace has no steps")
    if len(data["steps"]) > _MOST_STEPS:
        raise ValueError(f"its trace has {len(data['steps'])} steps, more than {_MOST_STEPS}")
    all_built_in = True
    for step in data["steps"]:
        match step:
            case [str(name), dict(values)]:
                unit, note = values.get("intrinsic"), values.get("key")
                all_built_in = all_built_in and name in _KNOWN and (unit is None or unit in _UNITS)
                all_built_in = all_built_in and (name != Annotate.name or str(note) in _NOTES)
            case _:
                raise ValueError(f"its trace has the step {_short(step)}")
    if all_built_in:
        trace = Trace.from_json(text)
        if apply:
            trace.apply(task.func)
    return text


def _moment(data: dict[str, Any], codegen: str) -> Moment | None:
    if data.get("run") is None:
        return None
    run = data["run"]
    if not isinstance(run, dict):
        raise ValueError(f"its run is {_short(run)}, not an object")
    texts = [_text(run, name) for name in ("key", "strategy", "settings", "seed", "machine")]
    key, strategy, settings, seed, machine = texts
    budget = Budget(
        trials=None if run["budget_trials"] is None else _count(run, "budget_trials"),
        seconds=None if run["budget_seconds"] is None else _number(run, "budget_seconds", inf),
        patience=None if run["budget_patience"] is None else _count(run, "budget_patience"),
    )
    started = _number(run, "started", _LATEST)
    made_by = TuningRun(key, strategy, settings, int(seed), budget, started, machine, codegen)
    return Moment(made_by, _number(data, "run_seconds", inf), _count(data, "trial"))


def _text(data: dict[str, Any], name: str) -> str:
    value = data[name]
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise ValueError(f"{name} is {_short(value)}; it is text")
    return value


def _count(data: dict[str, Any], name: str) -> int:
    value = data[name]
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ValueError(f"{name} is {_short(value)}, which is no count")
    return value


def _samples(data: Any, what: str) -> tuple[float, ...]:
    if not isinstance(data, list):
        raise ValueError(f"its {what} are {_short(data)}, not a list")
    if len(data) > _MOST_SAMPLES:
        raise ValueError(f"it has {len(data)} {what}")
    for s in data:
        if type(s) not in (int, float) or not 0 < s < inf:
            raise ValueError(f"{_short(s)} is no number of seconds")
    return tuple(map(float, data))


def _number(data: dict[str, Any], name: str, most: float) -> float:
    value = data[name]
    if type(value) not in (int, float) or not 0 <= value < most:
        raise ValueError(f"{name} is {_short(value)}, which is no number of seconds")
    return float(value)


def _flag(data: dict[str, Any], name: str) -> bool:
    value = data[name]
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {_short(value)}; it is true or false")
    return value


def _failure(data: Any) -> Failure:
    match data:
        case [str(kind), str(text)] if kind in FAILURES:
            return Failure(kind, text)
    raise ValueError(f"{_short(data)} is no failure; kinds are {', '.join(FAILURES)}")


def _versions(data: Any) -> str:
    if not isinstance(data, dict) or not all(isinstance(v, str) for v in data.values()):
        raise ValueError(f"versions are {_short(data)}; they are text by name")
    return json.dumps(data, sort_keys=True)


def _short(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 60 else f"{text[:57]}..."
