"""build: a Function (or a Schedule) and a Target in, a Kernel out.

The stages in a row: emit, compile, load.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilesmith.base.errors import BuildError
from tilesmith.base.target import Target, cpu
from tilesmith.codegen.artifact import Artifact, Parameter
from tilesmith.codegen.llvm.emit import emit_function
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Buffer
from tilesmith.runtime.kernel import AS_GIVEN, Kernel, Origin


def build(
    what: Any,
    target: Target | None = None,
    origin: Origin = AS_GIVEN,
    *,
    checked: bool = False,
) -> Kernel:
    """A kernel of a Function or a Schedule, for this machine unless a target says otherwise.

    A kernel for another machine can be read (`source`, `assembly`) but not called.

    An index that is read from a tensor (`table[ids[i]]`) must lie inside its table. A kernel does
    not ask, because that would cost time in every call: outside, it reads whatever memory is there,
    or crashes. With `checked`, it asks, reads inside in any case, and raises an ArgumentError that
    names the table and the index; such a kernel is slow, and for finding mistakes.
    """
    return Kernel(compile_function(what, target, checked=checked), origin)


def compile_function(what: Any, target: Target | None = None, *, checked: bool = False) -> Artifact:
    """The build without the loading: what a worker does for another process."""
    # Not at the top of the file, because `import tilesmith` reaches this file and must not load
    # LLVM: 60 MB, 0.1 s.
    from tilesmith.codegen.llvm.compiler import compile_ir

    func = what if isinstance(what, Function) else getattr(what, "func", None)
    if not isinstance(func, Function):
        raise BuildError(
            f"cannot build a {type(what).__name__}; pass what ts.function made, or a Schedule"
        )
    func.require_closed("ts.build", BuildError)
    target = cpu() if target is None else target
    if target.kind != "cpu":
        raise BuildError(f"there is no code generator for {target.kind} targets here; cpu has one")
    emitted = emit_function(func, target, checked=checked)
    made = compile_ir(
        func.name,
        emitted.source,
        target,
        parameters_of(func),
        emitted.workspace_nbytes,
        emitted.uses_threads,
    )
    return replace(made, checks=emitted.checks) if checked else made


def parameters_of(func: Function) -> tuple[Parameter, ...]:
    """What the kernel of a Function takes, and writes."""
    inputs = [_parameter(b, output=False) for b in func.inputs]
    return (*inputs, *(_parameter(b, output=True) for b in func.outputs))


def _parameter(buffer: Buffer, output: bool) -> Parameter:
    shape = []
    for extent in buffer.physical_shape:
        if extent.const is None:
            raise BuildError(f"parameter {buffer.name!r} has the open extent {extent}")
        shape.append(extent.const)
    packed = None if buffer.layout is None and not buffer.basis else buffer
    return Parameter(buffer.name, tuple(shape), buffer.dtype, output, packed)
