"""Writes at loaded places, by NumPy one update after the other: the oracles, compiled kernels, all
kinds of candidates, threads of a GPU, and what schedules must leave as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_targets import H200, devices, nvidia

import tilesmith as ts
from tests.support.gpu_programs import OPENCL, launch_form
from tests.support.gpu_suite import candidates
from tests.support.meaning import assert_close
from tests.support.thorough import drawn
from tilesmith.codegen.c.nvrtc import parted
from tilesmith.codegen.passes.lower_blocks import lower_blocks, resolve_notes
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.pipeline import passes_for, run_passes
from tilesmith.ir.function import find_block
from tilesmith.ir.interpreter import interpret
from tilesmith.ir.nodes import For, statements
from tilesmith.ir.simt import run_simt

REDUCTIONS = {
    "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
    "last": lambda _, new: new,
}  # fmt: skip
DTYPES = ("float32", "float64", "float16", "int8", "int32", "uint32", "int64")
ROWS, COLUMNS, COUNT = 7, 5, 23


def rows_of(
    dtype: str, reduction: str, rows: int = ROWS, columns: int = COLUMNS, count: int = COUNT
) -> ts.Function:
    """Each column of a table has updates of its own."""
    x = ts.placeholder((rows, columns), dtype, name="X")
    ids = ts.placeholder((count, columns), "int64", name="ids")
    new = ts.placeholder((count, columns), dtype, name="new")
    y = ts.ops.scatter_elements(x, ids, new, reduction=reduction, name="y0")
    return ts.function([x, ids, new, y])


def arrays_of(func: ts.Function, seed: int = 0) -> list[Any]:
    """Indices that occur twice, count from the end, or lie outside."""
    rng = np.random.default_rng(seed)
    x, ids, new = ([n.number for n in b.shape] for b in func.inputs)
    d = func.inputs[0].dtype.numpy
    values = [(rng.integers(1, 9, s) / 2).astype(d) for s in (x, new)]
    return [values[0], rng.integers(-x[0] - 2, x[0] + 2, ids), values[1]]


def wanted(x: Any, ids: Any, new: Any, reduction: str) -> Any:
    out = x.copy()
    with np.errstate(all="ignore"):
        for k, j in np.ndindex(ids.shape):
            at = ids[k, j] + (len(x) if ids[k, j] < 0 else 0)
            if 0 <= at < len(x):
                value = new[k, j] if new.ndim else new
                out[at, j] = REDUCTIONS[reduction](out[at, j], value)
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_oracles_and_kernels_agree(dtype: str, reduction: str) -> None:
    func = rows_of(dtype, reduction)
    arrays = arrays_of(func)
    want = wanted(*arrays, reduction)
    rtol = 1e-2 if dtype == "float16" else 1e-5
    for got in (
        interpret(func, *arrays),
        ts.evaluate(func, *arrays),
        ts.build(func, ts.cpu(1))(*arrays),
        ts.build(func, ts.cpu(2))(*arrays),
    ):
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol)


@pytest.mark.parametrize("reduction", ["add", "last"])
def test_candidates_match_the_oracle(reduction: str) -> None:
    func = rows_of("float32", reduction, 11, 37, 19)
    arrays = arrays_of(func, 1)
    want, target = wanted(*arrays, reduction), ts.cpu(2)
    for some in candidates(func, target, "default", drawn(6, 24), np.random.default_rng(2)):
        assert_close(ts.build(some, target)(*arrays), want, str(some))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_threads_of_a_gpu(dtype: str, reduction: str) -> None:
    func = rows_of(dtype, reduction)
    arrays = arrays_of(func, 3)
    want = wanted(*arrays, reduction)
    for some in candidates(func, OPENCL, "default", 3, np.random.default_rng(4)):
        assert_close(run_simt(launch_form(some, OPENCL), *arrays), want, str(some), func)


@pytest.mark.parametrize(
    ("dtype", "reduction"),
    [
        ("float32", "add"),
        ("float64", "mul"),
        ("int32", "max"),
        ("int64", "add"),
        ("uint32", "min"),
        ("float16", "last"),
    ],
)
def test_gpu_code_compiles_and_runs(dtype: str, reduction: str) -> None:
    func = rows_of(dtype, reduction)
    artifact = ts.build(func, nvidia("sm_90a")).artifact
    assert all(cubin[:4] == b"\x7fELF" for cubin in parted(artifact.code))
    arrays = arrays_of(func, 5)
    for target in devices():
        got = ts.build(func, target)(*arrays)
        assert_close(got, wanted(*arrays, reduction), reduction, func)


def test_one_value_for_all_is_written_by_all_threads() -> None:
    x, ids = ts.placeholder((ROWS, COLUMNS), name="X"), ts.placeholder((COUNT, COLUMNS), "int64")
    one = ts.placeholder((), name="one")
    y = ts.ops.scatter_elements(x, ids, one, reduction="last", name="y")
    func = ts.function([x, ids, one, y])
    (some,) = candidates(func, H200, "default", 1, np.random.default_rng(0))
    path, _ = find_block(some, "y.updates")
    assert {f.kind for f in path} == {"blockIdx.x", "threadIdx.x"}
    arrays = [*arrays_of(rows_of("float32", "last"))[:2], np.float32(3)]
    want = wanted(*arrays, "last")
    assert_close(run_simt(launch_form(some, H200), *arrays), want)
    assert_close(ts.build(func, ts.cpu(1))(*arrays), want)


@pytest.mark.parametrize("rows", [False, True])
def test_models_on_gpus_replace_by_the_last_of_all_updates(rows: bool) -> None:
    """By numbers, in any order, and with the same result as in order."""
    builder = GraphBuilder("model")
    x, new = builder.input("x", (9, 4), "float32"), builder.input("new", (30, 4), "float32")
    ids = builder.input("ids", (30, 1 if rows else 4), "int64")
    scatter = ts.ops.scatter_nd if rows else ts.ops.scatter_elements
    graph = builder.finish({"y": builder.add(scatter, x, ids, new, reduction="last")})
    numbered = run_passes(graph, passes_for(H200))
    assert len(numbered.nodes) == 2
    rng = np.random.default_rng(7)
    a, b = (rng.random(s, np.float32) for s in ((9, 4), (30, 4)))
    i = rng.integers(-9, 11, (30, 1 if rows else 4))
    want = wanted(a, np.broadcast_to(i, (30, 4)), b, "last")
    for target in (ts.cpu(1), *devices()):
        model = ts.compile_model(graph, target, cache=None, progress=False)
        np.testing.assert_array_equal(model({"x": a, "new": b, "ids": i})["y"], want)


def test_updates_that_replace_stay_in_order() -> None:
    func = rows_of("float32", "last")
    sch = ts.Schedule(func)
    rows, columns = sch.loops("y0.updates")
    with pytest.raises(ts.ScheduleError, match="reduces over"):
        sch.bind(rows, "threadIdx.x")
    with pytest.raises(ts.ScheduleError, match="reduces over"):
        sch.parallel(rows)
    outer, inner = sch.split(rows, [None, 4])
    with pytest.raises(ts.ScheduleError, match="last update"):
        sch.reorder(inner, outer)
    sch.reorder(columns, outer, inner)
    sch.parallel(columns)
    arrays = arrays_of(func, 6)
    assert_close(ts.build(sch.func, ts.cpu(2))(*arrays), wanted(*arrays, "last"))


def test_sums_may_be_made_by_any_thread_but_only_of_a_gpu() -> None:
    sch = ts.Schedule(rows_of("float32", "add"))
    rows, _ = sch.loops("y0.updates")
    with pytest.raises(ts.ScheduleError, match="reduces over"):
        sch.parallel(rows)
    sch.bind(rows, "blockIdx.x")
    narrow = ts.Schedule(rows_of("float16", "add"))
    with pytest.raises(ts.ScheduleError, match="reduces over"):
        narrow.bind(narrow.loops("y0.updates")[0], "blockIdx.x")


def test_updates_may_be_computed_where_they_are_made() -> None:
    """The indices and values of a kernel are results of other stages."""
    x = ts.placeholder((9, 6), name="X")
    ids = ts.placeholder((4,), "int32", name="ids")
    doubled = ts.compute((4,), lambda i: ids[i] * 2, name="doubled")
    y = ts.updated(x, (4, 6), lambda i, j: ((doubled[i], j), x[i, j] * 10), "add", name="Y")
    z = ts.compute((9, 6), lambda i, j: y[i, j] + 1, name="Z")
    func = ts.function([x, ids, z])
    a, i = np.random.default_rng(0).random((9, 6), np.float32), np.array([1, 1, 7, 4], np.int32)
    want = a + 1
    for k in (0, 1, 3):
        want[2 * i[k]] += a[k] * 10
    for target in (ts.cpu(1), *devices()):
        assert_close(ts.build(func, target)(a, i), want)
    assert_close(interpret(func, a, i), want)


def test_a_kernel_survives_json() -> None:
    func = rows_of("float32", "add")
    again = ts.function_from_json(ts.function_to_json(func))
    assert str(again) == str(func)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda x: ts.updated(x, (3,), lambda i: ((i,), x[i, 0])), "1 indices"),
        (lambda x: ts.updated(x, (3,), lambda i: ((i, 0), x[i, 0]), "or"), "'or'"),
        (lambda x: ts.updated(x, (3,), lambda i: ((i, 0), ts.cast(x[i, 0], "int8"))), "int8"),
        (lambda x: ts.updated(x, (3,), lambda i: ((x[i, 0], 0), x[i, 0])), "integer"),
    ],
)
def test_wrong_updates(make: Any, text: str) -> None:
    with pytest.raises(ts.ExpressionError, match=text):
        make(ts.placeholder((3, 2), name="X"))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_updates_along_rows_that_meet(reduction: str) -> None:
    """Lanes of a vector would read the element before any of them writes it."""
    x = ts.placeholder((3, 7), name="X")
    ids, new = ts.placeholder((3, 16), "int64", name="ids"), ts.placeholder((3, 16), name="new")
    y = ts.ops.scatter_elements(x, ids, new, 1, reduction)
    rng = np.random.default_rng(0)
    given = (
        rng.integers(1, 4, (3, 7)).astype(np.float32),
        rng.integers(0, 3, (3, 16)),
        rng.integers(1, 3, (3, 16)).astype(np.float32),
    )
    want = given[0].copy()
    for r, k in np.ndindex(3, 16):
        at = r, given[1][r, k]
        want[at] = REDUCTIONS[reduction](want[at], given[2][r, k])
    func = ts.function([x, ids, new, y])
    np.testing.assert_array_equal(ts.build(func, ts.cpu(1))(*given), want)


@pytest.mark.parametrize("columns", [5, 27, 70])
def test_lanes_that_are_written_one_by_one_count_as_copies(columns: int) -> None:
    """Else 208 rows of 27 columns are 5,616 branches, which LLVM takes half a minute for."""
    sch = ts.Schedule(rows_of("float32", "add", 80, columns, 208))
    rows, lanes = sch.loops("y0.updates")
    sch.vectorize(lanes)
    sch.annotate(rows, "unroll_depth", 512)
    for func in (sch.func, lower_blocks(sch.func, ts.cpu(1))):
        loops = statements(resolve_notes(func, ts.cpu(1)).body)
        (kind,) = {s.kind for s in loops if isinstance(s, For) and s.name == rows}
        assert kind == "serial"
    arrays = arrays_of(sch.func, 7)
    assert_close(ts.build(sch.func, ts.cpu(1))(*arrays), wanted(*arrays, "add"))
