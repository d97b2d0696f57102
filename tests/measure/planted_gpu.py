"""GPU candidates with a planted fault: hand-written OpenCL kernels of y = 2 x + 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import planted

import tilesmith as ts
from tilesmith.codegen.artifact import Artifact, Entry, Launch, parameters_of
from tilesmith.ir.function import Function
from tilesmith.task.task import Candidate, Task

N = planted.N
# Bodies of kernels: `i` is the number of the thread, one for each element and some more.
RIGHT = "if (i < 1000) Y[i] = 2 * X[i] + 1;"
BODIES = {
    "": RIGHT,
    "slow": "float a = 0; for (int k = 0; k < 30000; k++) a = a * 0.5f + 1; " + RIGHT
    + " if (a > 9) Y[0] = 0;",
    # One thread only: PoCL would keep all cores busy until the time is over.
    "hang": "volatile __global float *p = Y; while (i == 0 && p[0] != 12345.0f) {}",
    "segfault": "if (i == 7) *(volatile __global float *)16 = 1;",
    "lie": RIGHT + " if (i == 7) Y[i] = 3;",
    "idle": "if (i < 900) Y[i] = 2 * X[i] + 1;",
    "write past": RIGHT + " if (i == 7) Y[1000] = 3;",
    "write before": RIGHT + " if (i == 7) Y[-1] = 3;",
    "nonsense": "nonsense;",
}  # fmt: skip


def task() -> Task:
    func = planted.task().func
    return Task(func, ts.opencl(), PARTS)


def good(part: int, of: Task | None = None) -> Candidate:
    """Right, another one for each `part`, which is the number of threads in a block."""
    return planted.bad(f"threads {part}", of or task())


def bad(fault: str, of: Task | None = None) -> Candidate:
    return planted.bad(fault, of or task())


def build(func: Function, target: ts.Target) -> Artifact:
    _, _, fault = func.name.partition("!")
    threads = 64
    if fault.startswith("threads "):
        threads, fault = int(fault.split()[1]), ""
    if fault == "wide":
        threads, fault = 1 << 20, ""
    if fault == "raise":
        raise KeyError("what the builder says")
    source = f"""
__kernel void double_it(__global const float *X, __global float *Y) {{
  int i = get_group_id(0) * {threads} + get_local_id(0);
  {BODIES[fault]}
}}
"""
    launch = Launch("double_it", -(-N // threads), threads, ("X", "Y"))
    entry = Entry("double", "double", parameters_of(func), launches=(launch,))
    return Artifact("double", target, (entry,), source, source.encode(), language="opencl")


@dataclass(frozen=True)
class Planting:
    """The back end of such candidates."""

    kind: ClassVar[str] = "opencl"

    def compile(self, func: Function, target: ts.Target, *, checked: bool = False) -> Artifact:
        return build(func, target)


PARTS = ts.Parts(backends=(Planting(),))
