"""GPU targets of the tests: those to compile for, and devices that are here."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tilesmith as ts

H200 = ts.Target.named("nvidia-h200")
ARCHITECTURES = ("sm_75", "sm_80", "sm_90a")


def nvidia(arch: str) -> ts.Target:
    pytest.importorskip("cuda.bindings", reason="NVRTC compiles CUDA")
    return replace(H200, arch=arch, cpu=arch)


def devices() -> list[ts.Target]:
    """PoCL or another OpenCL device, and an NVIDIA GPU, as far as they are here."""
    found = []
    for find in (ts.opencl, ts.cuda):
        try:
            found.append(find())
        except ts.TargetError:
            continue
    return found


def in_blocks(func: ts.Function) -> ts.Schedule:
    """Every row of the last stage is a block, every element of it a thread."""
    sch = ts.Schedule(func)
    row, element = sch.loops(sch.blocks[-1])
    sch.bind(row, "blockIdx.x")
    sch.bind(element, "threadIdx.x")
    return sch
