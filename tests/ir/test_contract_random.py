"""Random sums of products: the blocked matrix products of the oracle agree with its plain path, and
with the interpreter, whatever the blocks and threads are.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.ir import block_products
from tilesmith.ir import contract as contraction
from tilesmith.ir import evaluate as oracle
from tilesmith.ir.pieces import boxes, size_of

Array = np.ndarray[Any, Any]
# The dtypes of the factors, and that of the sum.
MIXES = [
    (("float32", "float32"), "float32"),
    (("float64", "float64"), "float64"),
    (("float16", "float16"), "float32"),
    (("bfloat16", "float32"), "float32"),
    (("float16", "float16"), "float16"),
    (("int8", "int8"), "int32"),
    (("uint8", "int8"), "int32"),
    (("int16", "int16"), "int64"),
    (("uint8", "uint8"), "uint8"),
    (("float32", "int8", "float32"), "float32"),
    (("int8", "uint8", "int8"), "int32"),
    (("float32",), "float32"),
]


def random_contraction(seed: int) -> tuple[ts.Function, list[Array]]:
    """Of one to three factors. Each index is a stride times a spatial axis plus a dilation times a
    reduced one, plus an offset, or only some of these; a factor may be padded with zeros first.
    """
    rng = np.random.default_rng(seed)
    kinds, total = MIXES[seed % len(MIXES)]
    spatial = [int(n) for n in rng.choice([1, 2, 3, 5, 7], rng.integers(0, 4))]
    summed = [int(n) for n in rng.choice([1, 2, 3, 4, 5], rng.integers(1, 4))]
    reduce = [ts.reduce_axis(n, name=f"r{d}") for d, n in enumerate(summed)]
    inputs: list[ts.Tensor] = []
    reads: list[Callable[[tuple[ts.Value, ...]], ts.Value]] = []
    for f, kind in enumerate(kinds):
        # For each dimension: a spatial axis with its stride, a reduced one with its dilation.
        terms = [
            (
                int(rng.integers(0, len(spatial))) if spatial and rng.random() < 0.7 else None,
                int(rng.choice([-1, 1, 2, 3])),
                int(rng.integers(0, len(summed))) if rng.random() < 0.7 else None,
                int(rng.choice([-1, 1, 2])),
            )
            for _ in range(rng.integers(1, 4))
        ]
        shape, offsets = [], []
        for s, by, r, dilation in terms:
            ends = [by * (spatial[s] - 1)] if s is not None else []
            ends += [dilation * (summed[r] - 1)] if r is not None else []
            low, high = sum(min(0, e) for e in ends), sum(max(0, e) for e in ends)
            offsets.append(-low + int(rng.integers(0, 2)))
            shape.append(offsets[-1] + high + 1 + int(rng.integers(0, 2)))
        padded = rng.random() < 0.4
        x = ts.placeholder([max(1, n - 2) if padded else n for n in shape], kind, name=f"X{f}")
        inputs.append(x)
        read = _with_border(x, shape, f) if padded else x

        def value(
            at: tuple[ts.Value, ...], read: ts.Tensor = read, terms: Any = terms,
            offsets: list[int] = offsets,
        ) -> ts.Value:  # fmt: skip
            index: list[Any] = []
            for (s, by, r, dilation), offset in zip(terms, offsets, strict=True):
                i: Any = offset
                i = i + by * at[s] if s is not None else i
                index.append(i + dilation * reduce[r] if r is not None else i)
            return ts.cast(read[tuple(index)], total)

        reads.append(value)

    def body(*at: ts.Value) -> ts.Value:
        product = reads[0](at)
        for read in reads[1:]:
            product = product * read(at)
        return ts.sum(product, axis=tuple(reduce))

    func = ts.function([*inputs, ts.compute(tuple(spatial), body, name="Y")])
    arrays = [_array(rng, x) for x in inputs]
    return func, arrays


def _with_border(x: ts.Tensor, shape: list[int], number: int) -> ts.Tensor:
    """x moved by one element in each dimension, with zeros around it."""

    def body(*at: ts.Value) -> ts.Value:
        inside: Any = True
        for i, n in zip(at, x.shape, strict=True):
            inside = (i >= 1) & (i < n + 1) & inside
        return ts.where(inside, x[tuple(i - 1 for i in at)], 0)

    return ts.compute(tuple(shape), body, name=f"padded{number}")


def _array(rng: np.random.Generator, x: ts.Tensor) -> Array:
    shape = [int(str(n)) for n in x.shape]
    if x.dtype.is_int:
        info = np.iinfo(x.dtype.numpy)
        return rng.integers(info.min, info.max + 1, shape).astype(x.dtype.numpy)
    return rng.standard_normal(shape).astype(x.dtype.numpy)


@pytest.mark.parametrize("seed", range(10 * len(MIXES)))
def test_blocks_agree_with_the_plain_path(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    func, arrays = random_contraction(seed)
    used: list[bool] = []
    fast = oracle.contract
    monkeypatch.setattr(oracle, "contract", lambda *args: used.append(fast(*args)) or used[-1])
    got = [ts.evaluate(func, *arrays)]
    assert used == [True]
    for name, most in (
        ("_BLOCK_ELEMENTS", 17), ("_KEPT_ELEMENTS", 11), ("_RESULT_ELEMENTS", 9),
        ("_MAX_COLUMNS", 2),
    ):  # fmt: skip
        monkeypatch.setattr(block_products, name, most)
    monkeypatch.setattr(contraction, "_DOUBLE_TERMS", 5)
    got.append(ts.evaluate(func, *arrays, num_threads=3))
    monkeypatch.setattr(oracle, "contract", lambda *_: False)
    want = ts.evaluate(func, *arrays, num_threads=2)
    exact = np.issubdtype(want.dtype, np.integer)
    for g in got:
        assert g.dtype == want.dtype
        if exact:
            np.testing.assert_array_equal(g, want)
        else:
            wide = want.astype(np.float64)
            scale = max(1.0, float(np.abs(wide).max(initial=0.0)))
            allowed = {"float64": 1e-13, "float32": 1e-6}.get(want.dtype.name, 4e-3)
            np.testing.assert_allclose(
                g.astype(np.float64), wide, rtol=allowed, atol=allowed * scale
            )
    if exact and prod(want.shape) < 30:
        np.testing.assert_array_equal(ts.interpret(func, *arrays), want)


def test_memory_is_bounded_where_an_operand_lacks_the_summed_axis() -> None:
    """For each i there is a matrix of 200 x 300 elements that are all read from B[i, j]."""
    a, b = ts.placeholder((200, 300), name="A"), ts.placeholder((200, 200), name="B")
    k = ts.reduce_axis(300, name="k")
    y = ts.compute((200, 200), lambda i, j: ts.sum(a[i, k] * b[i, j], axis=k), name="Y")
    arrays = [np.random.default_rng(0).standard_normal(s) for s in ((200, 300), (200, 200))]
    tracemalloc.start()
    try:
        got = ts.evaluate(ts.function([a, b, y]), *arrays)
        assert tracemalloc.get_traced_memory()[1] < 50 << 20  # all of them take 96 MB
    finally:
        tracemalloc.stop()
    want = arrays[0].sum(1)[:, None] * arrays[1]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_a_sum_in_single_precision_of_small_whole_numbers_is_exact(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for large problems: the limits are lowered, so that this one is large."""
    rng = np.random.default_rng(0)
    x, w = (
        ts.placeholder(s, dtype, name=n) for s, n in (((2, 5, 11, 9), "X"), ((7, 5, 3, 3), "W"))
    )
    y = ts.ops.conv2d(x, w, stride=2, padding=1, name="Y")
    func = ts.function([x, w, y])
    arrays = [rng.integers(-1, 2, s).astype(x.dtype.numpy) for s in ((2, 5, 11, 9), (7, 5, 3, 3))]
    want = ts.evaluate(func, *arrays)
    kinds: list[Any] = []
    plan = contraction._precision

    def single(b: Any, factors: Any) -> Any:
        kinds.append(plan(b, factors))
        return np.dtype(np.float32), 8

    monkeypatch.setattr(contraction, "_precision", single)
    np.testing.assert_array_equal(ts.evaluate(func, *arrays, num_threads=2), want)
    assert len(kinds) == 1


def test_factors_and_results_of_rank_0() -> None:
    x, y = ts.placeholder((5,), name="X"), ts.placeholder((), name="Y")
    k = ts.reduce_axis(5, name="k")
    s = ts.compute((), lambda: ts.sum(x[k] * y[()], axis=k), name="S")
    a, b = np.arange(5, dtype=np.float32), np.float32(3.0)
    got = ts.evaluate(ts.function([x, y, s]), a, np.asarray(b))
    assert got.shape == ()
    assert got == 30.0


def test_nothing_is_summed_over_nothing() -> None:
    x, k = ts.placeholder((3, 0), name="X"), ts.reduce_axis(0, name="k")
    func = ts.function([x, ts.compute((3,), lambda i: ts.sum(x[i, k] * x[i, k], axis=k))])
    np.testing.assert_array_equal(ts.evaluate(func, np.zeros((3, 0)), num_threads=2), np.zeros(3))


@pytest.mark.parametrize("most", [1, 2, 5, 12, 1000])
@pytest.mark.parametrize("extents", [(), (1,), (7,), (3, 5), (2, 1, 9), (4, 3, 2, 5)])
def test_boxes_tile_a_grid(extents: tuple[int, ...], most: int) -> None:
    hits = np.zeros(extents, int)
    for box in boxes(extents, most):
        assert size_of(box) <= most
        hits[(..., *box)] += 1
    assert (hits == 1).all()


def test_an_index_outside_is_found_in_any_thread() -> None:
    x = ts.placeholder((4000, 300), name="X")
    i = ts.placeholder((4000,), "int32", name="I")
    func = ts.function([x, i, ts.compute((4000, 300), lambda a, b: x[i[a], b] + 1)])
    at = np.arange(4000)
    at[3999] = 4000
    with pytest.raises(ts.ArgumentError, match="X is read at index"):
        ts.evaluate(func, np.zeros((4000, 300)), at, num_threads=3)


def test_overlapping_windows_are_never_copied_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """All windows together would take 16 MB in double."""
    n, k = 4096, ts.reduce_axis(512, name="k")
    x, w = ts.placeholder((n + 511,), name="X"), ts.placeholder((512, 4), name="W")
    y = ts.compute((n, 4), lambda i, j: ts.sum(x[i + k] * w[k, j], axis=k), name="Y")
    func = ts.function([x, w, y])
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s, dtype=np.float32) for s in ((n + 511,), (512, 4))]
    windows = np.lib.stride_tricks.sliding_window_view(arrays[0].astype(np.float64), 512)
    want = windows @ arrays[1].astype(np.float64)
    monkeypatch.setattr(block_products, "_BLOCK_ELEMENTS", 1 << 14)
    tracemalloc.start()
    try:
        got = ts.evaluate(func, *arrays)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)
