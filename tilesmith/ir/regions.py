"""Which part of a buffer is touched below a loop: boxes whose corners are Ints over the loops that stay outside."""

from __future__ import annotations

from collections.abc import Iterable

from tilesmith.expr.ints import (
    ZERO,
    Int,
    Rules,
    Unknown,
    bounds,
    maximum,
    opaque_atoms,
    reduce_modulo,
)
from tilesmith.expr.nodes import Dynamic
from tilesmith.ir.nodes import Block, Path

Box = tuple[tuple[Int, Int], ...]  # (first, last) per dimension

# Loops bound to these count as inside of a shared buffer's region, although they are written outside: threads share it.
THREAD_LOOPS = {"shared": ("vthread", "threadIdx.x", "threadIdx.y", "threadIdx.z")}


def inner_ranges(path: Path, block: Block | None, loop: str | None, scope: str = "global") -> dict[str, Int]:
    """Extents of the loops that move below `loop` (all of them for None), tile loops included."""
    names = [f.name for f in path]
    start = 0 if loop is None else names.index(loop) + 1
    shared = THREAD_LOOPS.get(scope, ())
    inside = {f.name: f.extent for k, f in enumerate(path) if k >= start or f.kind in shared}
    if block is not None:
        inside.update(block.tile)
    return inside


def box_of(
    index: Iterable[Int], shape: tuple[Int, ...], inner: dict[str, Int], rules: Rules
) -> Box:
    """The box one access covers while the inner loops run. A dimension that is read from a tensor, or whose range has no closed
    form, is taken whole."""
    out = []
    for p, extent in zip(index, shape, strict=True):
        if any(isinstance(a, Dynamic) for a in opaque_atoms(p)):
            out.append((ZERO, extent - 1))
            continue
        try:
            low, high = bounds(p, inner)
        except Unknown:
            out.append((ZERO, extent - 1))
            continue
        out.append((reduce_modulo(low, rules), reduce_modulo(high, rules)))
    return tuple(out)


def union(a: Box | None, b: Box) -> Box:
    """The smallest box around both; an order that cannot be proven leaves a maximum that numbers resolve."""
    if a is None:
        return b
    return tuple(
        (-maximum(-lo1, -lo2), maximum(hi1, hi2))
        for (lo1, hi1), (lo2, hi2) in zip(a, b, strict=True)
    )


def extent(span: tuple[Int, Int], rules: Rules) -> Int:
    return reduce_modulo(span[1] - span[0] + 1, rules)
