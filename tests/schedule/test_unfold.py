"""unfold makes a product of matrices of a sum over windows, and merge_tiles runs what stores its
result in the order of its rows.
"""

from __future__ import annotations

import numpy as np
import pytest
from cases import assert_kept, refuse, softmax

import tilesmith as ts
from tilesmith.ir.function import Function
from tilesmith.ir.lookup import find_block
from tilesmith.schedule.schedule import Schedule
from tilesmith.testing.meaning import assert_close
from tilesmith.testing.programs import random_inputs


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
