"""Loop bodies in LLVM IR for the tests of the thread pool, and a way to run them.

Every body gets a pointer to three arrays of int64: visits per index, the thread of each index, and
one cell per thread.
"""

from __future__ import annotations

import ctypes
import time

import numpy as np

from tilesmith.base.target import cpu
from tilesmith.codegen.artifact import PARALLEL_FOR
from tilesmith.codegen.llvm.compiler import compile_ir
from tilesmith.runtime.loader import Library, pool

_LOOP = """
define void @NAME(ptr %ctx, i64 %begin, i64 %end, i64 %thread) nounwind {
entry:
  %visits = load ptr, ptr %ctx
  %who.pp = getelementptr ptr, ptr %ctx, i64 1
  %who = load ptr, ptr %who.pp
  %cells.pp = getelementptr ptr, ptr %ctx, i64 2
  %cells = load ptr, ptr %cells.pp
  %cell = getelementptr i64, ptr %cells, i64 %thread
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %visit = getelementptr i64, ptr %visits, i64 %i
  %mark = getelementptr i64, ptr %who, i64 %i
BODY
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""
_VISIT = """
  %old = atomicrmw add ptr %visit, i64 1 monotonic
  store i64 %thread, ptr %mark
"""
_BODIES = {
    "visit": _VISIT,
    "slow": _VISIT + "  %z = call i32 @usleep(i32 1000)\n",
    # Counts in cell 255 how often it found another thread with its own number.
    "alone": _VISIT
    + """
  %was = atomicrmw xchg ptr %cell, i64 1 seq_cst
  %z = call i32 @usleep(i32 100)
  %gone = atomicrmw xchg ptr %cell, i64 0 seq_cst
  %clash = getelementptr i64, ptr %cells, i64 255
  %count = atomicrmw add ptr %clash, i64 %was monotonic
""",
    # A region inside a region: every index visits the first 50.
    "nested": "  call void @tilesmith_parallel_for(ptr @visit, ptr %ctx, i64 50, i64 3)\n",
}
_SOURCE = """
declare i32 @usleep(i32)
declare void @tilesmith_parallel_for(ptr, ptr, i64, i64)
""" + "".join(_LOOP.replace("NAME", n).replace("BODY", b) for n, b in _BODIES.items())

_library = Library(
    "bodies",
    compile_ir("bodies", _SOURCE, cpu(), ()).code,
    tuple(_BODIES),
    {PARALLEL_FOR: pool().parallel_for},
)
_parallel_for = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
)(pool().parallel_for)


class Region:
    """The arrays of a region, and the running of a body over them."""

    def __init__(self, size: int) -> None:
        self.visits = np.zeros(size, np.int64)
        self.who = np.full(size, -1, np.int64)
        self.cells = np.zeros(256, np.int64)
        arrays = (self.visits, self.who, self.cells)
        self._pointers = (ctypes.c_void_p * 3)(*(a.ctypes.data for a in arrays))

    def run_until_all_took_part(self, body: str, n: int, num_threads: int) -> None:
        """On a busy machine a worker may come too late for a region; not for all of them."""
        seen: set[int] = set()
        deadline = time.monotonic() + 120
        while seen != set(range(num_threads)):
            assert time.monotonic() < deadline, f"only the threads {sorted(seen)} ever worked"
            self.visits[:] = 0
            self.run(body, n, num_threads)
            assert (self.visits[:n] == 1).all()
            seen |= set(self.who[:n].tolist())

    def run(self, body: str, n: int, num_threads: int) -> None:
        _parallel_for(_library.addresses[body], ctypes.addressof(self._pointers), n, num_threads)
