"""Portfolios in a database: JSON beside the records of the task at the typical sizes, so that
`ts.build` returns what `ts.tune` found, in any process.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from tilesmith.base.errors import TilesmithError
from tilesmith.base.target import Target
from tilesmith.ir.deserialize import function_from_json
from tilesmith.ir.function import Function
from tilesmith.ir.serialize import function_to_json
from tilesmith.records.accurate import AccurateRecords
from tilesmith.records.database import Database
from tilesmith.records.rows import UNREADABLE
from tilesmith.runtime.device_kernel import AnyOpenKernel
from tilesmith.runtime.kernel import Kernel, Origin
from tilesmith.schedule.trace import Parts, Trace
from tilesmith.task.task import Candidate, Task
from tilesmith.tune.open_build import (
    kernel_of_trace,
    plain_kernel,
    portfolio_of,
    task_at,
    typical_sizes,
)
from tilesmith.tune.portfolio import Portfolio

_STATE = "portfolios"  # of a task in the database: one for each Function that it is a sample of


def store_portfolio(
    db: Database, target: Target, parts: Parts | None, portfolio: Portfolio
) -> None:
    """In place of an earlier one of the same Function."""
    task = task_at(portfolio.func, typical_sizes(portfolio.func), target, parts)
    text = function_to_json(portfolio.func)
    entries = [e for e in _entries(db, task) if e.get("func") != text]
    db.save_state(task, _STATE, json.dumps([*entries, _to_json(portfolio, text)]).encode())


def stored_portfolios(db: Database, task: Task) -> list[Portfolio]:
    """Those that a task is the main sample of. What cannot be read is left out."""
    found = []
    for entry in _entries(db, task):
        try:
            found.append(_from_json(entry, function_from_json(entry["func"])))
        except UNREADABLE:  # of another version, or damaged
            continue
    return found


def stored_portfolio(
    db: Database, func: Function, target: Target, parts: Parts | None
) -> Portfolio | None:
    """The one of a Function; None if there is none, or none that can be read."""
    text = function_to_json(func)
    for entry in _entries(db, task_at(func, typical_sizes(func), target, parts)):
        if entry.get("func") == text:
            try:
                return _from_json(entry, func)
            except UNREADABLE:
                return None
    return None


def stored_kernel(
    db: AccurateRecords, func: Function, target: Target, parts: Parts | None
) -> Kernel | None:
    """The kernel of a stored portfolio, compiled again; None if there is none, if some member
    cannot be built by this version, or is less accurate than is asked for.
    """
    portfolio = stored_portfolio(db, func, target, parts)
    if portfolio is None:
        return None
    task = task_at(func, typical_sizes(func), target, parts)
    kernels: dict[int, AnyOpenKernel] = {}
    try:
        for k in portfolio.members:
            origin = portfolio.origins[k]
            if not origin.schedule:
                kernels[k] = plain_kernel(func, target, parts, origin)
                continue
            trace = Trace.from_json(origin.schedule, parts)
            if not db.allows(Candidate(task, trace)):
                return None
            kernels[k] = kernel_of_trace(trace, func, target, parts, origin)
        return portfolio_of(
            func, portfolio.samples, portfolio.chosen, portfolio.members, kernels, portfolio.times
        )
    except TilesmithError:
        return None


def _entries(db: Database, task: Task) -> list[Mapping[str, Any]]:
    data = db.load_state(task, _STATE)
    try:
        entries = json.loads(data or b"[]")
    except UNREADABLE:
        return []
    return [e for e in entries if isinstance(e, dict)] if isinstance(entries, list) else []


def _to_json(p: Portfolio, text: str) -> Mapping[str, Any]:
    return {
        "func": text,
        "samples": p.samples,
        "weights": p.weights,
        "kernels": [[o.kind, o.seconds, o.why, o.record, o.schedule] for o in p.origins],
        "seconds": [[None if math.isnan(s) else s for s in row] for row in p.seconds],
        "members": p.members,
        "left_out": p.left_out,
    }


def _from_json(data: Mapping[str, Any], func: Function) -> Portfolio:
    samples = tuple(tuple((str(n), int(v)) for n, v in s) for s in data["samples"])
    origins = tuple(map(_origin, data["kernels"]))
    seconds = tuple(
        tuple(math.nan if s is None else float(s) for s in row) for row in data["seconds"]
    )
    found = Portfolio(
        func, samples, tuple(map(float, data["weights"])), tuple(map(str, origins)), seconds,
        tuple(map(int, data["members"])), tuple(map(str, data["left_out"])), origins,
    )  # fmt: skip
    names = tuple(s.name for s in func.declared)
    same = all(tuple(n for n, _ in s) == names for s in samples)
    shape = {len(row) for row in seconds} == {len(samples)} == {len(found.weights)}
    inside = all(0 <= k < len(seconds) for k in found.members) and found.members[:1]
    timed = all(any(found.seconds[k][s] > 0 for k in found.members) for s in range(len(samples)))
    if not (same and shape and inside and timed and len(origins) == len(seconds)):
        raise ValueError("a portfolio whose parts do not fit together")
    return found


def _origin(data: Any) -> Origin:
    kind, seconds, why, record, schedule = data
    known = None if seconds is None else float(seconds)
    return Origin(str(kind), known, str(why), str(record), str(schedule))
