"""Transposing copies: which are turned in registers, that they give what they did, and that they
stay within their arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lowered import lower

import tilesmith as ts
from tilesmith.codegen.passes.transpose_squares import transpose_squares
from tilesmith.ir.nodes import For, statements
from tilesmith.ir.notes import TransposeSquare
from tilesmith.measure.child.guarded_memory import Region

TARGET = ts.Target.named("skylake-avx512")
DTYPES = ("float32", "float64", "bfloat16", "float16", "int8", "int16", "uint8", "int64")


def turned(rows: int, columns: int, dtype: str = "float32") -> ts.Function:
    x = ts.placeholder((columns, rows), dtype, name="x")
    return ts.function([x, ts.compute((rows, columns), lambda i, j: x[j, i], name="y")])


def packing(n: int, depth: int, tile: int, dtype: str = "float32") -> ts.Schedule:
    """Rows are copied to tiles in which they lie as columns, and the sum of each is taken."""
    x = ts.placeholder((n, depth), dtype, name="x")
    k = ts.reduce_axis(depth, name="k")
    sch = ts.Schedule(
        ts.function([x, ts.compute((n,), lambda i: ts.sum(x[i, k], axis=k), name="y")])
    )
    copy = sch.cache_read("y", "x")
    sch.transform_layout(copy, [f"d0 // {tile}", "d1", f"d0 % {tile}"])
    sch.vectorize(sch.loops(copy)[-1])
    return sch


def packing_in_blocks(n: int, depth: int, block: int, tile: int, pieces: int = 0) -> ts.Schedule:
    """The same for a block of rows at a time, and for `pieces` of each row at a time."""
    x = ts.placeholder((n, depth), name="x")
    k = ts.reduce_axis(depth, name="k")
    sch = ts.Schedule(
        ts.function([x, ts.compute((n,), lambda i: ts.sum(x[i, k], axis=k), name="y")])
    )
    copy = sch.cache_read("y", "x")
    sch.transform_layout(copy, [f"d0 // {tile}", "d1", f"d0 % {tile}"])
    outer, inner = sch.split("y.i", [None, block])
    at = outer
    if pieces:
        at, rest = sch.split("y.k", [None, pieces])
        sch.reorder(outer, at, inner, rest)
    sch.compute_at(copy, at)
    sch.vectorize(sch.loops(copy)[-1])
    return sch


def squares(func: ts.Function, target: ts.Target = TARGET) -> list[int]:
    done = transpose_squares(lower(func), target)
    loops = [s for s in statements(done.body) if isinstance(s, For)]
    return [s.trips for s in loops if s.note(TransposeSquare)]


def vectorized(func: ts.Function) -> ts.Schedule:
    sch = ts.Schedule(func)
    sch.vectorize(sch.loops("y")[-1])
    return sch


def same(kernel: ts.Kernel, func: ts.Function, x: Any) -> None:
    """On memory that must not be left by a byte."""
    given, made = (Region(p.name, p.nbytes) for p in kernel.artifact.parameters)
    arrays = [r.array(p) for r, p in zip((given, made), kernel.artifact.parameters, strict=True)]
    arrays[0][...] = x
    given.make_read_only()
    kernel(arrays[0], out=arrays[1])
    want = ts.evaluate(func, x)
    np.testing.assert_array_equal(arrays[1].astype(np.float64), np.asarray(want, np.float64))
    assert given.is_intact
    assert made.is_intact
    given.free()
    made.free()


def numbers(shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    """Small whole ones: sums of them are exact in every type."""
    low = 0 if dtype == "uint8" else -3
    drawn = np.random.default_rng(seed).integers(low, 4, shape)
    return drawn.astype(ts.placeholder((), dtype).dtype.numpy)


def filters(n: int, depth: int, dtype: str = "float32") -> ts.Schedule:
    """Filters of 3 x 3 elements are copied to tiles of 16, and the sum of each is taken."""
    x = ts.placeholder((n, depth, 3, 3), dtype, name="x")
    k, r, s = (ts.reduce_axis(m, name=name) for m, name in ((depth, "k"), (3, "r"), (3, "s")))
    y = ts.compute((n,), lambda i: ts.sum(x[i, k, r, s], axis=(k, r, s)), name="y")
    sch = ts.Schedule(ts.function([x, y]))
    copy = sch.cache_read("y", "x")
    sch.transform_layout(copy, ["d0 // 16", "d1", "d2", "d3", "d0 % 16"])
    sch.vectorize(sch.loops(copy)[-1])
    return sch


def images(n: int, side: int, channels: int) -> ts.Schedule:
    """Channels go from last to first."""
    x = ts.placeholder((n, side, side, channels), name="x")
    y = ts.compute((n, channels, side, side), lambda b, c, h, w: x[b, h, w, c] * 2, name="y")
    return vectorized(ts.function([x, y]))


def test_loops_that_go_on_where_the_last_ended_are_one() -> None:
    assert squares(filters(32, 16).func) == [16]
    assert squares(filters(32, 7).func) == [16, 8, 4]  # 63 elements
    assert squares(images(1, 14, 32).func) == [16, 4]  # 196
    assert squares(images(2, 8, 32).func) == [16]
    for sch in (filters(32, 7), images(2, 7, 20), filters(16, 5, "int8")):
        shape = tuple(e.number for e in sch.func.inputs[0].shape)
        x = numbers(shape, sch.func.inputs[0].dtype.name, 0)
        same(ts.build(sch, ts.cpu(1)), sch.func, x)


def test_full_squares_then_smaller_ones() -> None:
    assert squares(vectorized(turned(32, 48)).func) == [16]
    assert squares(vectorized(turned(40, 16)).func) == [16, 8]
    assert squares(vectorized(turned(3, 64)).func) == []
    assert squares(packing(64, 64, 32).func) == [16]


def test_the_side_suits_the_target() -> None:
    func = vectorized(turned(64, 64, "float64")).func
    assert squares(func, ts.Target.named("skylake-avx512")) == [8]
    assert squares(func, ts.Target.named("haswell")) == [4]
    bytewise = vectorized(turned(64, 64, "int8")).func
    assert squares(bytewise, ts.Target.named("haswell")) == [8]  # as registers allow


def test_what_is_left_alone() -> None:
    x = ts.placeholder((64, 64), name="x")
    straight = ts.compute((64, 64), lambda i, j: x[i, j] + 1, name="y")
    both = ts.compute((64, 64), lambda i, j: x[i, j] + x[j, i], name="y")
    diagonal = ts.compute((64,), lambda i: x[i, i], name="y")
    for y in (straight, both, diagonal):
        assert squares(vectorized(ts.function([x, y])).func) == []


def test_divided_loops_are_split() -> None:
    """70 rows in tiles of 32: two whole ones, and one of six rows."""
    loops = {
        s.name: s.extent.const for s in statements(lower(packing(70, 16, 32).func).body)
        if isinstance(s, For)
    }  # fmt: skip
    assert loops["x.local.ax0.tile"] == 2
    assert loops["x.local.ax0.at"] == 32
    assert loops["x.local.ax0"] == 6


@pytest.mark.parametrize(
    ("n", "depth", "block", "tile", "pieces"),
    [(90, 32, 64, 16, 0), (70, 48, 16, 16, 0), (100, 40, 48, 24, 16), (37, 21, 16, 8, 10)],
)
def test_full_tiles_of_a_block_are_turned(
    n: int, depth: int, block: int, tile: int, pieces: int
) -> None:
    """The last block has fewer rows, and the last piece of a row may be shorter."""
    sch = packing_in_blocks(n, depth, block, tile, pieces)
    assert max(squares(sch.func), default=0) == min(tile, pieces or depth, 16) // 8 * 8
    x = numbers((n, depth), "float32", n)
    same(ts.build(sch, ts.cpu(1)), packing(n, depth, tile).func, x)


def test_long_rows_beside_a_partial_tile_are_turned() -> None:
    assert squares(packing(70, 6000, 32).func)[:1] == [16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_transposes(dtype: str) -> None:
    rng = np.random.default_rng(DTYPES.index(dtype))
    for _ in range(6):
        rows, columns = (int(n) for n in rng.integers(3, 70, 2))
        func = turned(rows, columns, dtype)
        kernel = ts.build(vectorized(func), ts.cpu(1))
        same(kernel, func, numbers((columns, rows), dtype, rows))


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_packings(dtype: str) -> None:
    rng = np.random.default_rng(100 + DTYPES.index(dtype))
    for _ in range(4):
        n, depth, tile = (int(k) for k in rng.integers((4, 4, 2), (70, 40, 40)))
        sch = packing(n, depth, tile, dtype)
        want = packing(n, depth, tile, dtype).func
        same(ts.build(sch, ts.cpu(1)), want, numbers((n, depth), dtype, n))


@pytest.mark.parametrize("name", ["haswell", "x86-64-v3"])
def test_narrower_vectors(name: str) -> None:
    target = ts.Target.named(name)
    if ts.cpu().arch != target.arch or target.features - ts.cpu().features:
        pytest.skip("this machine cannot run it")
    for rows, columns in ((8, 8), (21, 38), (64, 5)):
        func = turned(rows, columns)
        same(ts.build(vectorized(func), target), func, numbers((columns, rows), "float32", 1))


def test_values_are_computed_on_the_way() -> None:
    """Zeros around, and a number for each row and each column."""
    x = ts.placeholder((30, 21), name="x")
    r, c = ts.placeholder((23,), name="r"), ts.placeholder((32,), name="c")

    def value(i: Any, j: Any) -> Any:
        inside = (i >= 1) & (i < 22) & (j >= 1) & (j < 31)
        return ts.where(inside, x[j - 1, i - 1] * r[i], c[j])

    func = ts.function([x, r, c, ts.compute((23, 32), value, name="y")])
    arrays = [numbers(shape, "float32", k) for k, shape in enumerate([(30, 21), (23,), (32,)])]
    np.testing.assert_array_equal(
        ts.build(vectorized(func), ts.cpu(1))(*arrays), ts.evaluate(func, *arrays)
    )


@pytest.mark.parametrize(
    ("name", "instruction"),
    [("skylake-avx512", "vshuff64x2"), ("haswell", "vunpcklps"), ("neoverse-n1", "zip1")],
)
def test_no_element_goes_alone(name: str, instruction: str) -> None:
    kernel = ts.build(vectorized(turned(64, 64)), ts.Target.named(name))
    assert instruction in kernel.assembly
    assert "vmovss" not in kernel.assembly
    assert "vextractps" not in kernel.assembly
