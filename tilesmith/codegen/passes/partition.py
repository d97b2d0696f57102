"""Loop partitioning (index-set splitting, peeling of partial tiles): splits a loop where a guard
inside starts or stops to hold, so that full tiles have no guard.

For a guard `p >= 0` inside loop v, the bounds of p over all inner loops are taken. Where the lower
bound is >= 0 the guard always holds, where the upper bound is < 0 it never does; v is split at
those values. A part of a single iteration becomes a constant, which lets the inner loops be split
in turn, until a tail is an exact smaller tile.

Large bodies are not split loop by loop, because the copies multiply. Instead the last counted loop
that a guard depends on tests it once per iteration, which is cheap compared to a tile, and has at
most two copies of its body (see guards.py). The last steps of a sum, if they are short, are cut off
even so, as a loop that is not written out.

CPU policy: a branch in an inner loop costs time, and so does a mask in every vector.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import gcd

from tilesmith.base.dataclass import dataclass
from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import accesses, substitute_body
from tilesmith.codegen.passes.guards import (
    Guard,
    effort,
    ends_of,
    guards_of,
    is_guarded,
    separated,
    spatial,
    weight,
)
from tilesmith.codegen.passes.simplify import Ranges, idle, simplify_body
from tilesmith.expr.intervals import linear, row_major
from tilesmith.expr.ints import FloorDiv, Int, most, of, opaque_atoms, var
from tilesmith.ir.function import Function
from tilesmith.ir.nests import allocated, only_store, rewrite_outer
from tilesmith.ir.nodes import Buffer, For, If, Path, Stmt

# The most operations that splitting may add in total. Beyond that guards stay: large code is slow.
_LIMIT = 4096
# Bodies of at most this many operations are split for any guard, larger ones only for guards that
# most of the body depends on.
_LIGHT = 64
# The last steps of a sum are cut off if they add at most so many operations, even beyond the limit:
# a test in each step would force all sums of the tile to memory.
_LAST_STEPS = 512
_MOST_PARTS = 5
_FEW_PLACES = 4  # in a tile, where each has a copy of the code
_SIDE = 16  # of squares, of which smaller registers turn parts
_HEAVY = 0.05  # a loop with at least this share of the running time is split before others


# Of a loop: the number of iterations, the ranges of the loops around, and the body.
_Part = tuple[int, Ranges, tuple[Stmt, ...]]


def partition(func: Function, _: Target) -> Function:
    """Loops with a large share of the running time are split first; others, such as copies, get
    what is left of the budget.
    """
    cutting = _Cutting(_LIMIT)
    body = _body(func.body, {}, cutting, 1.0)
    cutting.heavy = False
    return replace(func, body=_body(body, {}, cutting, 1.0))


@dataclass(slots=True)
class _Cutting:
    """The budget of operations that may still be added, and which loops are split in this round:
    heavy ones, the others, or all.
    """

    budget: int
    heavy: bool | None = True

    def concerns(self, share: float) -> bool:
        return self.heavy is None or (share >= _HEAVY) == self.heavy


def _body(
    body: tuple[Stmt, ...], ranges: Ranges, cutting: _Cutting, share: float
) -> tuple[Stmt, ...]:
    """`share` is the body's share of the whole Function's running time."""
    out: list[Stmt] = []
    total = effort(body) or 1 if len(body) > 1 else 1
    for s in body:
        if not is_guarded((s,)):
            out.append(s)
            continue
        own = share * effort((s,)) / total if len(body) > 1 else share
        if isinstance(s, For):
            out.extend(_loop(s, ranges, cutting, own))
        elif isinstance(s, If):
            out.append(replace(s, body=_body(s.body, ranges, cutting, own)))
        else:
            out.append(s)
    return tuple(out)


def _loop(
    s: For, ranges: Ranges, cutting: _Cutting, share: float, held: tuple[For, ...] = ()
) -> tuple[Stmt, ...]:
    """`held` are the parallel loops directly around: they stay one range and are split in here."""
    here = {**ranges, s.name: s.extent}
    if s.kind == "parallel":
        (first, *others) = s.body
        if not others and isinstance(first, For) and first.kind == "parallel":
            return (replace(s, body=_loop(first, here, cutting, share, (*held, s))),)
        body = s.body
        if cutting.concerns(share):
            for f in (*held, s):
                body = _by_value(f, body, here, cutting)
        return (replace(s, body=_body(body, here, cutting, share)),)
    cuts = _cuts(s, s.body) if cutting.concerns(share) else []
    parts = _parts(s, cuts, ranges) if len(cuts) < _MOST_PARTS else []
    if not _pays(s.body, parts, s.kind, cutting):
        parts = [(n, part, inner if n > 1 else _rolled(inner)) for n, part, inner in parts]
        if not (cutting.heavy and _pays(s.body, parts, s.kind, cutting, least=_LAST_STEPS)):
            parts = []
    if not parts:
        body = s.body
        if cutting.heavy and s.kind == "serial":
            body = separated(s, body, here)
        return (replace(s, body=_body(body, here, cutting, share)),)
    out: list[Stmt] = []
    for n, part, inner in parts:
        if cutting.heavy is not None:  # else `_parts` has done it
            inner = _body(inner, part, cutting, share)
        if n == 1:
            out.extend(inner)
        elif not idle(inner):
            out.append(For(s.name, of(n), inner, s.kind, s.notes))
    return tuple(out)


def _parts(s: For, cuts: list[int], ranges: Ranges) -> list[_Part]:
    """What can be split in a part for nothing is split: a partial tile is then known to be smaller
    than a full one.
    """
    if not cuts:
        return []
    parts = []
    for a, b in pairwise((0, *cuts, s.trips)):
        value = of(a) if b - a == 1 else var(s.name) + a
        part = {**ranges, s.name: of(b - a)}
        inner = simplify_body(substitute_body(s.body, {s.name: value}), part, {})
        parts.append((b - a, part, _body(inner, part, _Cutting(0, heavy=None), 1.0)))
    return parts


def _rolled(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The body with the steps of sums as loops that are not written out, which takes less code. The
    last steps of a sum are few.
    """
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, For):
            is_step = s.kind == "unroll" and not any(
                s.name in p.names for a in accesses(s.body) if a.write for p in a.index
            )
            s = For(s.name, s.extent, _rolled(s.body), "serial" if is_step else s.kind, s.notes)
        out.append(s)
    return tuple(out)


def _by_value(s: For, body: tuple[Stmt, ...], here: Ranges, cutting: _Cutting) -> tuple[Stmt, ...]:
    """The parts of a parallel loop as branches inside of it, so that it stays one loop."""
    cuts = _cuts(s, body)
    if not 0 < len(cuts) < _MOST_PARTS:
        return body
    v, n = var(s.name), s.trips
    parts = [
        (b - a, here, simplify_body(_assume(s.name, body, a, b), here, {}))
        for a, b in pairwise((0, *cuts, n))
    ]
    if not _pays(body, parts, s.kind, cutting):
        return body
    out: list[Stmt] = []
    for (a, b), (_, _, inner) in zip(pairwise((0, *cuts, n)), parts, strict=True):
        conds = ((v - a,) if a else ()) + ((of(b - 1) - v,) if b < n else ())
        if inner:
            out.extend((If(conds, inner),) if conds else inner)
    return tuple(out)


def _assume(name: str, body: tuple[Stmt, ...], a: int, b: int) -> tuple[Stmt, ...]:
    """The body without the guards that a <= v < b decides. v stays a variable of the same loop."""
    if b - a == 1:
        return substitute_body(body, {name: of(a)})
    shifted = f"{name}.at"
    moved = substitute_body(body, {name: var(shifted) + a})
    decided = simplify_body(moved, {shifted: of(b - a)}, {})
    return substitute_body(decided, {shifted: var(name) - a})


def _pays(
    body: tuple[Stmt, ...], parts: list[_Part], kind: str, cutting: _Cutting, least: int = 0
) -> bool:
    """Whether the budget allows the parts, or they add at most `least` operations."""
    if not parts:
        return False
    more = 0  # a loop that will be unrolled anyway costs nothing to split
    if kind not in ("unroll", "vectorize"):
        more = sum(weight(inner) for _, _, inner in parts) - weight(body)
    if more > max(cutting.budget, least):
        return False
    cutting.budget -= max(0, more)
    return True


def _cuts(s: For, body: tuple[Stmt, ...]) -> list[int]:
    """The values of the loop variable, strictly inside [0, extent), from which on a guard holds or
    fails for good. All guards count if the body is small or unrolled anyway, otherwise those that
    most of the body depends on.
    """
    n = s.extent.const
    cuts: dict[int, int] = {}
    guards = [g for g in guards_of(body) if s.name in g.cond.names]
    if n is None or not guards:
        return []
    every = s.kind in ("unroll", "vectorize") or weight(body) <= _LIGHT
    wait = not every and s.kind == "serial" and spatial(s.name, body)
    for g in guards:
        if wait and _waits(g):
            continue
        ends = {_cut(end, s.name) for end in ends_of(g.cond, g.inner)}
        for cut in (c for c in ends if c is not None and 0 < c < n):
            cuts[cut] = cuts.get(cut, 0) + (0 if every else g.work)
    total = 0 if every or not cuts else effort(body)
    return sorted(c for c, work in cuts.items() if 2 * work >= total)


def _waits(g: Guard) -> bool:
    """Whether a counted loop further inside can test the guard."""
    return not g.select and bool(g.cond.names & g.counted)


def _cut(end: Int, name: str) -> int | None:
    """The value of v at which c*v + d >= 0 starts or stops to hold."""
    step = end.coefficient(name)
    c, d = step.const, (end - step * var(name)).const
    if c is None or d is None or c == 0:
        return None
    return -(d // c) if c > 0 else d // -c + 1


def split_at_divisions(func: Function, _: Target) -> Function:
    """Splits the loops of a copy into tiles where its addresses divide the loop variable, so that
    addresses are linear again and vectors stay whole. Applies to nests of a single store, after
    layouts have been applied.

    CPU policy: vector loads and stores need consecutive addresses.
    """
    buffers = func.all_buffers | allocated(func.body)

    def go(s: Stmt, path: Path) -> tuple[Stmt, ...] | None:
        if not isinstance(s, For) or s.kind == "parallel" or (size := _tile(s, buffers)) is None:
            return None
        ranges = {f.name: most(f.extent) for f in path}
        if s.extent.const is None:
            return _split_open(s, size, ranges, buffers)
        return rewrite_outer(_split(s, size, ranges, buffers), go, path)

    return replace(func, body=rewrite_outer(func.body, go))


def _tile(s: For, buffers: dict[str, Buffer]) -> int | None:
    """The number of iterations that stay within one quotient of an address that divides the loop
    variable. None if there is no such address, or the loop contains more than a store.
    """
    n = s.extent.const
    only = only_store(s)
    if only is None or only[1].intrinsic is not None:
        return None
    divisions = {
        d for a in accesses((s,)) for d in opaque_atoms(_address(a.index, buffers[a.buffer]))
        if isinstance(d, FloorDiv) and s.name in d.names()
    }  # fmt: skip
    sizes = {_turns(d, s.name) for d in divisions}
    return min((k for k in sizes if k > 1 and (n is None or k < n)), default=None)


def _address(index: tuple[Int, ...], buffer: Buffer) -> Int:
    """The linear address in elements. Adjacent dimensions that are traversed as one cancel their
    divisions in it.
    """
    return linear(index, row_major(buffer.shape))


def _turns(d: FloorDiv, name: str) -> int:
    """The number of iterations per quotient; 1 if it is not constant."""
    step, divisor = d.a.coefficient(name).const, d.b.const
    return divisor // step if step and divisor and divisor % step == 0 else 1


def _split(s: For, size: int, ranges: Ranges, buffers: dict[str, Buffer]) -> tuple[Stmt, ...]:
    """A loop over whole tiles, and the remainder. Where neighbours of what is stored lie in
    different tiles, a vector has elements of many tiles at one place; places are unrolled.

        P[i % 2, i // 2] = X[i]    ->    for at in 2: P[at, tile] = X[2*tile + at], tile in a vector
    """
    n = s.trips
    tile, at = f"{s.name}.tile", f"{s.name}.at"
    body = substitute_body(s.body, {s.name: var(tile) * size + var(at)})
    over = "serial" if s.kind == "vectorize" else s.kind
    if s.kind == "vectorize" and size <= _FEW_PLACES and _stored_step(body, tile, buffers) == 1:
        inner = For(tile, of(n // size), body, s.kind, s.notes)
        nests: list[Stmt] = [For(at, of(size), (inner,), "unroll")]
    else:
        inner = For(at, of(size), body, s.kind)
        nests = [For(tile, of(n // size), (inner,), over, s.notes)]
    if rest := n % size:
        body = substitute_body(s.body, {s.name: var(s.name) + (n - rest)})
        nests.append(replace(s, extent=of(rest), body=body))
    return simplify_body(tuple(nests), ranges, {})


def _split_open(
    s: For, size: int, ranges: Ranges, buffers: dict[str, Buffer]
) -> tuple[Stmt, ...] | None:
    """An open loop over what is stored side by side, while vectors are read along another one, in
    squares, which are turned in registers (transpose_squares.py). None for other loops.

    for i in n:                              for tile in (n + 63) // 64:
      for j in 32:  # vectorize                for square in 4:
        P[i // 64, j, i % 64] = X[i, j]   ->     for at in 16:  # unroll
                                                   if n - 1 - 64*tile - 16*square - at >= 0:
                                                     for j in 32: ...  # vectorize
    """
    only = only_store(s)
    assert only is not None
    inner = only[0][-1]
    if s.kind != "serial" or not isinstance(inner, For) or inner.kind != "vectorize":
        return None
    tile, square, at = (f"{s.name}.{part}" for part in ("tile", "square", "at"))
    side = gcd(size, _SIDE)
    place = var(tile) * size + var(square) * side + var(at)
    over = {square: of(size // side), at: of(side)}
    body = simplify_body(substitute_body(s.body, {s.name: place}), {**ranges, **over}, {})
    if _stored_step(body, at, buffers) != 1 or _stored_step(body, inner.name, buffers) == 1:
        return None
    rows = For(at, of(side), (If((s.extent - 1 - place,), body),), "unroll")
    squares = For(square, of(size // side), (rows,))
    return (For(tile, (s.extent + size - 1) // size, (squares,), s.kind, s.notes),)


def _stored_step(body: tuple[Stmt, ...], name: str, buffers: dict[str, Buffer]) -> int | None:
    """How far apart what is stored lies for neighbouring values of a loop variable, in elements."""
    steps = {
        _address(a.index, buffers[a.buffer]).coefficient(name).const
        for a in accesses(body) if a.write
    }  # fmt: skip
    return steps.pop() if len(steps) == 1 else None
