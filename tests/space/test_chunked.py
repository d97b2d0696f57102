"""Sums of float16 in chunks: where they are offered, and what the code of one is like."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.base.dtype import FLOAT16
from tilesmith.cli.operators import operator
from tilesmith.codegen.llvm.compiler import assembly
from tilesmith.records.accurate import AccurateRecords
from tilesmith.runtime.build import compile_function
from tilesmith.schedule.chunks import ChunkSums, NarrowSums, chunk_error
from tilesmith.space.spaces import SketchSpace, variants
from tilesmith.task.task import HALF_ACCURACY, Candidate, Measurement, Task
from tilesmith.tune.build_request import drafts_of

N1 = ts.Target.named("neoverse-n1")


def matmul(m: int = 40, n: int = 48, k: int = 100, out: str | None = None) -> ts.Function:
    a, b = (ts.placeholder(s, "float16", name=x) for s, x in (((m, k), "A"), ((k, n), "B")))
    return ts.function([a, b, ts.ops.matmul(a, b, out_dtype=out, name="C")])


def offers(func: ts.Function, target: ts.Target, accuracy: float | None = None) -> bool:
    sketches = SketchSpace(accuracy=accuracy).sketches(Task(func, target))
    return any(isinstance(s, ChunkSums) for sketch in sketches for s in sketch.steps)


@pytest.mark.parametrize(
    ("target", "offered"),
    [("neoverse-n1", True), ("cortex-a76", True), ("cortex-a53", False), ("x86-64-v3", False)],
)
def test_it_is_offered_where_the_processor_computes_with_halves(target: str, offered: bool) -> None:
    assert offers(matmul(), ts.Target.named(target)) == offered


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("matmul", (64, 64, 64)), ("conv2d", (14, 32, 32, 1, 1, 0)),
        ("conv2d", (9, 16, 24, 3, 2, 1)),
        ("conv2d-bn-relu", (14, 16, 24, 3, 1, 1)), ("conv1d", (40, 16, 24, 3, 1, 1)),
    ],
)  # fmt: skip
def test_operators_that_sum_products_have_it(name: str, shape: tuple[int, ...]) -> None:
    assert offers(operator(name, shape, dtype="float16", prepared=True), N1)
    assert not offers(operator(name, shape, prepared=True), N1)


def test_a_result_that_halves_may_not_hold_is_summed_in_float32() -> None:
    assert not offers(matmul(out="float32"), N1)


@pytest.mark.parametrize(
    ("accuracy", "offered"), [(None, True), (0.0, False), (1e-3, False), (2e-3, True)]
)
def test_accuracy_bounds_the_chunk(accuracy: float | None, offered: bool) -> None:
    func = matmul(k=500)
    assert offers(func, N1, accuracy) == offered
    task = Task(func, N1)
    allowed = HALF_ACCURACY if accuracy is None else accuracy
    for trace in drafts_of(task, 3, accuracy=accuracy):
        assert chunk_error(func, trace.steps) <= allowed


def test_records_beyond_the_accuracy_are_left_out() -> None:
    task = Task(matmul(k=500), N1)
    fast = Measurement(Candidate(task, drafts_of(task)[0]), (1e-6,) * 3)
    slow = Measurement(Candidate(task, drafts_of(task, accuracy=0.0)[0]), (2e-6,) * 3)
    error = chunk_error(task.func, fast.candidate.trace.steps)
    assert 0 < error <= HALF_ACCURACY
    with ts.open_database(":memory:") as database:
        database.add([fast, slow])
        for accuracy, best in ((None, fast), (error, fast), (error * 0.99, slow), (0.0, slow)):
            assert AccurateRecords(database, accuracy).best(task) == best


@pytest.mark.parametrize(("m", "n", "k"), [(17, 40, 90), (5, 19, 70), (64, 8, 33)])
def test_candidates_are_as_good_as_stated(m: int, n: int, k: int) -> None:
    func = matmul(m, n, k)
    task = Task(func, ts.cpu(1))
    rng = np.random.default_rng(k)
    a, b = (rng.normal(size=s).astype(np.float16) for s in ((m, k), (k, n)))
    want = a.astype(np.float64) @ b.astype(np.float64)
    chunked = 0
    for sketch in SketchSpace().sketches(task):
        for v in list(variants(task, sketch))[:2]:
            for row in v.sample(rng, 1):
                trace = v.decided(row)
                chunked += any(isinstance(s, ChunkSums) for s in trace.steps)
                got = ts.build(trace.apply(func), task.target)(a, b)
                error = np.abs(got - want).max() / np.abs(want).max()
                assert error <= chunk_error(func, trace.steps) + FLOAT16.roundoff
    assert chunked or "fp16" not in task.target.features


def test_rows_are_multiplied_by_a_lane() -> None:
    """A load of eight factors and multiply-adds by an element of it; no element is repeated over a
    register first.
    """
    sch = ts.Schedule(matmul(128, 128, 128))
    sch.cache_read("C_sum", "A")
    i, j, k = sch.loops("C_sum")
    i0, i1 = sch.split(i, [None, 8])
    j0, j1 = sch.split(j, [None, 16])
    k0, k1, k2 = sch.split(k, [None, 16, 4])
    sch.reorder(i0, j0, k0, k1, k2, i1, j1)
    sch.vectorize(j1)
    sch.unroll(i1)
    sch.unroll(k2)
    sch.transform_layout("A.local", ["d0 // 8", "d1", "d0 % 8"])
    sch.apply(ChunkSums("C_sum", k1, 64))
    text = assembly(compile_function(sch.func, N1))
    by_lane = re.findall(r"fmla\s+v\d+\.8h, v\d+\.8h, v\d+\.h\[\d\]", text)
    assert len(by_lane) == 4 * 8 * 2
    assert not re.findall(r"\b(dup|ld1r)\b", text)
    assert len(re.findall(r"ldr\s+h\d", text)) == 1  # the copy of A
    assert re.findall(r"fcvtl2", text)  # chunks go from registers to the sums


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("size", "channels", "stride"), [(9, 20, 1), (12, 33, 2)])
def test_depthwise_convolutions_sum_a_window_in_halves(
    layout: str, size: int, channels: int, stride: int
) -> None:
    shape = (size, channels, 3, stride, 1)
    func = operator("depthwise-conv2d", shape, layout, prepared=True, dtype="float16")
    task = Task(func, ts.cpu(1))
    rng = np.random.default_rng(size)
    arrays = [rng.normal(size=[n.number for n in b.shape]).astype(np.float16) for b in func.inputs]
    want = ts.evaluate(func, *arrays).astype(np.float64)
    narrowed = 0
    for sketch in SketchSpace().sketches(task):
        for v in list(variants(task, sketch))[:2]:
            for row in v.sample(rng, 1):
                trace = v.decided(row)
                narrowed += any(isinstance(s, NarrowSums) for s in trace.steps)
                kernel = ts.build(trace.apply(func), task.target)
                given = [kernel.pack(b.name, a) for b, a in zip(func.inputs, arrays, strict=True)]
                error = np.abs(kernel(*given) - want).max() / np.abs(want).max()
                assert error <= chunk_error(func, trace.steps) + 2 * FLOAT16.roundoff
    assert narrowed or "fp16" not in task.target.features
    assert not any(
        isinstance(s, NarrowSums)
        for sketch in SketchSpace(accuracy=0.0).sketches(task)
        for s in sketch.steps
    )
