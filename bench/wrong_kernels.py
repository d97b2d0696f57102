"""Kernels that compute something else than they should: pairs of Functions with the same signature,
of which the second has one mistake. The check of candidates has to tell them apart on every device.

`difference` runs a kernel on the inputs of the check; `python -m bench.gpu faults` does on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

import tilesmith as ts
from bench.gpu_cases import device as device_named
from tilesmith.measure.child.check import expected_outputs
from tilesmith.measure.child.task_arrays import TaskArrays

FLOATS = ("float32", "float16", "bfloat16", "float64")
Build = Callable[[bool], ts.Function]  # with whether the mistake is made


@dataclass(frozen=True, slots=True)
class WrongKernel:
    name: str
    right: ts.Function
    wrong: ts.Function


def difference(
    right: ts.Function, kernel: Callable[..., Any], seed: int = 0, way: str = ""
) -> str | None:
    """Where the results of a kernel differ from those of a Function, on all draws of inputs that
    candidates for it are checked on; None if the check would accept it. The kernel rounds in a
    `way` of ir/error_bounds.py.
    """
    arrays = TaskArrays(right, ("", way) if way else ("",))
    why = arrays.fill(seed)
    assert why is None, why
    for case in arrays.cases:
        got = kernel(*case.inputs)
        results = got if isinstance(got, tuple) else (got,)
        expected = expected_outputs(right, case.outputs, case.limits[way])
        for b, result in zip(right.outputs, results, strict=True):
            text = expected[b.name].differs(np.asarray(result))
            if text is not None:
                return f"{case.draw.kind}: {text}"
    return None


def told_apart(number: int, device: str) -> tuple[str, str | None, str | None]:
    """Of one pair, on a GPU (cuda, opencl): its name, and what the check says of the right kernel
    and of the wrong one.
    """
    pair = next(islice(wrong_kernels(), number, None))
    target = device_named(device)
    right, wrong = (
        difference(pair.right, ts.build(func, target)) for func in (pair.right, pair.wrong)
    )
    return pair.name, right, wrong


def wrong_kernels() -> Iterator[WrongKernel]:
    for name, build in (*_products(), *_rows(), *_windows(), *_elementwise(), *_integers()):
        yield WrongKernel(name, build(False), build(True))


Mistake = Callable[[Any, Any, Any], Any]  # a term of a sum, its number and how many there are


def _product(
    dtype: str, k: int, wrong: bool, term: Mistake | None = None,
    end: Callable[[Any, Any, Any], Any] | None = None, right_end: Any = None,
    acc: str = "", wrong_acc: str = "", shape: tuple[int, int] = (19, 23),
) -> ts.Function:  # fmt: skip
    """A @ B with terms, a result (`end`, of the sum and its indices) or a type that are wrong."""
    m, n = shape
    a, b = ts.placeholder((m, k), dtype, name="A"), ts.placeholder((k, n), dtype, name="B")
    wide = acc or ("float64" if dtype == "float64" else "float32")
    inner = (wrong and wrong_acc) or wide
    r = ts.reduce_axis(k, name="k")

    def body(i: Any, j: Any) -> Any:
        t = ts.cast(a[i, r], inner) * ts.cast(b[r, j], inner)
        return ts.cast(ts.sum(term(t, r, k) if wrong and term else t, axis=r), wide)

    c = ts.compute((m, n), body, name="C")
    last = (end if wrong and end else right_end) or (lambda v, i, j: v)
    d = ts.compute((m, n), lambda i, j: ts.cast(last(c[i, j], i, j), dtype), name="D")
    return ts.function([a, b, d], name="product")


def _products() -> Iterator[tuple[str, Build]]:
    terms: dict[str, Mistake] = {
        "without the last k": lambda t, r, k: ts.where(r < k - 1, t, 0),
        "without the first k": lambda t, r, k: ts.where(r > 0, t, 0),
        "without one k": lambda t, r, k: ts.where(ts.cast(r, "int32") != k // 3, t, 0),
        "with the last k twice": lambda t, r, k: ts.where(r < k - 1, t, t * 2),
    }
    ends: dict[str, Mistake] = {
        "of zeros": lambda v, i, j: v * 0,
        "with the other sign": lambda v, i, j: -v,
        "with a last row of zeros": lambda v, i, j: ts.where(i < 18, v, 0),
        "with one element off": lambda v, i, j: ts.where((i < 18) | (j < 22), v, v * 1.05 + 0.05),
    }
    for dtype in FLOATS:
        for k in (768, 4096):
            for name, term in terms.items():
                yield f"{dtype} product, K = {k}, {name}", _of(dtype, k, term=term)
        for name, end in ends.items():
            yield f"{dtype} product {name}", _of(dtype, 768, end=end)

    def bias(v: Any, i: Any, j: Any) -> Any:
        return v + 0.1

    def relu(v: Any, i: Any, j: Any) -> Any:
        return ts.maximum(v, 0)

    for dtype in ("float16", "bfloat16", "float32"):
        yield (
            f"{dtype} product + 0.1 of zeros",
            _of(dtype, 768, right_end=bias, end=lambda v, i, j: v * 0 + 0.1),
        )
        yield f"{dtype} product without + 0.1", _of(dtype, 33, right_end=bias, end=_same)
        yield f"{dtype} product without its relu", _of(dtype, 96, right_end=relu, end=_same)
        yield (
            f"{dtype} relu clipped at 2",
            _of(dtype, 96, right_end=relu,
                end=lambda v, i, j: ts.minimum(ts.maximum(v, 0), 2)),
        )  # fmt: skip
        yield (
            f"{dtype} tanh of a product without the last k",
            _of(dtype, 768, term=terms["without the last k"], right_end=_tanh, end=_tanh),
        )
    yield "float32 product summed in float16", _of("float32", 512, wrong_acc="float16")
    for dtype in ("float16", "bfloat16"):
        yield f"{dtype} product whose partial sums are rounded", _partial_sums(dtype)
    for acc in ("float16", "bfloat16"):  # sums are stated in 16 bits
        for name, term in terms.items():
            yield f"{acc} product stated in {acc}, {name}", _of(acc, 640, term=term, acc=acc)
        zeros = ends["of zeros"]
        yield f"{acc} product stated in {acc} of zeros", _of(acc, 640, acc=acc, end=zeros)
    yield (
        "one sum of a million terms without the last",
        lambda wrong: _product("float32", 1 << 20, wrong, terms["without the last k"],
                               shape=(1, 1)),
    )  # fmt: skip


def _partial_sums(dtype: str) -> Build:
    def build(wrong: bool) -> ts.Function:
        m, n, k, part = 19, 23, 512, 8
        a, b = ts.placeholder((m, k), dtype, name="A"), ts.placeholder((k, n), dtype, name="B")
        r, s = ts.reduce_axis(part, name="r"), ts.reduce_axis(k // part, name="s")

        def term(i: Any, j: Any, p: Any) -> Any:
            return ts.cast(a[i, p], "float32") * ts.cast(b[p, j], "float32")

        c = ts.compute(
            (m, n, k // part),
            lambda i, j, q: ts.sum(term(i, j, q * part + r), axis=r),
            name="C",
        )

        def total(i: Any, j: Any) -> Any:
            piece = ts.cast(c[i, j, s], dtype) if wrong else c[i, j, s]
            return ts.cast(ts.sum(ts.cast(piece, "float32"), axis=s), dtype)

        return ts.function([a, b, ts.compute((m, n), total, name="D")], name="product")

    return build


def _same(v: Any, i: Any, j: Any) -> Any:
    return v


def _tanh(v: Any, i: Any, j: Any) -> Any:
    return ts.tanh(v)


def _of(dtype: str, k: int, **parts: Any) -> Build:
    return lambda wrong: _product(dtype, k, wrong, **parts)


def _rows() -> Iterator[tuple[str, Build]]:
    """Softmax, norms and other reductions of rows, of which some columns are left out."""
    for dtype in FLOATS:
        for missing in (1, 256, 512):
            yield f"{dtype} softmax without {missing} of 1024", _softmax(dtype, missing)
        yield f"{dtype} layer norm without half of its variance", _layer_norm(dtype, 512, 0)
        yield f"{dtype} layer norm with a mean of one element less", _layer_norm(dtype, 0, 1)
    for dtype in ("float32", "bfloat16"):
        yield f"{dtype} maximum of a row and 0", _maximum(dtype, True)
        yield f"{dtype} maximum without the last column", _maximum(dtype, False)
    yield "the last of equal maxima", _argmax
    yield "a sum that begins at 1", _sum_from_one


def _softmax(dtype: str, missing: int) -> Build:
    def build(wrong: bool) -> ts.Function:
        m, n = 96, 1024
        x = ts.placeholder((m, n), dtype, name="X")
        r, q = ts.reduce_axis(n, name="r"), ts.reduce_axis(n, name="q")
        top = ts.compute((m,), lambda i: ts.amax(ts.cast(x[i, r], "float32"), axis=r), name="top")
        e = ts.compute(
            (m, n), lambda i, j: ts.exp(ts.cast(x[i, j], "float32") - top[i]), name="e"
        )  # fmt: skip
        kept = n - missing if wrong else n
        total = ts.compute(
            (m,), lambda i: ts.sum(ts.where(q < kept, e[i, q], 0), axis=q), name="total"
        )
        y = ts.compute((m, n), lambda i, j: ts.cast(e[i, j] / total[i], dtype), name="Y")
        return ts.function([x, y], name="softmax")

    return build


def _layer_norm(dtype: str, without: int, fewer: int) -> Build:
    def build(wrong: bool) -> ts.Function:
        m, n = 16, 1024
        x = ts.placeholder((m, n), dtype, name="X")
        r, q = ts.reduce_axis(n, name="r"), ts.reduce_axis(n, name="q")
        of_mean, of_variance = (n - fewer, n - without) if wrong else (n, n)

        def wide(i: Any, j: Any) -> Any:
            return ts.cast(x[i, j], "float32")

        def total(i: Any) -> Any:
            return ts.sum(ts.where(r < of_mean, wide(i, r), 0), axis=r) / n

        mean = ts.compute((m,), total, name="mean")

        def square(i: Any, j: Any) -> Any:
            return (wide(i, j) - mean[i]) * (wide(i, j) - mean[i])

        variance = ts.compute(
            (m,), lambda i: ts.sum(ts.where(q < of_variance, square(i, q), 0), axis=q) / n,
            name="variance",
        )  # fmt: skip
        y = ts.compute(
            (m, n),
            lambda i, j: ts.cast((wide(i, j) - mean[i]) * ts.rsqrt(variance[i] + 1e-5), dtype),
            name="Y",
        )
        return ts.function([x, y], name="layer_norm")

    return build


def _maximum(dtype: str, from_zero: bool) -> Build:
    def build(wrong: bool) -> ts.Function:
        m, n = 64, 33
        x, r = ts.placeholder((m, n), dtype, name="X"), ts.reduce_axis(n, name="r")

        def body(i: Any) -> Any:
            if wrong and not from_zero:
                return ts.amax(ts.where(r < n - 1, x[i, r], x[i, 0]), axis=r)
            largest = ts.amax(x[i, r], axis=r)
            return ts.maximum(largest, 0) if wrong else largest

        return ts.function([x, ts.compute((m,), body, name="Y")], name="maximum")

    return build


def _argmax(wrong: bool) -> ts.Function:
    m, n = 64, 33
    x, r = ts.placeholder((m, n), name="X"), ts.reduce_axis(n, name="r")
    if not wrong:
        return ts.function([x, ts.compute((m,), lambda i: ts.argmax(x[i, r], r)[1], name="Y")])
    back = ts.compute((m,), lambda i: ts.argmax(x[i, n - 1 - r], r)[1], name="back")
    y = ts.compute((m,), lambda i: n - 1 - back[i], name="Y")
    return ts.function([x, y])


def _sum_from_one(wrong: bool) -> ts.Function:
    x, r = ts.placeholder((4, 5000), name="X"), ts.reduce_axis(5000, name="r")
    total = ts.compute((4,), lambda i: ts.sum(x[i, r], axis=r) + (1 if wrong else 0), name="Y")
    return ts.function([x, total])


def _windows() -> Iterator[tuple[str, Build]]:
    for dtype in ("float32", "float16", "bfloat16", "int8"):
        yield f"{dtype} convolution without a tap at the border", _convolution(dtype, "border")
        yield f"{dtype} convolution upside down", _convolution(dtype, "row")
        yield f"{dtype} convolution without the last channel", _convolution(dtype, "channel")


def _convolution(dtype: str, mistake: str) -> Build:
    def build(wrong: bool) -> ts.Function:
        size, ci, co = 12, 20, 9
        kind = "int32" if dtype == "int8" else "float32"
        x = ts.placeholder((size, size, ci), dtype, name="X")
        w = ts.placeholder((3, 3, ci, co), dtype, name="W")
        kh, kw = ts.reduce_axis(3, name="kh"), ts.reduce_axis(3, name="kw")
        c = ts.reduce_axis(ci, name="c")
        padded = ts.compute(
            (size + 2, size + 2, ci),
            lambda h, v, q: ts.where(
                (h > 0) & (h <= size) & (v > 0) & (v <= size), x[h - 1, v - 1, q], 0
            ),
            name="P",
        )

        def body(h: Any, v: Any, o: Any) -> Any:
            row = 2 - kh if wrong and mistake == "row" else kh  # upside down
            t = ts.cast(padded[h + row, v + kw, c], kind) * ts.cast(w[kh, kw, c, o], kind)
            if wrong and mistake == "border":
                t = ts.where((h < size - 1) | (v < size - 1) | (kh < 1) | (kw < 1), t, 0)
            if wrong and mistake == "channel":
                t = ts.where(c < ci - 1, t, 0)
            return ts.sum(t, axis=(kh, kw, c))

        y = ts.compute((size, size, co), body, name="Y")
        out = "int32" if dtype == "int8" else dtype
        z = ts.compute((size, size, co), lambda h, v, o: ts.cast(y[h, v, o], out), name="Z")
        return ts.function([x, w, z], name="convolution")

    return build


def _unary(
    dtype: str, right: Callable[[Any], Any], wrong: Callable[[Any], Any], n: int = 4000
) -> Build:
    def build(is_wrong: bool) -> ts.Function:
        x = ts.placeholder((n,), dtype, name="X")
        f = wrong if is_wrong else right
        return ts.function([x, ts.compute((n,), lambda i: f(x[i]), name="Y")], name="elementwise")

    return build


def _elementwise() -> Iterator[tuple[str, Build]]:
    def steep(v: Any) -> Any:
        return ts.exp(v * 8)

    yield (
        "exp(8x) is 0 below -0.4",
        _unary("float32", steep, lambda v: ts.where(v < -0.4, 0, steep(v))),
    )
    for dtype in ("float32", "float16", "bfloat16"):
        yield (
            f"{dtype} relu of NaN is 0",
            _unary(dtype, lambda v: ts.maximum(v, 0), lambda v: ts.where(v > 0, v, 0)),
        )
        yield (
            f"{dtype} infinity becomes a number",
            _unary(dtype, lambda v: v * 1, lambda v: ts.minimum(v, 6e4)),
        )
        yield (
            f"{dtype} wrong for negative numbers",
            _unary(dtype, lambda v: v + 1, lambda v: ts.where(v < 0, v, v + 1)),
        )
        yield (
            f"{dtype} wrong above 20",
            _unary(dtype, lambda v: v + 1, lambda v: ts.where(v > 20, v + 2, v + 1)),
        )
        yield (
            f"{dtype} wrong at 0",
            _unary(dtype, lambda v: v + 1, lambda v: ts.where(v == 0, 0, v + 1)),
        )
        yield (
            f"{dtype} small numbers become 0",
            _unary(dtype, lambda v: v * 2, lambda v: ts.where(ts.abs(v) < 1e-3, 0, v * 2)),
        )
    yield (
        "tanh is 1 above 3",
        _unary("float32", ts.tanh, lambda v: ts.where(v > 3, 1.0, ts.tanh(v))),
    )
    yield (
        "sqrt with an error of 1e-5",
        _unary("float32", lambda v: ts.sqrt(ts.abs(v)), lambda v: ts.sqrt(ts.abs(v)) * 1.00001),
    )
    yield (
        "float32 rounded to bfloat16",
        _unary(
            "float32", lambda v: v * 3, lambda v: ts.cast(ts.cast(v * 3, "bfloat16"), "float32")
        ),
    )
    yield (
        "float64 computed in float32",
        _unary("float64", lambda v: v * 3, lambda v: ts.cast(ts.cast(v, "float32") * 3, "float64")),
    )


def _integers() -> Iterator[tuple[str, Build]]:
    def as_bytes(v: Any, kind: str) -> Any:
        return ts.cast(ts.cast(v, kind), "int32")

    yield (
        "uint8 read as int8",
        _unary("uint8", lambda v: as_bytes(v, "uint8"), lambda v: as_bytes(v, "int8")),
    )
    yield (
        "int8 read as uint8",
        _unary("int8", lambda v: as_bytes(v, "int8"), lambda v: as_bytes(v, "uint8")),
    )
    yield (
        "int8 that saturates",
        _unary(
            "int8",
            lambda v: v + ts.cast(100, "int8"),
            lambda v: ts.cast(ts.minimum(ts.cast(v, "int32") + 100, 127), "int8"),
        ),
    )
    yield (
        "abs of -128 is 127",
        _unary(
            "int8",
            lambda v: ts.cast(ts.abs(ts.cast(v, "int32")), "int8"),
            lambda v: ts.cast(ts.minimum(ts.abs(ts.cast(v, "int32")), 127), "int8"),
        ),
    )
    yield (
        "int32 computed in int16",
        _unary(
            "int32",
            lambda v: v * 3,
            lambda v: ts.cast(ts.cast(v, "int16") * ts.cast(3, "int16"), "int32"),
        ),
    )
    yield (
        "wrong for odd integers",
        _unary("int32", lambda v: v + 1, lambda v: ts.where(v % 2 == 0, v + 1, v)),
    )
    yield (
        "one of a thousand integers is off",
        _unary(
            "float32",
            lambda v: ts.cast(ts.round(v * 10), "int32"),
            lambda v: ts.cast(ts.round(v * 10), "int32") + ts.where(ts.abs(v - 1) < 0.002, 2, 0),
            20000,
        ),
    )
    yield "a last row of 99", _last_row
    for mistake in ("half away from zero", "truncated", "without saturation", "off by one"):
        yield f"requantised {mistake}", _requantised(mistake)
    yield "int8 product summed in int16", _integer_product


def _last_row(wrong: bool) -> ts.Function:
    x = ts.placeholder((1001, 7), name="X")

    def body(i: Any, j: Any) -> Any:
        v = ts.cast(ts.round(x[i, j] * 10), "int32")
        return ts.where(i < 1000, v, 99) if wrong else v

    return ts.function([x, ts.compute((1001, 7), body, name="Y")])


def _requantised(mistake: str) -> Build:
    def build(wrong: bool) -> ts.Function:
        m, n, k = 64, 96, 40
        a, b = ts.placeholder((m, k), "int8", name="A"), ts.placeholder((k, n), "int8", name="B")
        r = ts.reduce_axis(k, name="k")
        c = ts.compute(
            (m, n),
            lambda i, j: ts.sum(ts.cast(a[i, r], "int32") * ts.cast(b[r, j], "int32"), axis=r),
            name="C",
        )

        def body(i: Any, j: Any) -> Any:
            v = ts.cast(c[i, j], "float32") * 2.0**-6
            if wrong and mistake == "half away from zero":
                q = ts.where(v < 0, ts.ceil(v - 0.5), ts.floor(v + 0.5))
            elif wrong and mistake == "truncated":
                q = ts.trunc(v)
            else:
                q = ts.round(v) + (1 if wrong and mistake == "off by one" else 0)
            if wrong and mistake == "without saturation":
                return ts.cast(ts.cast(q, "int32"), "int8")
            return ts.cast(ts.minimum(ts.maximum(q, -128), 127), "int8")

        return ts.function([a, b, ts.compute((m, n), body, name="Y")], name="requantised")

    return build


def _integer_product(wrong: bool) -> ts.Function:
    m, n, k = 9, 11, 64
    a, b = ts.placeholder((m, k), "int8", name="A"), ts.placeholder((k, n), "int8", name="B")
    r, kind = ts.reduce_axis(k, name="k"), "int16" if wrong else "int32"
    c = ts.compute(
        (m, n),
        lambda i, j: ts.cast(
            ts.sum(ts.cast(a[i, r], kind) * ts.cast(b[r, j], kind), axis=r), "int32"
        ),
        name="C",
    )
    return ts.function([a, b, c], name="integers")
