"""The thread pool of an exported library: that of `runtime/threads.py`, with a limit that comes
from the machine it runs on. Its threads end when the last handle is closed.
"""

from __future__ import annotations

from tilesmith.base.machines.machine import CpuMachine
from tilesmith.base.template import template
from tilesmith.codegen.artifact import PARALLEL_FOR
from tilesmith.runtime.threads import MAX_WORKERS, REPEAT, RESET, pool_source

# The number is that of what kernels, pool and handles expect of each other. Two static libraries in
# one program share a pool; if they expect different things, the linker finds two pools and says so.
PREPARE = "tilesmith_threads_1_prepare"
RELEASE = "tilesmith_threads_1_release"
LIMIT = "tilesmith_threads_1_limit"
SYMBOLS = (PARALLEL_FOR, REPEAT, RESET, PREPARE, RELEASE, LIMIT)


def exported_pool_source(machine: CpuMachine) -> str:
    values = {"MAX_WORKERS": MAX_WORKERS, "MAX_THREADS": MAX_WORKERS + 1}
    return pool_source(machine, detached=False) + template(__file__, "pool.ll", values)
