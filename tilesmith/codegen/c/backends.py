"""CudaBackend and OpenclBackend: compile a Function for a GPU through C text."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from tilesmith.base.errors import BuildError
from tilesmith.base.target import Target
from tilesmith.codegen.artifact import Artifact, Entry, parameters_of
from tilesmith.codegen.c.cubins import joined
from tilesmith.codegen.c.dialect import CUDA, OPENCL, Dialect
from tilesmith.codegen.c.emit import emit_launches
from tilesmith.codegen.c.nvrtc import Store, compile_cuda
from tilesmith.codegen.c.opencl_syntax import require_valid
from tilesmith.codegen.pipeline import GPU_PASSES, Pass, lower
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Alloc, statements


@dataclass(frozen=True, slots=True)
class CudaBackend:
    """CUDA C, which NVRTC compiles to a cubin for the target's architecture. No GPU is needed."""

    passes: tuple[Pass, ...] = GPU_PASSES
    # Has what other processes have compiled.
    store: Store | None = field(default=None, compare=False, repr=False)
    kind: ClassVar[str] = "cuda"

    def compile(self, func: Function, target: Target, *, checked: bool = False) -> Artifact:
        """CUDA C of a Function, compiled by NVRTC."""
        artifact, modules = _emitted(func, target, CUDA, self.passes, checked)
        compiled = [compile_cuda(func.name, text, target.arch, self.store) for text in modules]
        resources = {name: r for c in compiled for name, r in c.resources.items()}
        entry = artifact.entries[0]
        launches = tuple(
            replace(launch, resources=resources.get(launch.symbol)) for launch in entry.launches
        )
        code = joined([c.cubin for c in compiled])
        return replace(artifact, code=code, entries=(replace(entry, launches=launches),))


@dataclass(frozen=True, slots=True)
class OpenclBackend:
    """OpenCL C. The driver of a device compiles the text when the kernel is loaded."""

    passes: tuple[Pass, ...] = GPU_PASSES
    # Have the driver of the target's device read the text, so that a mistake is found here.
    check_syntax: bool = False
    kind: ClassVar[str] = "opencl"

    def compile(self, func: Function, target: Target, *, checked: bool = False) -> Artifact:
        """OpenCL C of a Function, which the device's driver compiles."""
        artifact = emit_artifact(func, target, OPENCL, self.passes, checked)
        if self.check_syntax:
            require_valid(func.name, artifact.source, target.device)
        return artifact


def emit_artifact(
    func: Function, target: Target, dialect: Dialect, passes: tuple[Pass, ...], checked: bool
) -> Artifact:
    """The artifact whose code is the text itself."""
    return _emitted(func, target, dialect, passes, checked)[0]


def _emitted(
    func: Function, target: Target, dialect: Dialect, passes: tuple[Pass, ...], checked: bool
) -> tuple[Artifact, tuple[str, ...]]:
    """With the text of each launch alone."""
    if checked:
        raise BuildError(
            f"{func.name!r}: kernels that check indices are built for CPUs only; "
            f"the target is {target.kind}"
        )
    if target.kind != dialect.name:
        raise BuildError(f"{dialect.name} code is not for a target of kind {target.kind}")
    lowered = lower(func, target, passes)
    _require_shared(lowered, target)
    emitted = emit_launches(lowered, dialect)
    symbol = emitted.launches[0].symbol if emitted.launches else ""
    entry = Entry(
        func.name,
        symbol,
        parameters_of(func),
        emitted.workspace_nbytes,
        launches=emitted.launches,
        scratch=emitted.scratch,
    )
    source = emitted.source
    code = source.encode()
    artifact = Artifact(func.name, target, (entry,), source, code, language=dialect.name)
    return artifact, emitted.modules


def _require_shared(func: Function, target: Target) -> None:
    """Raises if a launch needs more shared memory than the target has."""
    for launch in func.body:
        buffers = [s.buffer for s in statements((launch,)) if isinstance(s, Alloc)]
        nbytes = sum(b.size.number * b.dtype.nbytes for b in buffers if b.scope == "shared")
        nbytes += sum(
            b.size.number // b.shape[0].number * b.dtype.nbytes
            for b in buffers
            if b.scope == "cluster"
        )
        if nbytes > target.shared_nbytes:
            raise BuildError(
                f"{func.name!r} needs {nbytes} bytes of shared memory per block; the target has "
                f"{target.shared_nbytes}"
            )
