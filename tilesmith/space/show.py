"""Prints sketches: the loops of an open trace by tile level, and its open decisions with the number
of choices of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from tilesmith.expr.walk import show as show_expr
from tilesmith.expr.walk import strip
from tilesmith.ir.function import Function, find_loop
from tilesmith.ir.nodes import Block, For, If, Stmt
from tilesmith.ir.notes import ParallelDepth, UnrollDepth
from tilesmith.ir.printer import join_sign
from tilesmith.schedule.sample import (
    Require,
    SampleChoice,
    SampleLocation,
    SamplePermutation,
    SampleTile,
)
from tilesmith.schedule.step import Step
from tilesmith.schedule.trace import Trace
from tilesmith.space.domains import domain_of
from tilesmith.task.task import Task


def show_sketches(task: Task, sketches: Sequence[Trace], warning: str = "") -> str:
    """`warning` is the space's text about sketches that it left out."""
    parts = [f"{task.func.name}: {len(sketches)} sketch{'es' if len(sketches) != 1 else ''}"]
    if warning:
        parts[0] += f"\n{warning}"
    for k, sketch in enumerate(sketches, 1):
        parts.append(f"sketch {k}\n{show_sketch(task, sketch)}")
    return "\n\n".join(parts)


def show_sketch(task: Task, sketch: Trace) -> str:
    """A block whose location is still open is shown at its original place."""
    func = task.func
    open_steps: list[tuple[str, int]] = []
    for step in sketch:
        decision = _decision(func, step)
        if decision is not None:
            open_steps.append(decision)
        structural = isinstance(step, SampleLocation | SamplePermutation)
        if not (structural and step.decision is None):  # type: ignore[attr-defined]
            func = step.apply(func)
    lines = [
        f"  {b.name} has the layout [{', '.join(map(str, b.layout))}]"
        for b in (*func.params, *func.buffers)
        if b.layout is not None
    ]
    for s in func.body:
        lines.extend(_lines(s, 1))
    lines.append("  open decisions:")
    lines.extend(f"    {text}" for text, _ in open_steps)
    total = prod(count for _, count in open_steps)
    size = str(total) if total < 10**6 else f"{total:.1e}"
    return "\n".join([*lines, f"    combinations: {size}"])


def _decision(func: Function, step: Step) -> tuple[str, int] | None:
    match step:
        case SampleTile(decision=None):
            extent = find_loop(func, step.loop)[1].extent
            size = domain_of(step, extent.const).size if extent.const is not None else 1
            most = f", innermost <= {step.max_innermost}" if step.max_innermost else ""
            policy = "listed" if step.candidates else step.policy
            return f"tile {step.loop}: {extent} in {step.parts} ({policy}{most}): {size}", size
        case SampleChoice(decision=None):
            values = ", ".join(map(str, step.values))
            return f"choice {step.column}: {values}", len(step.values)
        case SampleLocation(decision=None):
            return f"place {step.block}: {', '.join(step.places)}", len(step.places)
        case SamplePermutation(decision=None):
            return f"order of {', '.join(step.orders[0])}: {len(step.orders)}", len(step.orders)
        case Require():
            least = f"{step.least} <= " if step.least else ""
            most = f" <= {step.most}" if step.most is not None else ""
            return f"require {least}{step.expression}{most}", 1
    return None


def _lines(s: Stmt, depth: int) -> Iterator[str]:
    pad = "  " * depth
    match s:
        case For():
            level = _level(s)
            yield f"{pad}for {', '.join(map(_loop, level))}{_marks(level[0])}"
            for t in level[-1].body:
                yield from _lines(t, depth + 1)
        case If():
            yield f"{pad}if {' and '.join(f'{c} >= 0' for c in s.conds)}"
            for t in s.body:
                yield from _lines(t, depth + 1)
        case Block():
            yield f"{pad}{s.name}: {'; '.join(_writes(s))}"


def _level(s: For) -> list[For]:
    """A tile level: perfectly nested loops with the same kind, level and notes, but for the unroll
    depth, which one loop holds for all loops inside of it.
    """
    level = [s]
    while len(level[-1].body) == 1:
        inner = level[-1].body[0]
        if not isinstance(inner, For) or _alike(inner) != _alike(s):
            break
        level.append(inner)
    return level


def _alike(f: For) -> tuple[str, str, str]:
    tail = f.name.rsplit(".", 1)[-1]
    return f.kind, tail if tail.isdigit() else "", _marks(f.without(UnrollDepth))


def _loop(f: For) -> str:
    return f.name if f.extent.name == f"#{f.name}" else f"{f.name} in {f.extent}"


def _marks(f: For) -> str:
    marks = [] if f.kind == "serial" else [f.kind]
    for n in f.notes:
        if isinstance(n, ParallelDepth):
            marks.append(f"parallel by {n.depth}")
        else:
            marks.append(f"{n.key} {n.value}")
    return f"  # {', '.join(marks)}" if marks else ""


def _writes(b: Block) -> Iterator[str]:
    join = join_sign(b)
    for w in b.writes:
        at = f"[{', '.join(map(str, w.index))}]" if w.index else ""
        yield f"{w.buffer}{at} {join} {strip(show_expr(w.value))}"
