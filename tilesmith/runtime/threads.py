"""The thread pool, as the text of an LLVM module for an architecture: threads.ll, which depends on
libc only.

It defines `tilesmith_parallel_for` (called by kernels), `tilesmith_repeat` (called for timing) and
`tilesmith_reset_threads` (called by a forked child).

How it works
------------
A parallel region is a function and a range of iterations. Every worker has a slot on cache lines of
its own, with a state and the region to work on. The caller writes the region into the slots of the
workers it needs and sets their state from IDLE to POSTED. A worker that sees this claims its slot
(RUNNING). Each thread, the caller as well, has an equal part of the range, from which it takes
chunk after chunk, and then takes what is left of the others' parts. So the same thread has the same
part of one kernel after the other, and finds what it wrote in its own cache. When nothing is left,
the caller revokes slots that are still POSTED, so that it never waits for a worker that the system
did not schedule in time, and waits for those that are RUNNING. A worker without work spins for
about 40 us, so that the next region of a kernel starts within a microsecond. Then it sleeps in a
futex on its state.

Workers are kept off the caller's core, where they would compete with the caller. If the system has
moved the caller since the last region, the workers' affinity is set again.

No wake-up is lost. A worker first announces that it sleeps, then the kernel compares its state; the
caller first writes the state, then looks for sleeping workers. All four are sequentially
consistent.

One region runs at a time. A caller that finds the pool in use (from another thread, or from inside
a region) runs its region alone.
"""

from __future__ import annotations

from tilesmith.base.machines.machine import CpuMachine
from tilesmith.base.template import filled, template
from tilesmith.codegen.artifact import PARALLEL_FOR

ALL = f"{PARALLEL_FOR}_all"
REPEAT = "tilesmith_repeat"
RESET = "tilesmith_reset_threads"

LIMIT = "tilesmith_limit_threads"
FORGET = "tilesmith_forget_core"
# Beside the pool of this process: exported libraries have a limit of their own. Where the affinity
# of the caller has changed, its core is forgotten: the next region sets that of the workers.
LIMIT_SOURCE = f"""
define void @{LIMIT}(i64 %most) nounwind {{
  store atomic i64 %most, ptr @limit monotonic, align 8
  ret void
}}

define void @{FORGET}() nounwind {{
  store atomic i32 -1, ptr @caller_core monotonic, align 4
  ret void
}}
"""


def limited_source(most: int) -> str:
    """A module whose `tilesmith_parallel_for` is that of the pool with at most so many threads, for
    the kernels of one model. The pool's is imported as `tilesmith_parallel_for_all`.
    """
    return f"""
declare void @{ALL}(ptr, ptr, i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
define void @{PARALLEL_FOR}(ptr %body, ptr %ctx, i64 %n, i64 %num_threads) nounwind {{
  %few = call i64 @llvm.smin.i64(i64 %num_threads, i64 {most})
  call void @{ALL}(ptr %body, ptr %ctx, i64 %n, i64 %few)
  ret void
}}
"""


MAX_WORKERS = 255
_STACK_NBYTES = 8 << 20  # independent of `ulimit -s`

# Slots are 128 bytes apart, because processors fetch cache lines in pairs. States: 0 IDLE, 1
# POSTED, 2 RUNNING, 3 WAITED (running, and the caller sleeps until it is done), 4 ENDED (the thread
# is to end, as `export/pool.py` wants it). The futex operations are FUTEX_WAIT_PRIVATE (128) and
# FUTEX_WAKE_PRIVATE (129).


def pool_source(machine: CpuMachine, *, detached: bool = True) -> str:
    """The module for an architecture. Threads that are not detached must be joined by whoever ends
    them.
    """
    values = {
        "MAX_WORKERS": MAX_WORKERS,
        "MAX_THREADS": MAX_WORKERS + 1,
        "FUTEX": machine.futex,
        "DETACHED": int(detached),
        "STACK_NBYTES": _STACK_NBYTES,
        "SLOTS_NBYTES": 128 * MAX_WORKERS,
    }
    return template(__file__, "threads.ll", values) + filled(machine.spin, values)
