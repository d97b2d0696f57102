"""A variant: a sketch whose structural decisions are made, lowered once with its numeric decisions
open. A population of candidates is an integer matrix with one row each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import Int, product
from tilesmith.ir.function import Function, find_loop, with_sizes
from tilesmith.ir.nodes import walk
from tilesmith.schedule.sample import (
    NumericSample,
    Require,
    SampleChoice,
    SampleLocation,
    SamplePermutation,
    SampleTile,
)
from tilesmith.schedule.step import Step
from tilesmith.schedule.trace import Trace
from tilesmith.space.domains import (
    Column,
    Domain,
    Limit,
    Matrix,
    Rng,
    compile_bounds,
    compile_int,
    compile_ints,
    domain_of,
)
from tilesmith.space.limits import limits_of, warnings_of
from tilesmith.task.task import Candidate, Task

_FEWEST = 64  # rows that are enumerated at first
_CHUNK = 8192  # rows processed at a time, so that intermediate results stay in the cache


@dataclass(frozen=True, eq=False)
class Variant:
    """A sketch whose structural decisions are made, so that only numbers are open. Its candidates
    are the rows of an integer matrix with one column for each number.

    Example:

        task = ts.Task(func, ts.cpu())
        variant = next(iter(ts.variants(task, ts.SketchSpace().sketches(task)[0])))
        rows = variant.sample(np.random.default_rng(0), 100)
        kernel = ts.build(variant.function(rows[0]), task.target)
    """

    task: Task
    trace: Trace  # numeric decisions open
    func: Function  # symbolic
    domains: tuple[Domain, ...]
    limits: tuple[Limit, ...]

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns of the domains, then derived ones."""
        return (*(c for d in self.domains for c in d.columns), *(c for c, _, _ in self._derived))

    @cached_property
    def _derived(self) -> tuple[tuple[str, Int, Int], ...]:
        """Columns without a decision of their own, such as the outermost part of a split by
        [None, 8]: (name, extent, divisor).
        """
        decided_columns = {c for d in self.domains for c in d.columns}
        out = []
        for fact in self.func.facts:
            name = fact.sizes[0].name
            inner = product(fact.sizes[1:])
            if (
                name is not None
                and name not in decided_columns
                and inner.names | fact.extent.names <= decided_columns
            ):
                out.append((name, fact.extent, inner))
                decided_columns.add(name)
        return tuple(out)

    @cached_property
    def fixed(self) -> dict[str, int]:
        """Columns that have the same value in every row, such as the tiles of a loop that runs
        once.
        """
        return {
            column: int(number)
            for d in self.domains
            if d.size == 1
            for column, number in zip(d.columns, d.table[0], strict=True)
        }

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
        """Computes derived columns in place."""
        for at, extent, inner in self._fillers:
            rows[:, at] = -(-extent(rows) // inner(rows))

    def complete(self, decided: Matrix) -> Matrix:
        """Rows from the domains' columns; computes the derived ones."""
        out = np.empty((len(decided), len(self.columns)), np.int32)
        out[:, : decided.shape[1]] = decided
        self._fill(out)
        return out

    def adapt(self, rows: Matrix) -> Matrix:
        """Rows of a variant of another task with the same columns, as far as they exist here: the
        nearest choices, without rows that break a limit.
        """
        parts = [d.nearest(rows[:, span]) for d, span in zip(self.domains, self.spans, strict=True)]
        completed = self.complete(np.concatenate([*parts, rows[:, :0]], axis=1).astype(np.int32))
        return np.asarray(completed[self.valid(completed)])

    @cached_property
    def spans(self) -> tuple[slice, ...]:
        at, out = 0, []
        for d in self.domains:
            out.append(slice(at, at + len(d.columns)))
            at += len(d.columns)
        return tuple(out)

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """The block that each domain belongs to. Crossover takes all decisions of a block from the
        same parent.
        """
        blocks = sorted((b.name for _, b in walk(self.func.body)), key=len, reverse=True)
        out = []
        for d in self.domains:
            name = d.columns[0][1:]
            out.append(next((b for b in blocks if name.startswith(f"{b}.")), name))
        # with a single block, a child would equal one of its parents
        if len({n for n in out if n in blocks}) <= 1:
            return tuple(d.columns[0] for d in self.domains)
        return tuple(out)

    @cached_property
    def _node_of_column(self) -> np.ndarray[Any, np.dtype[np.intp]]:
        """The number of each column's node; 0 for derived ones, which are recomputed."""
        names = list(dict.fromkeys(self.nodes))
        at = [names.index(n) for n, d in zip(self.nodes, self.domains, strict=True)
              for _ in d.columns]  # fmt: skip
        # The dtype is given because there may be no columns.
        return np.array(at + [0] * len(self._derived), np.intp)

    @property
    def size(self) -> int:
        """The number of rows, including those that break a limit."""
        return prod(d.size for d in self.domains)

    def row(self, index: int) -> Matrix:
        """Row number `index` of the grid: domains count like digits, the last one fastest."""
        if not 0 <= index < self.size:
            raise IndexError(f"row {index} of {self.size}")
        return np.asarray(self.rows(index, 1)[0])

    def rows(self, start: int, count: int) -> Matrix:
        """The rows from number `start` on, `count` of them or fewer at the end."""
        out = np.empty((max(0, min(count, self.size - start)), len(self.columns)), np.int32)
        carried = np.arange(len(out))  # relative, because `start` may exceed 64 bits
        for d, span in zip(reversed(self.domains), reversed(self.spans), strict=True):
            start, digit = divmod(start, d.size)
            carried, at = np.divmod(carried + digit, d.size)
            out[:, span] = d.table.take(at, axis=0)
        self._fill(out)
        return out

    def valid_rows(self, patience: int = 1 << 26) -> Iterator[Matrix]:
        """The rows that satisfy the limits, in order. Gives up after `patience` consecutive rows
        that do not.
        """
        at, missed, count = 0, 0, _FEWEST
        while at < self.size and missed < patience:
            rows = self.rows(at, count)
            kept = rows[self.valid(rows)]
            missed = 0 if len(kept) else missed + len(rows)
            yield from kept
            at += len(rows)
            count = min(2 * count, _CHUNK)  # more if valid ones are rare

    def contains(self, rows: Matrix) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which rows have every decision in its domain; hand-written ones may not."""
        ok = np.ones(len(rows), bool)
        for d, span in zip(self.domains, self.spans, strict=True):
            ok &= d.contains(rows[:, span])
        return ok

    def rows_or(self, rows: Matrix, others: Matrix) -> Matrix:
        """The rows, but those of `others` where a row leaves a domain or breaks a limit. Derived
        columns are recomputed.
        """
        new = np.where(self.contains(rows)[:, None], rows, others)
        self._fill(new)
        return np.where(self.valid(new)[:, None], new, others)

    # populations
    def draw(self, rng: Rng, n: int) -> Matrix:
        """Random rows from the domains, including some that break a limit."""
        out = np.empty((len(self.columns), n), np.int32)  # column by column, as it is filled
        for d, span in zip(self.domains, self.spans, strict=True):
            d.sample_columns(rng, out[span])
        self._fill(out.T)
        return out.T

    def sample(self, rng: Rng, n: int, attempts: int = 50) -> Matrix:
        """Valid rows, drawn independently; fewer than n only if valid ones are very rare."""
        out = np.empty((n, len(self.columns)), np.int32)
        collected = drawn = 0
        for _ in range(attempts + n // _CHUNK * 4):
            # Where most rows break a limit, as on GPUs, more are drawn at once.
            rarity = drawn // max(1, collected)
            rows = self.draw(rng, min(_CHUNK, max(64, max(2, rarity) * (n - collected))))
            drawn += len(rows)
            keep = np.flatnonzero(self.valid(rows))[: n - collected]
            out[collected : collected + len(keep)] = rows.T.take(keep, axis=1).T
            collected += len(keep)
            if collected == n:
                break
        return out[:collected]

    def mutate(self, rng: Rng, rows: Matrix) -> Matrix:
        """Changes one decision of each row; rows that would break a limit stay as they are."""
        new = rows.copy()
        if not len(self._picks):
            return new
        every = np.arange(len(self.domains) + 1)
        for start in range(0, len(rows), _CHUNK):
            part = new[start : start + _CHUNK]
            pick = self._picks.take(rng.integers(0, len(self._picks), len(part), np.int32))
            order = np.argsort(pick, kind="stable")  # groups rows that change the same decision
            changed = part.take(order, axis=0)
            ends = np.searchsorted(pick.take(order), every)
            for k, (d, span) in enumerate(zip(self.domains, self.spans, strict=True)):
                if ends[k] < ends[k + 1]:
                    columns = changed[ends[k] : ends[k + 1], span]
                    columns[...] = d.mutate(rng, columns)
            self._fill(changed)
            keep = np.flatnonzero(self.valid(changed))
            part[order.take(keep)] = changed.take(keep, axis=0)
        return new

    def neighbours(self, row: Matrix) -> Matrix:
        """All valid rows that differ from this one by a small change of one decision."""
        changed = []
        for d, span in zip(self.domains, self.spans, strict=True):
            near = d.neighbours(row[span]) if d.size > 1 else d.table[:0]
            rows = np.repeat(row[None], len(near), axis=0)
            rows[:, span] = near
            changed.append(rows)
        out = np.concatenate(changed) if changed else row[None][:0]
        self._fill(out)
        return np.asarray(out[self.valid(out)])

    @cached_property
    def _picks(self) -> Column:
        """The domains with more than one choice, each repeated by its number of columns."""
        times = [len(d.columns) if d.size > 1 else 0 for d in self.domains]
        return np.repeat(np.arange(len(times), dtype=np.uint8), times)

    def cross(self, rng: Rng, a: Matrix, b: Matrix) -> Matrix:
        """Takes each node's decisions from one of the two parents. A child that breaks a limit is
        replaced by its first parent.
        """
        new = a.copy()
        for start in range(0, len(a), _CHUNK):
            part, other = new[start : start + _CHUNK], b[start : start + _CHUNK]
            take = rng.integers(0, 2, (len(part), len(set(self.nodes))), dtype=bool)
            child = np.where(take.take(self._node_of_column, axis=1), other, part)
            self._fill(child)
            ok = self.valid(child)
            np.copyto(part, child, where=ok[:, None])
        return new

    @cached_property
    def _places(self) -> dict[tuple[str, ...], slice]:
        return {d.columns: span for d, span in zip(self.domains, self.spans, strict=True)}

    def cross_from(self, rng: Rng, rows: Matrix, other: Variant, mates: Matrix) -> Matrix:
        """Takes the decisions of a random half of the nodes from rows of another variant, one for
        each row: of the nodes whose decisions all exist here, with these values. A child that
        breaks a limit is replaced by its first parent.
        """
        names = list(dict.fromkeys(self.nodes))
        take = rng.integers(0, 2, (len(rows), len(names)), dtype=bool)
        for d, node in zip(self.domains, self.nodes, strict=True):
            place = other._places.get(d.columns)
            at = names.index(node)
            take[:, at] &= False if place is None else d.contains(mates[:, place])
        child = rows.copy()
        for d, span, node in zip(self.domains, self.spans, self.nodes, strict=True):
            if (place := other._places.get(d.columns)) is not None:
                taken = take[:, names.index(node), None]
                child[:, span] = np.where(taken, mates[:, place], rows[:, span])
        self._fill(child)
        return np.where(self.valid(child)[:, None], child, rows)

    def carried(self, rng: Rng, other: Variant, rows: Matrix) -> Matrix:
        """Rows of another variant of the task as rows of this one: the decisions that both have,
        the nearest where a value is not allowed here, and random ones for the others. Some may
        break a limit.
        """
        out = self.draw(rng, len(rows))
        for d, span in zip(self.domains, self.spans, strict=True):
            if (place := other._places.get(d.columns)) is not None:
                out[:, span] = rows[:, place]
                if len(strange := np.flatnonzero(~d.contains(out[:, span]))):
                    out[strange, span] = d.nearest(out[strange, span])
        self._fill(out)
        return np.ascontiguousarray(out)

    def valid(self, rows: Matrix) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which rows satisfy all limits."""
        ok = np.zeros(len(rows), bool)
        for start in range(0, len(rows), _CHUNK):
            ok[start + self._within(rows[start : start + _CHUNK])] = True
        return ok

    def warnings(self, rows: Matrix) -> dict[str, np.ndarray[Any, np.dtype[np.bool_]]]:
        """By name, which rows exceed a bound that is only advisable, such as a cache's size."""
        values = compile_ints([w.value for w in self._warnings], self.columns)(rows)
        return {w.name: v > w.most for w, v in zip(self._warnings, values, strict=True)}

    @cached_property
    def _warnings(self) -> tuple[Limit, ...]:
        return tuple(warnings_of(self.task, self.func))

    @cached_property
    def _within(self) -> Callable[[Matrix], Column]:
        return compile_bounds([(x.value, x.least, x.most) for x in self.limits], self.columns)

    # one row
    def decided(self, row: Matrix) -> Trace:
        """The trace with the numbers of a row."""
        return self.trace.decide({c: int(v) for c, v in zip(self.columns, row, strict=True)})

    def candidate(self, row: Matrix) -> Candidate:
        """The candidate of a row."""
        return Candidate(self.task, self.decided(row))

    def function(self, row: Matrix) -> Function:
        """The concrete Function of a row, as its trace would give but without replaying it."""
        return with_sizes(self.func, dict(zip(self.columns, map(int, row), strict=True)))


@dataclass(frozen=True, eq=False)
class _Applied:
    """A task's function after the first steps of a trace, and what they left open."""

    func: Function
    domains: tuple[Domain, ...] = ()
    bounds: tuple[Limit, ...] = ()


def lower(task: Task, trace: Trace) -> Variant:
    """Applies a trace whose structural decisions are made, once, with numbers left open."""
    applied = _before(task)
    for step in trace.steps:
        applied = _after(applied, step)
    limits = (*applied.bounds, *limits_of(task, applied.func))
    return Variant(task, trace, applied.func, applied.domains, limits)


@lru_cache(maxsize=64)
def _before(task: Task) -> _Applied:
    return _Applied(task.func)


# The variants of a task begin with the same steps: nearly half of all need not be applied again.
@lru_cache(maxsize=1024)  # functions, some kilobytes each
def _after(before: _Applied, step: Step) -> _Applied:
    domains, bounds = before.domains, before.bounds
    if isinstance(step, SampleTile) and step.decision is None:
        extent = find_loop(before.func, step.loop)[1].extent
        if extent.const is None:
            raise ScheduleError(
                f"{step.loop} has {extent} iterations, which other decisions set; tile it by a "
                "split with a number"
            )
        domains = (*domains, domain_of(step, extent.const))
    elif isinstance(step, SampleChoice) and step.decision is None:
        domains = (*domains, domain_of(step, None))
    elif isinstance(step, Require):
        most = step.most if step.most is not None else 1 << 62
        bounds = (*bounds, Limit(step.expression, step.value, most, step.least))
    return _Applied(step.apply(before.func), domains, bounds)


def structural_samples(trace: Trace) -> list[int]:
    """The positions of the steps whose decision changes the structure."""
    return [
        k for k, s in enumerate(trace.steps)
        if isinstance(s, SampleLocation | SamplePermutation) and s.decision is None
    ]  # fmt: skip


@lru_cache(maxsize=4096)
def lowered(task: Task, trace: Trace) -> Variant:
    """The variant of a trace whose numbers are open. Raises a ScheduleError if its structural
    decisions contradict each other.
    """
    return lower(task, trace)


@lru_cache(maxsize=1 << 16)  # every fit of a model asks for all measurements
def reopen(c: Candidate) -> tuple[Variant, tuple[int, ...]]:
    """A trace without numeric decisions, such as a hand-written one, is the only row of its
    variant.
    """
    decided = [n for s in c.trace if isinstance(s, NumericSample) for n in s.decided]
    variant = lowered(c.task, without_numbers(c.trace))
    return variant, tuple(map(int, variant.complete(np.array([decided], np.int32))[0]))


def without_numbers(trace: Trace) -> Trace:
    """The trace of the variant: structural decisions alone. Nothing is lowered for it."""
    return Trace(
        tuple(replace(s, decision=None) if isinstance(s, NumericSample) else s for s in trace)
    )


def stacked(rows: list[tuple[int, ...]], variant: Variant) -> Matrix:
    return np.array(rows, np.int32).reshape(len(rows), len(variant.columns))
