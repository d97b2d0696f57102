"""Statement features against a slow walk over the concrete Function of each row, which knows
nothing of closed forms.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import log2, prod

import numpy as np
import pytest

import tilesmith as ts
from tests.support.programs import random_program
from tilesmith.expr.ints import Int, evaluate_int
from tilesmith.ir.nodes import Block, Path, walk
from tilesmith.search.features.graph import Graph
from tilesmith.search.features.nest import OPERATIONS, operations
from tilesmith.search.population import Catalogue
from tilesmith.search.statements import BUFFERS, NAMES, statements_of
from tilesmith.space.variant import lower

AT = {name: k for k, name in enumerate(NAMES)}
Tensors = tuple[ts.Tensor, ...]  # inputs, then the output


def log(x: float) -> float:
    return log2(1 + x)


def matmul() -> ts.Function:
    a, b = ts.placeholder((12, 9), name="A"), ts.placeholder((9, 10), name="B")
    return ts.function([a, b, ts.ops.relu(ts.ops.matmul(a, b, name="C"))], name="matmul")


def conv() -> ts.Function:
    x, w = ts.placeholder((1, 7, 7, 3), name="X"), ts.placeholder((3, 3, 3, 4), name="W")
    y = ts.ops.conv2d(x, w, stride=2, padding=1, layout="NHWC")
    return ts.function([x, w, y], name="conv")


def softmax() -> ts.Function:
    x = ts.placeholder((5, 12), name="X")
    return ts.function([x, ts.ops.softmax(x)], name="softmax")


class Walk:
    """One block of a concrete Function."""

    def __init__(self, func: ts.Function, path: Path, block: Block) -> None:
        self.func, self.block = func, block
        self.loops = [(f.name, f.trips, f.kind) for f in path]
        self.indices: dict[str, list[tuple[Int, ...]]] = {}
        for w in block.writes:
            self.indices.setdefault(w.buffer, []).append(w.index)
        for x in block.loads:
            self.indices.setdefault(x.buffer, []).append(x.index)

    @property
    def iterations(self) -> int:
        return prod(n for _, n, _ in self.loops)

    def at(self, p: Int, where: dict[str, int]) -> int:
        env = {i.name: evaluate_int(i.bind, where, lambda a: 0) for i in self.block.iters}
        return evaluate_int(p, env, lambda a: 0)

    def box(self, buffer: str, level: int) -> list[int]:
        """Per dimension, from the first to the last element touched while the loops from `level`
        on run, the outer ones standing at 0.
        """
        shape = [n.number for n in self.func.all_buffers[buffer].shape]
        inner = self.loops[level:]
        low, high = [10**9] * len(shape), [-(10**9)] * len(shape)
        still = {n: 0 for n, _, _ in self.loops[:level]}
        # corners suffice: indices are affine
        for corner in product(*({0, n - 1} for _, n, _ in inner)):
            where = still | {n: v for (n, _, _), v in zip(inner, corner, strict=True)}
            for index in self.indices[buffer]:
                for d, p in enumerate(index):
                    v = self.at(p, where)
                    low[d], high[d] = min(low[d], v), max(high[d], v)
        return [min(h - lo + 1, n) for lo, h, n in zip(low, high, shape, strict=True)]

    def nbytes(self, buffer: str) -> int:
        return self.func.all_buffers[buffer].dtype.nbytes

    def touched_bytes(self, level: int) -> int:
        return sum(prod(self.box(b, level)) * self.nbytes(b) for b in self.indices)

    def moves(self, buffer: str, loop: str) -> bool:
        bound = [p.substitute(self.block.binding) for ix in self.indices[buffer] for p in ix]
        return any(loop in p.names for p in bound)

    def reuse(self, buffer: str) -> tuple[int, int, int] | None:
        """Distance in iterations and in bytes, and uses, of the innermost loop that runs over the
        same elements.
        """
        for k in range(len(self.loops) - 1, -1, -1):
            name, n, _ = self.loops[k]
            if n > 1 and not self.moves(buffer, name):
                inside = prod(m for _, m, _ in self.loops[k + 1 :])
                return inside, self.touched_bytes(k + 1), n
        return None

    def stride(self, buffer: str) -> int:
        """Elements between two steps of the innermost loop."""
        moving = [(name, n) for name, n, _ in self.loops if n > 1]
        if not moving:
            return 0
        held = self.func.all_buffers[buffer]
        shape = [n.number for n in held.shape]
        zero = {n: 0 for n, _, _ in self.loops}
        index = self.indices[buffer][0]
        kind = next(kind for name, _, kind in self.loops if name == moving[-1][0])
        if held.layout is not None and kind == "vectorize":  # which makes vectors contiguous
            bound = [p.substitute(self.block.binding) for p in index]
            last = {int(n[1:]) for n in held.layout[-1].names if n[0] == "d"}
            if any(moving[-1][0] in bound[d].names for d in last):
                return 1

        def address(where: dict[str, int]) -> int:
            out = 0
            for p, n in zip(index, shape, strict=True):
                out = out * n + self.at(p, where)
            return out

        return address(zero | {moving[-1][0]: 1}) - address(zero)


@pytest.mark.parametrize("rules", [ts.ansor_rules, ts.default_rules])
@pytest.mark.parametrize("program", [matmul, conv, softmax])
def test_features_are_those_of_the_concrete_program(program, rules) -> None:  # type: ignore[no-untyped-def]
    task = ts.Task(program(), ts.cpu().with_cores(4))
    catalogue = Catalogue(task, ts.SketchSpace(rules(task.target)).sketches(task))
    rng = np.random.default_rng(0)
    checked = 0
    for k in catalogue.some(rng, 4):
        v = catalogue.lowered(k)
        rows = v.sample(rng, 6)
        values = statements_of(v).of(rows)
        for row, got in zip(rows, values, strict=True):
            func = v.function(row)
            for (path, b), x in zip(walk(func.body), got, strict=True):
                check(Walk(func, path, b), x, f"{v.decided(row)}\n{func}\n{b.name}")
                checked += 1
    assert checked > 20


def check(w: Walk, x: np.ndarray, said: str) -> None:
    def same(name: str, want: float) -> None:
        assert x[AT[name]] == pytest.approx(want, rel=1e-3, abs=1e-3), f"{name}\n{said}"

    assert np.isfinite(x).all(), said
    same("iterations", log(w.iterations))
    same("loops", sum(n > 1 for _, n, _ in w.loops))
    counts = operations(w.block)
    for name in OPERATIONS:
        same(name, log(counts[name] * w.iterations))
    wide = [n for _, n, kind in w.loops if kind == "vectorize"]
    same("vectorize: number", sum(n > 1 for n in wide))
    same("vectorize: product", log(prod(wide)))
    points = prod(i.extent.number for i in w.block.iters)
    same("tile: useful", points / w.iterations)
    written = [x.buffer for x in w.block.writes]
    others = sorted(
        w.indices.keys() - set(written),
        key=lambda b: (-prod(n.number for n in w.func.all_buffers[b].shape), b),
    )
    for k, buffer in enumerate([*written, *others][:5]):
        same(f"buffer {k}: bytes", log(w.iterations * w.nbytes(buffer)))
        same(f"buffer {k}: unique bytes", log(prod(w.box(buffer, 0)) * w.nbytes(buffer)))
        same(f"buffer {k}: stride", log(w.stride(buffer)))
        reuse = w.reuse(buffer)
        same(f"buffer {k}: used again by a loop", float(reuse is not None))
        if reuse is not None:
            iterations, nbytes, uses = reuse
            same(f"buffer {k}: distance in iterations", log(iterations))
            same(f"buffer {k}: distance in bytes", log(nbytes))
            same(f"buffer {k}: uses", log(uses))


def buffer_features(func: ts.Function, rng: np.random.Generator) -> list[np.ndarray]:
    """(rows, statements, features) of some variants of a program."""
    task = ts.Task(func, ts.Target.named("skylake-avx512").with_cores(2))
    catalogue = Catalogue(task, ts.SketchSpace().sketches(task))
    known = [catalogue.lowered(k) for k in catalogue.some(rng, 3)]
    return [statements_of(v).of(v.sample(rng, 5)) for v in known]


def check_sizes(x: np.ndarray, said: str) -> None:
    """What is touched once is no more than what is touched at all; all of it is a number."""
    assert np.isfinite(x).all(), (
        f"{[NAMES[k] for k in set(np.nonzero(~np.isfinite(x))[2])]}: {said}"
    )
    for k in range(BUFFERS):

        def column(name: str, k: int = k) -> np.ndarray:
            return np.asarray(x[..., AT[f"buffer {k}: {name}"]])

        for what in ("lines", "bytes"):
            for use in ("", " a use"):
                least, most = column(f"unique {what}{use}"), column(f"{what}{use}")
                assert (least <= most + 1e-3).all(), f"buffer {k}: {what}{use}\n{said}"
        assert (column("lines") <= column("bytes") + 1e-3).all(), said
        assert (column("stride") >= 0).all(), said


@pytest.mark.parametrize("seed", range(25))
def test_unique_sizes_of_random_programs_are_no_larger_than_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    func = random_program(rng)
    for x in buffer_features(func, rng):
        check_sizes(x, str(func))


def backwards() -> Tensors:
    x = ts.placeholder((64,), name="X")
    return x, ts.compute((64,), lambda i: x[63 - i] + 1.0, name="Y")


def every_third_row_backwards() -> Tensors:
    x = ts.placeholder((64, 40), name="X")
    return x, ts.compute((20, 40), lambda i, j: x[60 - 3 * i, j], name="Y")


def window() -> Tensors:
    x = ts.placeholder((66,), name="X")
    return x, ts.compute((64,), lambda i: x[i] + x[i + 1] + x[i + 2], name="Y")


def far_apart() -> Tensors:
    x = ts.placeholder((64, 100), name="X")
    return x, ts.compute((64,), lambda i: x[i, 0] + x[i, 99], name="Y")


def few_rows_of_a_table() -> Tensors:
    x, ids = ts.placeholder((1000, 4), name="X"), ts.placeholder((5,), "int32", name="ids")
    return x, ids, ts.ops.take(x, ids, name="Y")


def column_sums() -> Tensors:
    x, k = ts.placeholder((50, 60), name="X"), ts.reduce_axis(50, name="k")
    return x, ts.compute((60,), lambda j: ts.sum(x[k, j], axis=k), name="Y")


@pytest.mark.parametrize(
    "program",
    [backwards, every_third_row_backwards, window, far_apart, few_rows_of_a_table, column_sums],
)
def test_unique_sizes_are_no_larger_than_all(program: Callable[[], Tensors]) -> None:
    func = ts.function(program())
    for x in buffer_features(func, np.random.default_rng(0)):
        check_sizes(x, str(func))


def test_lines_of_a_buffer_that_the_innermost_loop_does_not_move() -> None:
    """Lines are counted by the innermost loop that moves the buffer: a row of 40 floats is 2.5
    lines of 64 bytes, gone through by each of 6 rows; a column is a line for each element.
    """
    x, y = ts.placeholder((6, 8), name="X"), ts.placeholder((40, 6), name="Y")
    z = ts.compute((6, 40, 8), lambda i, j, k: x[i, k] * y[j, i], name="Z")
    task = ts.Task(ts.function([x, y, z]), ts.Target.named("neoverse-n1").with_cores(1))
    v = lower(task, ts.Trace(()))
    ((x0,),) = statements_of(v).of(np.zeros((1, 0), np.int32))
    names = ("Z", "Y", "X")  # what is written, then what is read, larger ones first
    lines = {n: 2 ** x0[AT[f"buffer {k}: lines"]] - 1 for k, n in enumerate(names)}
    assert lines["Z"] == pytest.approx(6 * 40 * 8 * 4 / 64, rel=1e-3)
    assert lines["X"] == pytest.approx(6 * 8 * 4 / 64, rel=1e-3)
    assert lines["Y"] == pytest.approx(6 * 40 * 6 * 4 / 64, rel=1e-3)


def test_operations_count_a_multiply_add_once() -> None:
    (_, block), *_ = walk(matmul().body)
    counts = operations(block)
    assert counts["float mad"] == 1
    assert counts["float mul"] == counts["float addsub"] == 0


def test_the_intensity_curve_is_a_line_through_its_points() -> None:
    g = Graph(("#a",))
    a = g.column("#a")
    f = g.compile(g.curve([g.of(0), a, 2 * a], [g.of(0), g.of(10), g.of(20)], 4))
    np.testing.assert_allclose(f(np.array([[4], [8]], np.int32)), [[5, 10, 15, 20]] * 2)


def test_equal_terms_are_one_and_constants_are_folded() -> None:
    g = Graph(("#a", "#b"))
    a, b = g.column("#a"), g.column("#b")
    assert (a * b) is (a * b)
    assert (g.of(2) * 3).value == 6
    assert (a * 1) is a
    assert (a > 0).where(b, b) is b
    f = g.compile([(a > b).where(a, b), a.minimum(b), (a / b).ceil()])
    np.testing.assert_array_equal(f(np.array([[7, 2], [3, 5]], np.int32)), [[7, 2, 4], [5, 3, 1]])
