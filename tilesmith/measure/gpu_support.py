"""Kernels that the run worker of a GPU needs itself, from text that is C for CUDA and OpenCL alike.

The reference kernel is about 100 us of independent multiply-adds on all multiprocessors. It never
changes, so its time shows how fast the device is at the moment.

The others compare an output with the expected one, which takes the device a fraction of the time in
which the host would read it. They say whether any element differs. Then the host finds out which.
"""

from __future__ import annotations

from tilesmith.base.dtype import BFLOAT16, FLOAT32, INT32, INT64, UINT8, DType, dtype
from tilesmith.base.target import Target
from tilesmith.base.template import template
from tilesmith.codegen.artifact import Artifact, Entry, Launch, Parameter
from tilesmith.codegen.c.nvrtc import compile_cuda
from tilesmith.ir.function import Function

_NAME = "reference"
_THREADS, _BLOCKS_EACH, _CHAINS = 256, 2, 4
_COMPARING_BLOCKS_EACH = 8
# Steps of each chain: 16 warps on a multiprocessor with four schedulers issue 16 instructions per
# step and scheduler, 100 us at 2 GHz. OpenCL may be on a processor, which is slower.
_STEPS = {"cuda": 12500, "opencl": 200}

_WORDS = {
    "cuda": {
        "HEAD": 'extern "C" __global__', "GLOBAL": "", "BLOCK": "blockIdx.x", "GRID": "gridDim.x",
        "THREADS": str(_THREADS), "THREAD": "threadIdx.x", "STEPS": str(_STEPS["cuda"]),
        "ABS": "fabsf", "LIMIT": "__uint_as_float((unsigned)limits[i] << 16)",
    },
    "opencl": {
        "HEAD": "__kernel", "GLOBAL": "__global", "BLOCK": "get_group_id(0)",
        "GRID": "get_num_groups(0)", "THREADS": str(_THREADS), "THREAD": "get_local_id(0)",
        "STEPS": str(_STEPS["opencl"]), "ABS": "fabs", "LIMIT": "as_float((uint)limits[i] << 16)",
    },
}  # fmt: skip
_HEADS = {
    "cuda": """
__device__ __forceinline__ float widened(unsigned short x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
""",
    "opencl": "\n#pragma OPENCL FP_CONTRACT OFF\n",
}
# The type in memory, and an element as float32.
_ELEMENTS = {
    "cuda": {
        "float32": ("float", "$[i]"),
        "float16": ("unsigned short", "widened($[i])"),
        "bfloat16": ("unsigned short", "__uint_as_float((unsigned)$[i] << 16)"),
    },
    "opencl": {
        "float32": ("float", "$[i]"),
        "float16": ("half", "vload_half(i, $)"),
        "bfloat16": ("unsigned short", "as_float((uint)$[i] << 16)"),
    },
}
COMPARED_FLOATS = tuple(_ELEMENTS["cuda"])


def comparison(d: DType) -> str:
    """The entry that compares outputs of this type; "" if only the host can."""
    if d.name in COMPARED_FLOATS:
        return f"compare_{d.name}"
    return "" if d.is_float else "compare_bytes"


def support_source(kind: str) -> str:
    """Each element of floats that are compared has a limit: the upper half of a float32. A
    comparison with NaN is false, so that equal infinities, two NaN, and a limit of NaN are asked
    for one by one.
    """
    texts = [_HEADS[kind], _text("gpu_reference.c", kind)]
    for name, (stored, element) in _ELEMENTS[kind].items():
        got, want = (element.replace("$", side) for side in ("got", "want"))
        own = {"NAME": f"compare_{name}", "STORED": stored, "GOT": got, "WANT": want}
        texts.append(_text("gpu_compare_floats.c", kind, **own))
    texts.append(_text("gpu_compare_bytes.c", kind, NAME="compare_bytes"))
    return "".join(texts)


def _text(name: str, kind: str, **own: str) -> str:
    # The longest names first, because one begins with another.
    words = sorted((_WORDS[kind] | own).items(), key=lambda x: -len(x[0]))
    return f"\n{template(__file__, name, dict(words))}"


def build_support(func: Function, target: Target) -> Artifact:
    """A builder, which ignores the Function: build workers compile these kernels, too. The first
    entry is the reference kernel.
    """
    source = support_source(target.kind)
    code = (
        source.encode()
        if target.kind == "opencl"
        else compile_cuda(_NAME, source, target.arch).cubin
    )
    blocks = _BLOCKS_EACH * target.num_multiprocessors
    memory = Parameter("reference.out", (blocks * _THREADS,), FLOAT32, True)
    launch = Launch(_NAME, blocks, _THREADS, (memory.name,))
    reference = Entry(_NAME, _NAME, (memory,), launches=(launch,))
    blocks = _COMPARING_BLOCKS_EACH * target.num_multiprocessors
    comparing = [_comparing(dtype(name), blocks) for name in COMPARED_FLOATS]
    entries = (reference, *comparing, _comparing(UINT8, blocks))
    return Artifact(_NAME, target, entries, source, code, language=target.kind)


def _comparing(d: DType, blocks: int) -> Entry:
    """Numbers of elements and limits are in memory, because launches take nothing else."""
    any_size = (0,)
    parameters = [Parameter("got", any_size, d, False), Parameter("want", any_size, d, False)]
    if d.is_float:
        parameters.append(Parameter("limits", any_size, BFLOAT16, False))
    parameters.append(Parameter("n", (1,), INT64, False))
    parameters.append(Parameter("differs", (1,), INT32, True))
    name = comparison(d)
    launch = Launch(name, blocks, _THREADS, tuple(p.name for p in parameters))
    return Entry(name, name, tuple(parameters), launches=(launch,))
