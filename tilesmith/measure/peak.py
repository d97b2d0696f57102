"""The peak arithmetic rate of this machine: operations per second of FMA or dot-product
instructions on registers.
"""

from __future__ import annotations

from functools import cache

from tilesmith.base.dtype import DType, dtype
from tilesmith.base.target import Target, cpu
from tilesmith.codegen.artifact import ENTRY, Parameter
from tilesmith.runtime.kernel import Kernel

_ROUNDS = 100_000
_KINDS = {"float16": "half", "float32": "float", "float64": "double"}


@cache
def peak_of(d: DType, num_cores: int) -> float | None:
    """Floating-point operations per second of `num_cores` cores of this machine; None for dtypes
    without FMA instructions. Measured once per process, in a tenth of a second.
    """
    name = str(d)
    if name not in _KINDS or (name == "float16" and "fp16" not in cpu().features):
        return None
    return num_cores * multiply_add(name, cpu(1), chains=(12, 16), repeats=5, min_seconds=0.002)


def multiply_add(
    name: str,
    target: Target,
    chains: tuple[int, ...] = (10, 12, 16, 24),
    repeats: int = 15,
    min_seconds: float = 0.005,
) -> float:
    """Floating-point operations per second of one core: the best over several numbers of
    independent accumulators (`chains`).
    """
    counts = [count for count in chains if count < target.num_vector_registers]
    return max(
        _rate(*_multiply_adds(name, count, target), target, repeats, min_seconds)
        for count in counts
    )


def multiply_add_call(name: str, target: Target) -> tuple[Kernel, int]:
    """The same as a kernel, to be timed in turns with another, and its operations per call."""
    chains = 24 if target.num_vector_registers >= 32 else 12
    source, operations = _multiply_adds(name, chains, target)
    return _kernel(source, target), operations * _ROUNDS


def _multiply_adds(name: str, chains: int, target: Target) -> tuple[str, int]:
    """LLVM text, and its operations per iteration."""
    bits = dtype(name).bits
    lanes = target.lanes(bits)
    fma, t = f"@llvm.fma.v{lanes}f{bits}", f"<{lanes} x {_KINDS[name]}>"
    step, declare = f"call {t} {fma}(X, X, ACC)", f"declare {t} {fma}({t}, {t}, {t})"
    return _register_loop(t, step, declare, chains), 2 * lanes * chains


def dot_product(target: Target) -> float | None:
    """int8 operations per second of the dot-product instruction; None if there is none."""
    usable = target.machine.usable_dots(target.features)
    if not usable:
        return None
    name, lanes = f"@{usable[0].call}", usable[0].lanes
    acc, quads = f"<{lanes} x i32>", f"<{4 * lanes} x i8>"
    declare = f"declare {acc} {name}({acc}, {quads}, {quads})"
    lines = _register_loop(acc, f"call {acc} {name}(ACC, {quads} %y, {quads} %y)", declare, 16)
    source = lines.replace(
        " br label %l\nl:", f" %y = bitcast {acc} %x to {quads}\n br label %l\nl:", 1
    )
    return _rate(source, 8 * lanes * 16, target, 15, 0.005)


def _register_loop(t: str, step: str, declare: str, chains: int) -> str:
    """A loop whose iterations apply `step` once to each of `chains` independent accumulators of
    type `t`.
    """
    lines = [declare, f"define void @{ENTRY}(ptr %args, ptr %ws) {{", "entry:"]
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


def _kernel(source: str, target: Target) -> Kernel:
    # Imported here because `import tilesmith` imports this file and must not load LLVM.
    from tilesmith.codegen.llvm.compiler import compile_ir

    memory = Parameter("memory", (4096,), dtype("uint8"), True)
    return Kernel(compile_ir("peak", source, target, [memory]))


def _rate(source: str, operations: int, target: Target, repeats: int, min_seconds: float) -> float:
    kernel = _kernel(source, target)
    return operations * _ROUNDS / kernel.time(repeats=repeats, min_seconds=min_seconds).best
