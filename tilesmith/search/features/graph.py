"""Closed forms over a variant's columns: terms are built by plain arithmetic, equal ones are one
term, and all that is asked for becomes a list of NumPy calls on a whole matrix of rows.

Numbers are float32: sizes are exact as long as comparing them matters, and logarithms are four
times as fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilesmith.expr.ints import FloorDiv, Int, Maximum
from tilesmith.space.domains import Matrix

Values = np.ndarray[Any, np.dtype[np.float32]]
Array = np.ndarray[Any, Any]
Operation = Callable[..., Any]

_CHUNK = 2048  # rows at a time: what is computed on the way stays in the second-level cache
_ONE = np.array(1, np.float32)  # arrays: NumPy takes longer to convert a scalar than to add


def _greater(a: Array, b: Array) -> Array:
    return np.greater(a, b).astype(np.float32)


def _log(a: Array) -> Array:
    return np.log2(a + _ONE)


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """A number per row. `value` is set where it is the same for all of them."""

    graph: Graph
    number: int
    value: float | None = None

    def __add__(self, other: Term | float) -> Term:
        o = self.graph.of(other)
        if self.value == 0:
            return o
        return self if o.value == 0 else self.graph.make(np.add, self, o)

    def __radd__(self, other: float) -> Term:
        return self + other

    def __sub__(self, other: Term | float) -> Term:
        o = self.graph.of(other)
        return self if o.value == 0 else self.graph.make(np.subtract, self, o)

    def __rsub__(self, other: float) -> Term:
        return self.graph.of(other) - self

    def __mul__(self, other: Term | float) -> Term:
        o = self.graph.of(other)
        if self.value == 1 or o.value == 0:
            return o
        if o.value == 1 or self.value == 0:
            return self
        return self.graph.make(np.multiply, self, o)

    def __rmul__(self, other: float) -> Term:
        return self * other

    def __truediv__(self, other: Term | float) -> Term:
        o = self.graph.of(other)
        return self if o.value == 1 else self.graph.make(np.divide, self, o)

    def __rtruediv__(self, other: float) -> Term:
        return self.graph.of(other) / self

    def __gt__(self, other: Term | float) -> Term:
        """1 where it holds, else 0."""
        return self.graph.make(_greater, self, self.graph.of(other))

    def minimum(self, other: Term | float) -> Term:
        return self.graph.make(np.minimum, self, self.graph.of(other))

    def maximum(self, other: Term | float) -> Term:
        return self.graph.make(np.maximum, self, self.graph.of(other))

    def ceil(self) -> Term:
        return self.graph.make(np.ceil, self)

    def log(self) -> Term:
        """log2(1 + x), the scale on which sizes are alike."""
        return self.graph.make(_log, self)

    def where(self, yes: Term | float, no: Term | float) -> Term:
        """`yes` in the rows where this is 1, `no` where it is 0. Arithmetic does that several times
        as fast as np.where, which branches.
        """
        a, b = self.graph.of(yes), self.graph.of(no)
        if self.value is not None or a.number == b.number:
            return b if self.value == 0 else a
        if b.value == 0:
            return self * a
        if a.value == 0:
            return (1 - self) * b
        return b + self * (a - b)


class Graph:
    def __init__(self, columns: Sequence[str]) -> None:
        self.at = {c: k for k, c in enumerate(columns)}
        self.made: list[tuple[Operation, tuple[int, ...]] | int | float] = []
        self._terms: dict[Any, Term] = {}
        self._integers: dict[Int, Term] = {}

    def of(self, x: Term | float) -> Term:
        if isinstance(x, Term):
            return x
        return self._terms.get(x) or self._new(x, float(x), float(x))

    def make(self, f: Operation, *args: Term) -> Term:
        key = (f, *(a.number for a in args))
        found = self._terms.get(key)
        if found is not None:
            return found
        if all(a.value is not None for a in args):
            with np.errstate(all="ignore"):
                folded = self.of(float(f(*(np.float32(a.value or 0) for a in args))))
            self._terms[key] = folded
            return folded
        return self._new(key, (f, key[1:]))

    def _new(self, key: Any, how: Any, value: float | None = None) -> Term:
        found = self._terms[key] = Term(self, len(self.made), value)
        self.made.append(how)
        return found

    def column(self, name: str) -> Term:
        return self._terms.get(name) or self._new(name, self.at[name])

    def integer(self, p: Int) -> Term:
        """A polynomial over columns."""
        found = self._integers.get(p)
        if found is None:
            found = self.of(0.0)
            for m, c in p.terms.items():
                term = self.of(float(c))
                for a in m:
                    if isinstance(a, str):
                        term = term * self.column(a)
                    elif isinstance(a, Maximum):
                        term = term * self.integer(a.a).maximum(self.integer(a.b))
                    elif isinstance(a, FloorDiv):
                        left, right = self.integer(a.a), self.integer(a.b)
                        term = term * self.make(np.floor_divide, left, right)
                    else:
                        raise ValueError(f"{a} has no closed form over the columns")
                found = found + term
            self._integers[p] = found
        return found

    def product(self, terms: Sequence[Term]) -> Term:
        out = self.of(1.0)
        for t in terms:
            out = out * t
        return out

    def curve(self, xs: Sequence[Term], ys: Sequence[Term], samples: int) -> list[Term]:
        """A line through the points (xs ascending), at equal shares of its last x."""

        def line(*points: Array) -> Array:
            return interpolate(points[: len(xs)], points[len(xs) :], samples)

        if all(t.value is not None for t in (*xs, *ys)):
            known = line(*(np.full(1, t.value, np.float32) for t in (*xs, *ys)))
            return [self.of(float(y)) for y in known[:, 0]]
        whole = self._new(line, (line, tuple(t.number for t in (*xs, *ys))))
        return [
            self._new((line, k), (lambda at, k=k: at[k], (whole.number,))) for k in range(samples)
        ]

    def compile(self, outputs: Sequence[Term]) -> Compiled:
        return Compiled(self, outputs)


class Compiled:
    """Rows in, a matrix with one line per row and one column per output out."""

    def __init__(self, graph: Graph, outputs: Sequence[Term]) -> None:
        self.width = len(outputs)
        self._constants = [(k, t.value) for k, t in enumerate(outputs) if t.value is not None]
        wanted: dict[int, list[int]] = {}
        for k, t in enumerate(outputs):
            if t.value is None:
                wanted.setdefault(t.number, []).append(k)
        last: dict[int, int] = {}
        needed = set(wanted)
        for number in range(len(graph.made) - 1, -1, -1):
            how = graph.made[number]
            if number in needed and isinstance(how, tuple):
                for a in how[1]:
                    needed.add(a)
                    last.setdefault(a, number)
        # what is no longer needed gives its place to another
        slots: dict[int, int] = {}
        free: list[int] = []
        count = 0
        self._start: list[tuple[int, int | float]] = []
        self._steps: list[tuple[Operation, tuple[int, ...], int, list[int]]] = []
        for number in sorted(needed):
            how = graph.made[number]
            args: tuple[int, ...] = ()
            if isinstance(how, tuple):
                args = tuple(slots[a] for a in how[1])
                free += {slots[a] for a in how[1] if last[a] == number}
            if free and isinstance(how, tuple):
                slots[number] = free.pop()
            else:
                slots[number], count = count, count + 1
            if isinstance(how, tuple):
                self._steps.append((how[0], args, slots[number], wanted.get(number, [])))
            else:
                self._start.append((slots[number], how))
                self._steps.append((_same, (slots[number],), slots[number], wanted.get(number, [])))
        self._count = count

    def __call__(self, rows: Matrix) -> Values:
        out = np.empty((len(rows), self.width), np.float32)
        with np.errstate(all="ignore"):
            for start in range(0, len(rows), _CHUNK):
                part = rows[start : start + _CHUNK]
                out[start : start + len(part)] = self._lines(part).T
        return out

    def _lines(self, rows: Matrix) -> Values:
        lines = np.empty((self.width, len(rows)), np.float32)
        columns = np.ascontiguousarray(rows.T, np.float32)
        values: list[Any] = [None] * self._count
        for slot, how in self._start:
            values[slot] = columns[how] if isinstance(how, int) else np.array(how, np.float32)
        for f, args, slot, places in self._steps:
            x = values[slot] = f(*[values[a] for a in args])
            for k in places:
                lines[k] = x
        for k, v in self._constants:
            lines[k] = v
        return lines


def _same(x: Array) -> Array:
    return x


def interpolate(xs: Sequence[Array], ys: Sequence[Array], samples: int) -> Array:
    """For each row, the line through (xs, ys) at 1/samples, 2/samples, ... of its last x."""
    points = np.stack(np.broadcast_arrays(*xs, *ys))
    x, y, n = points[: len(xs)], points[len(xs) :], points.shape[1]
    at = np.arange(1, samples + 1, dtype=np.float32)[:, None] / np.float32(samples) * x[-1]
    right = np.zeros((samples, n), np.int32)
    for level in x[:-1]:
        right += level < at
    left = np.maximum(right - 1, 0)
    row = np.arange(n, dtype=np.int32)
    x, y = x.ravel(), y.ravel()
    right = right * n + row
    left = left * n + row
    x0, y0 = x.take(left), y.take(left)
    share = (at - x0) / np.maximum(x.take(right) - x0, np.float32(1e-9))
    return np.asarray(y0 + np.clip(share, 0, 1) * (y.take(right) - y0))
