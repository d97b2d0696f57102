"""The memory part of the analytic score of CPUs: the cycles in which a statement's data moves
between the caches, as closed forms over a variant's columns.
"""

from __future__ import annotations

from math import gcd

from tilesmith.base.machines.constants import Cache, CpuConstants
from tilesmith.expr.ints import product
from tilesmith.ir.function import Function
from tilesmith.search.features.graph import Term
from tilesmith.search.features.nest import Access, Nest


def transfers(cpu: CpuConstants, n: Nest) -> tuple[list[Term], Term]:
    """Cycles to transfer data from L2, from L3 and from memory; and cycles spent waiting.

    The arguments may still be in a cache from the previous call, and an intermediate buffer from
    when it was written. They are transferred only if more than the cache holds is accessed in
    between.

    Loads of operands overlap with arithmetic. Reloaded accumulators do not: the second result
    counts these.
    """
    g = n.graph
    whole = g.of(_footprint(n.func))
    touched = [whole]
    for k in range(1, len(n.loops) + 1):
        nbytes = g.of(0)
        for a in n.accesses:
            nbytes = nbytes + a.touched[k] * a.nbytes
        touched.append(nbytes)
    streamed, waited = [], g.of(0)
    for cache in cpu.caches:
        evicted = [t > cache.nbytes * cpu.usable_share for t in touched]
        moved = g.of(0)
        for a in n.accesses:
            nbytes = a.touched[0] * (a.nbytes * (2 if a.reads and a.writes else 1))
            nbytes = nbytes * _slowed(cpu, n, a, cache.miss_nbytes)
            once = times = evicted[a.home]
            for k, loop in enumerate(n.loops):
                if not a.moved[k]:  # accesses the same elements again: free if still cached
                    away = evicted[k + 1].maximum(_crowded(cpu, n, a, k + 1, cache))
                    times = times * away.where(loop.extent, 1)
            if a.reads and a.writes:  # stored once, reloaded and stored again every other time
                waited = waited + (times - once) * nbytes / cache.bandwidth_below
                times = once
            moved = moved + times * nbytes
        streamed.append(moved / cache.bandwidth_below)
    return streamed, waited


def _footprint(func: Function) -> float:
    """Bytes of all arguments."""
    return float(sum(b.dtype.nbytes * product(b.shape).number for b in func.params))


def _in_rows(a: Access) -> bool:
    """Whether the rows are apart in memory: neither a packed copy nor a layout of its own."""
    return not a.home and a.buffer.layout is None and len(a.buffer.shape) > 1


def _row_dims(cpu: CpuConstants, a: Access) -> int:
    """How many of the last dimensions form contiguous pieces of at least one cache line."""
    nbytes, count = a.nbytes, 0
    for extent in reversed(a.buffer.shape):
        # a dimension that the sketch leaves open is taken for a long one
        nbytes, count = nbytes * (extent.const or cpu.line_nbytes), count + 1
        if nbytes >= cpu.line_nbytes:
            break
    return count


def _slowed(cpu: CpuConstants, n: Nest, a: Access, miss_nbytes: float) -> Term:
    """The slowdown of loading pieces of rows compared to one contiguous stream, which the hardware
    prefetches. It grows for short pieces, and for lines evicted before all of them is used.
    """
    g = n.graph
    if not _in_rows(a):
        return g.of(1)
    inner = _row_dims(cpu, a)
    rows = [g.product(spans[:-inner]) for spans in a.spans]
    runs = [g.product(spans[-inner:]) for spans in a.spans]
    run, still = g.of(0), g.of(1)  # `still` is 1 while no inner loop changes the row
    for k in range(len(n.loops) - 1, -1, -1):
        if n.loops[k].kind not in ("unroll", "vectorize"):
            first = still * (rows[k] > rows[k + 1])
            run, still = run + first * runs[k + 1], still - first
    run = run + still * runs[0]
    slowed = 1 + miss_nbytes / (run * a.nbytes).maximum(1)
    if a.writes:
        return slowed
    again = _crowded(cpu, n, a, register_tile(n), cpu.caches[0])
    return slowed * again.where(cpu.line_nbytes / a.nbytes / 2, 1)


def register_tile(n: Nest) -> int:
    """The position of the outermost loop of the register tile: all loops from it on are unrolled or
    vectorized.
    """
    k = len(n.loops)
    while k and n.loops[k - 1].kind in ("unroll", "vectorize"):
        k -= 1
    return k


def _crowded(cpu: CpuConstants, n: Nest, a: Access, level: int, cache: Cache) -> Term:
    """1 where the rows conflict in the cache: if they are a multiple of a large power of two apart,
    they map to the same few sets.
    """
    g = n.graph
    if not _in_rows(a):
        return g.of(0)
    if all(p.name != a.buffer.name for p in n.func.params):  # codegen pads other buffers
        return g.of(0)
    taken, stride = g.of(a.nbytes), a.nbytes
    for span, extent in zip(reversed(a.spans[level]), reversed(a.buffer.shape), strict=True):
        apart = gcd(stride, cache.way_nbytes)
        taken = span * (span > 1).where(taken.maximum(apart), taken)
        stride *= extent.number
    crowded = taken > cache.nbytes * cpu.usable_share
    if a.writes:  # the register tile itself does not use the cache
        crowded = crowded * (a.touched[level] > a.touched[register_tile(n)])
    return crowded
