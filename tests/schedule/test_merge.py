"""merge_iterators: two axes that nothing tells apart become one, and the program means the same to
callers, who pass arrays as before.
"""

from __future__ import annotations

import numpy as np
import pytest
from cases import assert_kept, conv, matmul_relu, refuse, softmax

import tilesmith as ts
from tests.support.meaning import assert_close, assert_same_meaning
from tests.support.programs import random_inputs
from tests.support.traces import CPU_WEIGHTS, random_trace
from tilesmith.ir.deserialize import function_from_json
from tilesmith.ir.function import Function
from tilesmith.ir.prepare import Merge
from tilesmith.ir.serialize import function_to_json
from tilesmith.schedule.schedule import Schedule
from tilesmith.schedule.translate import Translation

Rng = np.random.Generator


def pointwise(n: int = 2, groups: int = 1, layout: str = "NCHW", prefix: str = "") -> Function:
    """A 1x1 convolution with a bias, a residual and a relu behind it."""
    first = layout == "NCHW"
    x = ts.placeholder((n, 4, 3, 5) if first else (n, 3, 5, 4), name=f"{prefix}X")
    w = ts.placeholder((6, 4 // groups, 1, 1) if first else (1, 1, 4 // groups, 6), name="W")
    bias = ts.placeholder((6,), name="B")
    y = ts.ops.conv2d(x, w, groups=groups, layout=layout, name=f"{prefix}Y")
    r = ts.placeholder(tuple(e.const for e in y.shape_ints), name="R")

    def behind(*at):
        return ts.maximum(y[at] + bias[at[1 if first else 3]] + r[at], 0)

    axes = ["n", "f", "h", "w"] if first else ["n", "h", "w", "f"]
    z = ts.compute(y.shape, lambda a, b, c, d: behind(a, b, c, d), name=f"{prefix}Z", axes=axes)
    return ts.function([x, w, bias, r, z], name="pointwise")


def test_merge_iterators(golden):
    sch = Schedule(pointwise())
    assert sch.merge_iterators("Y", "h", "w") == "Y.h_w"
    golden(sch.func)
    assert_kept(sch)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_arrays_of_callers_keep_their_shapes(layout, groups):
    func = pointwise(groups=groups, layout=layout)
    sch = Schedule(func)
    sch.merge_iterators("Y", "h", "w")
    arrays = random_inputs(func, np.random.default_rng(1))
    want = ts.evaluate(func, *arrays)
    kernel = ts.build(sch)
    assert [p.shape for p in kernel.artifact.parameters] == [
        *(a.shape for a in arrays),
        want.shape,
    ]
    assert_close(kernel(*arrays), want)
    assert_close(ts.evaluate(sch.func, *arrays), want)
    with pytest.raises(ts.ArgumentError, match=r"its shape must be \(2, "):
        kernel(arrays[0].reshape(2, 4, 15), *arrays[1:])
    with pytest.raises(ts.ArgumentError, match="has shape"):
        ts.interpret(sch.func, arrays[0].reshape(2, 4, 15), *arrays[1:])


def test_kernels_of_gpus_take_them_too():
    func = pointwise()
    sch = Schedule(func)
    sch.merge_iterators("Y", "h", "w")
    for block in "YZ":
        sch.bind(f"{block}.f", "blockIdx.x")
        sch.bind(f"{block}.h_w", "threadIdx.x")
        sch.reorder(f"{block}.f", f"{block}.h_w", f"{block}.n")
    arrays = random_inputs(func, np.random.default_rng(3))
    program = ts.lower(sch.func, ts.Target.named("nvidia-h200"), ts.GPU_PASSES)
    assert_close(ts.run_simt(program, *arrays), ts.evaluate(func, *arrays))


def test_merged_axes_are_merged_again():
    sch = Schedule(pointwise(layout="NHWC"))
    sch.merge_iterators("Y", "h", "w")
    assert sch.merge_iterators("Y", "n", "h_w") == "Y.n_h_w"
    assert sch.extent("Y.n_h_w") == 30
    assert [p.prepares(Merge) for p in sch.func.params] == [True, False, False, True, True]
    assert [len(p.given_shape) for p in sch.func.params if p.prepared] == [4, 4, 4]
    assert_kept(sch)


def test_sums_over_neighbours_are_one_sum():
    x, w = ts.placeholder((5, 3, 4), name="X"), ts.placeholder((3, 4, 6), name="W")
    r, q = ts.reduce_axis(3, name="r"), ts.reduce_axis(4, name="q")
    y = ts.compute((5, 6), lambda i, j: ts.sum(x[i, r, q] * w[r, q, j], axis=[r, q]), name="Y")
    sch = Schedule(ts.function([x, w, y]))
    loop = sch.merge_iterators("Y", "r", "q")
    sch.split(loop, [None, 5])
    assert_kept(sch)


def test_an_array_that_two_pairs_index_is_merged_in_both():
    x, c = ts.placeholder((2, 3, 5), name="X"), ts.reduce_axis(5, name="c")
    y = ts.compute(
        (2, 3, 2, 3),
        lambda i, j, k, m: ts.sum(x[i, j, c] * x[k, m, c], axis=c),
        name="Y",
        axes=["i", "j", "k", "m"],
    )
    sch = Schedule(ts.function([x, y]))
    sch.merge_iterators("Y", "i", "j")
    assert [str(e) for e in sch.func.outputs[0].shape] == ["6", "6"]
    assert_kept(sch)


def test_constants_are_merged_and_packed():
    x, w = ts.placeholder((4, 6), name="X"), ts.placeholder((6, 2, 3), name="W")
    k = ts.reduce_axis(6, name="k")
    y = ts.compute(
        (4, 2, 3), lambda i, a, b: ts.sum(x[i, k] * w[k, a, b], axis=k), name="Y",
        axes=["i", "a", "b"],
    )  # fmt: skip
    func = ts.function([x, w, y], constants=[w])
    sch = Schedule(func)
    sch.merge_iterators("Y", "a", "b")
    sch.transform_layout("W", lambda k, ab: (ab // 4, k, ab % 4))
    arrays = random_inputs(func, np.random.default_rng(2))
    want = ts.evaluate(func, *arrays)
    kernel = ts.build(sch)
    assert_close(kernel(arrays[0], kernel.pack("W", arrays[1])), want)
    assert_kept(sch)


def test_the_program_survives_json_and_other_names():
    func = pointwise()
    sch = Schedule(func)
    sch.merge_iterators("Y", "h", "w")
    assert function_from_json(function_to_json(sch.func)) == sch.func
    other = pointwise(prefix="my")
    translated = Translation(func, other).trace(sch.trace)
    assert str(translated) == "merge_iterators(block='myY', iterators=['h', 'w'])"
    assert_same_meaning(other, translated.apply(other))


def test_merge_iterators_refuses():
    f = pointwise()
    refuse(f, lambda s: s.merge_iterators("Y", "h", "q"), "h and q of Y", "the iterators n, f, h")
    refuse(f, lambda s: s.merge_iterators("Y", "w", "h"), "Y.h is not directly inside Y.w")
    refuse(f, lambda s: s.merge_iterators("Y", "w", "rc"), "sums over one of w and rc only")
    refuse(f, lambda s: s.merge_iterators("Y", "f", "h"), "whole neighbouring dimensions")
    m = matmul_relu()
    refuse(m, lambda s: s.merge_iterators("C", "i", "j"), "C uses A[i, k]")
    refuse(conv(), lambda s: s.merge_iterators("Y", "h", "v"), "Y uses")
    refuse(
        softmax(), lambda s: s.merge_iterators("E", "i", "j"), "top sums over one of i and r only"
    )

    def cut(s):
        s.split("Y.h", [None, 2])
        s.merge_iterators("Y", "h", "w")

    def reordered(s):
        s.reorder("Z.w", "Z.h")
        s.merge_iterators("Y", "h", "w")

    def laid_out(s):
        s.transform_layout("Y", lambda n, f, h, w: (h, w, n, f))
        s.merge_iterators("Y", "h", "w")

    def unrolled(s):
        s.unroll("Y.w")
        s.merge_iterators("Y", "h", "w")

    def moved(s):
        s.reverse_compute_at("Z", "Y.w")
        s.merge_iterators("Y", "h", "w")

    refuse(f, cut, "loops of Y were changed; do this first")
    refuse(f, reordered, "Z.w is not directly inside Z.h")
    refuse(f, laid_out, "Y has a layout of its own")
    refuse(f, unrolled, "already unroll")
    refuse(f, moved, "do this first")


def test_positions_of_pixels_tell_them_apart():
    x = ts.placeholder((3, 4), name="X")
    y = ts.compute((3, 4), lambda i, j: x[i, j] * ts.cast(i, "float32"), name="Y", axes=["i", "j"])
    refuse(ts.function([x, y]), lambda s: s.merge_iterators("Y", "i", "j"), "Y uses i by itself")
    part = ts.compute((3, 2), lambda i, j: x[i, j], name="Y", axes=["i", "j"])
    refuse(ts.function([x, part]), lambda s: s.merge_iterators("Y", "i", "j"), "whole neighbouring")
    rows = ts.compute((2, 4), lambda i, j: x[i + 1, j], name="Y", axes=["i", "j"])
    sch = Schedule(ts.function([x, rows]))
    sch.merge_iterators("Y", "i", "j")
    assert_kept(sch)


def random_contraction(rng: Rng) -> Function:
    """Sums of products over random axes; some neighbouring axes occur together in all operands."""
    groups = {}  # one or two axes that always occur together, by a letter
    for name in "abcd"[: int(rng.integers(2, 5))]:
        sizes = [int(rng.integers(1, 4)) for _ in range(int(rng.integers(1, 3)))]
        groups[name] = [(f"{name}{k}", n) for k, n in enumerate(sizes)]
    names = list(groups)
    summed = [n for n in names if rng.random() < 0.4][: len(names) - 1]
    kept = [n for n in names if n not in summed]
    reduced = {x: ts.reduce_axis(n, name=x) for g in summed for x, n in groups[g]}
    operands = []
    for k in range(2):
        own = [n for n in names if rng.random() < 0.7]
        order = rng.permutation(own).tolist() if rng.random() < 0.3 else own
        axes = [a for g in order for a in groups[g]]
        operands.append((ts.placeholder([n for _, n in axes], name=f"X{k}"), axes))
    axes = [a for g in kept for a in groups[g]]

    def value(*at):
        places = {x: v for (x, _), v in zip(axes, at, strict=True)} | reduced
        p, q = (t[tuple(places[x] for x, _ in own)] for t, own in operands)
        return ts.sum(p * q, axis=[*reduced.values()]) if reduced else p * q

    shape, labels = [n for _, n in axes], [x for x, _ in axes]
    y = ts.compute(shape, value, name="Y", axes=labels)
    z = ts.compute(shape, lambda *at: ts.maximum(y[at], 0) + 1, name="Z", axes=labels)
    return ts.function([t for t, _ in operands] + [z])


def test_random_contractions_keep_their_meaning():
    weights = {**CPU_WEIGHTS, "merge_iterators": 30}
    merged = 0
    for seed in range(120):
        rng = np.random.default_rng([41, seed])
        func = random_contraction(rng)
        sch = random_trace(func, rng, 5, weights, max_work=1500)
        assert_kept(sch)
        merged += any(s.name == "merge_iterators" for s in sch.trace)
    assert merged > 30
