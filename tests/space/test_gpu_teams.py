"""Tiles whose sums are cut into parts that neighbouring threads compute and join by shuffles."""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tests.support.meaning import assert_close
from tests.support.programs import random_inputs
from tilesmith.cli.operators import operator
from tilesmith.codegen.c.backends import emit_launches
from tilesmith.codegen.c.dialect import CUDA
from tilesmith.codegen.c.nvrtc import compile_cuda
from tilesmith.codegen.pipeline import GPU_PASSES, lower
from tilesmith.ir.evaluate import evaluate
from tilesmith.ir.launch_form import launch_form_of
from tilesmith.ir.nodes import Alloc, walk
from tilesmith.ir.notes import ReduceAcross
from tilesmith.space.spaces import SketchSpace, variants

H200 = ts.Target.named("nvidia-h200")
CASES = {"matmul": (24, 16, 256), "conv2d-bn-relu": (5, 16, 8, 3, 1, 1)}


def teams(name: str, shape: tuple[int, ...]) -> list[ts.Variant]:
    task = ts.Task(operator(name, shape), H200)
    some = [s for s in SketchSpace().sketches(task) if "reduce_across" in str(s)]
    return [v for s in some for v in variants(task, s)]


@pytest.mark.parametrize("name", CASES)
def test_they_mean_the_same(name: str) -> None:
    found = teams(name, CASES[name])
    assert found
    func = found[0].task.func
    rng = np.random.default_rng(0)
    given = random_inputs(func, rng)
    want = evaluate(func, *given)
    sizes = set()
    for v in found:
        (cut,) = (f for path, _ in walk(v.func.body) for f in path if f.note(ReduceAcross))
        for row in v.sample(rng, 3):
            values = dict(zip(v.columns, map(int, row), strict=True))
            sizes.add(values[str(cut.extent)])
            program = lower(v.function(row), H200, GPU_PASSES)
            assert_close(ts.run_simt(program, *given), want, "", func)
            (launch,) = (launch_form_of(s) for s in program.body if not isinstance(s, Alloc))
            assert launch.num_threads <= H200.max_threads
    assert sizes if name != "matmul" else len(sizes) > 1


def test_shuffles_join_all_results_of_a_thread() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles CUDA")
    (v, *_) = teams("matmul", CASES["matmul"])
    (row,) = v.sample(np.random.default_rng(0), 1)
    source = emit_launches(lower(v.function(row), H200, GPU_PASSES), CUDA).source
    assert "__shfl_xor_sync" in source
    assert compile_cuda("team", source, "sm_90a").cubin


def test_many_results_need_no_teams() -> None:
    assert not teams("matmul", (1024, 1024, 1024))
