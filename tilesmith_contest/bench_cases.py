"""The cases of `tilesmith bench`: operators with the sizes and layouts to compare."""

from __future__ import annotations

from collections.abc import Sequence

from tilesmith.base.errors import ArgumentError
from tilesmith.base.suggest import did_you_mean
from tilesmith.base.target import cpu
from tilesmith.cli.arguments import whole_numbers
from tilesmith.cli.operators import layouts, numbers, operator, sizes_of, with_batch
from tilesmith_contest.compare import Case
from tilesmith_contest.suite import SUITE, Entry

_NAMES = {e.operator: op for op, e in SUITE.items()}


def named_case(op: str, words: Sequence[str], batch: int = 1, wanted: Sequence[str] = ()) -> Case:
    """`case_of` with the sizes as typed."""
    return case_of(op, sizes_of(_entry(op).operator, words), batch, wanted)


def case_of(op: str, shape: Sequence[int], batch: int = 1, wanted: Sequence[str] = ()) -> Case:
    """`op` is a name of the suite (C2D) or of an operator (conv2d); `wanted` are the layouts of
    ours to try, empty for those of the suite.
    """
    entry = _entry(op)
    name = entry.operator
    full = with_batch(name, shape, batch)
    values = numbers(name, full)
    ours: Sequence[str | None] = [w for w in wanted if w in layouts(name)] or entry.layouts
    lanes = cpu().lanes(32)
    if not wanted and ours and values.get("CO", lanes) < lanes:
        ours = layouts(name)  # too few channels to fill a vector: also vectorise over pixels
    functions = {w: operator(name, full, w, prepared=True) for w in ours or [None]}
    return Case(_NAMES[name], name, tuple(shape), batch, values, operator(name, full), functions)


def _entry(op: str) -> Entry:
    entry = SUITE.get(_NAMES.get(op, op.upper()))
    if entry is None:
        names = ", ".join(f"{op} ({e.operator})" for op, e in SUITE.items())
        close = did_you_mean(op, ["suite", *_NAMES, *SUITE])
        raise ArgumentError(f"unknown operator {op!r}{close}; the suite has {names}")
    return entry


def cases_of(ops: str, batch: int, pick: str, wanted: Sequence[str]) -> list[Case]:
    """All shapes of the named operators, or only those with the picked numbers (from 1)."""
    entries = [_entry(op.strip()) for op in ops.split(",")] if ops else list(SUITE.values())
    picked = whole_numbers("--shapes", pick) if pick else list(range(1, 100))
    most = max(len(e.shapes) for e in entries)
    if pick and max(picked) > most:
        raise ArgumentError(f"--shapes {pick!r}: each operator has {most} shapes, from 1 to {most}")
    return [
        case_of(_NAMES[e.operator], shape, batch, wanted)
        for e in entries
        for k, shape in enumerate(e.shapes, 1)
        if k in picked
    ]
