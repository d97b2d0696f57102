"""winograd: sums over windows of three weights with fewer products, and the program means the
same.
"""

from __future__ import annotations

import numpy as np
import pytest
from cases import assert_kept, refuse

import tilesmith as ts
from tilesmith.cli.operators import operator
from tilesmith.ir.dependence import find_block
from tilesmith.ir.deserialize import function_from_json
from tilesmith.ir.serialize import function_to_json
from tilesmith.schedule.schedule import Schedule


def conv(name: str, *shape: int, layout: str = "NHWC") -> ts.Function:
    return operator(name, shape, layout, prepared=True)


@pytest.mark.parametrize(
    ("func", "taps"),
    [
        (conv("conv2d", 4, 2, 3, 3, 1, 1), ("rh", "rw")),
        (conv("conv2d", 5, 2, 3, 3, 1, 1), ("rh", "rw")),  # an odd number of places
        (conv("conv2d", 7, 2, 3, 3, 1, 0, layout="NCHW"), ("rw",)),
        (conv("conv1d", 6, 2, 3, 3, 1, 1), ("rw",)),
        (conv("conv3d", 3, 2, 2, 3, 1, 1, 2), ("rd", "rh", "rw")),
        (conv("conv3d", 3, 2, 2, 3, 1, 1, 4), ("rd", "rw")),
        (conv("group-conv2d", 4, 4, 4, 3, 1, 1, 2), ("rh", "rw")),
        (conv("conv2d-bn-relu", 4, 2, 3, 3, 1, 1), ("rh", "rw")),
    ],
)
def test_the_meaning_stays(func: ts.Function, taps: tuple[str, ...]) -> None:
    sch = Schedule(func)
    sch.winograd("Y", *taps)
    assert_kept(sch)
    again = sch.func
    assert function_from_json(function_to_json(again)) == again


def test_winograd(golden):
    sch = Schedule(conv("conv1d", 6, 2, 3, 3, 1, 0))
    tiles, products = sch.winograd("Y", "rw")
    golden(sch.func)
    _, b = find_block(sch.func, products)
    places = [i.extent.const for i in b.iters if i.name in ("rw", "w")]
    assert places == [4, 2]  # 8 products for 4 results, which were 12
    assert sch.blocks == (tiles, products, "Y")


def test_the_weights_are_brought_into_their_basis_ahead() -> None:
    func = conv("conv2d", 6, 3, 4, 3, 1, 1)
    sch = Schedule(func)
    _, products = sch.winograd("Y", "rh", "rw")
    sch.transform_layout("W", lambda r, s, c, f: (f // 4, r, s, c, f % 4))
    sch.vectorize(sch.loops(products)[-2])
    kernel = ts.build(sch, ts.cpu(1))
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal([n.const or 0 for n in b.shape], np.float32) for b in func.inputs)
    ready = kernel.pack("W", w)
    assert ready.shape == (1, 4, 4, 3, 4)
    np.testing.assert_allclose(kernel(x, ready), ts.evaluate(func, x, w), rtol=1e-5, atol=1e-5)
    with pytest.raises(ts.ArgumentError, match=r"not packed; pass kernel.pack\('W', x\)"):
        kernel(x, w)
    with pytest.raises(ts.ArgumentError, match=r"wants \[3, 3, 3, 4\]"):
        kernel.pack("W", np.zeros((4, 4, 3, 4), np.float32))


def test_winograd_refuses():
    none = "are no windows of three constant weights"
    f = conv("conv2d", 6, 2, 3, 3, 1, 1)
    refuse(f, lambda s: s.winograd("Y"), "winograd Y", "it has ['rh', 'rw']")
    refuse(f, lambda s: s.winograd("Y", "rc"), "winograd Y", none)
    refuse(conv("conv2d", 6, 2, 3, 3, 2, 1), lambda s: s.winograd("Y", "rw"), "winograd Y", none)
    refuse(conv("conv2d", 6, 2, 3, 5, 1, 1), lambda s: s.winograd("Y", "rw"), "winograd Y", none)
    changing = operator("conv2d", (6, 2, 3, 3, 1, 1), "NHWC")
    refuse(changing, lambda s: s.winograd("Y", "rw"), "winograd Y", none)

    def after_split(s):
        s.split("Y.w", [None, 2])
        s.winograd("Y", "rw")

    refuse(f, after_split, "winograd Y", "they were cut; do this first")

    def twice(s):
        s.winograd("Y", "rw")
        s.winograd("Y.products", "rh")

    refuse(f, twice, "winograd Y.products", none)
