"""Loading: an Artifact in, the address of its code in this process out, for as long as someone
holds on to it.

Objects are linked by LLVM's JIT linker, one library each; the thread pool is linked once, when the
first kernel needs it.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from tilesmith.base.errors import BuildError
from tilesmith.base.target import cpu
from tilesmith.codegen.artifact import ENTRY, PARALLEL_FOR, Artifact
from tilesmith.codegen.llvm.compiler import LLVM_LOCK, compile_ir
from tilesmith.runtime.threads import REPEAT, RESET, pool_source

_numbers = itertools.count()


class Library:
    """Linked code. Its addresses hold while it lives; the memory goes with it."""

    def __init__(
        self, name: str, code: bytes, exports: tuple[str, ...], imports: Mapping[str, int]
    ):
        # The process's own symbols bring libc and libm, that is memset, expf and the like.
        builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
        for symbol in exports:
            builder.export_symbol(symbol)
        for symbol, address in imports.items():
            builder.import_symbol(symbol, address)
        self._tracker: Any = None
        with LLVM_LOCK:
            try:
                # A name is never used twice: LLVM keeps those of libraries that are gone.
                self._tracker = builder.link(_linker(), f"{name}.{next(_numbers)}")
            except RuntimeError as error:
                raise BuildError(f"the code of {name!r} cannot be linked: {error}") from None
        self.addresses: dict[str, int] = {symbol: self._tracker[symbol] for symbol in exports}

    def __del__(self, lock: Any = LLVM_LOCK) -> None:
        # Under the lock, for the sake of a fork in another thread; LLVM's own objects know when the
        # process ends.
        with lock:
            self._tracker = None


@dataclass(frozen=True, slots=True)
class Pool:
    """The process's threads: `parallel_for` is for kernels, `repeat` calls an entry n times."""

    parallel_for: int
    repeat: Callable[[int, int, int, int], None]
    library: Library


@cache
def _linker() -> Any:
    # The JIT linker of LLVM makes stubs for calls to far addresses; the older one does so on some
    # architectures only.
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return llvm.create_lljit_compiler(target.create_target_machine(jit=True), use_jit_link=True)


def pool() -> Pool:
    with LLVM_LOCK:
        return _load_pool()


@cache
def _load_pool() -> Pool:
    artifact = compile_ir("threads", pool_source(cpu().arch), cpu(), ())
    library = Library("threads", artifact.code, (PARALLEL_FOR, REPEAT, RESET), {})
    os.register_at_fork(after_in_child=ctypes.CFUNCTYPE(None)(library.addresses[RESET]))
    pointer = ctypes.c_void_p
    signature = ctypes.CFUNCTYPE(None, pointer, pointer, pointer, ctypes.c_int64)
    return Pool(library.addresses[PARALLEL_FOR], signature(library.addresses[REPEAT]), library)


def obstacle(artifact: Artifact) -> str | None:
    """Why this machine cannot run the artifact; None if it can."""
    here, target = cpu(), artifact.target
    if target.arch != here.arch:
        what = f"{target.arch}; this machine is {here.arch}"
    elif missing := target.features - here.features:
        what = f"a processor with {', '.join(sorted(missing))}, which this machine's has not"
    else:
        return None
    return f"{artifact.name!r} was built for {what}; kernel.source and kernel.assembly can be read"


def load(artifact: Artifact) -> Library:
    """The artifact's code, linked and ready: the address of its entry is `addresses[ENTRY]`."""
    why = obstacle(artifact)
    if why is not None:
        raise BuildError(why)
    imports = {PARALLEL_FOR: pool().parallel_for} if artifact.uses_threads else {}
    return Library(artifact.name, artifact.code, (ENTRY,), imports)
