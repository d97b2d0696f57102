"""Random small programs for property tests, as unscheduled Functions, with arrays to call them.

The programs are tiny (odd extents, a few hundred points) but cover what a schedule must handle:
chains, diamonds, stencils, strided and dilated windows, guards, transposed and data-dependent
reads, reductions with one and with several results. All are continuous in their floats, so that
rounding differences stay small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tilesmith.expr import functions, reductions, values
from tilesmith.expr.dsl import Tensor, compute, placeholder, reduce_axis
from tilesmith.expr.dynamic import loads_of
from tilesmith.expr.values import Value
from tilesmith.ir.function import Function
from tilesmith.ir.lower import function
from tilesmith.task.inputs import index_limits

Rng = np.random.Generator
Array = np.ndarray[Any, Any]
MAX_POINTS = 200  # points of one stage; the interpreter visits them one by one


def random_program(rng: Rng, max_stages: int = 4) -> Function:
    """A Function of 1 to `max_stages` stages; every stage that no other one reads is an output."""
    program = Program(rng)
    for _ in range(int(rng.integers(1, max_stages + 1))):
        program.add_stage()
    return program.function()


def random_inputs(func: Function, rng: Rng) -> list[Array]:
    """Arrays for an unscheduled Function. Integers used as an index stay in bounds."""
    limits = index_limits(func)
    out: list[Array] = []
    for b in func.inputs:
        shape = tuple(n for n in (e.const for e in b.shape) if n is not None)
        if b.dtype.is_float:
            data: Array = rng.uniform(0.25, 1.5, shape) * rng.choice([-1.0, 1.0], shape)
        elif b.dtype.kind == "b":
            data = rng.integers(0, 2, shape)
        else:
            low = 0 if b.dtype.kind == "u" or b.name in limits else -4
            data = rng.integers(low, limits.get(b.name, 5), shape)
        out.append(data.astype(b.dtype.numpy))
    return out


def extents(t: Tensor) -> tuple[int, ...]:
    return tuple(n for n in (e.const for e in t.shape_ints) if n is not None)


@dataclass
class Program:
    """A computation while it is being drawn, stage by stage."""

    rng: Rng
    inputs: list[Tensor] = field(default_factory=list)
    stages: list[Tensor] = field(default_factory=list)
    read: set[str] = field(default_factory=set)

    # random choices
    def extent(self, most: int = 7) -> int:
        return int(self.rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 9][:most]))

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def one_of(self, *items: Any) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def input(self, shape: tuple[int, ...], dtype: str = "float64") -> Tensor:
        """A new input, or an existing one of that shape."""
        for t in self.inputs:
            if t.shape == shape and t.dtype.name == dtype and self.chance(0.3):
                return t
        t = placeholder(shape, dtype, name=f"X{len(self.inputs)}")
        self.inputs.append(t)
        return t

    def source(self, ranks: tuple[int, ...] = (1, 2, 3)) -> Tensor:
        """The tensor that a stage reads: mostly an old one, which gives chains and diamonds."""
        pool = [t for t in self.stages if t.ndim in ranks and t.dtype.is_float]
        if pool and self.chance(0.85):
            t: Tensor = pool[-1] if self.chance(0.6) else self.one_of(*pool)
            self.read.add(t.uid)
            return t
        rank = int(self.one_of(*ranks))
        shape = tuple(self.extent() for _ in range(rank))
        while prod(shape) > MAX_POINTS:
            shape = tuple(self.extent(5) for _ in range(rank))
        return self.input(shape, self.one_of("float64", "float64", "float64", "float32"))

    def operand(self, shape: tuple[int, ...]) -> Tensor:
        """A second operand of a given shape."""
        pool = [t for t in self.stages if t.shape == shape and t.dtype.is_float]
        if pool and self.chance(0.6):
            t: Tensor = self.one_of(*pool)
            self.read.add(t.uid)
            return t
        return self.input(shape)

    # stages
    def rules(self) -> tuple[Callable[[str], Any], ...]:
        return (
            self.elementwise, self.elementwise, self.broadcast, self.outer, self.transpose,
            self.reduction, self.reduction, self.matmul, self.matmul, self.conv, self.conv,
            self.stencil, self.indirect, self.several, self.mask, self.regroup, self.scalar,
            self.bytes,
        )  # fmt: skip

    def add_stage(self) -> None:
        result = self.one_of(*self.rules())(f"S{len(self.stages)}")
        self.stages.extend(result if isinstance(result, tuple) else (result,))

    def soft(self, v: Value) -> Any:
        """A bounded function of v, so that long chains stay finite."""
        return self.one_of(functions.tanh, functions.sigmoid, functions.sin)(v)

    def elementwise(self, name: str) -> Any:
        x = self.source((0, 1, 2, 3))
        y = self.operand(extents(x))
        f = self.one_of(
            lambda a, b: functions.maximum(a, 0) + b * 0.5,
            lambda a, b: functions.tanh(a) * b,
            lambda a, b: values.where(a > b, a, b) * 0.75,
            lambda a, b: functions.sigmoid(a + b),
        )
        return compute(x.shape, lambda *i: f(x[i], y[i]), name=name)

    def broadcast(self, name: str) -> Any:
        x = self.source((2,))
        n, m = extents(x)
        if self.chance(0.5):
            row = self.operand((m,))
            return compute((n, m), lambda i, j: x[i, j] + row[j], name=name)
        col = self.operand((n,))
        return compute((n, m), lambda i, j: x[i, j] * col[i], name=name)

    def outer(self, name: str) -> Any:
        """Reads each element by its row and by its column."""
        x = self.source((1,))
        (n,) = extents(x)
        return compute((n, n), lambda i, j: x[i] - 2 * x[j], name=name)

    def transpose(self, name: str) -> Any:
        x = self.source((2,))
        n, m = extents(x)
        if self.chance(0.5):
            return compute((m, n), lambda i, j: x[j, i] * 2, name=name)
        return compute((n, m), lambda i, j: x[n - 1 - i, j] + 1, name=name)

    def reduction(self, name: str) -> Any:
        x = self.source((1, 2, 3))
        shape = list(extents(x))
        count = 1 if x.ndim == 1 or self.chance(0.6) else 2
        dims = sorted(self.rng.choice(x.ndim, count, replace=False).tolist())
        axes = {d: reduce_axis(shape[d], name=f"r{d}") for d in dims}
        keep = [d for d in range(x.ndim) if d not in axes]
        op = self.one_of(reductions.sum, reductions.sum, reductions.amax, reductions.prod)

        def body(*i: Value) -> Any:
            at: list[Any] = [axes.get(d) for d in range(x.ndim)]
            for d, v in zip(keep, i, strict=True):
                at[d] = v
            v = x[tuple(at)]
            if op is reductions.prod:
                v = 1.0 + 0.25 * functions.sin(v)
            return op(v, axis=tuple(axes.values()))

        return compute([shape[d] for d in keep], body, name=name)

    def matmul(self, name: str) -> Any:
        a = self.source((2,))
        n, depth = extents(a)
        m = self.extent(5)
        while m > 1 and n * depth * m > MAX_POINTS:
            m -= 1
        b = self.operand((depth, m))
        k = reduce_axis(depth, name="k")
        soft = self.soft if self.chance(0.3) else (lambda v: v)
        return compute(
            (n, m), lambda i, j: reductions.sum(soft(a[i, k]) * b[k, j], axis=k), name=name
        )

    def conv(self, name: str) -> Any:
        """A window over the last dimension, with stride, dilation and zero padding, either guarded
        in place or in a stage of its own.
        """
        x = self.source((1, 2))
        *front, n = extents(x)
        taps = int(self.rng.integers(1, 4))
        stride, dilation, pad = (int(self.rng.integers(lo, 3)) for lo in (1, 1, 0))
        span = dilation * (taps - 1) + 1
        pad = max(pad, (span - n + 1) // 2)
        out = (n + 2 * pad - span) // stride + 1
        w = self.operand((taps,))
        r = reduce_axis(taps, name="r")

        def padded(i: tuple[Any, ...], y: Any) -> Value:
            inside = (y >= pad) & (y < n + pad)
            return values.where(inside, x[(*i, y - pad)], 0.0)

        if self.chance(0.5):
            stage = compute(
                (*front, n + 2 * pad), lambda *i: padded(i[:-1], i[-1]), name=f"{name}p"
            )
            self.stages.append(stage)
            self.read.add(stage.uid)
            return compute(
                (*front, out),
                lambda *i: reductions.sum(
                    stage[(*i[:-1], i[-1] * stride + r * dilation)] * w[r], axis=r
                ),
                name=name,
            )
        return compute(
            (*front, out),
            lambda *i: reductions.sum(padded(i[:-1], i[-1] * stride + r * dilation) * w[r], axis=r),
            name=name,
        )

    def stencil(self, name: str) -> Any:
        x = self.source((1, 2))
        *front, n = extents(x)
        d = int(self.rng.integers(1, 3))
        return compute(
            (*front, n),
            lambda *i: x[i] - values.where(i[-1] >= d, x[(*i[:-1], i[-1] - d)], 1.0),
            name=name,
        )

    def indirect(self, name: str) -> Any:
        x = self.source((1, 2))
        n, *back = extents(x)
        m = self.extent(5)
        ids = self.input((m,), "int32")
        if self.chance(0.5):
            return compute((m, *back), lambda *i: x[(ids[i[0]] % n, *i[1:])] * 2, name=name)
        return compute((m, *back), lambda *i: x[((i[0] + ids[i[0]]) % n, *i[1:])], name=name)

    def several(self, name: str) -> Any:
        x = self.source((1, 2))
        *front, n = extents(x)
        k = reduce_axis(n, name="k")
        match int(self.rng.integers(3)):
            case 0:  # of an input, because computed values may be equal up to rounding
                y = self.input(extents(x))
                return compute(front, lambda *i: reductions.argmax(y[(*i, k)], axis=k), name=name)
            case 1:  # the running maximum and sum of an online softmax

                def join(p: Any, q: Any) -> Any:
                    m = functions.maximum(p[0], q[0])
                    return m, p[1] * functions.exp(p[0] - m) + q[1] * functions.exp(q[0] - m)

                return compute(
                    front,
                    lambda *i: reductions.reduce(
                        (x[(*i, k)], values.cast(1.0, x.dtype)), join, (-1e30, 0), k
                    ),
                    name=name,
                )
            case _:
                return compute(x.shape, lambda *i: (x[i] + 1, functions.tanh(x[i])), name=name)

    def mask(self, name: str) -> Any:
        x = self.source((2,))
        return compute(x.shape, lambda i, j: values.where(i >= j, x[i, j], i - j), name=name)

    def regroup(self, name: str) -> Any:
        if self.chance(0.5):
            x = self.source((2,))
            n, m = extents(x)
            return compute((n * m,), lambda i: x[i // m, i % m] + 1, name=name)
        x = self.source((1,))
        (n,) = extents(x)
        m = int(self.one_of(1, 2, 3))
        rows = -(-n // m)
        return compute(
            (rows, m), lambda i, j: values.where(i * m + j < n, x[i * m + j], 0.5), name=name
        )

    def scalar(self, name: str) -> Any:
        x = self.source((1,))
        k = reduce_axis(x.shape[0], name="k")
        return compute((), lambda: reductions.sum(x[k] * x[k], axis=k), name=name)

    def bytes(self, name: str) -> Any:
        n, m, depth = self.extent(5), self.extent(5), self.extent(5)
        left = self.one_of("int8", "uint8")
        a, b = self.input((n, depth), left), self.input((depth, m), "int8")
        k = reduce_axis(depth, name="k")
        total = compute(
            (n, m),
            lambda i, j: reductions.sum(
                values.cast(a[i, k], "int32") * values.cast(b[k, j], "int32"), axis=k
            ),
            name=f"{name}i",
        )
        self.stages.append(total)
        if self.chance(0.3):
            return total
        self.read.add(total.uid)
        return compute((n, m), lambda i, j: values.cast(total[i, j], "float64") * 0.125, name=name)

    def function(self) -> Function:
        stages = list({t.uid: t for t in self.stages}.values())
        outs = [t for t in stages if t.uid not in self.read]
        if not outs:
            outs = stages[-1:]
        if self.chance(0.2) and stages[0] not in outs:  # an output that another stage reads
            outs.insert(0, stages[0])
        return function([*self._used(outs), *outs], name="program")

    def _used(self, outs: list[Tensor]) -> list[Tensor]:
        """The inputs that the outputs need."""
        inputs: dict[str, None] = {}
        stack = list(outs)
        seen: set[str] = set()
        while stack:
            t = stack.pop()
            if t.uid in seen:
                continue
            seen.add(t.uid)
            if t.stage is None:
                inputs[t.uid] = None
                continue
            for v in t.stage.values:
                stack.extend(load.buffer.tensor for load in loads_of(v))  # type: ignore[attr-defined]
        return [t for t in self.inputs if t.uid in inputs]
