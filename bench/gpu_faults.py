"""Planted faults for GPUs: hand-written kernels of y = 2 x + 1 that hang, fault or lie, as builders
of candidates whose trace names the fault.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import tilesmith as ts
from tilesmith.codegen.artifact import Artifact, Entry, Launch, parameters_of
from tilesmith.codegen.c.nvrtc import compile_cuda
from tilesmith.ir.function import Function
from tilesmith.schedule.step import Step
from tilesmith.task.task import Candidate, Task

N = 100_000
RIGHT = f"if (i < {N}) Y[i] = 2 * X[i] + 1;"
# Bodies; i is the number of the thread.
FAULTS = {
    "wrong": RIGHT + " if (i == 7) Y[i] = 3;",
    "unwritten": f"if (i < {N - 100}) Y[i] = 2 * X[i] + 1;",
    "write past": RIGHT + f" if (i == 7) Y[{N}] = 3;",
    "write before": RIGHT + " if (i == 7) Y[-1] = 3;",
    "illegal address": "if (i == 7) *(VOLATILE float *)16 = 1;",
    "misaligned address": "if (i == 7) *(VOLATILE float *)((GLOBAL char *)Y + 2) = 1;",
    "hang": "VOLATILE float *p = Y; while (p[0] != 12345.0f) {}",
    "too many threads": RIGHT,
    "too much shared memory": RIGHT,
    "does not compile": "nonsense;",
}


@dataclass(frozen=True, slots=True)
class Plant(Step):
    name: ClassVar[str] = "plant"
    fault: str

    def apply(self, func: Function) -> Function:
        return replace(func, name=f"{func.name}!{self.fault}")


def planted(fault: str, target: ts.Target) -> Candidate:
    """A fault of FAULTS, or "threads N": right, with N threads in a block."""
    x = ts.placeholder((N,), name="X")
    y = ts.compute((N,), lambda i: x[i] * 2 + 1, name="Y")
    task = Task(ts.function([x, y], name="double"), target, PARTS)
    return Candidate(task, ts.Trace((Plant(fault),)))


def build_planted(func: Function, target: ts.Target) -> Artifact:
    _, _, fault = func.name.partition("!")
    threads, shared = 128, 0
    if fault.startswith("threads "):
        threads = int(fault.split()[1])
    if fault == "too many threads":
        threads = 1 << 14
    if fault == "too much shared memory":
        shared = 1 << 20
    body = FAULTS.get(fault, RIGHT)
    if target.kind == "cuda":
        head, block = 'extern "C" __global__', "blockIdx.x"
        thread, space = "threadIdx.x", ""
    else:
        head, block = "__kernel", "get_group_id(0)"
        thread, space = "get_local_id(0)", "__global"
    body = body.replace("VOLATILE", f"volatile {space}").replace("GLOBAL", space)
    source = (
        f"{head} void double_it(const {space} float *X, {space} float *Y) {{\n"
        f"  int i = {block} * {threads} + {thread};\n  {body}\n}}\n"
    )
    code = source.encode()
    if target.kind == "cuda":
        code = compile_cuda("double_it", source, target.arch).cubin
    launch = Launch("double_it", -(-N // threads), threads, ("X", "Y"), shared)
    entry = Entry("double", "double", parameters_of(func), launches=(launch,))
    return Artifact("double", target, (entry,), source, code, language=target.kind)


@dataclass(frozen=True)
class Planting:
    """The back end of such candidates."""

    kind: str

    def compile(self, func: Function, target: ts.Target, *, checked: bool = False) -> Artifact:
        return build_planted(func, target)


PARTS = ts.Parts(backends=(Planting("cuda"), Planting("opencl")))
