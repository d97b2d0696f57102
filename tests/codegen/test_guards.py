"""Full tiles apart from tails: conditions made coarser, and how many copies of a tile there are."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from lowered import lower

import tilesmith as ts
from tilesmith.codegen.passes.guards import guards_of
from tilesmith.codegen.passes.simplify import coarse
from tilesmith.expr.dynamic import loads_of
from tilesmith.expr.ints import of, var
from tilesmith.expr.nodes import Select, children
from tilesmith.expr.walk import preorder
from tilesmith.ir.nodes import Alloc, For, If, Stmt, Store, statements

NAMES = ("i", "j", "k")


@pytest.mark.parametrize("seed", range(40))
def test_a_coarser_condition_holds_at_the_same_points(seed: int) -> None:
    rng = np.random.default_rng(seed)
    extents = rng.integers(1, 7, 3)
    steps = rng.permutation([1, rng.integers(2, 7), 12]) * rng.choice([1, -1], 3)
    p = of(int(rng.integers(-40, 60)))
    for name, step in zip(NAMES, steps, strict=True):
        p = p + var(name) * int(step)
    q = coarse(p, {n: of(int(e)) for n, e in zip(NAMES, extents, strict=True)})
    for at in product(*map(range, extents)):
        env = {n: of(x) for n, x in zip(NAMES, at, strict=True)}
        left, right = p.substitute(env).const, q.substitute(env).const
        assert left is not None
        assert right is not None
        assert (left >= 0) == (right >= 0), f"{p} and {q} at {at}"


def test_a_step_too_small_to_matter_leaves() -> None:
    p = of(59) - var("i") * 4 - var("j")
    assert coarse(p, {"i": of(16), "j": of(4)}) == of(14) - var("i")
    assert coarse(p, {"i": of(16), "j": of(5)}) == p


def tiled(n: int, m: int, depth: int, tile: tuple[int, int, int]) -> ts.Schedule:
    """A matmul with a register tile, and counted loops of two levels around it."""
    a, b = ts.placeholder((n, depth), name="A"), ts.placeholder((depth, m), name="B")
    sch = ts.Schedule(ts.function([a, b, ts.ops.matmul(a, b, name="C")]))
    i, j, k = sch.loops("C")
    i0, i1, i2 = sch.split(i, [None, 3, tile[0]])
    j0, j1, j2 = sch.split(j, [None, 2, tile[1]])
    k0, k1 = sch.split(k, [None, tile[2]])
    sch.reorder(i0, j0, i1, j1, k0, k1, i2, j2)
    sch.unroll(k1, i2)
    sch.vectorize(j2)
    return sch


def written_out(body: tuple[Stmt, ...]) -> list[For]:
    return [s for s in statements(body) if isinstance(s, For) and s.kind in ("unroll", "vectorize")]


def copies(func: ts.Function) -> int:
    """How many times the product is written, in full or in part."""
    second = func.inputs[1].name
    stores = [s for s in statements(lower(func).body) if isinstance(s, Store)]
    return sum(
        second in {load.buffer for w in s.writes for load in loads_of(w.value)} for s in stores
    )


@pytest.mark.parametrize(
    ("n", "m", "depth", "most"),
    [
        (56, 64, 32, 1),  # the tile divides; that the levels around do not is asked, not copied
        (57, 64, 32, 2),
        (57, 67, 32, 4),
        (57, 67, 30, 8),
    ],
)
def test_a_tail_is_one_more_copy(n: int, m: int, depth: int, most: int) -> None:
    sch = tiled(n, m, depth, (4, 16, 4))
    lowered = lower(sch.func)
    assert 1 <= copies(sch.func) <= most, f"{lowered}"
    for loop in written_out(lowered.body):
        assert not list(guards_of((loop,))), f"a guard inside a tile: {lowered}"
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s, dtype=np.float32) for s in ((n, depth), (depth, m)))
    np.testing.assert_allclose(ts.build(sch, ts.cpu(1))(a, b), a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sums", [(1, 14, 8), (5, 3, 8), (1, 15, 7), (3, 6, 6)])
def test_a_partial_tile_counts_as_what_it_becomes(sums: tuple[int, int, int]) -> None:
    """Tails of rows, columns and sums at once: that of the rows is one row, so its copies are
    short, and there is room to cut the second half of the columns as the first.
    """
    n, m, depth = 67, 61, 105
    a, b = ts.placeholder((n, depth), name="A"), ts.placeholder((depth, m), name="B")
    sch = ts.Schedule(ts.function([a, b, ts.ops.matmul(a, b, name="C")]))
    i, j, k = sch.loops("C")
    i0, i1 = sch.split(i, [None, 6])
    j0, j1 = sch.split(j, [None, 32])
    k0, k1, k2 = sch.split(k, list(sums))
    sch.reorder(j0, i0, k0, k1, k2, i1, j1)
    sch.unroll(k2, i1)
    sch.vectorize(j1)
    lowered = lower(sch.func)
    for loop in written_out(lowered.body):
        assert not list(guards_of((loop,))), f"a guard inside a tile: {lowered}"
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(s, dtype=np.float32) for s in ((n, depth), (depth, m)))
    np.testing.assert_allclose(ts.build(sch, ts.cpu(1))(x, y), x @ y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("depth", [1, 2])
def test_parallel_loops_that_are_cut_stay_one_range(depth: int) -> None:
    sch = tiled(57, 67, 30, (4, 16, 2))
    sch.parallel(*[n for n in sch.loops("C") if n.endswith(".0")][:depth])
    outer: list[str] = []
    body = lower(sch.func).body
    while len(body) == 1 and isinstance(s := body[0], For):
        outer.append(s.kind)
        body = s.body
    assert outer[:depth] == ["parallel"] * depth
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s, dtype=np.float32) for s in ((57, 30), (30, 67)))
    np.testing.assert_allclose(ts.build(sch, ts.cpu(2))(a, b), a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("parallel", [0, 1, 2])
def test_a_window_written_out_tests_no_border_inside(parallel: int) -> None:
    """Whichever loops run on several threads, a padded element is read or is zero: no select."""
    x, w = ts.placeholder((1, 9, 11, 8), name="X"), ts.placeholder((3, 3, 1, 8), name="W")
    y = ts.ops.depthwise_conv2d(x, w, padding=1, layout="NHWC", name="Y")
    func = ts.function([x, w, y])
    sch = ts.Schedule(func)
    (pad,) = (b for b in sch.blocks if b != "Y")
    sch.write_out("Y")
    sch.inline(pad)
    n, h, col, f = sch.loops("Y")
    w0, w1 = sch.split(col, [None, 3])
    sch.unroll(w1)
    sch.reorder(n, h, w0, f, w1)
    sch.parallel(*(h, w0)[:parallel])
    stores = [s for s in statements(lower(sch.func).body) if isinstance(s, Store)]
    values = [e for s in stores for v in s.writes for e in preorder(v.value, children)]
    assert not any(isinstance(e, Select) for e in values), f"{lower(sch.func)}"
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s, dtype=np.float32) for s in ((1, 9, 11, 8), (3, 3, 1, 8)))
    got = ts.build(sch, ts.cpu(2))(a, b)
    np.testing.assert_allclose(got, ts.evaluate(func, a, b), rtol=1e-4, atol=1e-5)


def test_a_copy_with_a_border_does_not_multiply_the_tile() -> None:
    """The padded input is copied inside a tile level: its border is no reason to copy the tile."""
    x, w = ts.placeholder((1, 24, 24, 8), name="X"), ts.placeholder((3, 3, 8, 16), name="W")
    y = ts.ops.conv2d(x, w, padding=1, layout="NHWC", name="Y")
    sch = ts.Schedule(ts.function([x, w, y]))
    pad = next(b for b in sch.blocks if b != "Y")
    loops = dict(zip("nhwfrsc", sch.loops("Y"), strict=True))
    h0, h1 = sch.split(loops["h"], [None, 8])
    w0, w1 = sch.split(loops["w"], [None, 4])
    sch.reorder(h0, w0, h1, loops["r"], loops["s"], loops["c"], w1, loops["f"])
    sch.compute_at(pad, w0)
    sch.unroll(w1)
    sch.vectorize(loops["f"])
    assert copies(sch.func) == 1, f"{lower(sch.func)}"


def test_the_guard_of_a_sum_is_cut_before_that_of_a_copy() -> None:
    """The tile of 3 does not divide 14. The copy of the padded input has more operations written
    down, and conditions of its own, but the sum is where time goes.
    """
    x, w = ts.placeholder((1, 14, 14, 64), name="X"), ts.placeholder((3, 3, 64, 32), name="W")
    y = ts.ops.conv2d(x, w, padding=1, layout="NHWC", name="Y")
    sch = ts.Schedule(ts.function([x, w, y]))
    pad = next(b for b in sch.blocks if b != "Y")
    loops = dict(zip("nhwfrsc", sch.loops("Y"), strict=True))
    h0, h1 = sch.split(loops["h"], [None, 2])
    w0, w1 = sch.split(loops["w"], [None, 3])
    sch.reorder(h0, w0, loops["r"], loops["s"], loops["c"], h1, w1, loops["f"])
    sch.compute_at(pad, w0)
    sch.unroll(h1, w1)
    sch.vectorize(loops["f"])
    sch.vectorize(sch.loops(pad)[-1])
    inner = [s for s in statements(lower(sch.func).body) if isinstance(s, For)]
    sums = [s for s in inner if s.name.startswith("Y.rc")]
    assert 1 <= len(sums) <= 2, f"{lower(sch.func)}"
    assert not any(isinstance(t, If) for s in sums for t in statements(s.body))


def test_rows_of_a_buffer_do_not_all_meet_in_the_same_place_of_a_cache() -> None:
    def rows(channels: int) -> int | None:
        x = ts.placeholder((6, channels), name="X")
        t = ts.compute((6, channels), lambda i, c: x[i, c] + 1.0, name="T")
        z = ts.compute((6, channels), lambda i, c: t[5 - i, c] * 2.0, name="Y")
        func = ts.function([x, z])
        data = np.arange(6 * channels, dtype=np.float32).reshape(6, channels)
        np.testing.assert_allclose(ts.build(ts.Schedule(func))(data), (data[::-1] + 1) * 2)
        (made,) = [s.buffer for s in statements(lower(func).body) if isinstance(s, Alloc)]
        return made.shape[-1].const

    assert rows(1024) == 1024 + 16  # 4 KiB, and a line
    assert rows(1000) == 1000


def test_a_loop_that_only_makes_a_buffer_goes() -> None:
    """With tiles of 6 in 16 the last tile is 4 long: where its guard never holds nothing is left
    but the buffer that the tile would have used.
    """
    x = ts.placeholder((16,), name="X")
    y = ts.compute((16,), lambda i: x[i] + 1.0, name="T")
    z = ts.compute((16,), lambda i: y[i] * 2.0, name="Y")
    sch = ts.Schedule(ts.function([x, z]))
    _, i1 = sch.split(sch.loops("Y")[0], [4, 6])
    sch.compute_at("T", i1)
    for s in statements(lower(sch.func).body):
        if isinstance(s, For | If):
            assert any(isinstance(t, Store) for t in statements(s.body)), f"{lower(sch.func)}"
    data = np.arange(16, dtype=np.float32)
    np.testing.assert_array_equal(ts.build(sch)(data), (data + 1) * 2)
