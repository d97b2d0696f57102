"""Requires that a target is this machine, because times measured here must not be recorded for
another machine.
"""

from __future__ import annotations

from tilesmith.base.errors import MeasureError, TargetError
from tilesmith.base.target import Target, cpu
from tilesmith.measure.parent.cores import usable_cores
from tilesmith.runtime.devices.open import target_of


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
