"""What the machine can do: multiply-adds a second from registers, and bytes a second from each
level of memory.
"""

from __future__ import annotations

import numpy as np

import tilesmith as ts
from tilesmith.codegen.artifact import Parameter
from tilesmith.codegen.llvm.compiler import compile_ir
from tilesmith.runtime.kernel import Kernel

_ROUNDS = 100_000


def _register_loop(kind: str, lanes: int, step: str, declare: str, chains: int) -> str:
    """`chains` independent accumulators, each joined once per round by `step`."""
    t = f"<{lanes} x {kind}>"
    lines = [declare, "define void @tilesmith_entry(ptr %args, ptr %ws) {", "entry:"]
    lines += [" %p = load ptr, ptr %args", f" %x = load {t}, ptr %p, align 1", " br label %l", "l:"]
    lines.append(" %i = phi i64 [0, %entry], [%n, %l]")
    for k in range(chains):
        lines.append(f" %a{k} = phi {t} [zeroinitializer, %entry], [%b{k}, %l]")
    for k in range(chains):
        lines.append(f" %b{k} = " + step.replace("ACC", f"{t} %a{k}").replace("X", f"{t} %x"))
    lines += [" %n = add i64 %i, 1", f" %c = icmp ult i64 %n, {_ROUNDS}"]
    lines += [" br i1 %c, label %l, label %e", "e:"]
    for k in range(chains):
        lines.append(f" %q{k} = getelementptr i8, ptr %p, i64 {64 * k}")
        lines.append(f" store {t} %b{k}, ptr %q{k}, align 1")
    return "\n".join([*lines, " ret void", "}"])


def _kernel(source: str, target: ts.Target) -> Kernel:
    memory = Parameter("memory", (4096,), ts.dtype("uint8"), True)
    return Kernel(compile_ir("peak", source, target, [memory]))


def _rate(source: str, operations: int, target: ts.Target) -> float:
    kernel = _kernel(source, target)
    return operations * _ROUNDS / kernel.time(repeats=15, min_seconds=0.005).best


def _multiply_adds(dtype: str, chains: int, target: ts.Target) -> tuple[str, int]:
    """The source, and its operations in a round."""
    d = ts.dtype(dtype)
    kind = {"float16": "half", "float32": "float", "float64": "double"}[dtype]
    lanes = target.lanes(d.bits)
    name, t = f"@llvm.fma.v{lanes}f{d.bits}", f"<{lanes} x {kind}>"
    step, declare = f"call {t} {name}(X, X, ACC)", f"declare {t} {name}({t}, {t}, {t})"
    return _register_loop(kind, lanes, step, declare, chains), 2 * lanes * chains


def multiply_add(dtype: str, target: ts.Target) -> float:
    """Floating-point operations a second of one core, all operands in registers."""
    tried = [c for c in (10, 12, 16, 24) if c < target.num_vector_registers]
    return max(_rate(*_multiply_adds(dtype, chains, target), target) for chains in tried)


def multiply_add_call(dtype: str, target: ts.Target) -> tuple[Kernel, int]:
    """The same as a kernel to be timed in turns with another, and the operations of a call."""
    chains = 24 if target.num_vector_registers >= 32 else 12
    source, operations = _multiply_adds(dtype, chains, target)
    return _kernel(source, target), operations * _ROUNDS


def dot_product(target: ts.Target) -> float | None:
    """int8 operations a second by the dot-product instruction, if there is one."""
    if "vnni" in target.features:
        name, lanes = "@llvm.x86.avx512.vpdpbusd.512", 16
    elif "dotprod" in target.features:
        name, lanes = "@llvm.aarch64.neon.sdot.v4i32.v16i8", 4
    else:
        return None
    acc, quads = f"<{lanes} x i32>", f"<{4 * lanes} x i8>"
    declare = f"declare {acc} {name}({acc}, {quads}, {quads})"
    lines = _register_loop(
        "i32", lanes, f"call {acc} {name}(ACC, {quads} %y, {quads} %y)", declare, 16
    )
    source = lines.replace(
        " br label %l\nl:", f" %y = bitcast {acc} %x to {quads}\n br label %l\nl:", 1
    )
    return _rate(source, 8 * lanes * 16, target)


def bandwidth(nbytes: int, target: ts.Target) -> float:
    """Bytes a second that a = b + 3 * c moves when its three arrays take this much together."""
    lanes = target.lanes(32)
    n = max(nbytes // 12 // (8 * lanes), 1) * 8 * lanes
    b, c = ts.placeholder((n,), name="b"), ts.placeholder((n,), name="c")
    a = ts.compute((n,), lambda i: b[i] + 3 * c[i], name="a")
    sch = ts.Schedule(ts.function([b, c, a], name="triad"))
    _, inner = sch.split(sch.loops("a")[0], [None, 8 * lanes])
    sch.vectorize(inner)
    kernel = ts.build(sch, target.with_cores(1))
    x = np.ones(n, np.float32)
    return 12 * n / kernel.time(x, x.copy(), repeats=7, min_seconds=0.01).best
