"""Kernels of y = 2 x + 1 with a fault that one tool of compute-sanitizer has to report: otherwise
its silence about others means nothing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import tilesmith as ts
from bench.gpu_sanitize_draw import H200, Saved, save, tag
from tilesmith.codegen.artifact import Artifact, Entry, Launch, parameters_of
from tilesmith.codegen.c.nvrtc import compile_cuda

_N, _THREADS = 1024, 128
_FIRST = 90_000  # of their numbers, beyond those of candidates
_PLAIN = "Y[i] = 2 * X[i] + 1;"
# Bodies by tool; i is the number of the thread.
_FAULTS = {
    "memcheck": f"{_PLAIN} if (i == 7) Y[{_N}] = 3;",
    # Thread k reads what thread k + 1 writes, mostly of another warp's turn; nothing waits.
    "racecheck": (
        f"__shared__ float s[{_THREADS}]; s[threadIdx.x] = X[i];\n"
        f"  float o = s[(threadIdx.x + 64) % {_THREADS}];\n"
        f"  {_PLAIN} if (o == 12345.0f) Y[i] = o;"
    ),
    "synccheck": f"if (threadIdx.x % 2) __syncthreads();\n  {_PLAIN}",
    # Y is not filled under this tool.
    "initcheck": f"if (Y[i] == 12345.0f) Y[i] = 3; else {_PLAIN}",
}  # fmt: skip


def _source(tool: str, number: int) -> str:
    head = f'extern "C" __global__ void {tag(number)}_planted(const float *X, float *Y)'
    return (
        f"{head} {{\n  int i = blockIdx.x * {_THREADS} + threadIdx.x;\n"
        f"  {_FAULTS[tool]}\n}}\n"
    )  # fmt: skip


def save_planted(folder: Path) -> list[int]:
    """Saves a fault for each tool; returns their numbers."""
    x = ts.placeholder((_N,), name="X")
    y = ts.compute((_N,), lambda i: x[i] * 2 + 1, name="Y")
    func = ts.function([x, y], name="planted")
    data = np.linspace(-1, 1, _N, dtype=np.float32)
    for number, tool in enumerate(_FAULTS, _FIRST):
        source = _source(tool, number)
        code = compile_cuda(tag(number), source, H200.arch, lines=True).cubin
        launch = Launch(f"{tag(number)}_planted", _N // _THREADS, _THREADS, ("X", "Y"))
        entry = Entry("planted", launch.symbol, parameters_of(func), launches=(launch,))
        artifact = Artifact("planted", H200, (entry,), source, code, language="cuda")
        want = 2 * data + 1
        save(folder, Saved(
            number, -1, func, ts.Trace(()), artifact, [data], want, (), (), planted=tool
        ))  # fmt: skip
    return [*range(_FIRST, _FIRST + len(_FAULTS))]
