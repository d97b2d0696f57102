"""What measuring asks of this machine: whether a target is it, because times measured here must not
be recorded for another one; which of its cores run kernels and which build; and its peak arithmetic
rate, of FMA or dot-product instructions on registers.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import DType, dtype
from tilesmith.base.errors import MeasureError, TargetError
from tilesmith.base.target import Target, cpu
from tilesmith.codegen.artifact import ENTRY, Parameter
from tilesmith.runtime.devices.open import target_of
from tilesmith.runtime.kernel import Kernel

_EQUAL = 1.05  # cores whose probes differ by a smaller factor are equally good
_MAX_PROBED = 8
_ROUNDS = 100_000
_KINDS = {"float16": "half", "float32": "float", "float64": "double"}


def require_this_machine(target: Target) -> None:
    """Of a GPU, too: the one of the target's number must be of the same model."""
    if target.kind != "cpu":
        _require_gpu(target)
        return
    here = cpu(len(usable_cores()))
    why = difference(target, here)
    if why is not None:
        raise MeasureError(
            f"LocalMeasurer runs kernels on this machine ({_describe(here)}), and the target is "
            f"{_describe(target)}: {why}. Tune for ts.cpu(), or run this on that machine"
        )


def _require_gpu(target: Target) -> None:
    try:
        here = target_of(target.kind, target.device)
    except TargetError as error:
        raise MeasureError(
            f"LocalMeasurer runs kernels on this machine, and the target is {_describe(target)}: "
            f"{error}"
        ) from None
    if here != target:
        raise MeasureError(
            f"LocalMeasurer runs kernels on {_describe(here)}, and the target is "
            f"{_describe(target)}. Tune for ts.{target.kind}(), or run this on that machine"
        )


def difference(target: Target, here: Target, processor: str = "") -> str | None:
    """Why times measured on `here` are not valid for the target; None if they are. The target may
    use fewer cores and fewer features than `here` has. `processor` is LLVM's name of the one of
    `here`, by default of this machine's: a target that was named has no model.
    """
    if target.kind != "cpu":
        return f"it is not a CPU but {target.kind}"
    if target.arch != here.arch:
        return f"the architectures differ ({target.arch}, {here.arch})"
    if target.model and target.model != here.model:
        return f"the models differ ({target.model}, {here.model})"
    if not target.model and target.cpu != (processor or _llvm_name()):
        return f"the processors differ ({target.cpu}, {processor or _llvm_name()})"
    if missing := target.features - here.features:
        return f"this machine has no {', '.join(sorted(missing))}"
    if target.num_cores > here.num_cores:
        return f"it has {target.num_cores} cores, and this process may use {here.num_cores}"
    return None


def _describe(t: Target) -> str:
    if t.kind != "cpu":
        return f"{t.model or t.kind} ({t.arch})"
    what = t.model or t.cpu
    return f"{t.arch} {what}, {t.num_cores} {'core' if t.num_cores == 1 else 'cores'}"


def _llvm_name() -> str:
    # Imported here because it loads LLVM, which only a target without a model name needs.
    from tilesmith.codegen.llvm.compiler import host_cpu

    return host_cpu()


@dataclass(frozen=True, slots=True)
class Cores:
    """`run` are for kernels, and for builds while no kernel runs. `free` may build at any time."""

    run: tuple[int, ...]
    free: tuple[int, ...]

    @property
    def all(self) -> tuple[int, ...]:
        return (*self.free, *self.run)


def usable_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def to_probe(num_threads: int, usable: Collection[int]) -> list[int]:
    """The cores on which the reference kernel is to be timed; none if kernels need all cores."""
    if num_threads >= len(usable):
        return []
    return sorted(usable)[-max(_MAX_PROBED, num_threads) :]


def share_out(num_threads: int, usable: Collection[int], probes: Mapping[int, float]) -> Cores:
    """Kernels run on the fastest cores by `probes`, the seconds of the reference kernel. Among
    equal cores the last are taken, because systems run their own tasks on the first. The sibling
    hardware threads of a core that runs kernels stay idle.
    """
    fastest = min(probes.values(), default=0.0)

    def merit(core: int) -> tuple[bool, float, int]:
        seconds = probes.get(core, float("inf"))
        return seconds > _EQUAL * fastest, seconds if seconds > _EQUAL * fastest else 0.0, -core

    run = tuple(sorted(sorted(usable, key=merit)[:num_threads]))
    taken = set(run).union(*(siblings(c) for c in run))
    return Cores(run, tuple(c for c in sorted(usable) if c not in taken))


def siblings(core: int) -> set[int]:
    """The hardware threads of a core, itself included."""
    path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    threads = {core}
    try:
        for part in path.read_text().strip().split(","):
            first, _, last = part.partition("-")
            threads.update(range(int(first), int(last or first) + 1))
    except (OSError, ValueError):
        pass
    return threads


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
    usable = target.machine.byte_dots(target.features)
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
