"""Matrix instructions in kernels with open sizes: the launch form of one kernel in the SIMT
interpreter at sizes around the ends of its tiles, and CUDA that compiles.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from gpu_targets import H200, nvidia

import tilesmith as ts
from tests.support.gpu_programs import GpuCheck, launch_form
from tests.support.meaning import assert_close
from tilesmith.codegen.artifact import entry_from_json, entry_to_json
from tilesmith.codegen.c.backends import emit_artifact
from tilesmith.codegen.c.dialect import CUDA
from tilesmith.codegen.c.tensor_plan import blocks_of
from tilesmith.codegen.pipeline import GPU_PASSES
from tilesmith.expr.ints import of
from tilesmith.ir.function import Function
from tilesmith.ir.launch_form import launch_form_of
from tilesmith.runtime.entry_at import entry_at
from tilesmith.runtime.kernel import Origin
from tilesmith.schedule.loops import Split
from tilesmith.schedule.open_trace import open_schedule
from tilesmith.schedule.trace import Trace
from tilesmith.schedule.unit import Tensorize
from tilesmith.tune.open_build import few_and_many, kernel_of_trace, task_at

N = ts.size("n", range=(1, 4096))


def half(shape: tuple[ts.IntLike, ...], name: str, dtype: str = "float16") -> ts.Tensor:
    return ts.placeholder(shape, dtype, name=name)


def dense() -> Function:
    a, w, b = half((N, 64), "A"), half((64, 64), "W"), half((64,), "b")
    return ts.function([a, w, b, ts.ops.relu(ts.ops.dense(a, w, b))], name="dense")


def wide_result() -> Function:
    a, b = half((N, 128), "A", "bfloat16"), half((128, 64), "B", "bfloat16")
    return ts.function([a, b, ts.ops.matmul(a, b, out_dtype="float32")], name="wide_result")


def rows() -> Function:
    a, b = half((2, N, 64), "A"), half((2, 64, 64), "B")
    return ts.function([a, b, ts.ops.batch_matmul(a, b)], name="rows")


def batch() -> Function:
    a, b = half((N, 64, 64), "A"), half((N, 64, 64), "B")
    return ts.function([a, b, ts.ops.batch_matmul(a, b)], name="batch")


def depth() -> Function:
    a, b = half((64, N), "A"), half((N, 64), "B")
    return ts.function([a, b, ts.ops.matmul(a, b)], name="depth")


def images() -> Function:
    x, w = half((N, 16, 6, 6), "X"), half((32, 16, 3, 3), "W")
    return ts.function([x, w, ts.ops.conv2d(x, w, padding=1)], name="images")


def channels_last() -> Function:
    x, w = half((N, 8, 8, 32), "X"), half((3, 3, 32, 64), "W")
    y = ts.ops.relu(ts.ops.conv2d(x, w, 1, 1, layout="NHWC"))
    return ts.function([x, w, y], name="channels_last")


def by_instructions(func: Function, n: int, unit: str) -> Trace:
    """A schedule with such an instruction, for as many rows."""
    task = task_at(func, (("n", n),), H200, None)
    for sketch in ts.SketchSpace().sketches(task):
        units = [s.intrinsic.name for s in sketch.steps if isinstance(s, Tensorize)]
        if units and unit in units[0]:
            variant = next(iter(ts.variants(task, sketch)))
            (row,) = variant.sample(np.random.default_rng(0), 1)
            return variant.candidate(row).trace
    raise AssertionError(f"{func.name} has no sketch with {unit}")


CASES = [
    (dense, "cuda.wgmma", (1, 63, 64, 65, 200)),
    (dense, "cuda.mma", (1, 31, 32, 33, 130)),
    (wide_result, "cuda.wgmma", (1, 127, 128, 129)),
    (rows, "cuda.wgmma", (1, 64, 65)),
    (batch, "cuda.wgmma", (1, 3)),
    (depth, "cuda.mma", (1, 15, 16, 17, 100)),
    (images, "cuda.mma", (1, 2, 5)),
    (channels_last, "cuda.wgmma", (1, 2, 5)),
]


@pytest.mark.parametrize(("function", "unit", "sizes"), CASES)
def test_one_kernel_is_right_at_all_sizes(function, unit, sizes):
    func = function()
    scheduled = open_schedule(by_instructions(func, 70 if sizes[-1] > 9 else 5, unit), func)
    source = emit_artifact(scheduled, H200, CUDA, GPU_PASSES, False).source
    assert ("bulk_copy_" in source) == (unit == "cuda.wgmma")
    lowered = launch_form(scheduled, H200)
    for n in sizes:
        check = GpuCheck(ts.instantiate(func, {"n": n}), H200)
        assert_close(ts.run_simt(lowered, *check.arrays), check.want, f"{n}\n{lowered}", check.func)


def test_rows_behind_the_end_are_tested_where_results_are_stored_only():
    func = dense()
    source = emit_artifact(
        open_schedule(by_instructions(func, 512, "cuda.wgmma"), func), H200, CUDA, GPU_PASSES, False
    ).source
    kernel = source[source.index("const int n) {") :]
    assert "if (n >= " not in kernel[: kernel.rindex("wgmma.commit_group")]
    assert "if (n >= " in kernel


def test_the_host_describes_tensors_and_counts_blocks_at_each_size():
    func, target = dense(), nvidia("sm_90a")
    schedule = by_instructions(func, 512, "cuda.wgmma")
    kernel = kernel_of_trace(schedule, func, target, None, Origin("record"))
    (entry,) = kernel.artifact.entries
    assert entry_from_json(json.loads(json.dumps(entry_to_json(entry)))) == entry
    (launch,) = entry_at(kernel.artifact, {"n": 100}).launches
    a = next(m for m in launch.maps if m.buffer == "A")
    assert (a.shape, a.strides) == ((64, 100), (128,))
    all_blocks = [entry_at(kernel.artifact, {"n": n}).launches[0].grid for n in (1, 4096)]
    bounded = replace(entry, launches=tuple(replace(x, grid=3) for x in entry.launches))
    artifact = replace(kernel.artifact, entries=(bounded,))
    grids = [entry_at(artifact, {"n": n}).launches[0].grid for n in (1, 4096)]
    assert grids == [min(3, n) for n in all_blocks]


def test_blocks_take_groups_of_tiles_of_which_the_last_is_a_part():
    a, b = half((N, 64), "A"), half((64, 192), "B")
    func = ts.function([a, b, ts.ops.matmul(a, b)], name="grouped")
    trace = by_instructions(func, 4096, "cuda.wgmma_f16_64x64x16")
    rows = next(s for s in trace.resolved if isinstance(s, Split) and len(s.factors) == 4)
    steps = (replace(s, factors=(None, 4, 1, 1)) if s == rows else s for s in trace.resolved)
    scheduled = open_schedule(Trace(tuple(steps)), func)
    (launch,) = launch_form(scheduled, H200).body
    counts = (blocks_of(launch_form_of(launch)).substitute({"#n": of(n)}) for n in (1, 64, 65, 450))
    assert [n.number for n in counts] == [3, 3, 6, 24]
    source = emit_artifact(scheduled, H200, CUDA, GPU_PASSES, False).source
    lines = re.findall(r"const int (\w+) = (.*);", source[source.index("if (threadIdx.x == ") :])
    last = [name for name, _ in lines].index("i_outer_1")
    for n in (6, 8):
        tiles = []
        for block in range(3 * n):
            env = {
                "n": 64 * n,
                "n_div64": n,
                "block": block,
                "blockIdx": SimpleNamespace(x=block),
                "min": min,
            }
            for name, value in lines[: last + 1]:
                env[name] = eval(value.replace("/", "//"), {}, env)
            tiles.append((env["i_outer_0"] * 4 + env["i_outer_1"], env["j_outer"]))
        assert sorted(tiles) == [(i, j) for i in range(n) for j in range(3)]


def test_drafts_are_made_for_few_and_many():
    sizes = [dict(s)["n"] for s in few_and_many(dense())]
    assert sizes == [4096, 256, 16, 1]
    m = ts.size("m", samples={7: 1})
    func = ts.function([x := ts.placeholder((m, 4), name="X"), ts.ops.relu(x)], name="one")
    assert few_and_many(func) == [(("m", 7),)]
