"""Whether a target is this machine: what is measured here must not be recorded as another's."""

from __future__ import annotations

from tilesmith.base.errors import MeasureError
from tilesmith.base.target import Target, cpu
from tilesmith.measure.parent.cores import usable_cores


def require_this_machine(target: Target) -> None:
    here = cpu(len(usable_cores()))
    why = difference(target, here)
    if why is not None:
        raise MeasureError(
            f"LocalMeasurer runs kernels on this machine ({_name(here)}), and the target is "
            f"{_name(target)}: {why}. Tune for ts.cpu(), or where that machine is"
        )


def difference(target: Target, here: Target) -> str | None:
    """Why seconds taken here are not those of the target; None if they are. It may use fewer cores
    and fewer features than there are.
    """
    if target.kind != "cpu":
        return f"it is no processor but {target.kind}"
    if target.arch != here.arch:
        return f"the architectures differ ({target.arch}, {here.arch})"
    if target.model and target.model != here.model:
        return f"the models differ ({target.model}, {here.model})"
    if not target.model and target.cpu != _host():
        return f"the processors differ ({target.cpu}, {_host()})"
    if missing := target.features - here.features:
        return f"this machine has no {', '.join(sorted(missing))}"
    if target.num_cores > here.num_cores:
        return f"it has {target.num_cores} cores, and this process may use {here.num_cores}"
    return None


def _name(t: Target) -> str:
    what = t.model or t.cpu if t.kind == "cpu" else t.kind
    return f"{t.arch} {what}, {t.num_cores} {'core' if t.num_cores == 1 else 'cores'}"


def _host() -> str:
    # Not at the top of the file: only a target that is known by LLVM's name needs LLVM.
    from tilesmith.codegen.llvm.compiler import host_cpu

    return host_cpu()
