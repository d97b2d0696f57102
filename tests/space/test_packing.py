"""Layouts of operands: tiles are read from front to back, and packed programs mean the same."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from suite import SMALL
from test_properties import Guarded, legal_variants, offspring

import tilesmith as ts
from tests.support.meaning import assert_close
from tests.support.thorough import drawn
from tilesmith.cli.operators import operator
from tilesmith.ir.function import find_block
from tilesmith.ir.nodes import Block
from tilesmith.schedule.cache import CacheRead, CacheWrite
from tilesmith.schedule.iterators import SplitIterator
from tilesmith.schedule.layout import TransformLayout
from tilesmith.space.spaces import SketchSpace, variants
from tilesmith.space.tiling import layout_of

INNER = dict.fromkeys(("n", "b", "h", "i", "j", "w", "f"), "#t")


def block_of(name: str, layout: str | None = None, block: str = "Y") -> Block:
    return find_block(operator(name, SMALL[name], layout), block)[1]


def test_a_matrix_lies_in_panels() -> None:
    b = block_of("matmul", block="C")
    assert layout_of(b, "B", "j", INNER) == ("d1 // #t", "d0", "d1 % #t")
    assert layout_of(b, "A", "j", INNER) == ("d0 // #t", "d1", "d0 % #t")


def test_the_vector_goes_last_whatever_the_order_of_dimensions() -> None:
    b = block_of("transpose-batch-matmul", block="S")  # K[b, j, h, k]
    assert layout_of(b, "K", "j", INNER) == (
        "d0 // #t", "d2 // #t", "d1 // #t", "d3", "d0 % #t", "d2 % #t", "d1 % #t",
    )  # fmt: skip
    b = block_of("conv2d", "NCHW")  # W[f, rc, rh, rw]
    assert layout_of(b, "W", "f", INNER) == ("d0 // #t", "d1", "d2", "d3", "d0 % #t")


def test_windows_have_no_tiles() -> None:
    b = block_of("conv2d", "NHWC")  # pad[n, 2*h + rh, 2*w + rw, rc]
    last = layout_of(b, "pad", "f", INNER)
    assert last == ("d0 // #t", "d1", "d2", "d3", "d0 % #t")


def test_what_vectors_read_in_strides_is_parted() -> None:
    b = block_of("conv2d", "NHWC")  # pad[n, 2*h + rh, 2*w + rw, rc]
    last = layout_of(b, "pad", "w", INNER)
    assert last == ("d0 // #t", "d1", "d3", "d2 % 2", "d0 % #t", "d2 // 2")


@pytest.mark.parametrize("stride", [2, 3])
def test_strided_filters_of_one_element_keep_their_meaning(stride: int) -> None:
    x = ts.placeholder((2, 5, 13, 15), name="X")
    w = ts.placeholder((7, 5, 1, 1), name="W")
    func = ts.function([x, w, ts.ops.conv2d(x, w, stride=stride, name="Y")])
    task, rng = ts.Task(func, ts.cpu(1)), np.random.default_rng(0)
    inputs = [rng.standard_normal([n.number for n in b.shape], np.float32) for b in func.inputs]
    want = np.einsum("nchw,fc->nfhw", inputs[0][:, :, ::stride, ::stride], inputs[1][..., 0, 0])
    parted = 0
    for sketch in SketchSpace().sketches(task):
        parted += f"% {stride}" in str(sketch)
        for v in islice(variants(task, sketch), 2):
            for row in v.sample(rng, 2):
                kernel = ts.build(v.candidate(row).trace.apply(func), ts.cpu(1))
                np.testing.assert_allclose(kernel(*inputs), want, rtol=1e-4, atol=1e-5)
    assert parted


def test_groups_lie_apart() -> None:
    func = operator("group-conv2d", SMALL["group-conv2d"], "NHWC")  # two groups of three
    b = find_block(SplitIterator("Y", "f", 3).apply(func), "Y")[1]
    inner = {"f_outer": "#g", "f_inner": "#t"}
    assert layout_of(b, "W", "f_inner", inner) == (
        "(d3 // 3) // #g", "(d3 % 3) // #t", "d0", "d1", "d2", "(d3 // 3) % #g", "(d3 % 3) % #t",
    )  # fmt: skip


def test_what_vectors_cannot_be_loaded_from_is_always_copied() -> None:
    task = ts.Task(operator("transpose-batch-matmul", (7, 3, 5)), ts.cpu(1))
    for sketch in SketchSpace().sketches(task):
        assert CacheRead("S", "K") in sketch.steps
    task = ts.Task(operator("matmul", (7, 3, 5)), ts.cpu(1))
    along = [s for s in SketchSpace().sketches(task) if CacheWrite("C", "local") not in s.steps]
    copied = [CacheRead("C", "B") in sketch.steps for sketch in along]
    assert sorted(copied) == [False, False, True, True]


def prepared(name: str, layout: str | None) -> ts.Function:
    return operator(name, SMALL[name], layout, prepared=True)


CONVOLUTIONS = [
    (name, layout)
    for name in SMALL
    if "conv" in name
    for layout in ((None,) if name == "capsule-conv2d" else ("NCHW", "NHWC"))
]


@pytest.mark.parametrize(("name", "layout"), CONVOLUTIONS)
def test_prepared_weights_are_not_copied_and_match_the_oracle(
    name: str, layout: str | None
) -> None:
    rng = np.random.default_rng([5, *map(ord, name)])
    task = ts.Task(prepared(name, layout), ts.cpu(2))
    arguments = Guarded(task.func, rng)
    sketches = SketchSpace().sketches(task)
    steps = [s for sketch in sketches for s in sketch.steps]
    assert not any(isinstance(s, CacheRead) and s.buffer == "W" for s in steps)
    assert any(isinstance(s, TransformLayout) and s.buffer == "W" for s in steps)
    for k in rng.integers(len(sketches), size=drawn(2, 3)):
        for v in legal_variants(task, sketches[k], rng, 1):
            for row in offspring(v, rng, 4)[:: drawn(9, 5)]:
                func = v.function(row)
                assert func == v.decided(row).apply(task.func)
                kernel = ts.build(func, task.target)
                names = [b.name for b in func.inputs]
                arrays = map(kernel.pack, names, arguments.inputs)
                assert_close(kernel(*arrays), arguments.want, f"{v.decided(row)}")


def test_a_constant_of_two_readers_stays_as_it_is() -> None:
    x, w = ts.placeholder((8, 8), name="X"), ts.placeholder((8, 8), name="W")
    y = ts.ops.matmul(ts.ops.matmul(x, w, name="T"), w, name="Y")
    task = ts.Task(ts.function([x, w, y], constants=[w]), ts.cpu(1))
    steps = [s for sketch in SketchSpace().sketches(task) for s in sketch.steps]
    assert not any(isinstance(s, TransformLayout) and s.buffer == "W" for s in steps)


def test_tuning_prepares_weights() -> None:
    func = prepared("conv2d", "NHWC")
    result = ts.tune(func, ts.cpu(1), budget=ts.Budget(trials=6), quiet=True)
    assert not result.failures, result.failures
    rng = np.random.default_rng(0)
    x, w = (rng.random(tuple(n.number for n in b.shape), np.float32) for b in func.inputs)
    kernel = result.kernel
    assert_close(kernel(x, kernel.pack("W", w)), ts.evaluate(func, x, w), "tuned")


def test_groups_that_tiles_do_not_divide_are_packed_ahead() -> None:
    """15 channels a group: every valid row lowers, and its kernel is right."""
    func = operator("group-conv2d", (4, 8, 60, 3, 1, 1), "NHWC", prepared=True)
    task, rng = ts.Task(func, ts.cpu(1)), np.random.default_rng(0)
    arrays = [rng.standard_normal([n.const for n in b.shape], np.float32) for b in func.inputs]
    want = ts.evaluate(func, *arrays)
    for sketch in SketchSpace().sketches(task):
        for v in legal_variants(task, sketch, rng, 1):
            rows = offspring(v, rng, 4)
            made = [v.decided(row).apply(func) for row in rows]
            kernel = ts.build(made[0], task.target)
            names = [b.name for b in func.inputs]
            assert_close(kernel(*map(kernel.pack, names, arrays)), want, f"{v.decided(rows[0])}")
