"""Hard cases of memory and control: guards, strides, gathers, horizontal sums, threads,
instructions, odd sizes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.codegen.pipeline import CPU_PASSES


def rand(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def same(sch: Any, want: Any, *arrays: Any, cores: int = 1) -> ts.Kernel:
    what = sch if isinstance(sch, ts.Schedule) else ts.Schedule(sch)  # as it is
    kernel = ts.build(what, ts.cpu().with_cores(cores))
    got = kernel(*arrays)
    pairs = zip(got, want, strict=True) if isinstance(got, tuple) else ((got, want),)
    for g, w in pairs:
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)
    return kernel


def vectorized(func: ts.Function, loop: int = -1) -> ts.Schedule:
    sch = ts.Schedule(func)
    sch.vectorize(sch.loops(sch.blocks[-1])[loop])
    return sch


@pytest.mark.parametrize("n", [1, 2, 5, 16, 33])
def test_where_reads_only_the_branch_taken(n: int) -> None:
    x = ts.placeholder((n,), name="x")
    y = ts.compute((n + 4,), lambda i: ts.where((i >= 2) & (i < n + 2), x[i - 2], -1.0), name="y")
    func = ts.function([x, y])
    a = rand(n)
    want = np.full(n + 4, -1, np.float32)
    want[2 : n + 2] = a
    same(func, want, a)
    same(vectorized(func), want, a)


def test_a_guard_that_data_decides_is_a_mask() -> None:
    x, at = ts.placeholder((50,), name="x"), ts.placeholder((40,), "int32", name="at")
    y = ts.compute((40,), lambda i: ts.where(at[i] >= 0, x[at[i]], 0.0), name="y")
    func = ts.function([x, at, y])
    a, i = rand(50), np.random.default_rng(0).integers(-(2**30), 50, 40).astype(np.int32)
    i[::2] = np.abs(i[::2]) % 50
    want = np.where(i >= 0, a[np.maximum(i, 0)], 0)
    same(func, want, a, i)
    same(vectorized(func), want, a, i)


def test_a_triangle_is_masked_lane_by_lane() -> None:
    x = ts.placeholder((23, 23), name="x")
    y = ts.compute((23, 23), lambda i, j: ts.where(j <= i, x[i, 22 - i + j], 0.0), name="y")
    func = ts.function([x, y])
    a = rand(23, 23)
    want = ts.evaluate(func, a)
    same(func, want, a)
    same(vectorized(func), want, a)


@pytest.mark.parametrize("stride", [2, 3, 5, -1, -2])
@pytest.mark.parametrize("n", [3, 4, 16, 37])
def test_strided_reads_and_writes(stride: int, n: int) -> None:
    x = ts.placeholder((n * abs(stride),), name="x")
    start = 0 if stride > 0 else n * -stride - 1
    y = ts.compute((n,), lambda i: x[start + stride * i] * 2, name="y")
    func = ts.function([x, y])
    a = rand(n * abs(stride))
    want = ts.evaluate(func, a)
    same(func, want, a)
    same(vectorized(func), want, a)


def test_vectorizing_the_outer_dimension_scatters() -> None:
    x = ts.placeholder((21, 9), name="x")
    func = ts.function([x, ts.compute((21, 9), lambda i, j: x[i, j] + 1, name="y")])
    a = rand(21, 9)
    same(vectorized(func, 0), a + 1, a)


@pytest.mark.parametrize("op", ["sum", "amax", "amin", "prod"])
@pytest.mark.parametrize("n", [1, 7, 16, 100, 333])
def test_horizontal_reductions(op: str, n: int) -> None:
    x = ts.placeholder((5, n), name="x")
    k = ts.reduce_axis(n, name="k")
    y = ts.compute((5,), lambda i: getattr(ts, op)(x[i, k], axis=k), name="y")
    func = ts.function([x, y])
    a = np.exp(rand(5, n) / 4)
    want = getattr(np, op)(a, axis=1)
    same(func, want, a)
    same(vectorized(func), want, a)
    sch = ts.Schedule(func)  # and over the inner part of a split, guarded
    _, inner = sch.split(sch.loops("y")[1], [None, 8])
    sch.vectorize(inner)
    same(sch, want, a)


def test_several_results_and_rank_zero() -> None:
    x = ts.placeholder((6, 11), name="x")
    r = ts.reduce_axis(11, name="r")
    at, top = ts.compute((6,), lambda i: ts.argmax(x[i, r], axis=r), name="m")
    p, q = ts.reduce_axis(6, name="p"), ts.reduce_axis(11, name="q")
    total = ts.compute((), lambda: ts.sum(x[p, q] * x[p, q], axis=(p, q)), name="total")
    func = ts.function([x, at, top, total])
    a = rand(6, 11)
    a[2, 3] = a[2, 7] = 9  # the first of two wins
    kernel = same(func, (a.argmax(1), a.max(1), (a * a).sum()), a)
    assert kernel(a)[2].shape == ()


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1)])
def test_empty_and_single_extents(shape: tuple[int, int]) -> None:
    x = ts.placeholder(shape, name="x")
    k = ts.reduce_axis(shape[1], name="k")
    func = ts.function([x, ts.compute((shape[0],), lambda i: ts.sum(x[i, k], axis=k), name="y")])
    a = rand(*shape)
    same(func, a.sum(1), a)


def test_online_softmax_combiner() -> None:
    x = ts.placeholder((4, 40), name="x")
    k = ts.reduce_axis(40, name="k")

    def join(a: Any, b: Any) -> Any:
        top = ts.maximum(a[0], b[0])
        return top, a[1] * ts.exp(a[0] - top) + b[1] * ts.exp(b[0] - top)

    top, total = ts.compute(
        (4,), lambda i: ts.reduce((x[i, k], 1.0), join, (-1e30, 0), k), name="s"
    )
    func = ts.function([x, top, total])
    a = rand(4, 40)
    want = (a.max(1), np.exp(a - a.max(1, keepdims=True)).sum(1))
    same(func, want, a)
    sch = ts.Schedule(func)
    _, lane = sch.split(sch.loops("s")[1], [None, 16])
    partial = sch.rfactor(lane)
    i, outer, lane = sch.loops(partial)
    sch.reorder(i, outer, lane)
    sch.vectorize(lane)
    same(sch, want, a)


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_nested_parallel_loops_are_one(cores: int) -> None:
    x = ts.placeholder((7, 5, 6), name="x")
    func = ts.function([x, ts.compute((7, 5, 6), lambda i, j, k: x[i, j, k] * 3, name="y")])
    sch = ts.Schedule(func)
    sch.parallel(*sch.loops("y"))
    a = rand(7, 5, 6)
    kernel = same(sch, a * 3, a, cores=cores)
    assert kernel.source.count("@tilesmith_parallel_for(ptr @") == (1 if cores > 1 else 0)


def matmul(m: int, n: int, k: int, left: str = "float32", right: str = "float32") -> ts.Function:
    a, b = ts.placeholder((m, k), left, name="A"), ts.placeholder((k, n), right, name="B")
    r = ts.reduce_axis(k, name="k")
    to = "int32" if left != "float32" else "float32"
    c = ts.compute(
        (m, n), lambda i, j: ts.sum(ts.cast(a[i, r], to) * ts.cast(b[r, j], to), axis=r), name="C"
    )
    return ts.function([a, b, c], name="matmul")


@pytest.mark.parametrize("shape", [(8, 32, 16), (13, 37, 11), (1, 1, 1), (50, 100, 30)])
@pytest.mark.parametrize("cores", [1, 2])
def test_tiled_packed_matmul_with_tails(shape: tuple[int, int, int], cores: int) -> None:
    m, n, k = shape
    sch = ts.Schedule(matmul(m, n, k))
    packed = sch.cache_read("C", "B")
    i, j, r = sch.loops("C")
    i0, i1 = sch.split(i, [None, 6])
    j0, j1 = sch.split(j, [None, 32])
    r0, r1, r2 = sch.split(r, [None, 4, 2])
    sch.reorder(j0, r0, i0, r1, r2, i1, j1)
    sch.compute_at(packed, r0)
    sch.vectorize(j1)
    sch.vectorize(sch.loops(packed)[-1])
    sch.unroll(r2, i1)
    sch.parallel(j0)
    sch.prefetch(r1, "A", 8)
    a, b = rand(m, k), rand(k, n)
    kernel = same(sch, a @ b, a, b, cores=cores)
    assert ("llvm.prefetch" in kernel.source) == (k > 1)


def test_accumulators_stay_in_registers() -> None:
    """Between the packed loads of the innermost loop of a full tile there is no store."""
    sch = ts.Schedule(matmul(64, 64, 64))
    i, j, r = sch.loops("C")
    i0, i1 = sch.split(i, [None, 4])
    j0, j1 = sch.split(j, [None, 32])
    sch.reorder(i0, j0, r, i1, j1)
    sch.vectorize(j1)
    sch.unroll(i1)
    source = ts.build(sch, ts.cpu(1)).source
    blocks = source.split("\nL")
    inner = [b for b in blocks if "llvm.fma" in b and "phi" in b]
    assert inner
    assert all("store" not in b.split("\nX")[0] for b in inner)


def dot_unit() -> tuple[ts.Intrinsic, str]:
    features = ts.cpu().features
    if {"avx512f", "vnni"} <= features:
        return ts.AVX512_DOT_U8S8, "uint8"
    if "dotprod" in features:
        return ts.NEON_DOT_S8S8, "int8"
    pytest.skip("this machine has no int8 dot-product instruction")


@pytest.mark.parametrize("shape", [(8, 32, 16), (5, 37, 13), (3, 16, 4), (2, 3, 2)])
def test_dot_product_instruction_is_exact(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    unit, left = dot_unit()
    lanes = unit.description.outputs[0].shape[0].const
    sch = ts.Schedule(matmul(m, n, k, left, "int8"))
    packed = sch.cache_read("C", "B")
    _, j, r = sch.loops("C")
    j0, j1 = sch.split(j, [None, lanes])
    r0, r1 = sch.split(r, [None, 4])
    sch.reorder(j0, r0, j1, r1)
    sch.transform_layout(packed, lambda k, j: (k // 4, j, k % 4))
    sch.tensorize(j1, unit)
    rng = np.random.default_rng(0)
    a = rng.integers(0, 127, (m, k)).astype(left)
    b = rng.integers(-128, 128, (k, n)).astype(np.int8)
    kernel = ts.build(sch, ts.cpu(1))
    np.testing.assert_array_equal(kernel(a, b), a.astype(np.int32) @ b.astype(np.int32))
    if n >= lanes:  # else no tile is whole, and the instruction is rightly not used
        assert ("vpdpbusd" in kernel.assembly) or ("sdot" in kernel.assembly)


def test_an_instruction_the_target_lacks_is_refused() -> None:
    sch = ts.Schedule(matmul(4, 16, 4, "uint8", "int8"))
    packed = sch.cache_read("C", "B")
    sch.transform_layout(packed, lambda k, j: (k // 4, j, k % 4))
    sch.tensorize(sch.loops("C")[1], ts.AVX512_DOT_U8S8)
    with pytest.raises(ts.BuildError, match=r"needs .*avx512f"):
        ts.build(sch, ts.Target.named("neoverse-n1"))


@pytest.mark.parametrize("name", ["neoverse-n1", "skylake-avx512", "x86-64-v3", "cortex-a76"])
def test_cross_compilation_gives_assembly(name: str) -> None:
    target = ts.Target.named(name)
    x = ts.placeholder((64, 64), name="x")
    func = ts.function([x, ts.ops.softmax(ts.ops.gelu(x), name="y")])
    sch = ts.Schedule(func)
    for block in sch.blocks:
        if block != "y":
            sch.vectorize(sch.loops(block)[-1])
    text = ts.build(sch, target).assembly
    assert ("fmla" in text) if target.arch == "aarch64" else ("vfmadd" in text)
    assert "expf" not in text
    assert "erff" not in text


def test_every_pass_keeps_the_meaning() -> None:
    x, w = ts.placeholder((1, 9, 9, 3), name="x"), ts.placeholder((3, 3, 3, 5), name="w")
    func = ts.function([x, w, ts.ops.conv2d(x, w, stride=2, padding=1, layout="NHWC", name="y")])
    sch = ts.Schedule(func)
    n, h, v, f, *rest = sch.loops("y")
    v0, v1 = sch.split(v, [None, 2])
    f0, f1 = sch.split(f, [None, 4])
    sch.reorder(n, h, v0, f0, *rest, v1, f1)
    sch.compute_at("pad", h)
    sch.vectorize(f1)
    sch.unroll(v1)
    a, b = rand(1, 9, 9, 3), rand(3, 3, 3, 5)
    want = ts.evaluate(func, a, b)
    stage = sch.func
    for step in CPU_PASSES:
        stage = step(stage, ts.cpu(1))
        np.testing.assert_allclose(
            ts.interpret(stage, a, b), want, rtol=1e-4, atol=1e-5, err_msg=step.__name__
        )
        assert str(stage)
    same(sch, want, a, b)


def test_large_local_buffers_leave_the_stack() -> None:
    x = ts.placeholder((300, 300), name="x")
    y = ts.compute((300, 300), lambda i, j: x[i, j] + 1, name="y")
    z = ts.compute((300, 300), lambda i, j: y[j, i] * 2, name="z")
    func = ts.function([x, z])
    kernel = ts.build(ts.Schedule(func), ts.cpu(1))
    a = rand(300, 300)
    np.testing.assert_allclose(kernel(a), (a + 1).T * 2)
    assert kernel.artifact.workspace_nbytes >= 300 * 300 * 4


def test_unrolling_without_end_is_refused() -> None:
    x = ts.placeholder((200, 200), name="x")
    sch = ts.Schedule(ts.function([x, ts.compute((200, 200), lambda i, j: x[i, j], name="y")]))
    sch.unroll(*sch.loops("y"))
    with pytest.raises(ts.BuildError, match="unroll"):
        ts.build(sch, ts.cpu(1))


def test_a_packed_parameter_takes_the_packed_array() -> None:
    func = matmul(5, 20, 7)
    sch = ts.Schedule(func)
    sch.transform_layout("B", lambda k, j: (j // 8, k, j % 8))
    a, b = rand(5, 7), rand(7, 20)
    packed = ts.pack(sch.func, "B", b)
    assert packed.shape == (3, 7, 8)
    same(sch, a @ b, a, packed)
    with pytest.raises(ts.ArgumentError, match="B"):
        ts.build(sch, ts.cpu(1))(a, b)


def test_overlapping_vectors_and_scalars_of_one_row() -> None:
    """A window summed with guards: parts of a row are read as a scalar, then within a vector."""
    x, w = ts.placeholder((1, 5, 9, 9), name="x"), ts.placeholder((5, 1, 3, 3), name="w")
    func = ts.function([x, w, ts.ops.depthwise_conv2d(x, w, padding=1, name="y")])
    sch = ts.Schedule(func)
    sch.inline("pad")
    n, f, h, v, *window = sch.loops("y")
    h0, h1 = sch.split(h, [None, 3])
    sch.reorder(n, h0, *window, f, h1, v)
    sch.vectorize(v)
    sch.unroll(*window, f, h1)
    a, b = rand(1, 5, 9, 9), rand(5, 1, 3, 3)
    same(sch, ts.evaluate(func, a, b), a, b)


@pytest.mark.skipif(ts.cpu().arch != "x86-64", reason="other processors always fuse")
def test_a_processor_without_fused_multiply_add() -> None:
    old = replace(ts.cpu(1), cpu="sandybridge", features=frozenset(), vector_bits=256)
    x = ts.placeholder((9, 40), name="x")
    y = ts.compute((9, 40), lambda i, j: ts.tanh(x[i, j] * 2 + 1) + ts.exp(x[i, j]), name="y")
    func = ts.function([x, y])
    a = rand(9, 40)
    kernel = ts.build(vectorized(func), old)
    np.testing.assert_allclose(kernel(a), ts.evaluate(func, a), rtol=1e-5, atol=1e-6)
    assert "fma" not in kernel.assembly
