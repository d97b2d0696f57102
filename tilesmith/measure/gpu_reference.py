"""The reference kernel of GPUs: about 100 us of independent multiply-adds on all multiprocessors,
as text that is C for CUDA and OpenCL alike.

It never changes, so its time shows how fast the device is at the moment.
"""

from __future__ import annotations

from tilesmith.base.dtype import dtype
from tilesmith.base.target import Target
from tilesmith.codegen.artifact import Artifact, Entry, Launch, Parameter
from tilesmith.codegen.c.nvrtc import compile_cuda
from tilesmith.ir.function import Function

_THREADS, _BLOCKS_EACH, _CHAINS = 256, 2, 4
# Steps of each chain: 16 warps on a multiprocessor with four schedulers issue 16 instructions per
# step and scheduler, 100 us at 2 GHz. OpenCL may be on a processor, which is slower.
_STEPS = {"cuda": 12500, "opencl": 200}
_NAME = "reference"

_SOURCE = """
$HEAD void reference($GLOBAL float *out) {
  int t = $BLOCK * $THREADS + $THREAD;
  float c0 = 1.0f + t, c1 = 2.0f, c2 = 3.0f, c3 = 4.0f;
  for (int i = 0; i < $STEPS; i++) {
    c0 = c0 * 0.5f + 1.0f;
    c1 = c1 * 0.5f + 1.0f;
    c2 = c2 * 0.5f + 1.0f;
    c3 = c3 * 0.5f + 1.0f;
  }
  out[t] = c0 + c1 + c2 + c3;
}
"""
_WORDS = {
    "cuda": {
        "HEAD": 'extern "C" __global__', "GLOBAL": "", "BLOCK": "blockIdx.x",
        "THREADS": str(_THREADS), "THREAD": "threadIdx.x",
    },
    "opencl": {
        "HEAD": "__kernel", "GLOBAL": "__global", "BLOCK": "get_group_id(0)",
        "THREADS": str(_THREADS), "THREAD": "get_local_id(0)",
    },
}  # fmt: skip


def reference_source(kind: str) -> str:
    text = _SOURCE
    # The longest names first, because one begins with another.
    for name, value in sorted(_WORDS[kind].items(), key=lambda x: -len(x[0])):
        text = text.replace(f"${name}", value)
    return text.replace("$STEPS", str(_STEPS[kind]))


def build_reference(func: Function, target: Target) -> Artifact:
    """A builder, which ignores the Function: build workers compile the reference kernel, too."""
    source = reference_source(target.kind)
    code = (
        source.encode()
        if target.kind == "opencl"
        else compile_cuda(_NAME, source, target.arch).cubin
    )
    blocks = _BLOCKS_EACH * target.num_multiprocessors
    memory = Parameter("reference.out", (blocks * _THREADS,), dtype("float32"), True)
    launch = Launch(_NAME, blocks, _THREADS, (memory.name,))
    entry = Entry(_NAME, _NAME, (memory,), launches=(launch,))
    return Artifact(_NAME, target, (entry,), source, code, language=target.kind)
