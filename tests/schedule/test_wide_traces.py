"""Every primitive on programs with longer loops, mixed types, wrapped and looked-up indices."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import tilesmith as ts
from tests.support.meaning import assert_same_meaning
from tests.support.thorough import by_turns
from tests.support.traces import EVERY_WEIGHTS, random_trace
from tilesmith.ir.function import Function
from tilesmith.schedule.schedule import Schedule
from tilesmith.schedule.trace import PRIMITIVES, Trace

Rng = np.random.Generator
DTYPES = ("float32", "float64", "int8", "uint8", "int16", "int32", "int64", "uint16")


def extent(rng: Rng, most: int = 130) -> int:
    """Odd ones, and those beside powers of two, more often than others."""
    near = int(2 ** rng.integers(2, 8)) + int(rng.integers(-1, 2))
    return int(np.clip(near if rng.random() < 0.5 else rng.integers(1, most + 1), 1, most))


def dtype(rng: Rng) -> str:
    return str(rng.choice(np.array(DTYPES)))


def elementwise(rng: Rng) -> Function:
    """Types that meet, casts, and an axis that is divided."""
    n, m = extent(rng), int(rng.integers(1, 5))
    first, second = dtype(rng), dtype(rng)
    if "float" in second and "u" in first:
        second = "int32"  # a negative float has no value in an unsigned type
    x, y = ts.placeholder((m, n), first, name="X"), ts.placeholder((m, n), second, name="Y")
    p = ts.compute((m, n), lambda i, j: x[i, j] + ts.cast(y[i, n - 1 - j], x.dtype), name="P")
    to = dtype(rng)
    if x.dtype.is_float and to.startswith("u"):
        to = "int16"
    q = ts.compute((m, n), lambda i, j: ts.cast(p[i, j], to), name="Q")
    r = ts.compute((n, m), lambda i, j: ts.where(i > 0, q[j, i // 3], q[j, i]), name="R")
    return ts.function([x, y, r])


def lookup(rng: Rng) -> Function:
    """An index that is computed in a narrow type, and wraps around."""
    n = extent(rng)
    narrow = str(rng.choice(np.array(("uint8", "int8", "uint16", "int32"))))
    ids, table = ts.placeholder((n,), narrow, name="ids"), ts.placeholder((40, 2), name="T")
    by = int(rng.integers(1, 100))
    at = ts.compute((n,), lambda i: (ids[i] * by + ts.cast(i, narrow)) % 40, name="at")
    g = ts.compute((n, 2), lambda i, j: table[at[i], j] * 2, name="G")
    s = ts.compute((n,), lambda i: g[i, 0] + g[i, 1], name="S")
    return ts.function([ids, table, s])


def matmul(rng: Rng) -> Function:
    n, m, k = (int(rng.integers(1, 20)) for _ in range(3))
    if rng.random() < 0.4:  # for instructions
        types = [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8")][int(rng.integers(3))]
        m, k = 16 if types == ("uint8", "int8") else 4, 4
        a, b = (ts.placeholder(s, d, name=x) for s, d, x in zip(
            ((n, k), (m, k)), types, "AB", strict=True))  # fmt: skip
        r = ts.reduce_axis(k, name="k")
        left, right = (lambda *i, t=t: ts.cast(t[i], "int32") for t in (a, b))
        c = ts.compute((n, m), lambda i, j: ts.sum(left(i, r) * right(j, r), axis=r), name="C")
        return ts.function([a, b, c])
    a, b = ts.placeholder((n, k), name="A"), ts.placeholder((k, m), name="B")
    r = ts.reduce_axis(k, name="k")
    c = ts.compute((n, m), lambda i, j: ts.sum(a[i, r] * b[r, j], axis=r), name="C")
    d = ts.compute((n, m), lambda i, j: ts.maximum(c[i, j], 0), name="D")
    return ts.function([a, b, d])


def convolution(rng: Rng) -> Function:
    """Windows over an image with zeros around it; constant weights."""
    n, taps, stride = extent(rng, 60), int(rng.integers(2, 5)), int(rng.integers(1, 3))
    pad = int(rng.integers(0, taps))
    n = max(n, taps)
    x, w = ts.placeholder((n, 2), name="X"), ts.placeholder((taps, 2), name="W")
    k, c = ts.reduce_axis(taps, name="k"), ts.reduce_axis(2, name="c")
    p = ts.compute(
        (n + 2 * pad, 2),
        lambda i, j: ts.where((i >= pad) & (i < n + pad), x[i - pad, j], 0.0),
        name="P",
    )
    out = (n + 2 * pad - taps) // stride + 1
    y = ts.compute((out,), lambda i: ts.sum(p[i * stride + k, c] * w[k, c], axis=[k, c]), name="Y")
    return ts.function([x, w, y], constants=[w])


def groups(rng: Rng) -> Function:
    """An axis that is divided by a number, for split_iterator."""
    size, count = int(rng.integers(2, 6)), int(rng.integers(1, 8))
    n = size * count
    x, s = ts.placeholder((n, 3), dtype(rng), name="X"), ts.placeholder((count,), name="S")
    y = ts.compute((n, 3), lambda i, j: ts.cast(x[i, j], "float32") * s[i // size], name="Y")
    return ts.function([x, s, y])


def pixels(rng: Rng) -> Function:
    """Two axes that nothing tells apart, for merge_iterators."""
    channels, filters, rows, columns = (int(rng.integers(1, 8)) for _ in range(4))
    x = ts.placeholder((channels, rows, columns), dtype(rng), name="X")
    w, c = ts.placeholder((filters, channels), name="W"), ts.reduce_axis(channels, name="c")
    y = ts.compute(
        (filters, rows, columns),
        lambda f, i, j: ts.sum(ts.cast(x[c, i, j], "float32") * w[f, c], axis=c),
        name="Y",
    )
    z = ts.compute(y.shape, lambda f, i, j: ts.maximum(y[f, i, j], 0), name="Z")
    return ts.function([x, w, z])


def weighted(rng: Rng) -> Function:
    """Sums that depend on the largest element of a row and on another sum, for roll."""
    n, m, k = (int(rng.integers(1, 9)) for _ in range(3))
    x, v = ts.placeholder((n, k), name="X"), ts.placeholder((k, m), name="V")
    first, second, third = (ts.reduce_axis(k, name="j") for _ in range(3))
    top = ts.compute((n,), lambda i: ts.amax(x[i, first] * 0.5, axis=first), name="M")
    p = ts.compute((n, k), lambda i, j: ts.exp(x[i, j] * 0.5 - top[i]), name="P")
    total = ts.compute((n,), lambda i: ts.sum(p[i, second], axis=second), name="L")
    w = ts.compute((n, k), lambda i, j: p[i, j] / total[i], name="W")
    o = ts.compute((n, m), lambda i, j: ts.sum(w[i, third] * v[third, j], axis=third), name="O")
    return ts.function([x, v, ts.compute((n, m), lambda i, j: o[i, j] + 1.0, name="Y")])


def halves(rng: Rng) -> Function:
    """Sums of products of float16 over two axes, for chunk_sums."""
    n, m, k = (int(rng.integers(1, 9)) for _ in range(3))
    a = ts.placeholder((n, k, 3), "float16", name="A")
    b = ts.placeholder((k, 3, m), "float16", name="B")
    r, q = ts.reduce_axis(k, name="k"), ts.reduce_axis(3, name="q")
    left, right = (lambda *i, t=t: ts.cast(t[i], "float32") for t in (a, b))
    c = ts.compute(
        (n, m), lambda i, j: ts.sum(left(i, r, q) * right(r, q, j), axis=[r, q]), name="C"
    )
    d = ts.compute((n, m), lambda i, j: ts.cast(c[i, j], "float16"), name="D")
    return ts.function([a, b, d])


PROGRAMS = (elementwise, lookup, matmul, convolution, groups, pixels, weighted, halves)


def case(seed: int) -> tuple[Function, Schedule]:
    rng = np.random.default_rng([23, seed])
    func = PROGRAMS[seed % len(PROGRAMS)](rng)
    return func, random_trace(func, rng, int(rng.integers(1, 9)), EVERY_WEIGHTS, max_work=1500)


CASES, BATCH = by_turns(50, 150), 25


@pytest.mark.parametrize("batch", range(0, len(CASES), BATCH))
def test_wide_programs_keep_their_meaning(batch):
    for seed in CASES[batch : batch + BATCH]:
        func, sch = case(seed)
        assert_same_meaning(func, sch.func)
        again = Trace.from_json(sch.trace.to_json())
        assert again == sch.trace
        assert again.apply(func) == sch.func


def test_every_primitive_is_drawn_and_accepted():
    assert EVERY_WEIGHTS.keys() == {p.name for p in PRIMITIVES}
    used: Counter[str] = Counter()
    for seed in range(400):
        used.update(s.name for s in case(seed)[1].trace)
        if not EVERY_WEIGHTS.keys() - used.keys():
            break
    assert EVERY_WEIGHTS.keys() - used.keys() <= {"pipeline"}
