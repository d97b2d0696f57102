"""Random programs over the whole language, as unscheduled Functions.

In addition to what `programs` draws: all dtypes and casts between them, integers that wrap,
divisions and remainders by data and by axes (including zero), data-dependent reads that are guarded
or wrapped around, positions of extremes, conditions that are stored, values that are used several
times, inputs of rank 0, and some extents up to 130.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.programs import Program, Rng, extents
from tilesmith.expr import functions, transcendental, values
from tilesmith.expr.dsl import Tensor, compute, reduce_axis
from tilesmith.expr.reductions import sum as sum_over
from tilesmith.expr.values import Value
from tilesmith.ir.function import Function
from tilesmith.ops.search import argmax, argmin

INTS = ("int8", "uint8", "int32", "int64", "int16", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
_LONG = (16, 17, 31, 33, 64, 65, 100, 127, 128, 130)


def random_wide_program(rng: Rng, max_stages: int = 4) -> Function:
    """A Function of 1 to `max_stages` stages; every stage that no other one reads is an output."""
    program = WideProgram(rng)
    for _ in range(int(rng.integers(1, max_stages + 1))):
        program.add_stage()
    return program.function()


class WideProgram(Program):
    def rules(self) -> tuple[Callable[[str], Any], ...]:
        new = (
            self.integers, self.floats, self.wrapped, self.divided, self.divided_by_axis,
            self.guarded_division, self.gathered, self.wrapped_index, self.position, self.condition,
            self.chosen, self.shared, self.scaled, self.halves, self.numbered, self.casts,
            self.rounded, self.bits,
        )  # fmt: skip
        return (*super().rules(), *new, *new)

    def shape(self) -> tuple[int, ...]:
        """Mostly small, sometimes long in one dimension."""
        rank = int(self.one_of(0, 1, 1, 2, 2, 3))
        if rank and self.chance(0.2):
            long = int(self.one_of(*_LONG))
            return (long,) if self.chance(0.6) else (int(self.one_of(1, 2, 3)), long)
        return tuple(self.extent(5) for _ in range(rank))

    def source(self, ranks: tuple[int, ...] = (1, 2, 3)) -> Tensor:
        if 1 in ranks and self.chance(0.1):
            return self.input((int(self.one_of(*_LONG)),), self.one_of("float32", "float64"))
        return super().source(ranks)

    # integers
    def integers(self, name: str) -> Any:
        """Combines two dtypes and stores a third one; everything is exact."""
        shape = self.shape()
        x, y = (self.input(shape, self.one_of(*INTS)) for _ in range(2))
        to = self.one_of(*INTS, *FLOATS)
        f: Callable[[Any, Any], Any] = self.one_of(
            lambda a, b: a + b,
            lambda a, b: a - b * 3,
            lambda a, b: a * b,
            lambda a, b: functions.maximum(a, b) - 1,
            lambda a, b: values.where(a > b, a, b),
            lambda a, b: -functions.absolute(a) + b,
        )
        return compute(shape, lambda *i: values.cast(f(x[i], y[i]), to), name=name)

    def wrapped(self, name: str) -> Any:
        """Exceeds the range of the dtype, so that integers wrap around."""
        shape = self.shape()
        x = self.input(shape, self.one_of("int8", "uint8"))
        by = int(self.one_of(50, 100, 120))
        return compute(
            shape, lambda *i: values.cast(x[i] * by + by, self.one_of("int32", "int64")), name=name
        )

    def bits(self, name: str) -> Any:
        """Shifts beyond the width among them."""
        shape = self.shape()
        x, y = (self.input(shape, self.one_of(*INTS)) for _ in range(2))
        far = int(self.one_of(0, 6, 31, 62))
        f: Callable[[Any, Any], Any] = self.one_of(
            lambda a, b: a & ~b,
            lambda a, b: (a | b) ^ 3,
            lambda a, b: a << (b + far),
            lambda a, b: (a - 2) >> (b + far),
            lambda a, b: functions.sign(a) ^ b,
        )
        return compute(shape, lambda *i: f(x[i], y[i]), name=name)

    def divided(self, name: str) -> Any:
        """Divides by data; division by zero gives 0."""
        shape = self.shape()
        d = self.one_of(*INTS)
        x, y = self.input(shape, d), self.input(shape, d)
        divide = self.one_of(
            lambda a, b: a // b, lambda a, b: a % b, functions.trunc_divide, functions.fmod
        )
        return compute(shape, lambda *i: divide(x[i], y[i]), name=name)

    def divided_by_axis(self, name: str) -> Any:
        """Divides a value and an index by an axis."""
        x = self.source((1,))
        (n,) = extents(x)
        m = self.extent(6)
        back = int(self.rng.integers(0, 3))
        match int(self.rng.integers(4)):
            case 0:
                return compute((m,), lambda i: x[((n - 1) // (i + 1)) % n] * 2, name=name)
            case 1:
                return compute((n, m), lambda i, j: x[i % (j + 1)] + 1.0, name=name)
            case 2:
                return compute((m, m), lambda i, j: i // (j - back) - i % (j - back), name=name)
            case _:
                y = self.input((m,), "int32")
                return compute((m,), lambda i: y[i] // (i - back) + y[i] % (i + 1), name=name)

    def guarded_division(self, name: str) -> Any:
        x = self.source((1,))
        (n,) = extents(x)
        m = self.extent(6)
        if self.chance(0.5):
            return compute(
                (m,), lambda j: values.where(j > 0, x[(n - 1) // j], 0.5) * 0.5, name=name
            )
        y = self.input((m,), "int32")
        return compute((m,), lambda j: values.where(y[j] > 0, x[(n - 1) // y[j]], 0.25), name=name)

    # positions
    def gathered(self, name: str) -> Any:
        """Reads at positions that may lie outside, guarded by a condition."""
        x = self.source((1,))
        (n,) = extents(x)
        m = self.extent(6)
        ids = self.input((m,), self.one_of("int32", "int64", "int8"))
        shift = int(self.rng.integers(0, 3))

        def body(i: Value) -> Value:
            at = values.cast(ids[i] + ids[(m - 1) - i], "int32") - shift
            return values.where((at >= 0) & (at < n), x[at], -0.5)

        return compute((m,), body, name=name)

    def wrapped_index(self, name: str) -> Any:
        """Reads at a position that is computed in a narrow dtype and wraps around."""
        x = self.source((1,))
        (n,) = extents(x)
        m = self.extent(6)
        ids = self.input((m,), "uint8")
        by = int(self.one_of(100, 250))
        return compute((m,), lambda i: x[values.cast(ids[i] * 3 + by, "int32") % n], name=name)

    def position(self, name: str) -> Any:
        """The position of an extreme among few different values, so that there are ties."""
        shape = self.shape() or (int(self.one_of(*_LONG)),)
        x = self.input(shape, self.one_of(*INTS))
        axis = int(self.rng.integers(len(shape)))
        return self.one_of(argmax, argmin)(x, axis, self.chance(0.3), name=name)

    def numbered(self, name: str) -> Any:
        """Axes as values of some dtype."""
        shape = self.shape() or (3,)
        d = self.one_of("int32", "int64", "float32", "float64", "int8")
        return compute(shape, lambda *i: values.cast(i[0] * 3 - i[-1], d), name=name)

    # conditions
    def condition(self, name: str) -> Any:
        shape = self.shape()
        x, y = (self.input(shape, self.one_of(*INTS)) for _ in range(2))
        return compute(shape, lambda *i: (x[i] > y[i]) | (x[i] == 2), name=name)

    def chosen(self, name: str) -> Any:
        x = self.source((1, 2))
        c = self.input(extents(x), "bool")
        return compute(x.shape, lambda *i: values.where(~c[i], x[i] * 2, 0.5 - x[i]), name=name)

    # floats
    def floats(self, name: str) -> Any:
        shape = self.shape()
        x, y = (self.input(shape, self.one_of(*FLOATS)) for _ in range(2))
        to = self.one_of(*FLOATS)
        f: Callable[[Any, Any], Any] = self.one_of(
            lambda a, b: a + b * 0.5,
            lambda a, b: functions.maximum(a, b),
            lambda a, b: functions.tanh(a) - b,
            lambda a, b: functions.atan(a) + functions.expm1(b),
            lambda a, b: transcendental.asinh(a) - transcendental.log1p(functions.absolute(b)),
            lambda a, b: values.where(a > b, a, b),
            lambda a, b: functions.absolute(a) / (functions.absolute(b) + 1),
        )
        return compute(shape, lambda *i: values.cast(f(x[i], y[i]), to), name=name)

    def casts(self, name: str) -> Any:
        """Casts between dtypes, but never from float to integer, which is not continuous."""
        shape = self.shape()
        x = self.input(shape, self.one_of(*INTS, *FLOATS))
        way: list[str] = []
        for _ in range(int(self.rng.integers(1, 4))):
            last = way[-1] if way else x.dtype.name
            way.append(self.one_of(*FLOATS, *(INTS if last in INTS else ())))

        def body(*i: Value) -> Value:
            v = x[i]
            for d in way:
                v = values.cast(v, d)
            return v

        return compute(shape, body, name=name)

    def rounded(self, name: str) -> Any:
        """The rounding error of casting an integer to half precision."""
        shape = self.shape()
        x = self.input(shape, self.one_of("int32", "int64"))
        half = self.one_of("float16", "bfloat16")
        by = int(self.one_of(1001, 4099))

        def body(*i: Value) -> Value:
            v = x[i] * by
            return values.cast(values.cast(v, half), "float32") - values.cast(v, "float32")

        return compute(shape, body, name=name)

    def halves(self, name: str) -> Any:
        """Products of half-precision values, summed in float32."""
        n, m = self.extent(5), self.extent(6)
        d = self.one_of("float16", "bfloat16")
        a, b = self.input((n, m), d), self.input((m,), d)
        k = reduce_axis(m, name="k")

        def product(i: Value) -> Value:
            return values.cast(a[i, k], "float32") * values.cast(b[k], "float32")

        total = compute((n,), lambda i: sum_over(product(i), axis=k), name=f"{name}s")
        self.stages.append(total)
        self.read.add(total.uid)
        return compute((n,), lambda i: values.cast(total[i] * 0.5, d), name=name)

    def shared(self, name: str) -> Any:
        """A value that is used twice, repeatedly, also on both sides of a select."""
        x = self.source((0, 1, 2))
        times = int(self.rng.integers(1, 12))

        def body(*i: Value) -> Any:
            v = x[i]
            for k in range(times):
                match k % 3:
                    case 0:
                        v = v * 0.5 + functions.tanh(v) * 0.25
                    case 1:
                        v = values.where(x[i] > 0.5, v * 0.5, v + 0.125)
                    case _:
                        v = v * v * 0.125 - v
            return v

        return compute(x.shape, body, name=name)

    def scaled(self, name: str) -> Any:
        """Scales by an input of rank 0."""
        x = self.source((0, 1, 2))
        s = self.input((), self.one_of("float32", "float64"))
        return compute(x.shape, lambda *i: x[i] * s - s, name=name)
