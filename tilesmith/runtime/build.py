"""`build`: compiles a Function or Schedule for a Target with a back end, and returns a Kernel."""

from __future__ import annotations

from typing import Any

from tilesmith.base.errors import BuildError
from tilesmith.base.target import Target, cpu
from tilesmith.codegen.artifact import Artifact, Backend
from tilesmith.codegen.c.backends import CudaBackend, OpenclBackend
from tilesmith.codegen.llvm.backend import LlvmBackend
from tilesmith.ir.function import Function
from tilesmith.runtime.device_kernel import kernel_of
from tilesmith.runtime.kernel import AS_GIVEN, Kernel, Origin
from tilesmith.schedule.trace import Parts
from tilesmith.task.task import Task

# The built-in back ends, one per kind of target.
BACKENDS: tuple[Backend, ...] = (LlvmBackend(), CudaBackend(), OpenclBackend())


def build(
    what: Any,
    target: Target | None = None,
    origin: Origin = AS_GIVEN,
    *,
    checked: bool = False,
    backend: Backend | None = None,
) -> Kernel:
    """A kernel of a Function or a Schedule. The target defaults to this machine, and the back end
    to the built-in one for the target's kind.

    A kernel for another machine can be read (`source`, `assembly`) but not called.

    An index that is loaded from a tensor (`table[ids[i]]`) must lie inside its table. Kernels do
    not check that, because it would cost time in every call: an index outside reads arbitrary
    memory, or crashes. A `checked` kernel never reads outside, and raises an ArgumentError that
    names the table and the index. It is slow, and meant for debugging.
    """
    return kernel_of(compile_function(what, target, checked=checked, backend=backend), origin)


def compile_function(
    what: Any,
    target: Target | None = None,
    *,
    checked: bool = False,
    backend: Backend | None = None,
) -> Artifact:
    """Compiles without loading, as a worker does for another process."""
    func = what if isinstance(what, Function) else getattr(what, "func", None)
    if not isinstance(func, Function):
        raise BuildError(
            f"cannot build a {type(what).__name__}; pass what ts.function made, or a Schedule"
        )
    target = cpu() if target is None else target
    if checked:
        func.require_closed("ts.build", BuildError)
    return (backend or backend_of(target)).compile(func, target, checked=checked)


def compile_for(task: Task, func: Function) -> Artifact:
    """A schedule of a task, by the task's back end."""
    return compile_function(func, task.target, backend=backend_of(task.target, task.parts))


def backend_of(target: Target, parts: Parts | None = None) -> Backend:
    """The back end for targets of this kind: that of the parts, or else the built-in one."""
    for backend in BACKENDS if parts is None else (*parts.backends, *BACKENDS):
        if backend.kind == target.kind:
            return backend
    kinds = ", ".join(b.kind for b in BACKENDS)
    raise BuildError(
        f"there is no code generator for {target.kind} targets here; there is one for {kinds}. "
        "Your own is passed in parts=ts.Parts(backends=(...,))"
    )
