"""Running sums and products in order: by the oracles, compiled, in blocks, on threads of a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tests.support.gpu_programs import OPENCL, launch_form
from tests.support.gpu_suite import candidates
from tests.support.meaning import assert_close
from tilesmith.base.dtype import dtype as dtype_named
from tilesmith.ir.error_bounds import evaluate_bounded
from tilesmith.ir.interpreter import interpret
from tilesmith.ir.nodes import Alloc
from tilesmith.ir.simt import run_simt

SHAPES = [((13,), 0), ((6, 11), 1), ((11, 6), 0), ((3, 7, 21), 1), ((2, 5, 3), 1), ((4, 1), 1)]
WAYS = [(False, False), (True, False), (False, True), (True, True)]


def running(
    shape: tuple[int, ...], axis: int, dtype: str = "float32", op: str = "cumsum", **settings: Any
) -> ts.Function:
    x = ts.placeholder(shape, dtype, name="X")
    return ts.function([x, getattr(ts.ops, op)(x, axis, name="Y", **settings)])


def given(func: ts.Function, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    shape, d = [n.number for n in func.inputs[0].shape], func.inputs[0].dtype.numpy
    return (rng.integers(-4, 5, shape) / (1 if d.kind in "iu" else 4)).astype(d)


def wanted(x: Any, axis: int, op: Any, exclusive: bool, reverse: bool) -> Any:
    z = np.flip(x, axis) if reverse else x
    wide = z.astype(np.float64) if z.dtype.kind not in "iu" else z
    out = op.accumulate(wide, axis, **({"dtype": x.dtype} if z.dtype.kind in "iu" else {}))
    if exclusive:
        out = np.roll(out, 1, axis)
        first = [slice(None)] * x.ndim
        first[axis] = slice(0, 1)
        out[tuple(first)] = op.identity
    return (np.flip(out, axis) if reverse else out).astype(x.dtype)


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize(("exclusive", "reverse"), WAYS)
def test_all_ways(shape: tuple[int, ...], axis: int, exclusive: bool, reverse: bool) -> None:
    for block in (0, 2):
        func = running(shape, axis, exclusive=exclusive, reverse=reverse, block=block)
        x = given(func)
        want = wanted(x, axis, np.add, exclusive, reverse)
        np.testing.assert_array_equal(interpret(func, x), want)
        np.testing.assert_array_equal(ts.evaluate(func, x), want)
        np.testing.assert_array_equal(ts.build(func, ts.cpu(1))(x), want)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "int32", "uint64"])
@pytest.mark.parametrize("op", ["cumsum", "cumprod"])
def test_dtypes(dtype: str, op: str) -> None:
    ufunc = np.add if op == "cumsum" else np.multiply
    for axis, block in ((0, 0), (1, 0), (1, 3)):
        func = running((9, 18), axis, dtype, op, block=block)
        x = np.abs(given(func, 1)) if dtype == "uint64" else given(func, 1)
        want = wanted(x, axis, ufunc, False, False)
        for got in (ts.evaluate(func, x), ts.build(func, ts.cpu(1))(x)):
            assert got.dtype == dtype_named(dtype).numpy
            np.testing.assert_allclose(got.astype(float), want.astype(float), 1e-2)


@pytest.mark.parametrize(("shape", "axis"), [((33, 70), 0), ((70, 33), 1), ((5, 40, 6), 1)])
def test_candidates_match_the_oracle(shape: tuple[int, ...], axis: int) -> None:
    for target in (ts.cpu(1), ts.cpu(2)):
        for block in (0, 8):
            func = running(shape, axis, block=block)
            x = given(func, 2)
            want = wanted(x, axis, np.add, False, False)
            for some in candidates(func, target, "default", 6, np.random.default_rng(3)):
                assert_close(ts.build(some, target)(x), want, str(some))


@pytest.mark.parametrize("block", [0, 4])
def test_threads_of_a_gpu(block: int) -> None:
    for shape, axis in (((37, 6), 0), ((3, 41), 1), ((2, 19, 5), 1)):
        func = running(shape, axis, block=block)
        x = given(func, 4)
        want = wanted(x, axis, np.add, False, False)
        for some in candidates(func, OPENCL, "default", 2, np.random.default_rng(5)):
            assert_close(run_simt(launch_form(some, OPENCL), x), want, str(some))


TILED = [((37,), 16, 4), ((2, 33), 12, 3), ((3, 20), 24, 4), ((2, 2, 70), 8, 2)]


@pytest.mark.parametrize(("shape", "tile", "block"), TILED)
@pytest.mark.parametrize(("exclusive", "reverse"), WAYS)
def test_tiles(
    shape: tuple[int, ...], tile: int, block: int, exclusive: bool, reverse: bool
) -> None:
    axis = len(shape) - 1
    for op, dtype in (("cumsum", "float32"), ("cumsum", "float16"), ("cumprod", "int32")):
        func = running(
            shape, axis, dtype, op, exclusive=exclusive, reverse=reverse, block=block, tile=tile
        )
        x = given(func, 7)
        ufunc = np.add if op == "cumsum" else np.multiply
        want = wanted(x, axis, ufunc, exclusive, reverse)
        np.testing.assert_array_equal(ts.evaluate(func, x), want)
        for some in candidates(func, OPENCL, "default", 1, np.random.default_rng(8)):
            np.testing.assert_array_equal(run_simt(launch_form(some, OPENCL), x), want)


# the length of an axis, and of its rows; rows of a tile; elements of a block
ROWS = [(35, 7, 2, 3), (12, 4, 3, 4), (26, 13, 1, 4), (10, 1, 4, 1), (24, 6, 2, 8), (12, 6, 2, 4)]


@pytest.mark.parametrize(("extent", "row", "count", "block"), ROWS)
@pytest.mark.parametrize(("exclusive", "reverse"), WAYS)
def test_rows_of_an_axis(
    extent: int, row: int, count: int, block: int, exclusive: bool, reverse: bool
) -> None:
    for lead, op, dtype in (((), "cumsum", "float32"), ((2,), "cumsum", "float16")):
        func = running(
            (*lead, extent), len(lead), dtype, op, exclusive=exclusive, reverse=reverse,
            block=block, tile=count * row, row=row,
        )  # fmt: skip
        x = given(func, 11)
        rows = x.reshape(*lead, extent // row, row)
        want = wanted(rows, len(lead) + 1, np.add, exclusive, reverse).reshape(x.shape)
        np.testing.assert_array_equal(ts.evaluate(func, x), want)
        for some in candidates(func, OPENCL, "default", 1, np.random.default_rng(8)):
            launched = launch_form(some, OPENCL)
            np.testing.assert_array_equal(run_simt(launched, x), want)
            assert sum(not isinstance(s, Alloc) for s in launched.body) == 1


def test_rows_are_whole() -> None:
    for settings in ({"row": 7}, {"row": 6, "tile": 9}, {"row": 6}, {"row": -6, "tile": 6}):
        with pytest.raises(ts.ExpressionError, match="rows of"):
            running((30,), 0, **{"block": 3, **settings})


def test_a_tile_is_a_launch() -> None:
    """All that concerns the blocks of a tile is in shared memory."""
    one, several = (running((3, 60), 1, block=4, tile=t) for t in (64, 16))
    for func, launches in ((one, 1), (several, 3)):
        (some, *_) = candidates(func, OPENCL, "default", 1, np.random.default_rng(0))
        body = launch_form(some, OPENCL).body
        assert sum(not isinstance(s, Alloc) for s in body) == launches


def test_tiles_beyond_the_machine_are_left() -> None:
    func = running((1000,), 0, block=2, tile=512)  # more threads than a block has
    x = given(func, 3)
    want = wanted(x, 0, np.add, False, False)
    for some in candidates(func, OPENCL, "default", 1, np.random.default_rng(2)):
        assert_close(run_simt(launch_form(some, OPENCL), x), want, str(some))


def test_tiles_have_whole_blocks() -> None:
    with pytest.raises(ts.ExpressionError, match="no whole blocks"):
        running((30,), 0, block=4, tile=10)
    with pytest.raises(ts.ExpressionError, match="no whole blocks"):
        running((30,), 0, tile=10)


def test_axes_in_the_middle_have_tiles_too() -> None:
    func = running((2, 21, 3), 1, block=2, tile=8)
    x = given(func, 9)
    np.testing.assert_array_equal(ts.evaluate(func, x), wanted(x, 1, np.add, False, False))
    for some in candidates(func, OPENCL, "default", 1, np.random.default_rng(1)):
        assert_close(run_simt(launch_form(some, OPENCL), x), ts.evaluate(func, x), str(some))


def test_long_sums_lose_no_terms() -> None:
    func = running((20_000_000,), 0)
    assert ts.build(func, ts.cpu(1))(np.ones(20_000_000, np.float32))[-1] == 20_000_000


def test_bounds_hold_for_kernels_and_not_for_a_lost_term() -> None:
    for dtype in ("float32", "float16"):
        func = running((7, 50), 1, dtype)
        x = np.random.default_rng(6).random((7, 50), np.float32).astype(dtype)
        (want,) = evaluate_bounded(func, x)
        assert want.error is not None
        got = ts.build(func, ts.cpu(1))(x).astype(float)
        assert (np.abs(got - want.value.astype(float)) <= want.error).all()
        assert (np.abs(got + 0.5 - want.value.astype(float)) > want.error).any()


def test_what_schedules_must_leave() -> None:
    sch = ts.Schedule(running((6, 12), 1))
    _, k = sch.loops("Y")
    for change in (sch.parallel, sch.vectorize, sch.rfactor):
        with pytest.raises(ts.ScheduleError):
            change(k)
    outer, inner = sch.split(k, [None, 3])
    with pytest.raises(ts.ScheduleError, match="every partial"):
        sch.reorder(inner, outer)


@pytest.mark.filterwarnings("error")
def test_empty_axes() -> None:
    for shape in ((0, 3), (3, 0)):
        func = running(shape, 0)
        assert ts.build(func, ts.cpu(1))(np.zeros(shape, np.float32)).shape == shape


def test_bounds_of_blocks_that_the_end_cuts() -> None:
    """What lies behind the end has neither a result nor an error."""
    func = running((2, 131), 1, "float16", block=4)
    (x,) = (given(func),)
    (result,) = evaluate_bounded(func, x)
    exact = np.add.accumulate(x.astype(np.float64), 1)
    assert result.error is not None
    assert (np.abs(result.value.astype(np.float64) - exact) <= result.error).all()
    assert np.isfinite(result.error).all()
