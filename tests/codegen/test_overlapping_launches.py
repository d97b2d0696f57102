"""Launches that begin while the one before ends (sm_90): each waits before it touches memory."""

from __future__ import annotations

import ctypes
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.codegen.c.backends import emit_artifact
from tilesmith.codegen.c.dialect import CUDA, OPENCL
from tilesmith.codegen.c.nvrtc import _text
from tilesmith.codegen.pipeline import GPU_PASSES
from tilesmith.ir.function import Function
from tilesmith.schedule.trace import Trace
from tilesmith.space.derive import derive
from tilesmith.space.sets import default_rules
from tilesmith.space.variant import lower
from tilesmith.task.task import Task

H200 = ts.Target.named("nvidia-h200")


def product() -> Function:
    a, b = ts.placeholder((49, 256), "float16", name="A"), ts.placeholder((256, 64), "float16")
    return ts.function([a, b, ts.ops.matmul(a, b)], name="product")


def rows() -> Function:
    x = ts.placeholder((64, 300), name="X")
    return ts.function([x, ts.ops.softmax(x)], name="rows")


def assembler(source: str) -> str:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles CUDA")
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"k.cu", 0, [], [])
    (error,) = nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=compute_90a"])
    assert error == nvrtc.nvrtcResult.NVRTC_SUCCESS
    return _text(nvrtc, program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX).decode()


@pytest.mark.parametrize("func", [product(), rows()], ids=lambda f: f.name)
def test_every_launch_waits_before_it_touches_memory(func: Function) -> None:
    task = Task(func, H200)
    sketches = derive(task, default_rules(H200)).finished
    for sketch in (sketches[0], sketches[len(sketches) // 2], sketches[-1]):
        variant = lower(task, Trace(sketch.steps))
        (row,) = variant.sample(np.random.default_rng(0), 1)
        artifact = emit_artifact(variant.function(row), H200, CUDA, GPU_PASSES, checked=False)
        assert all(x.overlaps for x in artifact.entries[0].launches)
        _, *kernels = re.split(r"\.entry ", assembler(artifact.source))
        assert len(kernels) == len(artifact.entries[0].launches)
        for text in kernels:
            touched = re.search(r"(ld|st|red|atom)\.(volatile\.)?global|cp\.async", text)
            assert touched is not None
            assert 0 < text.index("griddepcontrol.wait") < touched.start()


def test_opencl_has_no_such_launches() -> None:
    target = ts.Target("opencl", "", "", 8, num_multiprocessors=8, max_threads=256, warp_size=16)
    task = Task(rows(), target)
    variant = lower(task, Trace(derive(task, default_rules(target)).finished[0].steps))
    (row,) = variant.sample(np.random.default_rng(0), 1)
    artifact = emit_artifact(variant.function(row), target, OPENCL, GPU_PASSES, checked=False)
    assert not any(x.overlaps for x in artifact.entries[0].launches)
    assert "griddepcontrol" not in artifact.source


@pytest.mark.parametrize("said", [b"", b"a warning"])
def test_reading_what_nvrtc_says_changes_no_other_bytes(said: bytes) -> None:
    """Python has one object for all bytes of length 1: an empty log was written over b" ", and what
    was compiled afterwards had no spaces in it.
    """

    def get(_: Any, to: bytes) -> None:
        view = (ctypes.c_char * len(to)).from_address(id(to) + bytes.__basicsize__ - 1)
        ctypes.memmove(view, said + b"\0", len(to))

    nvrtc = SimpleNamespace(nvrtcResult=SimpleNamespace(NVRTC_SUCCESS=0))
    assert _text(nvrtc, None, lambda _: (0, len(said) + 1), get) == said + b"\0"
    assert [bytes([k])[0] for k in range(256)] == list(range(256))
