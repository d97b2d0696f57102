"""A variant: a sketch whose structural decisions are made, lowered once with its numbers open. A
population of candidates is an integer matrix, one row each, and everything acts on all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import FloorDiv, Int, Maximum, Opaque, product
from tilesmith.ir.dependence import find_loop
from tilesmith.ir.function import Function, instantiate
from tilesmith.ir.nodes import walk
from tilesmith.schedule.require import Require
from tilesmith.schedule.sample import (
    SampleChoice,
    SampleLocation,
    SamplePermutation,
    SampleTile,
)
from tilesmith.schedule.trace import Trace
from tilesmith.space.domains import Domain, Matrix, Rng, domain_of
from tilesmith.space.limits import Limit, limits_of
from tilesmith.task.task import Candidate, Task

Column = np.ndarray[Any, Any]
_CHUNK = 8192  # rows worked on at a time: what is computed on the way stays in the cache


@dataclass(frozen=True, eq=False)
class Variant:
    task: Task
    trace: Trace  # numeric decisions open
    func: Function  # symbolic
    domains: tuple[Domain, ...]
    limits: tuple[Limit, ...]

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Those of the domains, then those that follow from them."""
        return (*(c for d in self.domains for c in d.columns), *(c for c, _, _ in self._derived))

    @cached_property
    def _derived(self) -> tuple[tuple[str, Int, Int], ...]:
        """What nobody decides, such as the outermost part of a split by [None, 8]: the name, the
        extent that it covers, and what it is divided by.
        """
        known = {c for d in self.domains for c in d.columns}
        out = []
        for fact in self.func.facts:
            name = fact.sizes[0].name
            inner = product(fact.sizes[1:])
            if name is not None and name not in known and inner.names | fact.extent.names <= known:
                out.append((name, fact.extent, inner))
                known.add(name)
        return tuple(out)

    @cached_property
    def _fillers(
        self,
    ) -> tuple[tuple[int, Callable[[Matrix], Column], Callable[[Matrix], Column]], ...]:
        at = {c: k for k, c in enumerate(self.columns)}
        return tuple(
            (at[c], compile_int(extent, self.columns), compile_int(inner, self.columns))
            for c, extent, inner in self._derived
        )

    def _fill(self, rows: Matrix) -> None:
        """The columns that follow from the others, computed in place."""
        for at, extent, inner in self._fillers:
            rows[:, at] = -(-extent(rows) // inner(rows))

    def complete(self, decided: Matrix) -> Matrix:
        """Rows from the columns of the domains alone."""
        out = np.empty((len(decided), len(self.columns)), np.int32)
        out[:, : decided.shape[1]] = decided
        self._fill(out)
        return out

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
        if len({n for n in out if n in blocks}) <= 1:  # else a child would be one of its parents
            return tuple(d.columns[0] for d in self.domains)
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
        if not 0 <= index < self.size:
            raise IndexError(f"row {index} of {self.size}")
        parts = []
        for d in reversed(self.domains):
            index, at = divmod(index, d.size)
            parts.append(d.table[at])
        out = np.empty((1, len(self.columns)), np.int32)
        for span, part in zip(self.spans, parts[::-1], strict=True):
            out[:, span] = part
        self._fill(out)
        return np.asarray(out[0])

    # populations
    def draw(self, rng: Rng, n: int) -> Matrix:
        """Rows drawn uniformly, valid or not."""
        out = np.empty((n, len(self.columns)), np.int32)
        for d, span in zip(self.domains, self.spans, strict=True):
            out[:, span] = d.sample(rng, n) if d.size > 1 else d.table
        self._fill(out)
        return out

    def sample(self, rng: Rng, n: int, attempts: int = 50) -> Matrix:
        """Valid rows drawn uniformly; fewer than n only if they are very rare."""
        out = np.empty((n, len(self.columns)), np.int32)
        found = 0
        for _ in range(attempts + n // _CHUNK * 4):
            rows = self.draw(rng, min(_CHUNK, max(64, 2 * (n - found))))
            keep = np.flatnonzero(self.valid(rows))[: n - found]
            out[found : found + len(keep)] = rows.take(keep, axis=0)
            found += len(keep)
            if found == n:
                break
        return out[:found]

    def mutate(self, rng: Rng, rows: Matrix) -> Matrix:
        """One decision of each row changed; rows that would leave the limits stay as they are."""
        weights = np.array([len(d.columns) if d.size > 1 else 0 for d in self.domains], float)
        new = rows.copy()
        if not weights.any():
            return new
        bounds = np.cumsum(weights) / weights.sum()
        for start in range(0, len(rows), _CHUNK):
            part = new[start : start + _CHUNK]
            pick = np.searchsorted(bounds, rng.random(len(part)), "right")
            for k, (d, span) in enumerate(zip(self.domains, self.spans, strict=True)):
                at = np.flatnonzero(pick == k)
                if len(at):
                    changed = part.take(at, axis=0)
                    changed[:, span] = d.mutate(rng, changed[:, span])
                    part[at] = changed
            self._fill(part)
            back = np.flatnonzero(~self.valid(part))
            part[back] = rows[start + back]
        return new

    def neighbours(self, row: Matrix) -> Matrix:
        """All valid rows that differ from this one by a small change of one decision."""
        found = []
        for d, span in zip(self.domains, self.spans, strict=True):
            near = d.neighbours(row[span]) if d.size > 1 else d.table[:0]
            rows = np.repeat(row[None], len(near), axis=0)
            rows[:, span] = near
            found.append(rows)
        out = np.concatenate(found) if found else row[None][:0]
        self._fill(out)
        return np.asarray(out[self.valid(out)])

    def cross(self, rng: Rng, a: Matrix, b: Matrix) -> Matrix:
        """Each node's decisions from one of the two parents; a child beyond the limits is its first
        parent.
        """
        names = list(dict.fromkeys(self.nodes))
        new = a.copy()
        for start in range(0, len(a), _CHUNK):
            part, other = new[start : start + _CHUNK], b[start : start + _CHUNK]
            take = rng.random((len(names), len(part)), dtype=np.float32) < 0.5
            for node, span in zip(self.nodes, self.spans, strict=True):
                np.copyto(part[:, span], other[:, span], where=take[names.index(node)][:, None])
            self._fill(part)
            back = np.flatnonzero(~self.valid(part))
            part[back] = a[start + back]
        return new

    def valid(self, rows: Matrix) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which rows keep all limits."""
        ok = np.ones(len(rows), bool)
        for start in range(0, len(rows), _CHUNK):
            part = rows[start : start + _CHUNK]
            here = ok[start : start + _CHUNK]
            for limit, f in self._compiled:
                v = f(part)
                here &= v <= limit.most
                if limit.least:
                    here &= v >= limit.least
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
        """The concrete Function of a row: what its trace gives, without going through it again."""
        return instantiate(self.func, dict(zip(self.columns, map(int, row), strict=True)))


def compile_int(p: Int, columns: tuple[str, ...]) -> Callable[[Matrix], Column]:
    """A polynomial over columns, as a function of a whole matrix. Products are taken in 64 bits."""
    index = {c: k for k, c in enumerate(columns)}

    def at(q: Int, rows: Matrix) -> Column:
        total: Column | None = None
        for m, c in q.terms.items():
            term: Column = np.full(len(rows), c, np.int64)
            for a in m:
                term *= rows[:, index[a]] if isinstance(a, str) else opaque(a, rows)
            total = term if total is None else total + term
        return np.zeros(len(rows), np.int64) if total is None else total

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


def structural_samples(trace: Trace) -> list[int]:
    """Positions of the steps whose decision changes the structure."""
    return [
        k for k, s in enumerate(trace.steps)
        if isinstance(s, SampleLocation | SamplePermutation) and s.decision is None
    ]  # fmt: skip
