"""skip_zeros: a sum over windows leaves out what padding put in, and the program means the same."""

from __future__ import annotations

import numpy as np
import pytest
from cases import assert_kept, refuse

import tilesmith as ts
from tilesmith.cli.operators import operator
from tilesmith.ir.function import find_block
from tilesmith.ir.nodes import walk
from tilesmith.schedule.schedule import Schedule
from tilesmith.schedule.zeros import edges_of, share_of_zeros
from tilesmith.space.filtering import LeaveOutZeros


@pytest.mark.parametrize(
    ("name", "shape", "layout", "taps"),
    [
        ("conv2d", (6, 2, 3, 3, 1, 1), "NHWC", ("rh", "rw")),
        ("conv2d", (7, 2, 3, 3, 2, 1), "NCHW", ("rh",)),
        ("conv3d", (4, 2, 2, 3, 1, 1, 3), "NHWC", ("rd", "rh")),
        ("dilated-conv2d", (7, 2, 3, 3, 1, 2), "NHWC", ("rw",)),
        ("depthwise-conv2d", (5, 4, 3, 1, 1), "NHWC", ("rh", "rw")),
        ("group-conv2d", (5, 4, 4, 3, 1, 1, 2), "NHWC", ("rh", "rw")),
    ],
)
def test_the_meaning_stays(
    name: str, shape: tuple[int, ...], layout: str, taps: tuple[str, ...]
) -> None:
    sch = Schedule(operator(name, shape, layout))
    sch.skip_zeros("Y", *taps)
    assert_kept(sch)


def test_zeros_are_not_multiplied_with() -> None:
    """At the upper left corner the first weights meet nothing but zeros."""
    func = operator("conv2d", (5, 2, 3, 3, 1, 1), "NHWC")
    sch = Schedule(func)
    sch.skip_zeros("Y", "rh", "rw")
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal([n.number for n in b.shape], np.float32) for b in func.inputs)
    w[0, 0] = np.inf
    assert np.isnan(ts.interpret(func, x, w)[0, 0, 0]).all()
    for y in (ts.interpret(sch.func, x, w), ts.build(sch, ts.cpu(1))(x, w)):
        assert np.isfinite(y[0, 0, 0]).all()


def test_edges_know_how_much_they_leave_out() -> None:
    func = operator("conv3d", (224, 3, 64, 7, 2, 3), "NHWC")
    b = find_block(func, "Y")[1]
    extents = {i.name: i.extent.number for i in b.iters}
    edges = {e.tap: e for e in edges_of(func, b)}
    assert {t: e.places for t, e in edges.items()} == {"rd": ("d",), "rh": ("h",), "rw": ("w",)}
    assert share_of_zeros(edges["rd"], extents) == pytest.approx(6 / 56)
    assert share_of_zeros(edges["rh"], extents) == pytest.approx(6 / 784)


def transposed(n: int, kernel: int, stride: int, padding: int) -> ts.Function:
    x = ts.placeholder((1, n, n, 3), name="X")
    w = ts.placeholder((kernel, kernel, 3, 8), name="W")
    y = ts.ops.conv2d_transpose(x, w, stride=stride, padding=padding, layout="NHWC")
    return ts.function([x, w, y], constants=[w])


def test_a_transposed_convolution_has_phases_and_pixels() -> None:
    """Two outputs along each dimension have a neighbour less: of 8 times 2 taps, 2 meet zeros."""
    func = transposed(4, 4, 2, 1)
    (b,) = (b for _, b in walk(func.body) if b.reducing)
    extents = {i.name: i.extent.number for i in b.iters}
    edges = {e.tap: e for e in edges_of(func, b)}
    assert {t: e.places for t, e in edges.items()} == {"rh": ("p", "h"), "rw": ("q", "w")}
    assert share_of_zeros(edges["rw"], extents) == pytest.approx(2 / 16)
    sch = Schedule(func)
    sch.skip_zeros(b.name, "rh", "rw")
    assert_kept(sch)


@pytest.mark.parametrize(
    ("func", "taps"),
    [
        (transposed(4, 4, 2, 1), ("rh",)),  # the last dimension stays in the register tile
        (transposed(3, 4, 2, 1), ()),  # which would be too narrow here
        (transposed(1, 4, 1, 0), ("rh", "rw")),  # one tap of four is a product, along both
        (operator("conv2d", (14, 2, 8, 3, 1, 1), "NHWC"), ("rh",)),
        (operator("conv2d", (7, 2, 8, 3, 1, 1), "NHWC"), ()),
        (operator("conv2d", (56, 2, 8, 3, 1, 1), "NHWC"), ()),
    ],
)
def test_zeros_are_left_out_where_they_are_many(func: ts.Function, taps: tuple[str, ...]) -> None:
    (b,) = (b for _, b in walk(func.body) if b.reducing)
    assert LeaveOutZeros().taps(func, b) == taps


def test_skip_zeros_refuses():
    none = "no taps that meet the zeros of a padded operand"
    f = operator("conv2d", (6, 2, 3, 3, 1, 1), "NHWC")
    refuse(f, lambda s: s.skip_zeros("Y"), "zeros of Y", "it has ['rh', 'rw']")
    refuse(f, lambda s: s.skip_zeros("Y", "rc"), "zeros of Y", none)
    bare = operator("conv2d", (6, 2, 3, 3, 1, 0), "NHWC")
    refuse(bare, lambda s: s.skip_zeros("Y", "rh"), "zeros of Y", none)
    pool = operator("max-pool2d", (6, 2, 3, 2, 1))
    block = Schedule(pool).blocks[-1]
    refuse(pool, lambda s: s.skip_zeros(block, "rh"), none)


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 2, 0), (3, 2, 1), (4, 3, 1)])
def test_phases_with_fewer_taps_sum_fewer_products(kernel: int, stride: int, padding: int) -> None:
    func = transposed(4, kernel, stride, padding)
    sch = Schedule(func)
    (b,) = (b for _, b in walk(func.body) if b.reducing)
    weights = [x.buffer for x in b.loads][-1]
    sch.inline_padding(b.name, weights)
    assert_kept(sch)
    assert "W" in {x.buffer for x in find_block(sch.func, b.name)[1].loads}
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal([n.number for n in p.shape], np.float32) for p in func.inputs)
    x[0, 0, 0, 0] = np.inf  # and no product of it with zeros around the weights
    y = ts.interpret(sch.func, x, w)
    assert np.isfinite(y).sum() == y.size - min(kernel - padding, y.shape[1]) ** 2 * 8


def test_inline_padding_refuses() -> None:
    func = transposed(4, 3, 2, 1)
    (b,) = (b for _, b in walk(func.body) if b.reducing)
    none = "no padded operand"
    refuse(func, lambda s: s.inline_padding(b.name, "W"), "padding W", none)
    refuse(func, lambda s: s.inline_padding("pad", "X"), "padding X of pad", none)
