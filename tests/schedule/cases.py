"""The programs that the tests of the primitives schedule, and the checks they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import tilesmith as ts
from tests.support.meaning import assert_same_meaning
from tilesmith.ir.function import Function
from tilesmith.schedule.schedule import Schedule
from tilesmith.schedule.trace import Trace


def matmul_relu(m: int = 6, n: int = 7, k: int = 5, dtype: str = "float32") -> Function:
    a = ts.placeholder((m, k), dtype, name="A")
    b = ts.placeholder((k, n), dtype, name="B")
    r = ts.reduce_axis(k, name="k")
    c = ts.compute((m, n), lambda i, j: ts.sum(a[i, r] * b[r, j], axis=r), name="C")
    d = ts.compute((m, n), lambda i, j: ts.maximum(c[i, j], 0), name="D")
    return ts.function([a, b, d], name="matmul_relu")


def row_sum(m: int = 4, k: int = 11) -> Function:
    a = ts.placeholder((m, k), name="A")
    r = ts.reduce_axis(k, name="k")
    s = ts.compute((m,), lambda i: ts.sum(a[i, r], axis=r), name="S")
    return ts.function([a, s], name="row_sum")


def total(k: int = 11) -> Function:
    """A rank-0 output."""
    a = ts.placeholder((k,), name="A")
    r = ts.reduce_axis(k, name="k")
    s = ts.compute((), lambda: ts.sum(a[r] * a[r], axis=r), name="S")
    return ts.function([a, s], name="total")


def argmax(m: int = 3, k: int = 7) -> Function:
    """Two outputs of one reduction, and a block that reads one of them."""
    a = ts.placeholder((m, k), name="A")
    r = ts.reduce_axis(k, name="k")
    at, best = ts.compute((m,), lambda i: ts.argmax(a[i, r], axis=r), name="M")
    return ts.function([a, at, best], name="argmax")


def softmax(m: int = 4, k: int = 6) -> Function:
    x = ts.placeholder((m, k), name="X")
    r, q = ts.reduce_axis(k, name="r"), ts.reduce_axis(k, name="q")
    top = ts.compute((m,), lambda i: ts.amax(x[i, r], axis=r), name="top")
    e = ts.compute((m, k), lambda i, j: ts.exp(x[i, j] - top[i]), name="E")
    total = ts.compute((m,), lambda i: ts.sum(e[i, q], axis=q), name="total")
    out = ts.compute((m, k), lambda i, j: e[i, j] / total[i], name="out")
    return ts.function([x, out], name="softmax")


def conv(
    size: int = 9,
    taps: int = 3,
    stride: int = 2,
    pad: int = 1,
    dilation: int = 1,
    channels: int = 2,
    dtype: str = "float32",
) -> Function:
    """A padded 2-d convolution with a stage of its own for the zeros."""
    x = ts.placeholder((channels, size, size), dtype, name="X")
    w = ts.placeholder((3, channels, taps, taps), dtype, name="W")
    big = size + 2 * pad
    p = ts.compute(
        (channels, big, big),
        lambda c, y, z: ts.where(
            (y >= pad) & (y < size + pad) & (z >= pad) & (z < size + pad),
            x[c, y - pad, z - pad],
            0,
        ),
        name="P",
    )
    out = (big - dilation * (taps - 1) - 1) // stride + 1
    c = ts.reduce_axis(channels, name="c")
    r, s = ts.reduce_axis(taps, name="r"), ts.reduce_axis(taps, name="s")
    y = ts.compute(
        (3, out, out),
        lambda o, h, v: ts.sum(
            p[c, h * stride + r * dilation, v * stride + s * dilation] * w[o, c, r, s],
            axis=(c, r, s),
        ),
        name="Y",
    )
    return ts.function([x, w, y], name="conv")


def diamond(n: int = 6, m: int = 5) -> Function:
    """One producer, two consumers, and one that joins them."""
    x = ts.placeholder((n, m), name="X")
    p = ts.compute((n, m), lambda i, j: x[i, j] * 2, name="P")
    q = ts.reduce_axis(m, name="q")
    left = ts.compute((n,), lambda i: ts.sum(p[i, q], axis=q), name="L")
    right = ts.compute((n, m), lambda i, j: ts.tanh(p[i, j]), name="R")
    out = ts.compute((n, m), lambda i, j: right[i, j] + left[i], name="O")
    return ts.function([x, out], name="diamond")


def stencil(n: int = 8) -> Function:
    """A consumer that reads its neighbour's element too."""
    x = ts.placeholder((n,), name="X")
    p = ts.compute((n,), lambda i: x[i] * 2, name="P")
    c = ts.compute((n - 1,), lambda i: p[i] + p[i + 1], name="C")
    return ts.function([x, c], name="stencil")


def chain(n: int = 6, m: int = 4) -> Function:
    """Element for element, four times."""
    x = ts.placeholder((n, m), name="X")
    a = ts.compute((n, m), lambda i, j: x[i, j] + 1, name="A")
    b = ts.compute((n, m), lambda i, j: a[i, j] * 2, name="B")
    c = ts.compute((n, m), lambda i, j: b[i, j] - 3, name="C")
    d = ts.compute((n, m), lambda i, j: ts.tanh(c[i, j]), name="D")
    return ts.function([x, d], name="chain")


def gather(n: int = 5, m: int = 4, k: int = 6) -> Function:
    """Reads at indices that come from a tensor."""
    table = ts.placeholder((k, m), name="T")
    ids = ts.placeholder((n,), "int32", name="ids")
    twice = ts.compute((k, m), lambda i, j: table[i, j] * 2, name="P")
    g = ts.compute((n, m), lambda i, j: twice[ids[i], j], name="G")
    h = ts.compute((n, m), lambda i, j: g[i, j] + 1, name="H")
    return ts.function([table, ids, h], name="gather")


def bytes_matmul(m: int = 3, n: int = 8, k: int = 8) -> Function:
    """int8 times int8 into int32, then to float."""
    a = ts.placeholder((m, k), "int8", name="A")
    b = ts.placeholder((n, k), "int8", name="B")
    r = ts.reduce_axis(k, name="k")
    c = ts.compute(
        (m, n),
        lambda i, j: ts.sum(ts.cast(a[i, r], "int32") * ts.cast(b[j, r], "int32"), axis=r),
        name="C",
    )
    d = ts.compute((m, n), lambda i, j: ts.cast(c[i, j], "float32") * 0.5, name="D")
    return ts.function([a, b, d], name="bytes_matmul")


def chained_matmuls(m: int = 4, n: int = 5, k: int = 6, p: int = 3) -> Function:
    a, b = ts.placeholder((m, k), name="A"), ts.placeholder((k, n), name="B")
    w = ts.placeholder((n, p), name="W")
    r, q = ts.reduce_axis(k, name="k"), ts.reduce_axis(n, name="q")
    c = ts.compute((m, n), lambda i, j: ts.sum(a[i, r] * b[r, j], axis=r), name="C")
    e = ts.compute((m, p), lambda i, j: ts.sum(c[i, q] * w[q, j], axis=q), name="E")
    return ts.function([a, b, w, e], name="chained")


def assert_kept(sch: Schedule, parts: ts.Parts | None = None) -> None:
    """The schedule computes what its origin does, and its trace survives JSON."""
    assert_same_meaning(sch.origin, sch.func)
    again = Trace.from_json(sch.trace.to_json(), parts)
    assert again == sch.trace
    assert again.apply(sch.origin) == sch.func


@contextmanager
def refused(*words: str) -> Iterator[None]:
    """A ScheduleError whose message holds each of the words."""
    with pytest.raises(ts.ScheduleError) as caught:
        yield
    for word in words:
        assert word in str(caught.value), f"{word!r} is missing in: {caught.value}"


def refuse(func: Function, act: Callable[[Schedule], object], *words: str) -> None:
    """`act` ends in a refusal that says `words`, and the refused step changes nothing."""
    sch = Schedule(func)
    before: list[Function] = []
    apply = sch.apply

    def spy(step: object) -> None:
        before.append(sch.func)
        apply(step)  # type: ignore[arg-type]

    sch.apply = spy  # type: ignore[method-assign]
    with refused(*words):
        act(sch)
    if before:
        assert sch.func is before[-1]
