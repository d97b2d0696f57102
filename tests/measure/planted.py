"""Candidates with a planted fault: a step that marks a Function in its name, and a back end that
emits faulty code for a marked Function.
"""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass, replace
from typing import ClassVar

import tilesmith as ts
from tilesmith.base.errors import ScheduleError
from tilesmith.codegen.artifact import ENTRY, Artifact, parameters_of
from tilesmith.ir.function import Function
from tilesmith.runtime.build import compile_function
from tilesmith.schedule.step import Step
from tilesmith.task.task import Candidate, Task

N = 1000  # 4000 bytes: no multiple of a page or of a cache line


@dataclass(frozen=True, slots=True)
class Plant(Step):
    """Marks the function; "refuse" and "stumble" raise when applied."""

    name: ClassVar[str] = "plant"
    fault: str

    def apply(self, func: Function) -> Function:
        if self.fault == "refuse":
            raise ScheduleError("no loop 'C.i'\nand more")
        if self.fault == "stumble":
            raise ZeroDivisionError("division by zero")
        return replace(func, name=f"{func.name}!{self.fault}")


def task(num_cores: int = 1) -> Task:
    x = ts.placeholder((N,), name="X")
    y = ts.compute((N,), lambda i: x[i] * 2 + 1, name="Y")
    return Task(ts.function([x, y], name="double"), ts.cpu(num_cores), PARTS)


def good(part: int, of: Task | None = None) -> Candidate:
    """A correct candidate, another one for each `part`."""
    of = of or task()
    sch = ts.Schedule(of.func)
    sch.split("Y.i", [None, part])
    return Candidate(of, sch.trace)


def bad(fault: str, of: Task | None = None) -> Candidate:
    return Candidate(of or task(), ts.Trace((Plant(fault),)))


def poke(address: int, of: Task | None = None) -> Candidate:
    """Writes to an address in the process that runs it."""
    return bad(f"poke {address}", of)


# Bodies of kernels; `%x` and `%y` point to the input and the output.
_STORE = "%p = getelementptr float, ptr {}, i64 {}\n  store volatile float 1.0, ptr %p"
_LOAD = "%p = getelementptr float, ptr {}, i64 {}\n  %v = load volatile float, ptr %p"
BODIES = {
    "segfault": "store volatile float 1.0, ptr inttoptr (i64 16 to ptr)",
    # Without an end, but it leaves the core to other tests.
    "loop": "br label %again\nagain:\n  %z = call i32 @usleep(i32 1000)\n  br label %again\nnever:",
    "allocate": "br label %again\nagain:\n  %p = call ptr @malloc(i64 67108864)\n"
    "  store volatile i8 1, ptr %p\n  br label %again\nnever:",
    "lie": _STORE.format("%y", 7),
    "write past": _STORE.format("%y", N),
    "write a row past": _STORE.format("%y", N + 5000),
    "write before": _STORE.format("%y", -1),
    "write far before": _STORE.format("%y", -5000),
    "read past": _LOAD.format("%x", N),
    "write input": _STORE.format("%x", 3),
    "trap": "call void @llvm.trap()",
    "abort": "call void @abort()",
    "leave": "call void @exit(i32 0)",
    "overflow": "call void @deep(i64 0)",
    "missing": "call void @no_such_thing()",
}


def build(func: Function, target: ts.Target) -> Artifact:
    from tilesmith.codegen.llvm.compiler import compile_ir

    _, _, fault = func.name.partition("!")
    match fault:
        case "":
            return compile_function(func, target)
        case "raise":
            raise KeyError("what the builder says\nand more")
        case "die":
            os.write(2, b"LLVM ERROR: Cannot select: t7\nStack dump:\n")
            os.abort()
        case "hang":
            subprocess.run(["sleep", "1000"])  # with a child
        case "hoard":
            held = []
            while True:
                held.append(bytearray(256 << 20))
        case "sleep":
            time.sleep(1000)
    name, _, address = fault.partition(" ")
    poked = f"store volatile i8 1, ptr inttoptr (i64 {address} to ptr)"
    source = f"""
declare ptr @malloc(i64)
declare void @abort()
declare i32 @usleep(i32)
declare void @exit(i32)
declare void @llvm.trap()
{"declare void @no_such_thing()" if fault == "missing" else ""}
define internal void @deep(i64 %n) noinline {{
  %room = alloca [65536 x i8]
  store volatile i8 1, ptr %room
  %m = add i64 %n, 1
  call void @deep(i64 %m)
  store volatile i8 2, ptr %room
  ret void
}}
define void @{ENTRY}(ptr %args, ptr %workspace) {{
  %x = load ptr, ptr %args
  %y.p = getelementptr ptr, ptr %args, i64 1
  %y = load ptr, ptr %y.p
  {poked if name == "poke" else BODIES[fault]}
  ret void
}}
"""
    return compile_ir(func.name, source, target, parameters_of(func))


@dataclass(frozen=True)
class Planting:
    """The back end of such candidates."""

    kind: ClassVar[str] = "cpu"

    def compile(self, func: Function, target: ts.Target, *, checked: bool = False) -> Artifact:
        return build(func, target)


PARTS = ts.Parts(backends=(Planting(),))
