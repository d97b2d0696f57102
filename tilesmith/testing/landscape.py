"""A small search problem without hardware: tasks, spaces, and seconds that depend on a candidate's
decisions only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import log2

from tilesmith.base.target import cpu
from tilesmith.expr.dsl import placeholder
from tilesmith.ir.lower import function
from tilesmith.ops.matmul import matmul
from tilesmith.schedule.sample import SampleTile
from tilesmith.schedule.trace import Trace
from tilesmith.space.spaces import TemplateSpace, variants
from tilesmith.space.template import TemplateSchedule
from tilesmith.task.task import Candidate, Failure, Measurement, Task


def matmul_task(n: int = 48, m: int = 32, k: int = 64) -> Task:
    a, b = placeholder((n, k), name="A"), placeholder((k, m), name="B")
    return Task(function([a, b, matmul(a, b, name="C")], name=f"matmul{n}x{m}x{k}"), cpu(1))


def _many(sch: TemplateSchedule) -> None:
    parts = [sch.split(x, sch.sample_tile(x, 3)) for x in sch.loops("C")]
    outer, middle, inner = zip(*parts, strict=True)
    sch.reorder(*outer, *middle, *inner)
    sch.sample_permutation(outer, [outer, outer[::-1]])


def _few(sch: TemplateSchedule) -> None:
    i, j, _ = sch.loops("C")
    i0, _ = sch.split(i, sch.sample_tile(i, 2, max_innermost=6))
    j0, _ = sch.split(j, sch.sample_tile(j, 2, max_innermost=8))
    sch.sample_permutation([i0, j0])
    sch.require("#C.i.1 * #C.j.1", most=24)


def _none(sch: TemplateSchedule) -> None:
    _few(sch)
    sch.require("#C.i.1 + #C.j.1", least=1000)


MANY = TemplateSpace(_many)  # two variants, about a million candidates
FEW = TemplateSpace(_few)  # two variants, in which some rows break a limit
NONE = TemplateSpace(_none)  # every row breaks a limit


def all_candidates(task: Task, sketches: Iterable[Trace]) -> list[Candidate]:
    """Every candidate that satisfies the limits; for small spaces."""
    return [v.candidate(r) for s in sketches for v in variants(task, s) for r in v.valid_rows()]


def seconds_by_tiles(c: Candidate) -> float:
    """Lowest where every innermost tile is 8 and the next one 2, a factor higher for each factor of
    two away from that; the same in all variants.
    """
    away = 0.0
    for step in c.trace:
        if isinstance(step, SampleTile) and step.decision is not None:
            away += abs(log2(step.decision[-1]) - 3) + 0.3 * abs(log2(step.decision[-2]) - 1)
    return float(1e-6 * 1.3**away)


def measured(
    candidates: Iterable[Candidate],
    cost: Callable[[Candidate], float | Failure] = seconds_by_tiles,
) -> list[Measurement]:
    """The measurements of a machine on which candidates take `cost` seconds."""
    out = []
    for c in candidates:
        seconds = cost(c)
        if isinstance(seconds, Failure):
            out.append(Measurement(c, failure=seconds, when=0.0))
        else:
            out.append(Measurement(c, (seconds,) * 3, when=0.0))
    return out
