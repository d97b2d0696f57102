"""Minimal filtering on GPUs: three launches, which the interpreter, an OpenCL device and NVRTC
accept, with borders that the windows of results do not divide.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from gpu_targets import H200, devices

import tilesmith as ts
from tests.support.gpu_programs import GpuCheck
from tests.support.gpu_suite import as_one, emitted, run_entries
from tests.support.meaning import assert_close
from tilesmith.codegen.c.dialect import CUDA, OPENCL
from tilesmith.codegen.c.nvrtc import compile_cuda
from tilesmith.ir.function import Function
from tilesmith.schedule.winograd import Winograd
from tilesmith.space.filtering import FilterWindows, FilterWindowsForGpu
from tilesmith.space.spaces import SketchSpace, variants
from tilesmith.space.variant import Variant


def conv(
    image: tuple[int, ...], results: int, padding: int = 1, *, layout: str = "NCHW",
    end: Callable[..., ts.Tensor] | None = None, held: bool = True,
) -> Function:  # fmt: skip
    """A 3x3 convolution; `end` is what follows it."""
    channels = image[1] if layout == "NCHW" else image[-1]
    first = (results, channels, 3, 3)
    x = ts.placeholder(image, name="X")
    w = ts.placeholder(first if layout == "NCHW" else (3, 3, *first[1::-1]), name="W")
    y = ts.ops.conv2d(x, w, 1, padding, layout=layout, name="Y")
    z = y if end is None else end(y, name="Z")
    return ts.function([x, w, z], name="conv", constants=[w] if held else [])


pytestmark = pytest.mark.usefixtures("quick_nvrtc")
CASES = {
    "odd": conv((1, 6, 7, 9), 10),
    "images": conv((2, 4, 5, 6), 6, 0),
    "channels last": conv((2, 6, 7, 5), 4, layout="NHWC"),
    "relu": conv((1, 4, 6, 6), 12, end=ts.ops.relu),
}


def filtered(func: Function, target: ts.Target = H200, **changes: object) -> list[Variant]:
    """By the default rules, for any number of terms."""
    small = FilterWindowsForGpu(FilterWindows(least=2, **changes), terms=1)
    rules = [small if isinstance(r, FilterWindowsForGpu) else r for r in ts.default_rules(target)]
    task = ts.Task(func, target)
    some = [s for s in SketchSpace(rules).sketches(task) if any(isinstance(x, Winograd) for x in s)]
    return [v for s in some for v in variants(task, s)]


@pytest.mark.parametrize("name", CASES)
def test_it_is_right(name: str) -> None:
    check = GpuCheck(CASES[name], H200)
    rng = np.random.default_rng(len(name))
    every = filtered(check.func)
    assert {s.results for v in every for s in v.trace if isinstance(s, Winograd)} == {2, 4}
    scheduled = [v.function(v.sample(rng, 1)[0]) for v in every]
    lowered = [check.run(f) for f in scheduled]
    for target in [t for t in devices() if t.kind == "opencl"]:
        plain = [k for k, f in enumerate(lowered) if "cluster" not in str(scheduled[k])]
        artifact = as_one(emitted([lowered[k] for k in plain], target, OPENCL))
        arrays = [check.arguments(scheduled[k]) for k in plain]
        for k, got in zip(plain, run_entries(artifact, arrays), strict=True):
            assert_close(got, check.want, f"{lowered[k]}", check.func)


def test_there_are_three_launches_and_nvrtc_compiles_them() -> None:
    pytest.importorskip("cuda.bindings", reason="NVRTC compiles CUDA")
    check = GpuCheck(CASES["relu"], H200)
    rng = np.random.default_rng(0)
    lowered = [check.run(v.function(v.sample(rng, 1)[0])) for v in filtered(check.func)]
    artifact = as_one(emitted(lowered, H200, CUDA))
    assert all(len(e.launches) == 3 for e in artifact.entries)
    assert compile_cuda(artifact.name, artifact.source, "sm_90a").cubin[:4] == b"\x7fELF"


def test_weights_that_are_not_constant_or_little_accuracy_forbid_it() -> None:
    assert not filtered(conv((1, 6, 7, 9), 10, held=False))
    assert not filtered(CASES["odd"], accuracy=0.0)
    assert {s.results for v in filtered(CASES["odd"], accuracy=4e-7) for s in v.trace
            if isinstance(s, Winograd)} == {2}  # fmt: skip
