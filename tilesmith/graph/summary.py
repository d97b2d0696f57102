"""The summary of a model: its kernels with what they compute, what runs on the host, its memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tilesmith.graph.executor import Executor
from tilesmith.graph.layer_notes import PrecisionReport
from tilesmith.graph.open_executor import OpenExecutor
from tilesmith.graph.open_run import OpenRun
from tilesmith.graph.profile import node_names
from tilesmith.graph.program import HostStep, Signature
from tilesmith.ir.function import Function
from tilesmith.runtime.open_kernel import PortfolioKernel
from tilesmith.task.describe import is_match, place_text, shapes_text


def summary(
    name: str,
    inputs: Sequence[Signature],
    outputs: Sequence[str],
    executors: Sequence[Executor],
    hosts: Sequence[HostStep],
    match: str = "",
    precision: PrecisionReport | None = None,
    opened: OpenRun | None = None,
    opening: str = "",
) -> str:
    lines = [
        f"{name}: {len(inputs)} inputs, {len(outputs)} outputs",
        *(f"  input  {s}" for s in inputs),
        *(f"  output {x}" for x in outputs),
    ]
    if opening:
        lines.append(f"compiled at the first call with each size: {opening}")
    if opened is not None:
        lines += _of_open(opened.executor, match)
        for sizes, why in opened.differs.items():
            lines.append(f"compiled for {', '.join(map(str, sizes))} alone: {why}")
    elif not executors:
        lines.append("nothing is compiled yet: its sizes are known when it is called")
    for k, e in enumerate(executors):
        lines += ["", *_of_executor(e, f"graph {k + 1} of {len(executors)}: ", match)]
    if hosts:
        lines += ["", "on the host:"]
        lines += [f"  {h.op} {h.name!r}: {h.reason}" for h in hosts]
    if precision is not None and precision.layers:
        layers = frozenset(n.name for n in precision.layers)
        lines += ["", *precision.table(_recorded(executors, layers), match)]
    return "\n".join(lines)


def _recorded(executors: Sequence[Executor], layers: frozenset[str]) -> dict[str, float]:
    """The seconds of layers of the model by the records of their kernels; those of a kernel of
    several in equal parts.
    """
    found: dict[str, float] = {}
    for e in executors:
        for step, kernel in zip(e.plan.steps, e.kernels, strict=True):
            names, seconds = layers.intersection(node_names(step)), kernel.origin.seconds
            for name in names if seconds else ():
                found[name] = found.get(name, 0.0) + (seconds or 0.0) / len(names)
    return found


def _of_open(e: OpenExecutor, match: str) -> list[str]:
    """The kernels of a model that is compiled for all sizes."""
    ranges = ", ".join(f"{s.name} {s.limits[0]} to {s.limits[1]}" for s in e.plan.sizes)
    held = sum(a.nbytes for a in e.plan.graph.constants.values())
    lines = [
        f"compiled once for all sizes, tuned for {ranges}: {len(e.kernels)} kernels, "
        f"{held / 1e6:.3f} MB of constants",
        f"arena of {e.arena(e.plan.largest).nbytes} bytes at the largest sizes",
        f"{'':>4}  {'schedule':8}  {'members':>7}  kernel, shapes: nodes",
    ]
    for k, (step, kernel) in enumerate(zip(e.plan.steps, e.kernels, strict=True)):
        nodes = node_names(step)
        if match and not is_match(match, step.func, [nodes]):
            continue
        members = len(kernel.members) if isinstance(kernel, PortfolioKernel) else 1
        lines.append(
            f"{k:4}  {kernel.origin.kind:8}  {members:7}  {open_text(step.func)}: "
            f"{place_text(nodes)}"
        )
        if isinstance(kernel, PortfolioKernel):
            lines += _regions(kernel)
    for origin, count in Counter(str(k.origin) for k in e.kernels).items():
        lines.append(f"{count} of {len(e.kernels)} by {origin}")
    return lines


def _regions(kernel: PortfolioKernel) -> Iterator[str]:
    """Which member runs near which sizes, with its time and its regret where these are known."""
    for r in kernel.regions:
        sizes = ", ".join(f"{n} = {v}" for n, v in r.sizes)
        text = f"{'':6}near {sizes}: member {r.member}"
        if r.seconds is not None and r.regret is not None:
            text += f", {r.seconds * 1e6:.1f} us, regret {r.regret:.2f}"
        yield text


def open_text(func: Function) -> str:
    return func.signature.replace("#", "")


def _of_executor(e: Executor, title: str, match: str) -> list[str]:
    plan = e.plan
    flops = sum(s.func.flops for s in plan.steps)
    constants, stated = plan.graph.constants, plan.graph.values
    # A saved model has the constants alone; where there is both, constants may have to be made.
    held = sum((stated[x] if x in stated else constants[x]).nbytes for x in constants)
    first = "" if title.endswith("1 of 1: ") else title
    lines = [
        f"{first}{len(e.kernels)} kernels, {flops / 1e6:.3f} MFLOP, "
        f"{held / 1e6:.3f} MB of constants",
        f"arena of {plan.arena.nbytes} bytes; {plan.arena.lower_bound} are alive at once",
        f"{'':>4}  {'MFLOP':>10} {'kB':>10}  {'schedule':8}  kernel, shapes: nodes",
    ]
    for k, (step, kernel) in enumerate(zip(plan.steps, e.kernels, strict=True)):
        func, nodes = step.func, node_names(step)
        if match and not is_match(match, func, [nodes]):
            continue
        lines.append(
            f"{k:4}  {func.flops / 1e6:10.3f} {func.nbytes / 1e3:10.1f}  "
            f"{kernel.origin.kind:8}  {func.name} {shapes_text(func)}: {place_text(nodes)}"
        )
    for origin, count in Counter(str(k.origin) for k in e.kernels).items():
        lines.append(f"{count} of {len(e.kernels)} by {origin}")
    return lines
