"""Loop-context and relation features against a slow walk over the concrete Function of each row,
which knows nothing of closed forms.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.codegen.passes.lower_blocks import resolve_notes
from tilesmith.expr.ints import Int, evaluate_int
from tilesmith.ir.nodes import Block, For, Path, statements, walk
from tilesmith.search.classic.context import (
    CURVES,
    KINDS,
    LOOP_WIDTH,
    RELATION_WIDTH,
    SAMPLES,
    STEP,
    TOUCHES,
    Program,
    loop_features,
    relation_features,
)
from tilesmith.search.population import Catalogue
from tilesmith.space.domains import Matrix


def matmul() -> ts.Function:
    a, b = ts.placeholder((24, 36), name="A"), ts.placeholder((36, 20), name="B")
    return ts.function([a, b, ts.ops.relu(ts.ops.matmul(a, b, name="C"))], name="matmul")


def conv() -> ts.Function:
    x, w = ts.placeholder((1, 6, 11, 11), name="X"), ts.placeholder((8, 6, 3, 3), name="W")
    return ts.function([x, w, ts.ops.conv2d(x, w, stride=2, padding=1)], name="conv")


def softmax() -> ts.Function:
    x = ts.placeholder((12, 40), name="X")
    return ts.function([x, ts.ops.softmax(x)], name="softmax")


def pool() -> ts.Function:
    x = ts.placeholder((1, 4, 12, 12), name="X")
    return ts.function([x, ts.ops.max_pool2d(x, 2, 3)], name="pool")


def stencil() -> ts.Function:
    x = ts.placeholder((66,), name="X")
    y = ts.compute((64,), lambda i: x[i] + x[i + 1] * x[i + 2], name="Y")
    return ts.function([x, y], name="stencil")


PROGRAMS = [matmul, conv, softmax, pool, stencil]
RULES = [ts.ansor_rules, ts.default_rules]


def some_rows(
    func: ts.Function, rules: Callable[[ts.Target], object], variants: int, n: int
) -> list[tuple[ts.Variant, Matrix]]:
    task = ts.Task(func, ts.cpu().with_cores(4))
    found = Catalogue(task, ts.SketchSpace(rules(task.target)).sketches(task))  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    picked = [found.variant(k) for k in found.some(rng, variants)]
    return [(v, v.draw(rng, n)) for v in picked if v is not None]


def order_of(variant: ts.Variant) -> list[str]:
    """The order of the statements is the variant's, the same for all rows."""
    return [n.block.name for n in Program(variant).ranked]


# The walk


class Walk:
    def __init__(self, func: ts.Function, order: list[str]) -> None:
        self.func = func
        resolved = resolve_notes(func, ts.cpu(1))
        self.kind = {f.name: f.kind for f in statements(resolved.body) if isinstance(f, For)}
        self.nests = sorted(walk(func.body), key=lambda n: order.index(n[1].name))
        self.touches = [
            (path, b, name) for path, b in self.nests for name in self.buffers(b)
        ]  # fmt: skip

    def indices(self, b: Block, buffer: str) -> list[tuple[Int, ...]]:
        every = [(w.buffer, w.index) for w in b.writes] + [(x.buffer, x.index) for x in b.loads]
        return [tuple(p.substitute(b.binding) for p in ix) for n, ix in every if n == buffer]

    def buffers(self, b: Block) -> list[str]:
        written = [w.buffer for w in b.writes]
        names = {*written, *(x.buffer for x in b.loads)}
        size = {n: prod(s.number for s in self.func.all_buffers[n].shape) for n in names}
        return sorted(names, key=lambda n: (n not in written, -size[n], n))

    def box(self, path: Path, b: Block, buffer: str, level: int) -> int:
        """By going to all corners of the loops from `level` on."""
        total = 1
        for d, whole in enumerate(self.func.all_buffers[buffer].shape):
            seen = []
            for index in self.indices(b, buffer):
                p = index[d]
                moving = [f for f in path[level:] if f.name in p.names]
                for corner in product(*((0, f.trips - 1) for f in moving)):
                    env = dict.fromkeys((f.name for f in path), 0)
                    env |= {f.name: c for f, c in zip(moving, corner, strict=True)}
                    seen.append(evaluate_int(p, env, lambda a: 0))
            total *= min(max(seen) - min(seen) + 1, whole.number)
        return total

    def touch(self, path: Path, b: Block, buffer: str, level: int) -> tuple[int, float, int]:
        """Count, reuse and visits."""
        inside = self.inside(path, level)
        each = self.box(path, b, buffer, len(path))
        count = min(self.box(path, b, buffer, level), inside * each)
        return count, inside * each / count, self.inside(path[:level], 0)

    def inside(self, path: Path, level: int) -> int:
        return prod(f.trips for f in path[level:])

    def stride(self, path: Path, b: Block, buffer: str, loop: str) -> int:
        """Where the first access goes when the loop makes its first step."""
        index = self.indices(b, buffer)[0]
        layout = self.func.all_buffers[buffer].layout
        kind = next(f.kind for f in path if f.name == loop)
        if layout is not None and kind == "vectorize":  # which makes vectors contiguous
            last = {int(n[1:]) for n in layout[-1].names if n[0] == "d"}
            single = next(f.extent.const for f in path if f.name == loop) == 1
            dims = range(len(index)) if single else last  # with one lane the layout shows no vector
            if any(loop in index[d].names for d in dims):
                return 1
        ends = []
        for at in (0, 1):
            env = {f.name: at if f.name == loop else 0 for f in path}
            place = 0
            for p, n in zip(index, self.func.all_buffers[buffer].shape, strict=True):
                place = place * n.number + evaluate_int(p, env, lambda a: 0)
            ends.append(place)
        return abs(ends[1] - ends[0])

    def loop(self, f: For) -> list[float]:
        around = [
            (path, b, [g.name for g in path].index(f.name))
            for path, b in self.nests if any(g.name == f.name for g in path)
        ]  # fmt: skip
        path, _, level = around[0]
        work = max(self.inside(p, k) for p, _, k in around)
        out = [log(f.trips), level, log(self.inside(path[: level + 1], 0)), log(work)]
        out += [float(self.kind[f.name] == k) for k in KINDS]
        out += [float(any(f.name in b.reducing_loops for _, b, _ in around))]
        mine = [t for t in self.touches if any(g.name == f.name for g in t[0])][:TOUCHES]
        for path, b, buffer in mine:
            k = [g.name for g in path].index(f.name)
            count, reuse, _ = self.touch(path, b, buffer, k)
            out += [log(count), log(reuse), log(self.stride(path, b, buffer, f.name))]
        return out + [0.0] * (LOOP_WIDTH - len(out))

    def curves(self) -> list[float]:
        out: list[float] = []
        for path, b, buffer in self.touches[:CURVES]:
            levels = [self.touch(path, b, buffer, k) for k in range(len(path) + 1)]
            outward = levels[::-1]
            for x, y, order in ((0, 1, outward), (1, 0, outward), (0, 2, outward), (2, 0, levels)):
                out += [self.sample(order, x, y, 2.0 ** (STEP * k)) for k in range(SAMPLES)]
        return out

    def sample(self, levels: list[tuple[int, float, int]], x: int, y: int, most: float) -> float:
        last = levels[0]
        for level in levels:
            if level[x] > most * (1 + 1e-4):
                break
            last = level
        return float(np.log2(last[y]))


def log(x: float) -> float:
    return float(np.log2(1 + x))


@pytest.mark.parametrize("rules", RULES, ids=lambda r: r.__name__)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_loop_features_are_those_of_a_walk(
    program: Callable[[], ts.Function], rules: Callable[[ts.Target], object]
) -> None:
    for variant, rows in some_rows(program(), rules, variants=5, n=4):
        got = loop_features(variant, rows)
        for row, mine in zip(rows, got, strict=True):
            func = variant.function(row)
            w = Walk(func, order_of(variant))
            loops = [s for s in statements(func.body) if isinstance(s, For)]
            want = [w.loop(f) for f in loops]
            np.testing.assert_allclose(mine, want, rtol=1e-4, atol=1e-4, err_msg=str(func))


@pytest.mark.parametrize("rules", RULES, ids=lambda r: r.__name__)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_curves_are_those_of_a_walk(
    program: Callable[[], ts.Function], rules: Callable[[ts.Target], object]
) -> None:
    for variant, rows in some_rows(program(), rules, variants=5, n=4):
        got = relation_features(variant, rows)
        assert got.shape == (4, RELATION_WIDTH)
        for row, mine in zip(rows, got, strict=True):
            want = Walk(variant.function(row), order_of(variant)).curves()
            np.testing.assert_allclose(mine[: len(want)], want, rtol=1e-4, atol=1e-4)
            assert not mine[len(want) : CURVES * 4 * SAMPLES].any()


@pytest.mark.parametrize("rules", RULES, ids=lambda r: r.__name__)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_lengths_of_the_main_statement_are_those_of_a_walk(
    program: Callable[[], ts.Function], rules: Callable[[ts.Target], object]
) -> None:
    at = CURVES * 4 * SAMPLES
    for variant, rows in some_rows(program(), rules, variants=5, n=4):
        got = relation_features(variant, rows)[:, at:]
        for row, mine in zip(rows, got, strict=True):
            w = Walk(variant.function(row), order_of(variant))
            path, b = w.nests[0]
            visits = sum(w.inside(p, 0) for p, _ in w.nests)
            useful = sum(n.points for n in Program(variant).nests)
            assert mine[0] == pytest.approx(log(variant.task.func.flops), rel=1e-5)
            assert mine[3] == len(w.nests)
            assert mine[4] == pytest.approx(log(visits / useful), rel=1e-4)

            def length(keep: Callable[[For], bool], path: Path = path) -> float:
                return log(prod(f.trips for f in path if keep(f)))

            want = [length(lambda f, b=b: f.name in b.reducing_loops)]
            for kind in ("parallel", "vectorize", "unroll", "thread"):
                want.append(length(lambda f, k=kind, w=w: w.kind[f.name] == k))
            np.testing.assert_allclose(mine[13:18], want, rtol=1e-4, atol=1e-4)


def test_statements_that_do_most_come_first() -> None:
    for variant, _ in some_rows(matmul(), ts.default_rules, variants=4, n=0):
        assert order_of(variant)[0] == "C"
    for variant, _ in some_rows(conv(), ts.ansor_rules, variants=4, n=0):
        assert order_of(variant)[0].startswith("conv2d")


@pytest.mark.parametrize("features", [loop_features, relation_features])
def test_no_rows_no_features(features: Callable[[ts.Variant, Matrix], np.ndarray]) -> None:  # type: ignore[type-arg]
    for variant, rows in some_rows(matmul(), ts.default_rules, variants=2, n=3):
        assert len(features(variant, rows[:0])) == 0
        np.testing.assert_array_equal(features(variant, rows)[1:], features(variant, rows[1:]))
