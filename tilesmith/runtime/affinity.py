"""The cores that calls of a model run on, where a user names them: the affinity of the calling
thread during a call, which the threads of the pool follow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tilesmith.base.errors import GraphError


def cores_of(affinity: Sequence[int] | None) -> frozenset[int] | None:
    """The cores that are named, which this process must be allowed to use."""
    if affinity is None:
        return None
    allowed = os.sched_getaffinity(0)
    wrong = [c for c in affinity if c not in allowed]
    if wrong or not affinity:
        have = ", ".join(map(str, sorted(allowed)))
        what = f"core {wrong[0]}" if wrong else "no core"
        raise GraphError(f"affinity names {what}; this process may use the cores {have}")
    return frozenset(affinity)


@contextmanager
def on_cores(cores: frozenset[int] | None) -> Iterator[None]:
    """Runs this thread, and the threads of the pool that help it, on these cores for a while."""
    if cores is None:
        yield
        return
    # Imported late: `import tilesmith` must not load LLVM.
    from tilesmith.runtime.loader import pool

    before = os.sched_getaffinity(0)
    forget_core = pool().forget_core
    os.sched_setaffinity(0, cores)
    forget_core()
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        forget_core()
