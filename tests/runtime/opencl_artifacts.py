"""Hand-written OpenCL kernels as artifacts, for tests of what runs them."""

from __future__ import annotations

import pytest

import tilesmith as ts
from tilesmith.base.dtype import dtype
from tilesmith.codegen.artifact import Artifact, Entry, Launch, Parameter

N = 1000

# y = 2 x + 1 by way of t = 2 x in the workspace, as two launches.
TWO_LAUNCHES = """
__kernel void twice(__global const float *x, __global float *t) {
  int i = get_group_id(0) * 64 + get_local_id(0);
  if (i < 1000) t[i] = 2 * x[i];
}
__kernel void more(__global const float *t, __global float *y) {
  int i = get_group_id(0) * 64 + get_local_id(0);
  if (i < 1000) y[i] = t[i] + 1;
}
"""


def device() -> ts.Target:
    """Skips the test where there is no OpenCL device."""
    try:
        return ts.opencl()
    except ts.TargetError as error:
        pytest.skip(str(error))


def parameter(name: str, shape: tuple[int, ...], output: bool = False) -> Parameter:
    return Parameter(name, shape, dtype("float32"), output)


def two_launches(target: ts.Target, source: str = TWO_LAUNCHES) -> Artifact:
    entry = Entry(
        "double",
        "double",
        (parameter("X", (N,)), parameter("Y", (N,), True)),
        workspace_nbytes=256 + 4 * N,
        launches=(Launch("twice", 16, 64, ("X", "T")), Launch("more", 16, 64, ("T", "Y"))),
        scratch=(("T", 256),),
    )
    return Artifact("double", target, (entry,), source, source.encode(), language="opencl")
