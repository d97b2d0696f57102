"""Ends of vectors as parts of registers, on processors with AVX-512: results are right, nothing
else is written, and loops whose lanes differ are cut into powers of two as before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tests.support.meaning import assert_close
from tilesmith.base.target import Target

WITH_MASKS = Target.named("skylake-avx512").with_cores(1)
HERE = ts.cpu(1)


def vectorized(func: ts.Function) -> ts.Schedule:
    sch = ts.Schedule(func)
    for block in sch.blocks:
        sch.vectorize(sch.loops(block)[-1])
    return sch


def columns(f: Callable[..., Any], n: int, dtype: str = "float32") -> ts.Schedule:
    """Rows of `n` elements, each of which is computed from a longer row."""
    x = ts.placeholder((5, 2 * n + 3), dtype, name="x")
    return vectorized(ts.function([x, ts.compute((5, n), lambda i, j: f(x, i, j), name="y")]))


def product(n: int) -> ts.Schedule:
    """A register tile of four rows with an epilogue."""
    a, b = ts.placeholder((9, 13), name="a"), ts.placeholder((13, n), name="b")
    func = ts.function([a, b, ts.ops.relu(ts.ops.matmul(a, b, name="c"), name="y")])
    sch = ts.Schedule(func)
    i, _ = sch.loops("y")
    i0, i1 = sch.split(i, [None, 4])
    sch.compute_at("c", i0)
    ci, cj, ck = sch.loops("c")[-3:]
    sch.reorder(ck, ci, cj)
    for loop in (ci, i1):
        sch.unroll(loop)
    for loop in (cj, sch.loops("y")[-1]):
        sch.vectorize(loop)
    return sch


READS: dict[str, Callable[..., Any]] = {
    "neighbours": lambda x, i, j: ts.maximum(x[i, j] * 2.0, x[i, j + 3] - 1.0),
    "every second": lambda x, i, j: x[i, 2 * j] + x[i, 2 * j + 1],
    "backwards": lambda x, i, j: x[i, x.shape[1] - 1 - j] * 0.5,
    "rows that are there": lambda x, i, j: ts.where(i >= 1, x[i - 1, j], 0.0),
    "lanes apart": lambda x, i, j: ts.where(i + 2 * j >= 4, x[i, j], 0.0),
    "larger ones": lambda x, i, j: ts.where(x[i, j] > 0.5, x[i, j], -x[i, j + 1]),
}


def check(sch: ts.Schedule, dtype: str = "float32") -> None:
    """The result, in memory with numbers behind its end that have to stay."""
    rng = np.random.default_rng(7)
    shapes = [[n.number for n in p.shape] for p in sch.func.inputs]
    arrays = [rng.standard_normal(s).astype(dtype) for s in shapes]
    want = ts.evaluate(sch.func, *arrays)
    room = np.full(want.size + 64, 3.0, dtype)
    out = room[: want.size].reshape(want.shape)
    ts.build(sch, HERE)(*arrays, out=out)
    assert_close(out, want, "in parts of registers")
    assert (room[want.size :] == 3.0).all()


def dots(n: int, dtype: str = "float32") -> ts.Schedule:
    """Rows times rows, with vectors along the sum, whose lanes are added at the end."""
    lanes = 64 // ts.placeholder((1,), dtype, name="p").dtype.nbytes
    a, b = ts.placeholder((3, n), dtype, name="a"), ts.placeholder((4, n), dtype, name="b")
    k = ts.reduce_axis(n, name="k")
    c = ts.compute((3, 4), lambda i, j: ts.sum(a[i, k] * b[j, k], axis=k), name="c")
    sch = ts.Schedule(ts.function([a, b, c]))
    _, lane = sch.split("c.k", [None, lanes])
    made = sch.rfactor(lane)
    sch.transform_layout(made, ("d1", "d2", "d0"))
    i, j, outer, lane = sch.loops(made)
    sch.reorder(outer, i, j, lane)
    sch.unroll(i, j, *sch.loops("c")[:2])
    for loop in (lane, sch.loops("c")[-1]):
        sch.vectorize(loop)
    return sch


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [18, 24, 27, 31, 75, 130])
def test_the_end_of_a_sum_is_added_to_a_part_of_a_register(n: int, dtype: str) -> None:
    """Not in memory, where a whole vector waits for the store of its part."""
    sch = dots(n, dtype)
    check(sch, dtype)
    text = ts.LlvmBackend().compile(sch.func, WITH_MASKS).source
    assert "masked.store" not in text
    assert "store <" not in text


@pytest.mark.parametrize("n", [3, 7, 11, 12, 15, 27, 45])
def test_sums_stay_in_registers(n: int) -> None:
    sch = product(n)
    check(sch)
    text = ts.LlvmBackend().compile(sch.func, WITH_MASKS).source
    rest = n % 16
    assert f"@llvm.fma.v{rest}f32" in text
    lanes = 1 << (rest - 1).bit_length()
    assert f"@llvm.masked.store.v{lanes}f32" in text


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_read_in_some_order(name: str, dtype: str) -> None:
    for n in (5, 14, 23):
        check(columns(READS[name], n, dtype), dtype)


@pytest.mark.parametrize(
    "f",
    [
        lambda x, i, j: ts.exp(x[i, j]),
        lambda x, i, j: ts.cast(ts.cast(x[i, j], "int8"), "float32"),
    ],
    ids=["polynomials", "bytes"],
)
def test_other_loops_are_cut_into_powers_of_two(f: Callable[..., Any]) -> None:
    sch = columns(f, 11)
    check(sch)
    text = ts.LlvmBackend().compile(sch.func, WITH_MASKS).source
    assert "masked.store" not in text
    assert "<11 x" not in text


def test_other_processors_have_no_parts() -> None:
    for name in ("haswell", "neoverse-n1"):
        text = ts.LlvmBackend().compile(product(11).func, Target.named(name)).source
        assert "masked" not in text
