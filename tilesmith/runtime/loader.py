"""Loads artifacts: links their code into this process.

Objects are linked by LLVM's JIT linker, each as a library of its own. The thread pool is linked
once, when the first kernel needs it.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import BuildError
from tilesmith.base.process import LLVM_LOCK
from tilesmith.base.target import THREAD_LIMIT, cpu
from tilesmith.codegen.artifact import PARALLEL_FOR, Artifact, obstacle
from tilesmith.codegen.llvm.compiler import compile_ir, initialize, missing_features
from tilesmith.runtime.threads import (
    ALL,
    FORGET,
    LIMIT,
    LIMIT_SOURCE,
    MAX_WORKERS,
    REPEAT,
    RESET,
    limited_source,
    pool_source,
)


# Asks Linux for the tile registers of AMX. A process that uses them without permission is killed.
#
# The permission holds for all threads of the process, and for processes that it forks.
@cache
def allow_tiles() -> bool:
    """Whether this process may use tile registers; False on processors without them."""
    tiles = cpu().machine.tiles
    if tiles is None or tiles.feature not in cpu().features:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.syscall(*tiles.permission) == 0)


_numbers = itertools.count()


class Library:
    """Linked code. Its addresses are valid while it lives; then its memory is freed."""

    def __init__(
        self,
        name: str,
        code: bytes | tuple[bytes, ...],  # one object file or several
        exports: tuple[str, ...],
        imports: Mapping[str, int],
    ):
        objects = (code,) if isinstance(code, bytes) else code
        builder = llvm.JITLibraryBuilder()
        for one in objects:
            builder.add_object_img(one)
        # The process's own symbols include libc and libm: memset, expf and so on.
        builder.add_current_process()
        for symbol in exports:
            builder.export_symbol(symbol)
        for symbol, address in imports.items():
            builder.import_symbol(symbol, address)
        self._tracker: Any = None
        with LLVM_LOCK:
            try:
                # Names are never reused: LLVM keeps those of unloaded libraries.
                self._tracker = builder.link(_linker(), f"{name}.{next(_numbers)}")
            except RuntimeError as error:
                process = ctypes.CDLL(None)
                wanted = [s for one in objects for s in undefined_symbols(one)]
                missing = [s for s in wanted if s not in imports and not hasattr(process, s)]
                why = f" for want of: {', '.join(missing)}" if missing else f": {error}"
                raise BuildError(f"the code of {name!r} cannot be linked{why}") from None
        self.addresses: dict[str, int] = {symbol: self._tracker[symbol] for symbol in exports}

    def __del__(self, lock: Any = LLVM_LOCK) -> None:
        # Under the lock, so that a fork in another thread never sees LLVM in between.
        with lock:
            self._tracker = None


@dataclass(frozen=True, slots=True)
class Pool:
    """The process's thread pool: kernels call `parallel_for`; `repeat` calls an entry n times.
    `forget_core` is called where the affinity of the calling thread has changed.
    """

    parallel_for: int
    repeat: Callable[[int, int, int, int], None]
    forget_core: Callable[[], None]
    library: Library


@cache
def _linker() -> Any:
    # LLVM's JIT linker creates stubs for calls to distant addresses; the older linker does so on
    # some architectures only.
    initialize()
    allow_tiles()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return llvm.create_lljit_compiler(
        target.create_target_machine(jit=True), use_jit_link=True, suppress_errors=True
    )


def pool() -> Pool:
    with LLVM_LOCK:
        return _load_pool()


@cache
def _load_pool() -> Pool:
    artifact = compile_ir("threads", pool_source(cpu().machine) + LIMIT_SOURCE, cpu(), ())
    symbols = (PARALLEL_FOR, REPEAT, RESET, LIMIT, FORGET)
    library = Library("threads", artifact.code, symbols, {})
    limit = ctypes.CFUNCTYPE(None, ctypes.c_int64)(library.addresses[LIMIT])
    THREAD_LIMIT.watch(lambda most: limit(MAX_WORKERS + 1 if most is None else most))
    os.register_at_fork(after_in_child=ctypes.CFUNCTYPE(None)(library.addresses[RESET]))
    pointer = ctypes.c_void_p
    signature = ctypes.CFUNCTYPE(None, pointer, pointer, pointer, ctypes.c_int64)
    forget = ctypes.CFUNCTYPE(None)(library.addresses[FORGET])
    repeat = signature(library.addresses[REPEAT])
    return Pool(library.addresses[PARALLEL_FOR], repeat, forget, library)


def parallel_for(most: int | None) -> int:
    """The address of the function that runs a region, on at most so many threads of the pool."""
    if most is None:
        return pool().parallel_for
    with LLVM_LOCK:
        return _limited(most).addresses[PARALLEL_FOR]


@cache
def _limited(most: int) -> Library:
    artifact = compile_ir("limited", limited_source(most), cpu(), ())
    return Library("limited", artifact.code, (PARALLEL_FOR,), {ALL: pool().parallel_for})


def undefined_symbols(code: bytes) -> list[str]:
    """The undefined symbols of an ELF object, for error messages: LLVM does not name them."""
    (sections_at,) = struct.unpack_from("<Q", code, 0x28)
    size, count = struct.unpack_from("<HH", code, 0x3A)
    # section headers: name, type, flags, address, offset, size, link, ...
    headers = [struct.unpack_from("<IIQQQQI", code, sections_at + i * size) for i in range(count)]
    symbols = []
    for _, kind, _, _, offset, nbytes, link in headers:
        if kind != 2:  # SHT_SYMTAB
            continue
        names_at = headers[link][4]
        for at in range(offset, offset + nbytes, 24):
            name, _, _, section = struct.unpack_from("<IBBH", code, at)
            if name and section == 0:
                begin = names_at + name
                symbols.append(code[begin : code.index(0, begin)].decode())
    return symbols


def load(artifact: Artifact, threads: int | None = None) -> Library:
    """Links the code of an artifact; `addresses` has its entries by symbol."""
    return load_all(artifact.name, (artifact,), threads)


def load_all(name: str, artifacts: Sequence[Artifact], threads: int | None = None) -> Library:
    """Links the code of several artifacts into one library. With `threads` it runs on at most so
    many.
    """
    for artifact in artifacts:
        if (why := obstacle(artifact)) is not None:
            raise BuildError(why)
        # Code for the native processor uses more than what is a target's: all that LLVM detects.
        if missing := missing_features(artifact.features):
            raise BuildError(
                f"{artifact.name!r} was built for a processor with {', '.join(missing)}, which "
                "this machine's has not"
            )
    threaded = any(a.uses_threads for a in artifacts)
    imports = {PARALLEL_FOR: parallel_for(threads)} if threaded else {}
    codes = {a.code: [e.symbol for e in a.entries] for a in artifacts}  # equal code is linked once
    exports = tuple(symbol for symbols in codes.values() for symbol in symbols)
    return Library(name, tuple(codes), exports, imports)
