"""Kernels with open sizes against the oracle, at sizes around the ends of their tiles."""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.base.errors import TilesmithError
from tilesmith.codegen.pipeline import CPU_PASSES, lower
from tilesmith.ir.function import Function
from tilesmith.runtime.build import build
from tilesmith.runtime.open_kernel import OpenKernel
from tilesmith.schedule.kinds import AutoVectorize
from tilesmith.schedule.open_trace import open_trace
from tilesmith.task.inputs import example_inputs

ONE, TWO = ts.cpu(num_cores=1), ts.cpu(num_cores=2)
M, N, K = ts.size("m"), ts.size("n"), ts.size("k")


def matmul_relu() -> Function:
    A, B = ts.placeholder((M, 24), name="A"), ts.placeholder((24, 40), name="B")
    return ts.function([A, B, ts.ops.relu(ts.ops.matmul(A, B))], name="matmul_relu")


def matmul_all() -> Function:
    A, B = ts.placeholder((M, K), name="A"), ts.placeholder((K, N), name="B")
    return ts.function([A, B, ts.ops.matmul(A, B)], name="matmul_all")


def batched() -> Function:
    A, B = ts.placeholder((M, 9, 16), name="A"), ts.placeholder((M, 16, 12), name="B")
    return ts.function([A, B, ts.ops.batch_matmul(A, B)], name="batched")


def dense() -> Function:
    A, W = ts.placeholder((M, 32), name="A"), ts.placeholder((20, 32), name="W")
    b = ts.placeholder((20,), name="b")
    Y = ts.ops.gelu(ts.ops.add(ts.ops.dense(A, W), b))
    return ts.function([A, W, b, Y], name="dense", constants=[W])


def elementwise() -> Function:
    A, B = ts.placeholder((M, N), name="A"), ts.placeholder((N,), name="B")
    return ts.function([A, B, ts.ops.add(A, B)], name="elementwise")


def softmax() -> Function:
    A = ts.placeholder((M, N), name="A")
    return ts.function([A, ts.ops.softmax(A)], name="softmax")


def layer_norm() -> Function:
    A = ts.placeholder((M, N), name="A")
    g, b = ts.placeholder((N,), name="g"), ts.placeholder((N,), name="b")
    return ts.function([A, g, b, ts.ops.layer_norm(A, g, b)], name="layer_norm")


def row_sums() -> Function:
    A, k = ts.placeholder((M, N), name="A"), ts.reduce_axis(N, name="k")
    S = ts.compute((M,), lambda i: ts.sum(A[i, k], axis=k), name="S")
    return ts.function([A, S], name="row_sums")


def column_maxima() -> Function:
    A, k = ts.placeholder((M, N), name="A"), ts.reduce_axis(M, name="k")
    S = ts.compute((N,), lambda j: ts.amax(A[k, j], axis=k), name="S")
    return ts.function([A, S], name="column_maxima")


def integers() -> Function:
    A, B = (ts.placeholder((M, N), dtype="int8", name=x) for x in "AB")
    k = ts.reduce_axis(N, name="k")
    S = ts.compute(
        (M, M),
        lambda i, j: ts.sum(ts.cast(A[i, k], "int32") * ts.cast(B[j, k], "int32"), axis=k),
        name="S",
    )
    return ts.function([A, B, S], name="integers")


def convolution() -> Function:
    X, W = ts.placeholder((M, 4, 9, 9), name="X"), ts.placeholder((8, 4, 3, 3), name="W")
    return ts.function([X, W, ts.ops.conv2d(X, W, padding=1)], name="convolution")


def image() -> Function:
    X, W = ts.placeholder((1, 2, M, K), name="X"), ts.placeholder((4, 2, 3, 3), name="W")
    return ts.function([X, W, ts.ops.conv2d(X, W, padding=1)], name="image")


def transposed() -> Function:
    A = ts.placeholder((M, N), name="A")
    return ts.function([A, ts.compute((N, M), lambda i, j: A[j, i], name="T")], name="transposed")


FUNCTIONS = (
    matmul_relu, matmul_all, batched, dense, elementwise, softmax, layer_norm, row_sums,
    column_maxima, integers, convolution, transposed,
)  # fmt: skip
LENGTHS = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 33)


def sizes_of(func: Function, rng: np.random.Generator, count: int = 9) -> list[dict[str, int]]:
    """Sizes around powers of two, in random combinations; 0 and 1 for each alone."""
    names = func.open_sizes
    some = [{n: int(rng.choice(LENGTHS)) for n in names} for _ in range(count)]
    ends = [dict.fromkeys(names, 5) | {n: v} for n in names for v in (0, 1)]
    return [s for s in (*ends, *some) if func.name != "layer_norm" or s["n"]]  # a mean of nothing


def require_right(kernel: OpenKernel, func: Function, sizes: dict[str, int]) -> None:
    fixed = ts.instantiate(func, sizes)
    arrays = example_inputs(fixed, seed=sum(sizes.values()))
    want = ts.evaluate(fixed, *arrays)
    got = kernel(*(kernel.pack(b.name, a) for b, a in zip(func.inputs, arrays, strict=True)))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-4, err_msg=f"{func.name} {sizes}")


def test_convolutions_take_images_of_any_size():
    func = image()
    kernel = ts.build(func, ONE)
    for m, k in ((0, 3), (1, 1), (3, 2), (7, 16), (16, 17)):
        require_right(kernel, func, {"m": m, "k": k})
    X, W = ts.placeholder((1, 2, M, 9), name="X"), ts.placeholder((4, 2, 3, 3), name="W")
    small = ts.build(ts.function([X, W, ts.ops.conv2d(X, W)], name="valid"), ONE)
    with pytest.raises(ts.ArgumentError, match=r"would have the shape .*-1.* at m = 1"):
        small(np.ones((1, 2, 1, 9), np.float32), np.ones((4, 2, 3, 3), np.float32))


@pytest.mark.turns(4)
@pytest.mark.parametrize("target", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_kernels_are_right_at_all_sizes(function, target):
    func = function()
    rng = np.random.default_rng(1)
    kernels = [build(func, target), ts.build(func, target)]
    for sizes in sizes_of(func, rng):
        for kernel in kernels:
            require_right(kernel, func, sizes)


@pytest.mark.turns(4)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_random_schedules_of_a_sample_are_right_at_all_sizes(function):
    func = function()
    rng = np.random.default_rng(2)
    task = ts.Task(ts.instantiate(func, dict.fromkeys(func.open_sizes, 24)), ONE)
    sketches = ts.SketchSpace().sketches(task)
    built = 0
    for candidate in ts.Random().start(task, sketches, rng).ask(6):
        try:
            scheduled = open_trace(candidate.trace, func).apply(func)
            kernel = build(scheduled, ONE)
        except TilesmithError:
            continue  # a step that needs numbers
        if any(p.packed is not None and -1 in p.shape for p in kernel.artifact.parameters):
            continue
        built += 1
        for sizes in sizes_of(func, rng, 4):
            require_right(kernel, func, sizes)
    assert built


def test_the_interpreter_and_the_oracle_take_sizes_from_arrays():
    func = matmul_relu()
    sch = ts.Schedule(func)
    sch.split("matmul.i", [None, 4])
    a, b = np.ones((7, 24), np.float32), np.ones((24, 40), np.float32)
    for run in (ts.evaluate, ts.interpret):
        np.testing.assert_array_equal(run(sch.func, a, b), np.full((7, 40), 24, np.float32))


def test_arrays_that_contradict_each_other_are_named():
    kernel = ts.build(matmul_all(), ONE)
    a, b = np.ones((3, 5), np.float32), np.ones((6, 2), np.float32)
    said = r"dimension 0 of B is 6; it must be k, which is 5 \(k = 5: dimension 1 of A is 5\)"
    with pytest.raises(ts.ArgumentError, match=said):
        kernel(a, b)
    with pytest.raises(ts.ArgumentError, match=r"A of 'matmul_all'.*\(3,\).*must be \(m, k\)"):
        kernel(a[:, 0].copy(), b)
    with pytest.raises(ts.ArgumentError, match="got float64"):
        kernel(a.astype(np.float64), np.ones((5, 2), np.float32))
    with pytest.raises(ts.ArgumentError, match="dimension 1 of A is 23; it must be 24"):
        ts.build(matmul_relu(), ONE)(np.ones((2, 23), np.float32), np.ones((24, 40), np.float32))


def test_sizes_are_solved_from_linear_dimensions():
    A, B = ts.placeholder((2 * M + 1,), name="A"), ts.placeholder((M, N), name="B")
    C = ts.compute((M, N), lambda i, j: A[2 * i] + B[i, j], name="C")
    kernel = ts.build(ts.function([A, B, C]), ONE)
    assert kernel.sizes_of((7,), (3, 4)) == {"m": 3, "n": 4}
    with pytest.raises(ts.ArgumentError, match="dimension 0 of A is 6"):
        kernel(np.ones(6, np.float32), np.ones((3, 4), np.float32))


def test_kernels_of_many_sizes_are_called_from_several_threads(tmp_path):
    import pickle
    from concurrent.futures import ThreadPoolExecutor

    kernel = pickle.loads(pickle.dumps(ts.build(softmax(), ONE)))

    def run(n: int) -> bool:
        x = np.random.default_rng(n).standard_normal((n % 7 + 1, n + 1)).astype(np.float32)
        want = np.exp(x) / np.exp(x).sum(1, keepdims=True)
        return bool(np.allclose(kernel(x), want, rtol=1e-4))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(200)))


def test_out_bind_and_time_take_open_sizes():
    kernel = ts.build(elementwise(), ONE)
    a, b = np.ones((3, 5), np.float32), np.full(5, 2, np.float32)
    out = np.empty((3, 5), np.float32)
    assert kernel(a, b, out=out) is out
    np.testing.assert_array_equal(kernel.bind(a, b)(), out)
    assert kernel.time(a, b, repeats=1, min_seconds=1e-4).best > 0
    with pytest.raises(ts.ArgumentError, match="open sizes m, n"):
        kernel.time()


def test_a_size_that_no_input_has_is_refused():
    X = ts.placeholder((4,), name="X")
    func = ts.function([X, ts.compute((M, 4), lambda i, j: X[j], name="Y")])
    with pytest.raises(ts.BuildError, match="open sizes m, which no input has"):
        ts.build(func, ONE)


@pytest.mark.parametrize("in_registers", [False, True])
def test_lanes_behind_the_end_leave_a_sum_over_lanes_alone(in_registers: bool) -> None:
    """Tiles of rows and of columns are both partial: lanes of the last tile have no column. The sum
    of a row lies in memory, or its tile of rows is in registers and it does not.
    """
    q, k = ts.size("q"), ts.size("k")
    Q, K, V = (ts.placeholder((2, n, 8), name=x) for x, n in (("Q", q), ("K", k), ("V", k)))
    scores = ts.ops.batch_matmul(Q, K, transpose_b=True)
    out = ts.ops.batch_matmul(ts.ops.softmax(scores), V, name="out")
    func = ts.function([Q, K, V, out], name="attention")
    sch = ts.Schedule(func)
    sch.cache_write("out", "local")
    b = sch.loops("out.local")[0]
    i0, i1, i2 = sch.split("out.local.i", [None, 16, 4])
    k0, *inner = sch.split("out.local.k", [None, 1, 32, 2])
    if in_registers:
        j0, j1 = sch.split("out.local.j", [1, 64])
        sch.reorder(b, i0, k0, j0, i1, *inner, i2, j1)
    else:
        sch.reverse_compute_at("out", i0)
    sch.roll("out.local", k0)
    if in_registers:
        sch.vectorize(j1)
        sch.unroll(i2)
    sch.apply(AutoVectorize("softmax_sum"))
    kernel = ts.build(sch, ONE)
    rng = np.random.default_rng(0)
    for n, m in ((3, 5), (3, 17), (64, 5), (65, 33), (3, 63), (130, 90), (3, 64)):
        shapes = ((2, n, 8), (2, m, 8), (2, m, 8))
        arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
        want = ts.evaluate(ts.instantiate(func, {"q": n, "k": m}), *arrays)
        np.testing.assert_allclose(kernel(*arrays), want, rtol=1e-4, atol=1e-5)


def test_a_copy_into_tiles_of_an_open_axis_turns_squares() -> None:
    X = ts.placeholder((M, 40), name="X")
    P = ts.compute((40, M), lambda j, i: X[i, j] * 2, name="P")
    func = ts.function([X, P])
    sch = ts.Schedule(func)
    sch.cache_read("P", "X", "local")
    sch.transform_layout("X.local", ["d0 // 32", "d1", "d0 % 32"])
    sch.vectorize("X.local.ax1")
    assert ".transpose=1" in str(lower(sch.func, ONE, CPU_PASSES))
    kernel = ts.build(sch, ONE)
    for n in (1, 7, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100):
        require_right(kernel, func, {"m": n})


def test_what_is_left_over_behind_the_end_is_not_multiplied() -> None:
    """Lanes behind the end of a copy hold whatever was there: with denormal numbers, products of it
    took 50 times as long, though nobody reads them.
    """
    A, B = ts.placeholder((8, 12), name="A"), ts.placeholder((12, N), name="B")
    func = ts.function([A, B, ts.ops.matmul(A, B, name="C")])
    sch = ts.Schedule(func)
    sch.cache_read("C", "B", "local")
    sch.cache_write("C", "local")
    i, j, k = sch.loops("C.local")
    j0, j1 = sch.split(j, [None, 32])
    sch.reorder(j0, i, k, j1)
    sch.vectorize(j1)
    sch.reverse_compute_at("C", j0)
    sch.transform_layout("B.local", ["d1 // 32", "d0", "d1 % 32"])
    sums = [s for s in str(lower(sch.func, ONE, CPU_PASSES)).splitlines() if " + (A[" in s]
    assert {"where(" in s for s in sums} == {False, True}  # in the last vector of a tile alone
    kernel = ts.build(sch, ONE)
    for n in (1, 15, 16, 17, 31, 32, 33, 70):
        require_right(kernel, func, {"n": n})
