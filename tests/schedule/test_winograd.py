"""winograd: sums over windows of constant weights with fewer products, and the program means the
same.
"""

from __future__ import annotations

import numpy as np
import pytest
from cases import assert_kept, refuse

import tilesmith as ts
from tilesmith.cli.operators import operator
from tilesmith.ir.deserialize import function_from_json
from tilesmith.ir.function import find_block
from tilesmith.ir.prepare import Basis
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


@pytest.mark.parametrize(
    ("func", "taps", "results"),
    [
        (conv("conv2d", 9, 2, 3, 7, 2, 3), ("rh",), 2),
        (conv("conv2d", 9, 2, 3, 7, 2, 3), ("rh",), 4),  # five places are no multiple of four
        (conv("conv2d", 8, 2, 3, 3, 2, 1), ("rh", "rw"), 2),
        (conv("conv2d", 7, 2, 3, 5, 1, 2, layout="NCHW"), ("rw",), 3),
        (conv("conv2d", 6, 2, 3, 3, 1, 1), ("rh", "rw"), 4),
        (conv("conv1d", 17, 2, 3, 5, 3, 2), ("rw",), 2),  # two windows have two taps, one has one
        (conv("dilated-conv2d", 9, 2, 3, 3, 2, 2), ("rw", "rh"), 2),  # taps as far as places
        (conv("conv3d", 5, 1, 2, 5, 2, 2, 4), ("rd", "rh"), 2),
    ],
)
def test_longer_windows_and_strides(func: ts.Function, taps: tuple[str, ...], results: int) -> None:
    sch = Schedule(func)
    sch.winograd("Y", *taps, results=results)
    assert_kept(sch)
    again = sch.func
    assert function_from_json(function_to_json(again)) == again


def test_a_stride_parts_a_window_whose_products_are_summed() -> None:
    sch = Schedule(conv("conv1d", 224, 3, 8, 7, 2, 3))
    _, products = sch.winograd("Y", "rw", results=4)
    _, b = find_block(sch.func, products)
    extents = {i.name: (i.kind, i.extent.const) for i in b.iters}
    assert extents["rw"] == ("S", 7)
    assert extents["rw_phase"] == ("R", 2)
    assert extents["w"] == ("S", 28)
    assert len(b.domain) == 1  # 13 of 14 products for 4 results, which were 28


def test_zeros_may_be_left_out_along_other_windows() -> None:
    func = conv("conv3d", 5, 2, 2, 3, 1, 1, 4)
    sch = Schedule(func)
    sch.skip_zeros("Y", "rd")
    sch.winograd("Y", "rh", results=4)
    assert_kept(sch)

    def along_the_same(s):
        s.skip_zeros("Y", "rh")
        s.winograd("Y", "rh")

    refuse(func, along_the_same, "winograd Y", "some taps of rh are skipped")


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
    x, w = (rng.standard_normal([n.number for n in b.shape], np.float32) for b in func.inputs)
    ready = kernel.pack("W", w)
    assert ready.shape == (1, 4, 4, 3, 4)
    np.testing.assert_allclose(kernel(x, ready), ts.evaluate(func, x, w), rtol=1e-5, atol=1e-5)
    with pytest.raises(ts.ArgumentError, match=r"not packed; pass kernel.pack\('W', x\)"):
        kernel(x, w)
    with pytest.raises(ts.ArgumentError, match=r"wants \[3, 3, 3, 4\]"):
        kernel.pack("W", np.zeros((4, 4, 3, 4), np.float32))


def test_winograd_refuses():
    none = "are no windows of constant weights"
    f = conv("conv2d", 6, 2, 3, 3, 1, 1)
    refuse(f, lambda s: s.winograd("Y"), "winograd Y", "it has ['rh', 'rw']")
    refuse(f, lambda s: s.winograd("Y", "rc"), "winograd Y", none)
    far = conv("conv2d", 6, 2, 3, 3, 3, 1)  # no tap is used again
    refuse(far, lambda s: s.winograd("Y", "rw"), "winograd Y", none)
    apart = conv("dilated-conv2d", 8, 2, 3, 3, 1, 1)
    refuse(apart, lambda s: s.winograd("Y", "rw"), "winograd Y", none)
    refuse(f, lambda s: s.winograd("Y", "rw", "rw"), "winograd Y", "names a window twice")
    refuse(f, lambda s: s.winograd("Y", "rw", results=0), "winograd Y", "0 results")
    many = "16 results of 3 taps of rw take too many products"
    refuse(f, lambda s: s.winograd("Y", "rw", results=16), "winograd Y", many)
    changing = operator("conv2d", (6, 2, 3, 3, 1, 1), "NHWC")
    refuse(changing, lambda s: s.winograd("Y", "rw"), "winograd Y", none)

    def after_split(s):
        s.split("Y.w", [None, 2])
        s.winograd("Y", "rw")

    refuse(f, after_split, "winograd Y", "they were cut; do this first")

    def twice_along_one(s):
        s.winograd("Y", "rw")
        s.winograd("Y.products", "rw")

    refuse(f, twice_along_one, "winograd Y.products", none)


@pytest.mark.parametrize(("size", "layout"), [(5, "NHWC"), (8, "NCHW")])
def test_one_window_after_the_other(size: int, layout: str) -> None:
    func = conv("conv2d", size, 1, 2, 3, 1, 1, layout=layout)
    sch = Schedule(func)
    sch.winograd("Y", "rh", results=4)
    sch.winograd("Y.products", "rw", results=4)
    (weights,) = (b for b in sch.func.inputs if b.prepared)
    (basis,) = weights.prepared
    assert isinstance(basis, Basis)
    assert len(basis.matrices) == 2
    assert weights.given_shape == func.all_buffers[weights.name].shape
    assert_kept(sch)
    again = sch.func
    assert function_from_json(function_to_json(again)) == again
