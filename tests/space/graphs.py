"""Random computations of several stages: stages that several others read, outputs that are read
too, products, sums, transposed and shifted reads, all of them small and of odd sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tilesmith as ts
from tilesmith.ir.nodes import walk
from tilesmith.space.domains import Rng

SIZES = (1, 2, 3, 5, 7, 8, 13, 17)
DTYPES = ("float32", "float32", "float64", "int32", "float16")


class Graph:
    """Grows by one stage at a time, each of which reads one or two of those before."""

    def __init__(self, rng: Rng) -> None:
        self.rng = rng
        self.dtype = str(rng.choice(DTYPES))
        self.inputs: list[Any] = []
        self.stages: list[Any] = []
        self.placeholder(tuple(int(n) for n in rng.choice(SIZES, 2)))

    def placeholder(self, shape: tuple[int, ...]) -> Any:
        x = ts.placeholder(shape, dtype=self.dtype, name=f"X{len(self.inputs)}")
        self.inputs.append(x)
        return x

    def any(self, rank: int | None = None) -> Any:
        """One of those that there are, late ones more often; or a new input."""
        known = [x for x in (*self.inputs, *self.stages) if rank is None or len(x.shape) == rank]
        if not known:
            return self.placeholder(tuple(int(n) for n in self.rng.choice(SIZES, rank)))
        late = min(int(self.rng.integers(1, 4)), len(known))
        at = -late if self.rng.random() < 0.7 else int(self.rng.integers(len(known)))
        return known[at]

    def like(self, x: Any) -> Any:
        """Another one of the same shape."""
        same = [y for y in (*self.inputs, *self.stages) if shape(y) == shape(x)]
        pick = same[int(self.rng.integers(len(same)))]
        return self.placeholder(shape(x)) if pick is x and self.rng.random() < 0.5 else pick

    def add(self, extents: tuple[int, ...], of: Callable[..., Any]) -> None:
        self.stages.append(ts.compute(extents, of, name=f"S{len(self.stages)}"))

    def half(self, value: Any) -> Any:
        """Keeps numbers small, so that long chains stay within the type."""
        return value if self.dtype == "int32" else value * 0.5

    # stages
    def elementwise(self) -> None:
        x = self.any()
        kind = int(self.rng.integers(4))
        if kind == 3 and self.dtype != "int32":
            self.add(shape(x), lambda *i: ts.tanh(x[i]))
        elif kind == 2:
            self.add(shape(x), lambda *i: ts.where(x[i] > 0, x[i], 0))
        elif kind == 1:
            self.add(shape(x), lambda *i: ts.maximum(x[i], 1))
        else:
            self.add(shape(x), lambda *i: self.half(x[i] + 1))

    def joined(self) -> None:
        x = self.any()
        y = self.like(x)
        self.add(shape(x), lambda *i: self.half(x[i] - y[i]))

    def scaled_rows(self) -> None:
        x, v = self.any(2), self.any(1)
        n = min(shape(x)[0], shape(v)[0])
        self.add((n, shape(x)[1]), lambda i, j: self.half(x[i, j] + v[i]))

    def transposed(self) -> None:
        x = self.any(2)
        self.add(shape(x)[::-1], lambda i, j: x[j, i])

    def shifted(self) -> None:
        x = self.any(2)
        n, m = shape(x)
        self.add((n, m), lambda i, j: ts.where(i > 0, x[i - 1, j], 0))

    def row_sums(self) -> None:
        x = self.any(2)
        r = ts.reduce_axis(shape(x)[1], name=f"r{len(self.stages)}")
        join = ts.sum if self.rng.random() < 0.6 else ts.amax
        self.add(shape(x)[:1], lambda i: join(x[i, r], axis=r))

    def total(self) -> None:
        v = self.any(1)
        r = ts.reduce_axis(shape(v)[0], name=f"r{len(self.stages)}")
        self.add((), lambda: ts.sum(v[r], axis=r))

    def product(self) -> None:
        x, y = self.any(2), self.any(2)
        k = min(shape(x)[1], shape(y)[0])
        r = ts.reduce_axis(k, name=f"r{len(self.stages)}")
        extents = (shape(x)[0], shape(y)[1])
        self.add(extents, lambda i, j: ts.sum(x[i, r] * y[r, j], axis=r))

    def window(self) -> None:
        x = self.any(2)
        n, m = shape(x)
        r = ts.reduce_axis(min(m, 3), name=f"r{len(self.stages)}")
        self.add((n, m - min(m, 3) + 1), lambda i, j: ts.sum(x[i, j + r], axis=r))


def shape(x: Any) -> tuple[int, ...]:
    return tuple(int(str(n)) for n in x.shape)


STAGES = (
    Graph.elementwise, Graph.elementwise, Graph.joined, Graph.joined, Graph.scaled_rows,
    Graph.transposed, Graph.shifted, Graph.row_sums, Graph.total, Graph.product, Graph.product,
    Graph.window,
)  # fmt: skip


def random_graph(rng: Rng, least: int = 2, most: int = 8) -> ts.Function:
    """What nobody reads is an output, and so are a few of the others."""
    g = Graph(rng)
    for _ in range(int(rng.integers(least, most + 1))):
        STAGES[int(rng.integers(len(STAGES)))](g)
    every = ts.function([*g.inputs, *g.stages], name="graph")
    read = {load.buffer for _, b in walk(every.body) for load in b.loads}
    outputs = [s for s in g.stages if s.name not in read or rng.random() < 0.25]
    used = [x for x in g.inputs if x.name in read]
    return ts.function([*used, *outputs], name="graph")


def inputs_of(func: ts.Function, rng: Rng) -> list[Any]:
    """Small whole numbers: the order of a sum hardly matters."""
    return [
        rng.integers(-2, 3, [n.number for n in b.shape]).astype(b.dtype.numpy) for b in func.inputs
    ]
