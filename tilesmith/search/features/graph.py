"""Expression graphs over a variant's columns: terms are built by plain arithmetic with common
subexpression elimination, and compiled to a program that runs over a whole matrix of rows.

Numbers are float32, whose integers are exact up to 2**24 and whose logarithms are four times as
fast as float64's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from threading import Lock
from types import MappingProxyType
from typing import Any

import numpy as np

from tilesmith.expr.ints import FloorDiv, Int, Maximum
from tilesmith.search.features.machine import CODES, Compiled, Values, bits_of
from tilesmith.space.domains import Matrix
from tilesmith.space.variant import Variant

Array = np.ndarray[Any, Any]
_NONE: Mapping[str, int] = MappingProxyType({})


def interpolate(share: float, *points: Array) -> Array:
    """The piecewise linear curve through the points, given as all xs (ascending) then all ys, at
    `share` times the last x.
    """
    half = len(points) // 2
    xs, ys = points[:half], points[half:]
    at = np.float32(share) * xs[-1]
    x0, y0, x1, y1 = xs[0], ys[0], xs[0], ys[0]
    for k in range(half - 1):
        passed = xs[k] < at
        x0, y0 = np.where(passed, xs[k], x0), np.where(passed, ys[k], y0)
        x1, y1 = np.where(passed, xs[k + 1], x1), np.where(passed, ys[k + 1], y1)
    part = (at - x0) / np.maximum(x1 - x0, np.float32(1e-9))
    return np.asarray(y0 + np.clip(part, 0, 1) * (y1 - y0), np.float32)


# The operations in NumPy, for constant folding and as an oracle in tests.
MEANING: dict[str, Callable[..., Any]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
    "minimum": np.minimum, "maximum": np.maximum,
    "ceil": np.ceil, "log2": np.log2, "curve": interpolate,
    "greater": lambda a, b: np.greater(a, b).astype(np.float32),
    "floor_divide": lambda a, b: np.floor(a / b),  # exact below 2**24
}  # fmt: skip


class Term:
    """One number per row. `value` is set if the term is a constant. Terms are not changed after
    they are made; a frozen dataclass would take three times as long to make one, and a search makes
    thousands for each variant.
    """

    __slots__ = ("graph", "number", "value")

    def __init__(self, graph: Graph, number: int, value: float | None = None) -> None:
        self.graph = graph
        self.number = number
        self.value = value

    def __add__(self, other: Term | float) -> Term:
        o = other if type(other) is Term else self.graph.of(other)
        if self.value == 0:
            return o
        return self if o.value == 0 else self.graph.pair("add", self, o)

    def __radd__(self, other: float) -> Term:
        return self + other

    def __sub__(self, other: Term | float) -> Term:
        o = other if type(other) is Term else self.graph.of(other)
        return self if o.value == 0 else self.graph.pair("subtract", self, o)

    def __rsub__(self, other: float) -> Term:
        return self.graph.of(other) - self

    def __mul__(self, other: Term | float) -> Term:
        o = other if type(other) is Term else self.graph.of(other)
        if self.value == 1 or o.value == 0:
            return o
        if o.value == 1 or self.value == 0:
            return self
        return self.graph.pair("multiply", self, o)

    def __rmul__(self, other: float) -> Term:
        return self * other

    def __truediv__(self, other: Term | float) -> Term:
        o = other if type(other) is Term else self.graph.of(other)
        return self if o.value == 1 else self.graph.pair("divide", self, o)

    def __rtruediv__(self, other: float) -> Term:
        return self.graph.of(other) / self

    def __floordiv__(self, other: Term | float) -> Term:
        return self.graph.pair("floor_divide", self, self.graph.of(other))

    def __rfloordiv__(self, other: float) -> Term:
        return self.graph.of(other) // self

    def __gt__(self, other: Term | float) -> Term:
        """1 where it is greater, else 0."""
        return self.graph.pair("greater", self, self.graph.of(other))

    def minimum(self, other: Term | float) -> Term:
        return self.graph.pair("minimum", self, self.graph.of(other))

    def maximum(self, other: Term | float) -> Term:
        return self.graph.pair("maximum", self, self.graph.of(other))

    def ceil(self) -> Term:
        return self.graph.make("ceil", self)

    def log(self) -> Term:
        """log2(1 + x), the scale of sizes in features."""
        return (self + 1).log2()

    def log2(self) -> Term:
        return self.graph.make("log2", self)

    def where(self, yes: Term | float, no: Term | float) -> Term:
        """`yes` in the rows where this is 1, `no` where it is 0, without a branch."""
        a, b = self.graph.of(yes), self.graph.of(no)
        if self.value is not None or a.number == b.number:
            return b if self.value == 0 else a
        if b.value == 0:
            return self * a
        if a.value == 0:
            return (1 - self) * b
        return b + self * (a - b)


class Graph:
    """Terms over `columns`. Those in `fixed` have the same value in every row and are constants, so
    that what depends on them alone is computed here, once.
    """

    def __init__(self, columns: Sequence[str], fixed: Mapping[str, int] = _NONE) -> None:
        self.at = {c: k for k, c in enumerate(columns)}
        self.fixed = fixed
        # How each term is computed: a column, a constant, or (operation, share, arguments).
        self.definitions: list[tuple[str, float, tuple[int, ...]] | int | float] = []
        self._terms: dict[Any, Term] = {}
        self._integers: dict[Int, Term] = {}
        self._lock = Lock()

    def of(self, x: Term | float) -> Term:
        if isinstance(x, Term):
            return x
        return self._terms.get(x) or self._new(x, float(x), float(x))

    def make(self, operation: str, *args: Term, share: float = 0.0) -> Term:
        if len(args) == 2 and not share:
            return self.pair(operation, *args)
        key = (operation, share, tuple([a.number for a in args]))
        term = self._terms.get(key)
        if term is not None:
            return term
        for a in args:
            if a.value is None:
                return self._new(key, key)
        values = [a.value for a in args if a.value is not None]
        folded = self.of(_folded(operation, share, *values))
        self._terms[key] = folded
        return folded

    def pair(self, operation: str, a: Term, b: Term) -> Term:
        """`make` for two operands: nearly all are, and a variant has some thousand of them."""
        key = operation, a.number, b.number
        term = self._terms.get(key)
        if term is not None:
            return term
        if a.value is None or b.value is None:
            return self._new(key, (operation, 0.0, key[1:]))
        folded = self._terms[key] = self.of(_folded(operation, 0.0, a.value, b.value))
        return folded

    def _new(self, key: Any, how: Any, value: float | None = None) -> Term:
        with self._lock:  # threads may describe the same program
            term = self._terms.get(key)
            if term is None:
                term = Term(self, len(self.definitions), value)
                self.definitions.append(how)
                self._terms[key] = term
            return term

    def column(self, name: str) -> Term:
        term = self._terms.get(name)
        if term is None and name in self.fixed:
            term = self._terms[name] = self.of(float(self.fixed[name]))
        return term or self._new(name, self.at[name])

    def integer(self, p: Int) -> Term:
        """A polynomial over columns."""
        total = self._integers.get(p)
        if total is None:
            total = self.of(0.0)
            for m, c in p.terms.items():
                term = self.of(float(c))
                for a in m:
                    if isinstance(a, str):
                        term = term * self.column(a)
                    elif isinstance(a, Maximum):
                        term = term * self.integer(a.a).maximum(self.integer(a.b))
                    elif isinstance(a, FloorDiv):
                        term = term * (self.integer(a.a) // self.integer(a.b))
                    else:
                        raise ValueError(f"{a} has no closed form over the columns")
                total = total + term
            self._integers[p] = total
        return total

    def product(self, terms: Sequence[Term]) -> Term:
        out = self.of(1.0)
        for t in terms:
            out = out * t
        return out

    def curve(self, xs: Sequence[Term], ys: Sequence[Term], samples: int) -> list[Term]:
        """Samples of the piecewise linear curve through the points (xs ascending), at equal shares
        of its last x.
        """
        shares = np.arange(1, samples + 1, dtype=np.float32) / np.float32(samples)
        return [self.make("curve", *xs, *ys, share=float(s)) for s in shares]

    def compile(self, outputs: Sequence[Term]) -> Compiled:
        """A function of rows that gives a matrix with one line per row, one column per output."""
        if any(t.graph is not self for t in outputs):
            raise ValueError("a term of another graph has no meaning in this one")
        return _Assembly(self, outputs).program

    def evaluate(self, outputs: Sequence[Term], rows: Matrix) -> Values:
        """The same in NumPy, term by term."""
        values: list[Array] = []
        with np.errstate(all="ignore"):
            for how in self.definitions:
                if isinstance(how, tuple):
                    values.append(_apply(how, [values[a] for a in how[2]]))
                elif isinstance(how, int):
                    values.append(rows[:, how].astype(np.float32))
                else:
                    values.append(np.full(len(rows), how, np.float32))
        return np.stack([values[t.number] for t in outputs], axis=1)


def _apply(how: tuple[str, float, tuple[int, ...]], args: Sequence[Any]) -> Any:
    operation, share, _ = how
    return MEANING[operation](*([share] if operation == "curve" else []), *args)


@lru_cache(maxsize=1 << 14)  # the variants of a network fold the same few numbers
def _folded(operation: str, share: float, *values: float) -> float:
    """The result of an operation on constants, as float32."""
    with np.errstate(all="ignore"):
        return float(_apply((operation, share, ()), [np.float32(x) for x in values]))


class _Assembly:
    """Compiles terms to instructions, in the order of their definition. A slot is reused after the
    last use of its term.
    """

    def __init__(self, graph: Graph, outputs: Sequence[Term]) -> None:
        self.definitions = graph.definitions
        self.words: list[int] = []
        self.points: list[tuple[int, list[int]]] = []  # (position to patch, slots) of each curve
        self.slots: dict[int, int] = {}
        self.count = 0
        wanted = [t.number for t in outputs if t.value is None]
        last = self._last_uses(wanted)
        slots, free = self.slots, list[int]()
        definitions = self.definitions
        for number in reversed(last):  # in the order of their definition
            how = definitions[number]
            args: list[int] = []
            if type(how) is tuple:
                for a in how[2]:
                    slot = slots[a]
                    if last[a] == number and slot not in args:
                        free.append(slot)
                    args.append(slot)
            if not free:
                free.append(self.count)
                self.count += 1
            to = slots[number] = free.pop()
            self._step(how, args, to)
        for place, t in enumerate(outputs):  # in order: neighbours share cache lines
            if t.value is None:
                self.words += (CODES["output"], self.slots[t.number], place, 0)
        steps = len(self.words) // 4
        for at, points in self.points:
            self.words[at] = len(self.words)
            self.words += (len(points) // 2, *points)
        line = np.array([t.value or 0 for t in outputs], np.float32)
        self.program = Compiled(np.array(self.words, np.int32), steps, self.count, line)

    def _last_uses(self, wanted: Sequence[int]) -> dict[int, int]:
        """The last use of every term that is needed, later terms first; outputs are live to the
        end.
        """
        definitions = self.definitions
        users = dict.fromkeys(wanted, len(definitions))
        last: dict[int, int] = {}
        for number in range(max(wanted, default=-1), -1, -1):
            if (user := users.get(number)) is None:
                continue
            last[number] = user
            how = definitions[number]
            if isinstance(how, tuple):
                for a in how[2]:
                    users.setdefault(a, number)  # the first use that is met is the last one
        return last

    def _step(
        self, how: tuple[str, float, tuple[int, ...]] | int | float, args: list[int], to: int
    ) -> None:
        if isinstance(how, tuple):
            if how[0] == "curve":
                self.points.append((len(self.words) + 1, args))
                self.words += (CODES["curve"], 0, bits_of(how[1]), to)
            else:
                self.words += (CODES[how[0]], args[0], args[-1], to)
        elif isinstance(how, int):
            self.words += (CODES["column"], how, 0, to)
        else:
            self.words += (CODES["constant"], bits_of(how), 0, to)


class ClosedForm:
    """`score` and `predict` of a class whose `term` is the closed form. Instances must be hashable:
    the compiled form is cached by instance and variant.
    """

    def term(self, variant: Variant) -> Term:
        """log2 of the score, the scale of learned models."""
        raise NotImplementedError

    def predict(self, variant: Variant, rows: Matrix) -> Array:
        """log2 of the score of each row."""
        return _compiled(self, variant)(rows)[:, 0].astype(np.float64)

    def score(self, variant: Variant, rows: Matrix) -> Array:
        """The share of the machine's peak that each row reaches. Higher is better."""
        return np.exp2(self.predict(variant, rows))


@lru_cache(maxsize=4096)  # a network of many tasks has thousands of variants
def _compiled(form: ClosedForm, variant: Variant) -> Compiled:
    term = form.term(variant)
    return term.graph.compile([term])
