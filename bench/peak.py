"""What memory can do: bytes a second from each of its levels. What the arithmetic can do is
measured by `tilesmith.measure.this_machine`.
"""

from __future__ import annotations

import numpy as np

import tilesmith as ts


def bandwidth(nbytes: int, target: ts.Target) -> float:
    """Bytes a second that a = b + 3 * c moves when its three arrays take this much together."""
    lanes = target.lanes(32)
    n = max(nbytes // 12 // (8 * lanes), 1) * 8 * lanes
    b, c = ts.placeholder((n,), name="b"), ts.placeholder((n,), name="c")
    a = ts.compute((n,), lambda i: b[i] + 3 * c[i], name="a")
    sch = ts.Schedule(ts.function([b, c, a], name="triad"))
    _, inner = sch.split(sch.loops("a")[0], [None, 8 * lanes])
    sch.vectorize(inner)
    kernel = ts.build(sch, target.with_cores(1))
    x = np.ones(n, np.float32)
    return 12 * n / kernel.time(x, x.copy(), repeats=7, min_seconds=0.01).best
