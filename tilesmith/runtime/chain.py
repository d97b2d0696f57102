"""Running a chain of kernels in one native call: an array of (entry, arguments, workspace) is
walked by a small compiled loop (chain.ll), with or without a clock reading around every kernel.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

from tilesmith.base.dataclass import dataclass
from tilesmith.base.process import LLVM_LOCK
from tilesmith.base.target import cpu
from tilesmith.base.template import template

RUN = "tilesmith_run_chain"
RUN_TIMED = "tilesmith_run_chain_timed"

# Clocks of clock_gettime, as Linux numbers them: time, and processor time of the calling thread.
CLOCK_MONOTONIC = 1
CLOCK_THREAD_CPUTIME_ID = 3


@dataclass(frozen=True, slots=True)
class Chain:
    run: Callable[[int, int], None]  # steps, count
    run_timed: Callable[[int, int, int, int], None]  # steps, count, where times go, the clock
    library: Any


def chain() -> Chain:
    with LLVM_LOCK:
        return _load()


@cache
def _load() -> Chain:
    # Not at the top of the file: `import tilesmith` must not load LLVM.
    from tilesmith.codegen.llvm.compiler import compile_ir
    from tilesmith.runtime.loader import Library

    artifact = compile_ir("chain", template(__file__, "chain.ll"), cpu(), ())
    library = Library("chain", artifact.code, (RUN, RUN_TIMED), {})
    pointer = ctypes.c_void_p
    run = ctypes.CFUNCTYPE(None, pointer, ctypes.c_int64)(library.addresses[RUN])
    timed = ctypes.CFUNCTYPE(None, pointer, ctypes.c_int64, pointer, ctypes.c_int32)
    return Chain(run, timed(library.addresses[RUN_TIMED]), library)
