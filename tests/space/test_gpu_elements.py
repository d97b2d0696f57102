"""Element-wise blocks on GPUs: vectors of several elements, tiles of several axes, and transposed
operands that pass through shared memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from bench.everyday import space_sizes
from bench.everyday_cases import GPU, Limits, draw
from tests.codegen.gpu_targets import devices
from tests.support.meaning import assert_close
from tests.support.programs import random_inputs
from tests.support.thorough import drawn
from tilesmith.codegen.c.backends import emit_launches
from tilesmith.codegen.c.dialect import CUDA
from tilesmith.codegen.c.nvrtc import compile_cuda
from tilesmith.codegen.pipeline import GPU_PASSES, lower
from tilesmith.ir.evaluate import evaluate
from tilesmith.ir.function import Function
from tilesmith.schedule.cache import CacheRead
from tilesmith.search.gpu_score import GpuScore
from tilesmith.space.spaces import SketchSpace, variants

H200 = ts.Target.named("nvidia-h200")
Shape = tuple[int, ...]


def added(shape: Shape, other: Shape, dtype: str = "float32") -> Function:
    x, b = ts.placeholder(shape, dtype, name="X"), ts.placeholder(other, dtype, name="B")
    return ts.function([x, b, ts.ops.add(x, b, name="Y")])


def transposed(shape: Shape, order: Shape, dtype: str = "float32") -> Function:
    x = ts.placeholder(shape, dtype, name="X")
    return ts.function([x, ts.ops.transpose(x, order, name="Y")])


def turned_and_added(n: int, m: int) -> Function:
    x, b = ts.placeholder((n, m), name="X"), ts.placeholder((m, n), name="B")
    return ts.function([x, b, ts.compute((m, n), lambda j, i: x[i, j] + b[j, i], name="Y")])


def padded(shape: Shape, widths: tuple[tuple[int, int], ...], dtype: str = "float32") -> Function:
    x = ts.placeholder(shape, dtype, name="X")
    return ts.function([x, ts.ops.relu(ts.ops.pad(x, widths), name="Y")])


def joined(shapes: list[Shape], axis: int, dtype: str = "float32") -> Function:
    parts = [ts.placeholder(s, dtype, name=f"X{k}") for k, s in enumerate(shapes)]
    return ts.function([*parts, ts.ops.concatenate(parts, axis=axis, name="Y")])


def cast(shape: Shape, have: str, want: str) -> Function:
    x = ts.placeholder(shape, have, name="X")
    return ts.function([x, ts.ops.cast(x, want, name="Y")])


def gathered(rows: int, width: int, count: int, dtype: str = "float32") -> Function:
    x, ids = ts.placeholder((rows, width), dtype, name="X"), ts.placeholder((count,), "int32")
    return ts.function([x, ids, ts.ops.gather(x, ids, name="Y")])


def selected_twice(shape: tuple[int, int]) -> Function:
    """Reads the same elements under two conditions, of which either may hold alone."""
    x = ts.placeholder(shape, name="X")

    def body(i: ts.Value, j: ts.Value) -> ts.Value:
        return ts.where(i < 5, x[i, j], 0.0) + ts.where(i >= 3, x[i, j], 1.0)

    return ts.function([x, ts.compute(shape, body, name="Y")])


CASES: dict[str, Function] = {
    "selected twice": selected_twice((9, 32)),
    "one row": added((3, 5, 64), (3, 5, 64), "float16"),
    "an odd row": added((3, 67), (3, 67), "float16"),
    "a row for all": added((37, 40), (1, 40), "bfloat16"),
    "a column for all": added((6, 35), (6, 1)),
    "inner axes for all": added((3, 4, 5, 6), (3, 1, 5, 1), "float16"),
    "ones between": added((4, 1, 9, 1, 8), (4, 1, 9, 1, 8)),
    "one element": added((1, 1), (1, 1)),
    "int8": added((11, 48), (11, 48), "int8"),
    "to wider": cast((7, 40), "int8", "float32"),
    "to narrower": cast((9, 24), "float32", "float16"),
    "bool": cast((9, 32), "float32", "bool"),
    "transpose": transposed((40, 37), (1, 0)),
    "transpose of halves": transposed((48, 64), (1, 0), "float16"),
    "transpose of bytes": transposed((33, 50), (1, 0), "int8"),
    "batches of small matrices": transposed((41, 5, 7), (0, 2, 1), "float16"),
    "rows move": transposed((5, 6, 24), (1, 0, 2)),
    "channels last": transposed((2, 12, 5, 7), (0, 2, 3, 1)),
    "five axes": transposed((3, 4, 2, 5, 6), (3, 0, 4, 2, 1), "float16"),
    "turned and added": turned_and_added(33, 26),
    "padded": padded((9, 34), ((1, 2), (0, 3))),
    "padded in front": padded((3, 5, 16), ((0, 0), (1, 0), (0, 0)), "float16"),
    "joined rows": joined([(3, 2, 16), (3, 5, 16)], 1, "float16"),
    "joined within rows": joined([(9, 8), (9, 16), (9, 3)], 1),
    "gathered": gathered(20, 24, 33, "float16"),
    "gathered, odd": gathered(20, 27, 9),
}


def programs(func: Function, count: int, target: ts.Target = H200) -> Iterator[Any]:
    task, rng = ts.Task(func, target), np.random.default_rng(0)
    for sketch in SketchSpace().sketches(task):
        for v in variants(task, sketch):
            for row in v.sample(rng, count):
                yield v.function(row)


@pytest.mark.parametrize("name", CASES)
def test_every_program_computes_the_same(name: str) -> None:
    func = CASES[name]
    given = random_inputs(func, np.random.default_rng(1))
    want = evaluate(func, *given)
    for program in programs(func, drawn(3, 6)):
        lowered = lower(program, H200, GPU_PASSES)
        assert_close(ts.run_simt(lowered, *given), want, str(program), func)


@pytest.mark.parametrize("name", [*CASES][::3])
@pytest.mark.parametrize("target", devices(), ids=lambda t: t.kind)
def test_devices_compute_the_same(name: str, target: ts.Target) -> None:
    func = CASES[name]
    given = random_inputs(func, np.random.default_rng(2))
    want = evaluate(func, *given)
    for program in programs(func, drawn(1, 2), target):
        assert_close(ts.build(program, target)(*given), want, str(program), func)


@pytest.mark.parametrize("func", [added((), ()), added((0, 4), (0, 4)), transposed((3, 0), (1, 0))])
def test_scalars_and_nothing(func: Function) -> None:
    given = random_inputs(func, np.random.default_rng(0))
    for program in programs(func, 2):
        got = ts.run_simt(lower(program, H200, GPU_PASSES), *given)
        assert_close(got, evaluate(func, *given), "", func)


LARGE = {
    "added": added((512, 2048), (512, 2048), "float16"),
    "eight bytes": added((1001, 1001), (1001, 1001), "float64"),
    "odd rows": added((512, 33, 67), (512, 1, 67), "bfloat16"),
    "transposed": transposed((1021, 1033), (1, 0)),
    "small matrices": transposed((40000, 5, 7), (0, 2, 1)),
    "five axes": transposed((16, 17, 18, 19, 20), (4, 2, 0, 1, 3), "float16"),
    "padded": padded((1200, 9, 100), ((0, 0), (1, 1), (2, 1)), "float16"),
    "padded row": padded((1200000,), ((1, 0),)),
    "joined": joined([(3, 600001), (4, 600001)], 0),
    "gathered": gathered(5000, 625, 2000),
}


@pytest.mark.parametrize("name", LARGE)
def test_spaces_hold_many_programs(name: str) -> None:
    task = ts.Task(LARGE[name], H200)
    sizes = [v.size for s in SketchSpace().sketches(task) for v in variants(task, s)]
    assert sum(sizes) >= 50


def test_drawn_cases_have_many_programs() -> None:
    modules = pytest.importorskip("bench.everyday_modules", reason="modules of PyTorch")
    limits = Limits(1e7, 2e6, GPU.dtypes)
    for family in ("transpose", "concatenation", "pad", "gather", "element-wise"):
        for case in draw(3, 5, limits, (family,)):
            if case.work > 1e6:
                module, given = modules.module_of(case)
                sizes = space_sizes(ts.from_torch(module, tuple(given)), H200)
                assert all(n >= 50 for n in sizes), (case.name, sizes)


def best(func: Function) -> tuple[ts.Trace, str]:
    """The program that the analytic score prefers, and its CUDA."""
    task, rng = ts.Task(func, H200), np.random.default_rng(0)
    found = []
    for sketch in SketchSpace().sketches(task):
        for v in variants(task, sketch):
            rows = v.sample(rng, 400)
            scores = GpuScore().predict(v, rows)
            k = int(scores.argmax())
            found.append((float(scores[k]), v, rows[k]))
    _, v, row = max(found, key=lambda f: f[0])
    return v.candidate(row).trace, emit_launches(
        lower(v.function(row), H200, GPU_PASSES), CUDA
    ).source


def threads_of(source: str) -> int:
    (n,) = re.findall(r"__launch_bounds__\((\d+)\)", source)
    return int(n)


@pytest.mark.parametrize(
    ("func", "vector"),
    [
        (added((35, 1000, 1000), (35, 1000, 1000), "float16"), "uint4"),
        (added((3001, 3333), (3001, 3333), "bfloat16"), "uint4"),
        (added((10000, 1000), (1, 1000)), "float4"),
        (transposed((300, 1000, 64), (1, 0, 2)), "float4"),
        (gathered(5000, 640, 20000), "float4"),
        (joined([(3000, 40, 64), (3000, 50, 64)], 1, "float16"), "uint4"),
    ],
)  # fmt: skip
def test_the_draft_of_a_large_one_loads_and_stores_16_bytes(func: Function, vector: str) -> None:
    _, source = best(func)
    loads = re.findall(rf"= \*\(const {vector}\*\)&X\w*\[", source)
    stores = re.findall(rf"\*\({vector}\*\)&Y\w*\[.*\] =", source)
    assert loads, source
    assert stores, source
    assert threads_of(source) >= 128


def test_the_draft_of_a_transpose_goes_through_shared_memory() -> None:
    for dtype in ("float32", "float16"):
        trace, source = best(transposed((4000, 3000), (1, 0), dtype))
        assert any(isinstance(s, CacheRead) for s in trace.steps)
        assert "__shared__" in source


def test_the_draft_of_a_small_one_uses_all_multiprocessors() -> None:
    for func in (added((100, 1000), (100, 1000)), transposed((300, 300), (1, 0))):
        task = ts.Task(func, H200)
        trace, source = best(func)
        (launch,) = emit_launches(lower(trace.apply(task.func), H200, GPU_PASSES), CUDA).launches
        assert launch.grid >= H200.num_multiprocessors, source


@pytest.mark.parametrize("name", ["an odd row", "five axes", "joined within rows", "gathered"])
def test_nvrtc_compiles_them(name: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles CUDA")
    for program in programs(CASES[name], 1):
        source = emit_launches(lower(program, H200, GPU_PASSES), CUDA).source
        assert compile_cuda("elements", source, "sm_90a").cubin


def test_sides_of_a_select_are_loaded_as_vectors_where_they_are_read() -> None:
    """Both operands begin and end at whole vectors: the condition is the same for each of them."""
    func = joined([(64, 32), (64, 16)], 1)
    sources = (
        emit_launches(lower(p, H200, GPU_PASSES), CUDA).source for p in programs(func, 40)
    )  # fmt: skip
    wide = next(s for s in sources if "float4" in s)
    assert len(re.findall(r"if \(.*\) \*\(float4\*\)&X\d_v\[0\] = ", wide)) == 2
