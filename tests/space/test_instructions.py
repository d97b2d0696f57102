"""Hardware instructions in automatic spaces: random products and convolutions of small integers,
with extents and layouts that do not fit, against the oracle.
"""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tests.support.thorough import drawn
from tilesmith.codegen.llvm.backend import LlvmBackend
from tilesmith.ir.deserialize import function_from_json
from tilesmith.ir.function import Function
from tilesmith.ir.interpreter import interpret
from tilesmith.ir.intrinsics import AVX512_DOT_U8S8, INTRINSICS, NEON_DOT_S8S8
from tilesmith.ir.nodes import walk
from tilesmith.ir.prepare import AppendZeros
from tilesmith.ir.serialize import function_to_json
from tilesmith.schedule.layout import Pad
from tilesmith.schedule.schedule import Schedule
from tilesmith.space.instruction_match import matches
from tilesmith.space.instructions import TileByInstruction
from tilesmith.space.sets import Where, default_rules, usable
from tilesmith.space.spaces import SketchSpace, TemplateSpace, structured, variants
from tilesmith.space.variant import Variant, lower

TARGETS = (
    "neoverse-n1", "neoverse-v1", "cascadelake", "icelake-server", "sapphirerapids",
    "emeraldrapids",
)  # fmt: skip
ARM = ts.Target.named("neoverse-n1").with_cores(1)


def matmul(
    m: int, n: int, k: int, left: str = "int8", *, batch: int = 0, turned: str = "",
    constant: bool = False, relu: bool = False,
) -> Function:  # fmt: skip
    """`turned` names the operands that are stored transposed."""
    lead = (batch,) if batch else ()
    a = ts.placeholder((*lead, *((k, m) if "A" in turned else (m, k))), left, name="A")
    b = ts.placeholder((*lead, *((n, k) if "B" in turned else (k, n))), "int8", name="B")
    s = ts.reduce_axis(k, name="k")

    def body(*index: ts.Value) -> ts.Value:
        *z, i, j = index
        x = a[(*z, s, i)] if "A" in turned else a[(*z, i, s)]
        y = b[(*z, j, s)] if "B" in turned else b[(*z, s, j)]
        return ts.sum(ts.cast(x, "int32") * ts.cast(y, "int32"), axis=s)

    c = ts.compute((*lead, m, n), body, name="C")
    out = ts.ops.relu(c) if relu else c
    return ts.function([a, b, out], constants=[b] if constant else [])


def conv(
    h: int, ci: int, co: int, kernel: int, stride: int, padding: int, *, left: str = "int8",
    layout: str = "NHWC", fill: int = 0,
) -> Function:  # fmt: skip
    """With a bias and requantisation as in quantised networks."""
    last = layout == "NHWC"
    x = ts.placeholder((1, h, h, ci) if last else (1, ci, h, h), left, name="X")
    shape = (kernel, kernel, ci, co) if last else (co, ci, kernel, kernel)
    w = ts.placeholder(shape, "int8", name="W")
    b = ts.placeholder((co,), "int32", name="bias")
    y = ts.ops.conv2d(x, w, stride=stride, padding=padding, layout=layout, fill=fill)
    y = ts.ops.bias_add(y, b, axis=3 if last else 1)
    f = ts.placeholder((), "float32", name="factor")
    y = ts.ops.requantize(y, f, dtype="int8")
    return ts.function([x, w, b, f, y], constants=[w, b, f])


def arrays_of(func: Function, rng: np.random.Generator) -> list[np.ndarray]:
    out = []
    for p in func.inputs:
        shape = [e.number for e in p.shape]
        if p.dtype.is_float:
            out.append(np.full(shape, 0.01, np.float32))
        else:
            info = np.iinfo(np.int8 if p.dtype.bits == 32 else p.dtype.numpy)
            out.append(rng.integers(info.min, info.max + 1, shape).astype(p.dtype.numpy))
    return out


def some_variants(
    func: Function, target: ts.Target, rng: np.random.Generator, count: int
) -> list[Variant]:
    """Of sketches with instructions, with random structures."""
    task = ts.Task(func, target)
    rules = default_rules(target)
    sketches = [s for s in SketchSpace(rules).sketches(task) if "tensorize" in str(s)]
    assert sketches
    out: list[Variant] = []
    for at in rng.permutation(len(sketches))[:count]:
        every = list(structured(sketches[at]))
        for k in rng.permutation(len(every)):
            try:
                out.append(lower(task, every[k]))
                break
            except ts.ScheduleError:
                continue
    return out


CASES = {
    "plain": lambda left: matmul(8, 16, 8, left),
    "odd": lambda left: matmul(5, 7, 6, left, relu=True),
    "constant_odd": lambda left: matmul(6, 9, 7, left, constant=True),
    "transposed": lambda left: matmul(5, 8, 12, left, turned="AB"),
    "batch": lambda left: matmul(4, 6, 5, left, batch=3),
    "conv": lambda left: conv(4, 4, 8, 3, 1, 1, left=left, fill=3),
    "conv_of_3_channels": lambda left: conv(5, 3, 5, 3, 2, 1, left=left, fill=7),
    "conv_channels_first": lambda left: conv(4, 5, 4, 2, 1, 1, left=left, layout="NCHW"),
}


@pytest.mark.parametrize("name", CASES)
def test_meaning_is_kept(name: str) -> None:
    """The scheduled program means the same, and so does its kernel where this machine has the
    instruction.
    """
    func = CASES[name]("int8")
    rng = np.random.default_rng(sum(map(ord, name)))
    arrays = arrays_of(func, rng)
    want = ts.evaluate(func, *arrays)
    runs = ARM.features <= ts.cpu().features
    for variant in some_variants(func, ARM, rng, 2):
        for row in variant.sample(rng, drawn(1, 2)):
            scheduled = variant.function(row)
            assert str(scheduled) == str(variant.candidate(row).trace.apply(func))
            if runs:
                kernel = ts.build(scheduled, ts.cpu(num_cores=1))
                given = [kernel.pack(p.name, x) for p, x in zip(func.inputs, arrays, strict=True)]
                np.testing.assert_array_equal(kernel(*given), want)
        np.testing.assert_array_equal(interpret(scheduled, *arrays), want)


@pytest.mark.parametrize("name", TARGETS)
def test_kernels_are_built_for_every_target(name: str) -> None:
    target = ts.Target.named(name).with_cores(2)
    left = "uint8" if target.arch == "x86-64" else "int8"
    rng = np.random.default_rng(0)
    words = {"aarch64": ("sdot", "smmla"), "x86-64": ("vpdpbusd", "tdpbusd")}[target.arch]
    for case in ("constant_odd", "conv"):
        (variant,) = some_variants(CASES[case](left), target, rng, 1)
        source = LlvmBackend().compile(variant.function(variant.sample(rng, 1)[0]), target).source
        assert any(word in source for word in words)


def test_where_an_instruction_fits() -> None:
    func = matmul(8, 12, 20, turned="B")
    ((_, block),) = walk(func.body)
    (first, *_) = matches(func, block, NEON_DOT_S8S8)
    assert dict(first.axes)[block.reducing[0].name] == 4
    assert first.padding(block) == ()
    assert not matches(func, block, AVX512_DOT_U8S8)  # it takes unsigned bytes


def test_only_what_a_target_has_is_used() -> None:
    assert usable(INTRINSICS, ts.Target.named("haswell")) == ()
    names = {u.name for u in usable(INTRINSICS, ts.Target.named("cascadelake"))}
    assert names == {"avx512.dot_u8s8", "avx512.dot_s8u8"}
    rules = default_rules(ts.Target.named("cortex-a53"))
    asked = [r.rule for r in rules if isinstance(r, Where)]
    assert [r.intrinsics for r in asked if isinstance(r, TileByInstruction)] == [()]


def test_zeros_behind_a_constant_are_packed_ahead() -> None:
    """No kernel copies the weights to pad them."""
    func = matmul(4, 8, 7, constant=True)
    sch = Schedule(func)
    sch.apply(Pad("C", (("k", 4),)))
    b = next(p for p in sch.func.params if p.name == "B")
    assert b.prepared == (AppendZeros((1, 0)),)
    assert [e.const for e in b.given_shape] == [7, 8]
    assert "B.pad" not in sch.func.all_buffers
    rng = np.random.default_rng(0)
    arrays = arrays_of(func, rng)
    np.testing.assert_array_equal(interpret(sch.func, *arrays), ts.evaluate(func, *arrays))
    kernel = ts.build(sch, ts.cpu(num_cores=1))
    packed = kernel.pack("B", arrays[1])
    assert packed.shape == (8, 8)
    np.testing.assert_array_equal(kernel(arrays[0], packed), ts.evaluate(func, *arrays))
    assert function_from_json(function_to_json(sch.func)) == sch.func


def test_a_template_whose_factor_is_always_4_fits_an_instruction() -> None:
    func = matmul(8, 16, 32)

    def template(sch: ts.TemplateSchedule) -> None:
        i, j, k = sch.loops("C")
        sch.cache_read("C", "B")
        i0, i1 = sch.split(i, sch.sample_tile(i, parts=2))
        j0, j1 = sch.split(j, sch.sample_tile(j, parts=2, where=lambda t: t[-1] == 4))
        k0, k1, k2 = sch.split(k, sch.sample_tile(k, parts=3, where=lambda t: t[-1] == 4))
        sch.reorder(i0, j0, k0, i1, k1, j1, k2)
        sch.transform_layout("B.local", lambda k, j: (j // 4, k // 4, j % 4, k % 4))
        sch.tensorize(j1, NEON_DOT_S8S8)

    task = ts.Task(func, ARM)
    (sketch,) = TemplateSpace(template).sketches(task)
    variant = lower(task, sketch)
    rng = np.random.default_rng(0)
    arrays = arrays_of(func, rng)
    for row in variant.sample(rng, 3):
        scheduled = variant.function(row)
        assert str(scheduled) == str(variant.candidate(row).trace.apply(func))
        np.testing.assert_array_equal(interpret(scheduled, *arrays), ts.evaluate(func, *arrays))


@pytest.mark.parametrize("turned", [False, True], ids=["square", "gram"])
@pytest.mark.parametrize("n", [8, 10])
def test_a_matrix_that_is_both_operands(n: int, turned: bool) -> None:
    """X @ X and X @ X.T: one layout cannot suit both. Every candidate can be built all the same."""
    x, k = ts.placeholder((n, n), "int8", name="X"), ts.reduce_axis(n, name="k")

    def body(i: ts.Value, j: ts.Value) -> ts.Value:
        right = x[j, k] if turned else x[k, j]
        return ts.sum(ts.cast(x[i, k], "int32") * ts.cast(right, "int32"), axis=k)

    func = ts.function([x, ts.compute((n, n), body, name="C")])
    rng = np.random.default_rng(n)
    (array,) = arrays_of(func, rng)
    want = ts.evaluate(func, array)
    task = ts.Task(func, ARM.with_cores(1))
    for sketch in ts.SketchSpace().sketches(task):
        variant = next(variants(task, sketch))
        for row in variant.sample(rng, 1):
            scheduled = variant.function(row)
            LlvmBackend().compile(scheduled, task.target)
            np.testing.assert_array_equal(interpret(scheduled, array), want)


@pytest.mark.parametrize(
    ("rows", "columns", "padded"), [(64, 24, "i1"), (64, 17, "i0"), (64, 32, "")]
)
def test_columns_are_padded_rather_than_turned(rows: int, columns: int, padded: str) -> None:
    """Vectors lie as the result does, unless that means far more products than turning its sums."""
    func = matmul(rows, columns, 48, "uint8", constant=True)
    task = ts.Task(func, ts.Target.named("cascadelake").with_cores(1))
    texts = [str(s) for s in SketchSpace().sketches(task) if "dot_" in str(s)]
    assert texts
    for text in texts:
        assert ("pad(block='C', multiples=[['i1', 16]])" in text) == (padded == "i1")
        assert ("iterator='i0', factor=16" in text) == (padded == "i0")
