"""unfold makes a product of matrices of a sum over windows, and merge_tiles runs what stores its
result in the order of its rows.
"""

from __future__ import annotations

import numpy as np
import pytest
from cases import assert_kept, refuse, softmax

import tilesmith as ts
from tests.support.meaning import assert_close
from tests.support.programs import random_inputs
from tilesmith.ir.function import Function, find_block
from tilesmith.schedule.schedule import Schedule


def windows(stride: int = 1, padding: int = 1, layout: str = "NHWC") -> Function:
    last = layout == "NHWC"
    x = ts.placeholder((2, 5, 6, 3) if last else (2, 3, 5, 6), name="X")
    w = ts.placeholder((3, 3, 3, 2) if last else (2, 3, 3, 3), name="W")
    y = ts.ops.conv2d(x, w, stride, padding, layout=layout, name="Y")
    z = ts.compute(y.shape, lambda *at: ts.maximum(y[at], 0), name="Z", axes=list("abcd"))
    return ts.function([x, w, z], name="windows")


def test_unfold(golden):
    sch = Schedule(windows())
    rows = {"n": 1, "h": 4, "w": 2}
    assert sch.unfold("Y", rows, {"rh": 1, "rw": 1, "rc": 3}) == "Y.rows"
    sch.inline("Y")
    assert sch.merge_tiles("Z", {"a": 1, "b": 4, "c": 2}) == "Z.a_b_c"
    golden(sch.func)
    assert_kept(sch)
    product, after = (find_block(sch.func, n)[1] for n in ("Y.rows", "Z"))
    assert [str(p) for x in product.loads for p in x.index] == ["n_h_w", "rh_rw_rc"] + [
        "rh_rw_rc", "f"
    ]  # fmt: skip
    assert [str(p) for x in after.loads for p in x.index] == ["a_b_c", "d"]


@pytest.mark.parametrize(
    ("stride", "padding", "layout", "tile"),
    [(1, 1, "NCHW", (1, 2, 4)), (2, 1, "NHWC", (2, 3, 1)), (2, 0, "NCHW", (3, 1, 3))],
)
def test_any_tiles_compute_the_same(stride, padding, layout, tile):
    func = windows(stride, padding, layout)
    arrays = random_inputs(func, np.random.default_rng(0))
    sch = Schedule(func)
    sch.unfold("Y", dict(zip("nhw", tile, strict=True)), {"rh": 1, "rc": 2, "rw": 1})
    sch.inline("Y")
    sch.merge_tiles("Z", dict(zip("abc" if layout == "NHWC" else "acd", tile, strict=True)))
    assert_close(ts.build(sch)(*arrays), ts.evaluate(func, *arrays))


def test_what_is_refused():
    func = windows()
    terms = {"rh": 1, "rw": 1, "rc": 3}
    refuse(func, lambda s: s.unfold("Y", {"n": 1, "q": 4}, terms), "q in tiles of 4")
    refuse(func, lambda s: s.unfold("Y", {"rh": 1}, terms), "its spatial iterators of known extent")
    refuse(func, lambda s: s.unfold("Y", {}, terms), "name iterators, each once")
    refuse(func, lambda s: s.unfold("Z", {"a": 1}, {}), "it is not a sum")
    # Rows of the window beyond its end would meet rows of the image that are not zero.
    refuse(func, lambda s: s.unfold("Y", {"h": 4}, {"rh": 2}), "cannot be padded by zeros")
    refuse(func, lambda s: s.merge_tiles("Y", {"n": 1, "h": 4}), "it is a reduction")
    refuse(softmax(), lambda s: s.unfold("top", {"i": 2}, {"r": 2}), "it is not a sum")

    def late(s: Schedule) -> None:
        s.split("Y.h", (None, 2))
        s.unfold("Y", {"h": 4}, terms)

    refuse(func, late, "before its loops are scheduled")


def over_terms(term, dtype: str = "float32") -> Function:
    """Sums of terms(x, w, i, r) over 5 of r: tiles of 2 are padded."""
    x, w = ts.placeholder((7, 5), dtype, name="X"), ts.placeholder((5, 3), dtype, name="W")
    r = ts.reduce_axis(5, name="r")
    y = ts.compute((7, 3), lambda i, j: ts.sum(term(x[i, r], w[r, j], i, r), axis=r), name="Y")
    return ts.function([x, w, y], name="over_terms")


def change(func: Function, primitive: str, terms: int) -> Schedule:
    sch = Schedule(func)
    if primitive == "unfold":
        sch.unfold("Y", {"i": 2}, {"r": terms})
    else:
        sch.pad("Y", {"i": 2, "r": terms})
    return sch


ZERO_TERMS = {
    "product": lambda a, b, i, r: a * b,
    "square": lambda a, b, i, r: (a - b) * (a - b),
    "function": lambda a, b, i, r: ts.tanh(a) * b,
    "comparison": lambda a, b, i, r: ts.where(a > b, 1.0, 0.0),
    "guard": lambda a, b, i, r: ts.where(i + r >= 1, a * b, 0.0),
    "number": lambda a, b, i, r: a * ts.cast(i + 2 * r, "float32"),
}
OTHER_TERMS = {
    "sum": lambda a, b, i, r: a * b + 1,
    "exponential": lambda a, b, i, r: ts.exp(a + b),
    "equality": lambda a, b, i, r: ts.where(a == b, 1.0, 0.0),
    "quotient": lambda a, b, i, r: a * (1 / b),  # 0 * inf
    "position": lambda a, b, i, r: a * b + ts.cast(r, "float32"),
    "otherwise": lambda a, b, i, r: ts.where(i + r >= 1, a * b, 1.0),
}


@pytest.mark.parametrize("primitive", ["unfold", "pad"])
@pytest.mark.parametrize("term", ZERO_TERMS.values(), ids=ZERO_TERMS)
def test_terms_that_are_zero_are_padded(term, primitive):
    for terms in (2, 5):
        sch = change(over_terms(term), primitive, terms)
        assert_kept(sch)
        arrays = random_inputs(sch.origin, np.random.default_rng(0))
        assert_close(ts.build(sch)(*arrays), ts.evaluate(sch.origin, *arrays))


@pytest.mark.parametrize("primitive", ["unfold", "pad"])
@pytest.mark.parametrize("term", OTHER_TERMS.values(), ids=OTHER_TERMS)
def test_terms_that_are_not_zero_are_padded_by_nothing(term, primitive):
    func = over_terms(term)
    with pytest.raises(ts.ScheduleError, match="would change the result"):
        change(func, primitive, 2)
    assert_kept(change(func, primitive, 5))


@pytest.mark.parametrize("primitive", ["unfold", "pad"])
def test_zero_times_what_may_be_infinite_is_not_zero(primitive):
    """An operand that does not run over the terms stays as it is where they are padded."""

    def scaled(dtype: str) -> Function:
        x, s = ts.placeholder((7, 5), dtype, name="X"), ts.placeholder((7,), dtype, name="S")
        r = ts.reduce_axis(5, name="r")
        return ts.function(
            [x, s, ts.compute((7,), lambda i: ts.sum(x[i, r] * s[i], axis=r), name="Y")]
        )

    with pytest.raises(ts.ScheduleError, match="would change the result"):
        change(scaled("float32"), primitive, 2)
    assert_kept(change(scaled("int32"), primitive, 2))


def test_a_sum_over_a_part_of_an_operand_is_not_padded():
    """What lies behind the last term is the operand's next element, not a zero."""
    x, r = ts.placeholder((12,), name="X"), ts.reduce_axis(10, name="r")
    func = ts.function([x, ts.compute((), lambda: ts.sum(x[r] * x[r], axis=r), name="Y")])
    refuse(func, lambda s: s.pad("Y", {"r": 4}), "would change the result")
