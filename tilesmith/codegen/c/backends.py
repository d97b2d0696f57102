"""CudaBackend and OpenclBackend: compile a Function for a GPU through C text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field, replace
from typing import Any, ClassVar

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import BuildError
from tilesmith.base.given import checks_given
from tilesmith.base.target import Target
from tilesmith.codegen.artifact import Artifact, Entry, Launch, OpenSizes, parameters_of
from tilesmith.codegen.c.dialect import CUDA, OPENCL, Dialect
from tilesmith.codegen.c.helpers import Helpers
from tilesmith.codegen.c.launches import MOST_OF_SIZE, NO_SIZES, emit_launch
from tilesmith.codegen.c.nvrtc import Store, compile_cuda, joined
from tilesmith.codegen.c.rings import emit_rings
from tilesmith.codegen.c.statements import size_of
from tilesmith.codegen.c.tensor import emit_tensor_launch
from tilesmith.codegen.c.tensor_plan import blocks_of, is_one_product, is_tensor_nest
from tilesmith.codegen.pipeline import GPU_PASSES, Pass, lower
from tilesmith.expr.ints import ZERO, Int, of
from tilesmith.ir.function import Function
from tilesmith.ir.launch_form import launch_form_of
from tilesmith.ir.nodes import Alloc, Buffer, statements

# Emits a Function in launch form as the text of one C module, in CUDA or OpenCL.
_ALIGNMENT = 256  # of buffers in the workspace


@dataclass(frozen=True, slots=True)
class Emitted:
    source: str
    modules: tuple[str, ...]  # the text of each launch alone, with what it calls
    launches: tuple[Launch, ...]
    scratch: tuple[tuple[str, Int], ...]  # buffers between launches: their offsets
    workspace_nbytes: Int
    grids: tuple[Int, ...]  # blocks of the launches
    maps: tuple[tuple[tuple[Int, ...], ...], ...]  # the shapes of their tensor maps


def emit_launches(func: Function, dialect: Dialect, sizes: Mapping[str, int] = NO_SIZES) -> Emitted:
    """`func` is in launch form, as the GPU passes leave it. `sizes` are the open ones with the
    largest value of each.
    """
    buffers: dict[str, Buffer] = {b.name: b for b in func.params}
    scratch: list[tuple[str, Int]] = []
    offset = ZERO
    for b in (*func.buffers, *(s.buffer for s in func.body if isinstance(s, Alloc))):
        if b.scope != "global":
            raise BuildError(
                f"{b.name!r} is {b.scope}, but it is allocated outside of all launches"
            )
        buffers[b.name] = b
        scratch.append((b.name, offset))
        n = b.size + 1 if b.size.const is None else of(size_of(b))  # never nothing
        offset += (n * b.dtype.nbytes + (_ALIGNMENT - 1)) // _ALIGNMENT * _ALIGNMENT
    nests = [launch_form_of(s) for s in func.body if not isinstance(s, Alloc)]
    base = re.sub(r"\W", "_", func.name, flags=re.ASCII)
    base = f"k{base}" if not base or base[0].isdigit() else base
    texts, launches, modules = [], [], []
    called: dict[str, str] = {}
    for k, nest in enumerate(nests):
        symbol = f"{base}_kernel" if len(nests) == 1 else f"{base}_kernel{k}"
        helpers = Helpers(dialect)
        if is_tensor_nest(nest):
            emit = emit_tensor_launch if is_one_product(nest) else emit_rings
            text, launch = emit(nest, symbol, buffers, dialect, helpers, sizes)
        else:
            followed = k + 1 < len(nests)
            text, launch = emit_launch(nest, symbol, buffers, dialect, helpers, followed, sizes)
        texts.append(text)
        launches.append(launch)
        modules.append(_module([text], helpers.texts, dialect))
        called |= helpers.texts
    source = _module(texts, called, dialect)
    grids = tuple(
        blocks_of(n) if is_tensor_nest(n) and is_one_product(n) else n.open_grid for n in nests
    )
    maps = tuple(tuple(tuple(reversed(buffers[m.buffer].shape)) for m in x.maps) for x in launches)
    return Emitted(source, tuple(modules), tuple(launches), tuple(scratch), offset, grids, maps)


def _module(texts: list[str], helpers: Mapping[str, str], dialect: Dialect) -> str:
    return "\n\n".join([*_prologue(texts, dialect), *helpers.values(), *texts]) + "\n"


def _prologue(texts: list[str], dialect: Dialect) -> list[str]:
    lines = []
    for word, needed in dialect.prologue:
        if any(word in t for t in texts):
            lines.append(needed)
    return ["\n".join(lines)] if lines else []


# Compiles OpenCL C with the driver of a device, to find errors before a kernel is loaded.
_LOG_LINES = 8  # lines of the compiler's log that an error shows


def require_valid(name: str, source: str, device: int) -> None:
    """Raises a BuildError with the compiler's messages. Does nothing where no driver is there."""
    try:
        import pyopencl as cl
    except ImportError:
        return
    found = opencl_devices(cl)
    if device >= len(found):
        return
    program = cl.Program(cl.Context([found[device]]), source)
    try:
        program.build(options=["-cl-std=CL1.2"], cache_dir=False)
    except cl.Error as e:
        lines = [line for line in str(e).splitlines() if "error" in line] or [str(e)]
        text = "\n  ".join(lines[:_LOG_LINES])
        raise BuildError(f"OpenCL does not compile {name!r}:\n  {text}") from None


def opencl_devices(cl: Any) -> list[Any]:
    """The devices of all platforms, the GPUs first; `cl` is the module pyopencl."""
    found: list[Any] = []
    with suppress(cl.Error):  # the loader says so if there is no platform
        for platform in cl.get_platforms():
            with suppress(cl.Error):  # a platform without devices
                found += platform.get_devices()
    return sorted(found, key=lambda d: not d.type & cl.device_type.GPU)


@checks_given
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


@checks_given
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
    sizes = OpenSizes.of(func)
    limits = {s.name: s.limits[1] for s in func.declared}
    largest = {
        n: max(MOST_OF_SIZE, limits.get(n.removeprefix("#"), 0))
        for n in (() if sizes is None else sizes.names)
    }
    emitted = emit_launches(lowered, dialect, largest)
    if sizes is not None:
        offsets = tuple(at for _, at in emitted.scratch)
        sizes = replace(
            sizes, workspace=emitted.workspace_nbytes, grids=emitted.grids, scratch=offsets,
            maps=emitted.maps,
        )  # fmt: skip
    symbol = emitted.launches[0].symbol if emitted.launches else ""
    entry = Entry(
        func.name,
        symbol,
        parameters_of(func),
        emitted.workspace_nbytes.const or 0,
        launches=emitted.launches,
        scratch=tuple((name, at.const or 0) for name, at in emitted.scratch),
        open=sizes,
    )
    source = emitted.source
    code = source.encode()
    artifact = Artifact(func.name, target, (entry,), source, code, language=dialect.name)
    return artifact, emitted.modules


def _require_shared(func: Function, target: Target) -> None:
    """Raises if a launch needs more shared memory than the target has."""
    for launch in func.body:
        buffers = [s.buffer for s in statements((launch,)) if isinstance(s, Alloc)]
        nbytes = sum(size_of(b) * b.dtype.nbytes for b in buffers if b.scope == "shared")
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
