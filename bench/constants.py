"""Measures the constants of this machine that the analytic score uses: `python -m bench.constants`
prints them beside the defaults, and `measured()` returns them for `ts.CpuScore(measured())`.

Times are in cycles of a clock that is derived from the peak of multiply-adds: a core that starts
`ports` of them a cycle. Run it on an idle machine.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

import tilesmith as ts
from tilesmith.measure.peak import multiply_add
from tilesmith.search.cpu_constants import CpuConstants

_ROW = 4096  # elements


def measured() -> CpuConstants:
    target = ts.cpu(1)
    known = CpuConstants.of(target)
    peak = multiply_add("float32", target)
    clock = peak / (2 * known.lanes(32) * known.ports)
    alone = multiply_add("float32", target, chains=(1,))
    latency = peak / alone / known.ports + 1  # one cycle of scheduling loss
    caches = []
    for k, cache in enumerate(known.caches):
        below = known.caches[k + 1].nbytes // 2 if k < 2 else 4 * cache.nbytes
        rate = _bytes_per_second(max(below, 2 * cache.nbytes), target)
        caches.append(replace(cache, bandwidth_below=round(rate / clock, 1)))
    here = ts.cpu()
    l1, l2, l3 = caches
    return replace(
        known, num_cores=here.num_cores, fma_latency=round(latency, 1), caches=(l1, l2, l3)
    )


def _bytes_per_second(nbytes: int, target: ts.Target) -> float:
    """Of sums over the rows of an array of that size, the best of several calls."""
    rows = max(1, nbytes // (4 * _ROW))
    a, k = ts.placeholder((rows, _ROW), name="A"), ts.reduce_axis(_ROW, name="k")
    s = ts.compute((rows,), lambda i: ts.sum(a[i, k], axis=k), name="S")
    kernel = ts.build(ts.function([a, s], name="row_sums"), target)
    x, out = np.ones((rows, _ROW), np.float32), np.empty(rows, np.float32)
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        kernel(x, out=out)
        best = min(best, time.perf_counter() - start)
    return x.nbytes / best


def main() -> None:
    usual, here = CpuConstants.of(ts.cpu()), measured()
    print(f"cycles between dependent FMAs   {usual.fma_latency:6.1f} -> {here.fma_latency:6.1f}")
    for name, a, b in zip(("L2", "L3", "memory"), usual.caches, here.caches, strict=True):
        print(f"bytes a cycle from {name:<12} {a.bandwidth_below:6.1f} -> {b.bandwidth_below:6.1f}")


if __name__ == "__main__":
    main()
