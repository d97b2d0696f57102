"""Small windows of images on GPUs: one pass without loops over the window."""

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
from tilesmith.ir.function import Function
from tilesmith.space.spaces import SketchSpace, variants

H200 = ts.Target.named("nvidia-h200")


def depthwise_relu(layout: str) -> Function:
    shape = (2, 6, 8, 9) if layout == "NCHW" else (2, 8, 9, 6)
    x = ts.placeholder(shape, name="X")
    w = ts.placeholder((6, 1, 3, 3) if layout == "NCHW" else (3, 3, 1, 6), name="W")
    y = ts.ops.conv2d(x, w, 1, 1, groups=6, layout=layout, name="Y")
    return ts.function([x, w, ts.ops.relu(y, name="Z")], name=f"depthwise_{layout}")


CASES = {
    "depthwise": operator("depthwise-conv2d", (9, 5, 3, 2, 1, 2)),
    "pool": operator("max-pool2d", (12, 4, 3, 2, 1)),
    "pool of prime size": operator("max-pool2d", (13, 4, 3, 1, 1)),
    "channels first": depthwise_relu("NCHW"),
    "channels last": depthwise_relu("NHWC"),
}


def written_out(func: Function) -> list[ts.Variant]:
    task = ts.Task(func, H200)
    some = [s for s in SketchSpace().sketches(task) if "write_out" in str(s)]
    return [v for s in some for v in variants(task, s)]


@pytest.mark.parametrize("name", CASES)
def test_it_is_one_launch_without_sums(name: str) -> None:
    func = CASES[name]
    (v,) = written_out(func)
    rng = np.random.default_rng(0)
    given = random_inputs(func, rng)
    want = evaluate(func, *given)
    for row in v.sample(rng, 5):
        program = lower(v.function(row), H200, GPU_PASSES)
        assert_close(ts.run_simt(program, *given), want, "", func)
        emitted = emit_launches(program, CUDA)
        assert len(emitted.launches) == 1
        assert "+=" not in emitted.source.replace("++", "")


def test_sizes_without_divisors_have_many_programs() -> None:
    (v,) = written_out(CASES["pool of prime size"])
    assert v.size >= 50


def test_nvrtc_compiles_it() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles CUDA")
    (v,) = written_out(CASES["depthwise"])
    (row,) = v.sample(np.random.default_rng(0), 1)
    source = emit_launches(lower(v.function(row), H200, GPU_PASSES), CUDA).source
    assert compile_cuda("depthwise", source, "sm_90a").cubin


def test_ordinary_convolutions_are_not_written_out() -> None:
    assert not written_out(operator("conv2d", (8, 2, 4, 3, 1, 1)))


def test_pooling_of_channels_in_front_is_one_launch():
    """Inside, channels are last; the launch that computes also stores in the given order."""
    x = ts.placeholder((2, 5, 9, 8), name="X")
    y = ts.ops.avg_pool2d(ts.ops.transpose(x, (0, 2, 3, 1)), 2, 2, layout="NHWC", name="P")
    func = ts.function([x, ts.ops.transpose(y, (0, 3, 1, 2))], name="pooled")
    (first, *_) = written_out(func)
    (row,) = first.sample(np.random.default_rng(0), 1)
    assert len(first.function(row).body) == 1
