"""A variant: a sketch whose structural decisions are made, lowered once with its numbers open. A
population of candidates is an integer matrix, one row each, and everything acts on all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import FloorDiv, Int, Maximum, Opaque, of, opaque_atoms, product, var
from tilesmith.expr.nodes import Expr, Load, children
from tilesmith.ir.dependence import find_loop
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, For, walk
from tilesmith.schedule.require import Require
from tilesmith.schedule.sample import (
    SampleChoice,
    SampleLocation,
    SamplePermutation,
    SampleTile,
)
from tilesmith.schedule.trace import Trace
from tilesmith.space.analysis import points
from tilesmith.space.domains import Domain, Matrix, Rng, domain_of
from tilesmith.task.task import Candidate, Task

Column = np.ndarray[Any, Any]
# Operations written out around one block. Twice as many compile for seconds (guards are cut into
# several copies of them), and gain nothing.
_MOST_CODE = 2048


@dataclass(frozen=True)
class Limit:
    """`value` may not exceed `most`, nor fall below `least`; both are known before anything is
    built.
    """

    name: str
    value: Int
    most: int
    least: int = 0


@dataclass(frozen=True, eq=False)
class Variant:
    task: Task
    trace: Trace  # numeric decisions open
    func: Function  # symbolic
    domains: tuple[Domain, ...]
    limits: tuple[Limit, ...]

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return tuple(c for d in self.domains for c in d.columns)

    @cached_property
    def spans(self) -> tuple[slice, ...]:
        at, out = 0, []
        for d in self.domains:
            out.append(slice(at, at + len(d.columns)))
            at += len(d.columns)
        return tuple(out)

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """The block that each domain belongs to: crossover takes a block's decisions from one
        parent.
        """
        blocks = sorted((b.name for _, b in walk(self.func.body)), key=len, reverse=True)
        out = []
        for d in self.domains:
            name = d.columns[0][1:]
            out.append(next((b for b in blocks if name.startswith(f"{b}.")), name))
        return tuple(out)

    @property
    def size(self) -> int:
        """How many rows there are, those beyond the limits included."""
        n = 1
        for d in self.domains:
            n *= d.size
        return n

    def row(self, index: int) -> Matrix:
        """The index-th row, for a grid: domains count like digits, the last one fastest."""
        parts = []
        for d in reversed(self.domains):
            index, at = divmod(index, d.size)
            parts.append(d.table[at])
        return np.concatenate(parts[::-1]) if parts else np.zeros(0, np.int32)

    # populations
    def draw(self, rng: Rng, n: int) -> Matrix:
        """Rows drawn uniformly, valid or not."""
        if not self.domains:
            return np.zeros((n, 0), np.int32)
        return np.concatenate([d.sample(rng, n) for d in self.domains], axis=1)

    def sample(self, rng: Rng, n: int, attempts: int = 50) -> Matrix:
        """Valid rows drawn uniformly; fewer than n only if they are very rare."""
        found: list[Matrix] = []
        missing = n
        ask = n
        for _ in range(attempts):
            rows = self.draw(rng, ask)
            rows = rows[self.valid(rows)][:missing]
            found.append(rows)
            missing -= len(rows)
            if missing <= 0 or not self.domains:
                break
            ask = max(64, min(4 * n, 4 * missing))
        return np.concatenate(found)

    def mutate(self, rng: Rng, rows: Matrix) -> Matrix:
        """One decision of each row changed; rows that would leave the limits stay as they are."""
        if not self.domains or not len(rows):
            return rows
        weights = np.array([len(d.columns) if d.size > 1 else 0 for d in self.domains], float)
        if not weights.any():
            return rows
        pick = np.searchsorted(np.cumsum(weights) / weights.sum(), rng.random(len(rows)), "right")
        new = rows.copy()
        for k, (d, span) in enumerate(zip(self.domains, self.spans, strict=True)):
            at = np.flatnonzero(pick == k)
            if len(at):
                new[at, span] = d.mutate(rng, rows[at, span])
        return np.where(self.valid(new)[:, None], new, rows)

    def cross(self, rng: Rng, a: Matrix, b: Matrix) -> Matrix:
        """Each node's decisions from one of the two parents; a child beyond the limits is its first
        parent.
        """
        names = list(dict.fromkeys(self.nodes))
        take = rng.random((len(a), len(names))) < 0.5
        new = a.copy()
        for node, span in zip(self.nodes, self.spans, strict=True):
            mask = take[:, names.index(node)][:, None]
            new[:, span] = np.where(mask, b[:, span], a[:, span])
        return np.where(self.valid(new)[:, None], new, a)

    def valid(self, rows: Matrix) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which rows keep all limits."""
        ok = np.ones(len(rows), bool)
        for limit, f in self._compiled:
            v = f(rows)
            ok &= v <= limit.most
            if limit.least:
                ok &= v >= limit.least
        return ok

    @cached_property
    def _compiled(self) -> tuple[tuple[Limit, Callable[[Matrix], Column]], ...]:
        return tuple((limit, compile_int(limit.value, self.columns)) for limit in self.limits)

    # one row
    def decided(self, row: Matrix) -> Trace:
        return self.trace.decide({c: int(v) for c, v in zip(self.columns, row, strict=True)})

    def candidate(self, row: Matrix) -> Candidate:
        return Candidate(self.task, self.decided(row))

    def function(self, row: Matrix) -> Function:
        """The concrete Function of a row."""
        return self.decided(row).apply(self.task.func)


def compile_int(p: Int, columns: tuple[str, ...]) -> Callable[[Matrix], Column]:
    """A polynomial over columns, as a function of a whole matrix. Products are taken in 64 bits."""
    index = {c: k for k, c in enumerate(columns)}

    def at(q: Int, rows: Matrix) -> Column:
        total: Column = np.zeros(len(rows), np.int64)
        for m, c in q.terms.items():
            term: Column = np.full(len(rows), c, np.int64)
            for a in m:
                term = term * (rows[:, index[a]] if isinstance(a, str) else opaque(a, rows))
            total = total + term
        return total

    def opaque(a: Opaque, rows: Matrix) -> Column:
        assert isinstance(a, Maximum | FloorDiv), a
        left, right = at(a.a, rows), at(a.b, rows)
        return np.maximum(left, right) if isinstance(a, Maximum) else left // right

    return lambda rows: at(p, rows)


def lower(task: Task, trace: Trace) -> Variant:
    """Structural decisions made, numeric ones open: applied once, with what each split found."""
    func = task.func
    domains: list[Domain] = []
    bounds: list[Limit] = []
    for step in trace.steps:
        if isinstance(step, SampleTile) and step.decision is None:
            extent = find_loop(func, step.loop)[1].extent
            if extent.const is None:
                raise ScheduleError(
                    f"{step.loop} has {extent} iterations, which other decisions set; tile it by a "
                    "split with a number"
                )
            domains.append(domain_of(step, extent.const))
        elif isinstance(step, SampleChoice) and step.decision is None:
            domains.append(domain_of(step, None))
        elif isinstance(step, Require):
            most = step.most if step.most is not None else 1 << 62
            bounds.append(Limit(step.expression, step.value, most, step.least))
        func = step.apply(func)
    limits = (*bounds, *limits_of(task, func))
    return Variant(task, trace, func, tuple(domains), limits)


def limits_of(task: Task, func: Function) -> list[Limit]:
    """What the hardware, or good sense, sets: registers, code size, threads, shared memory."""
    out: list[Limit] = []
    for path, b in walk(func.body):
        if task.target.kind == "cpu":
            out += _cpu_limits(task, path, b)
    if task.target.kind == "cuda":
        out += _gpu_limits(task, func)
    return [x for x in out if x.value.const is None or x.value.const > x.most]


def _cpu_limits(task: Task, path: tuple[For, ...], b: Block) -> Iterator[Limit]:
    target = task.target
    cost = sum(code_of(w.value) for w in b.writes)
    for f in path:
        depth = f.note("unroll_depth")
        if isinstance(depth, str):
            yield Limit(f"{b.name}: code", var(depth) * cost, _MOST_CODE)
    unrolled = [f for f in path if f.kind == "unroll"]
    if not unrolled:  # a vector alone, however long, is taken in strips of a few registers
        return
    # A vector that is shorter than a register costs as much as a full one: both are bounded.
    lanes = target.lanes(max(32, b.writes[0].value.dtype.bits))
    vector = product(f.extent for f in path if f.kind == "vectorize")
    if b.reducing:
        held = product(f.extent for f in unrolled if f.name not in b.reducing_loops)
        wide = product(
            f.extent for f in path if f.kind == "vectorize" and f.name not in b.reducing_loops
        )
        registers = target.num_vector_registers - 2
        yield Limit(f"{b.name}: registers", held, registers)
        yield Limit(f"{b.name}: registers of vectors", held * wide, registers * lanes)
    written = product(f.extent for f in unrolled) * cost
    yield Limit(f"{b.name}: code", written, _MOST_CODE)
    yield Limit(f"{b.name}: code of vectors", written * vector, _MOST_CODE * lanes)


def code_of(e: Expr) -> int:
    """About how many operations an expression is; an index with a division costs several, once per
    lane.
    """
    here = 1
    if isinstance(e, Load):
        here += 8 * sum(1 for p in e.index for _ in opaque_atoms(p))
    return here + sum(map(code_of, children(e)))


def _gpu_limits(task: Task, func: Function) -> Iterator[Limit]:
    target = task.target
    for k, root in enumerate(func.body):
        axes = {"threadIdx.x": of(1), "threadIdx.y": of(1), "threadIdx.z": of(1), "vthread": of(1)}
        shared, work = of(0), 0
        for path, b in walk((root,)):
            for axis in axes:
                bound = product(f.extent for f in path if f.kind == axis)
                axes[axis] = axes[axis] if bound.const == 1 else bound
            buffer = func.all_buffers[b.writes[0].buffer]
            if buffer.scope == "shared":  # as large as what is copied at once
                own = product(f.extent for f in path if f.name.startswith(f"{b.name}."))
                shared += own * (buffer.dtype.bits // 8)
            work = max(work, *points(b))
        vthreads = axes.pop("vthread")
        threads = product(axes.values())
        # a warp is the least that pays, where there is work for two
        least = target.warp_size if work >= 2 * target.warp_size else 0
        if threads.const != 1:
            yield Limit(f"threads of kernel {k}", threads, target.max_threads, least)
        if vthreads.const != 1:
            yield Limit(f"vthreads of kernel {k}", vthreads, max(1, target.warp_size // 4))
        if shared.const != 0:
            yield Limit(f"shared bytes of kernel {k}", shared, target.shared_nbytes)


def structural_samples(trace: Trace) -> list[int]:
    """Positions of the steps whose decision changes the structure."""
    return [
        k for k, s in enumerate(trace.steps)
        if isinstance(s, SampleLocation | SamplePermutation) and s.decision is None
    ]  # fmt: skip
