"""The part of a buffer that is accessed below a loop, as boxes over the loops outside of it.

`box_of` over-approximates, for what must be computed. `written_box` under-approximates, for what
has been computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from tilesmith.expr.dynamic import Dynamic
from tilesmith.expr.intervals import Rules, Unknown, bounds, proves, reduce_modulo
from tilesmith.expr.ints import (
    ONE,
    ZERO,
    Int,
    Monomial,
    Opaque,
    exact_quotient,
    loops_of,
    maximum,
    nonnegative,
    opaque_atoms,
)
from tilesmith.ir.nodes import Block, Path

Box = tuple[tuple[Int, Int], ...]  # (first, last) per dimension

# Loops bound to these axes count as inside of a shared buffer's region wherever they stand, because
# the threads share the buffer.
_THREADS = ("vthread", "threadIdx.x", "threadIdx.y", "threadIdx.z")
THREAD_LOOPS = {"shared": _THREADS, "cluster": _THREADS}


def inner_ranges(
    path: Path, block: Block | None, loop: str | None, scope: str = "global"
) -> dict[str, Int]:
    """Extents of the loops inside of `loop` (all loops for None), including the block's tile."""
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
    """The box that one access covers while the inner loops run.

    A dimension whose index is loaded from a tensor, or whose range has no closed form, is taken
    as a whole.
    """
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
    """The smallest box around both. Where the order of two bounds cannot be proven, a max or min
    remains in the expression, which numbers resolve.
    """
    if a is None:
        return b
    return tuple(
        (-maximum(-lo1, -lo2), maximum(hi1, hi2))
        for (lo1, hi1), (lo2, hi2) in zip(a, b, strict=True)
    )


def extent(span: tuple[Int, Int], rules: Rules) -> Int:
    return reduce_modulo(span[1] - span[0] + 1, rules)


def terms_over(p: Int, ranges: Mapping[str, Int]) -> list[tuple[Int, str]] | None:
    """The coefficient of each loop of `ranges` in p; None where p is not affine in them."""
    out: dict[str, Int] = {}
    for m, c in p.terms.items():
        moving = [
            a for a in m if (a in ranges if isinstance(a, str) else a.names() & ranges.keys())
        ]
        if not moving:
            continue
        a = moving[0]
        if len(moving) > 1 or isinstance(a, Opaque):
            return None
        rest = list(m)
        rest.remove(a)
        out[a] = out.get(a, ZERO) + Int({tuple(rest): c})
    return [(c, a) for a, c in out.items()]


def written_box(b: Block, path: Path, buffer: str, loop: str, rules: Rules) -> Box | None:
    """The box of `buffer` of which one iteration of `loop` writes every element.

    None if the box may have holes: from loops that skip elements, or from guards. Guards that only
    keep an index inside of the buffer are ignored, and so are guards over the loops outside.
    """
    inner = inner_ranges(path, b, loop)
    spatial = {i.name for i in b.spatial}
    if any(loops_of(p) <= spatial for p in b.domain):
        return None
    (write,) = (w for w in b.writes if w.buffer == buffer)
    at = [p.substitute(b.binding) for p in write.index]
    seen: set[str] = set()
    box = []
    explained: set[Int] = set()
    everywhere = inner_ranges(path, b, None)
    guards = {g for g in b.where if not proves(g, everywhere, rules)}
    for p in at:
        terms = terms_over(p, inner)
        if terms is None or seen & {n for _, n in terms}:
            return None
        seen |= {n for _, n in terms}
        reach = _dense(terms, inner, rules)
        if reach is None:
            return None
        low = p.substitute({n: ZERO for _, n in terms})
        moving = {n for _, n in terms}
        for g in guards:
            if not g.names & moving:
                continue
            rest = g + (p - low)  # g >= 0 means that the moving part is at most `rest`
            if not loops_of(g + p) or not loops_of(g - p) or _beyond(b, p, g, everywhere, rules):
                explained.add(g)  # it only keeps the index inside of the buffer
            elif not rest.names & inner.keys():
                explained.add(g)
                reach = -maximum(-reach, -rest)
        box.append((reduce_modulo(low, rules), reduce_modulo(low + reach, rules)))
    reducing = b.reducing_loops
    if any(g.names & inner.keys() - reducing for g in guards - explained):
        return None
    return tuple(box)


def _beyond(b: Block, p: Int, guard: Int, ranges: Mapping[str, Int], rules: Rules) -> bool:
    """Whether the guard skips only indices p that lie behind all those of the block's iterators. It
    does so if it bounds one iterator of several, as j in 4*j + i.
    """
    index = next(q for w in b.writes for q in w.index if q.substitute(b.binding) == p)
    try:
        last = bounds(index, {i.name: i.extent for i in b.iters})[1]
    except Unknown:
        return False
    for n in loops_of(guard) & loops_of(p):
        ratio = exact_quotient(p.coefficient(n), -guard.coefficient(n))
        if ratio is not None and nonnegative(ratio - 1):
            # where guard < 0, p - last is at least this plus 1
            return proves(p - last - 1 + ratio * (guard + 1), ranges, rules)
    return False


def _dense(terms: list[tuple[Int, str]], ranges: Mapping[str, Int], rules: Rules) -> Int | None:
    """The last value that the loops reach together, if they leave no holes: the step of each one is
    at most what the loops with smaller steps cover.
    """
    reach = ZERO
    left = list(terms)
    while left:
        for t in left:
            c, n = t
            gap = reduce_modulo(reach + 1 - c, rules)
            if nonnegative(c - 1) and nonnegative(gap):
                reach = reduce_modulo(reach + c * (ranges[n] - 1), rules)
                left.remove(t)
                break
        else:
            return None
    return reach


def _exceeds(step: Int, reach: Int, rules: Rules) -> bool:
    """Whether a step is larger than a reach, by their difference as it is, or with the step as the
    product of sizes that makes it up: 32 is more than some factors of a tile of 32 reach.
    """
    if nonnegative(reduce_modulo(step - 1 - reach, rules)):
        return True
    n = step.const
    wholes = (m for m, whole in rules.items() if n is not None and whole.const == n)
    return any(nonnegative(Int({m: 1}) - 1 - reach) for m in wholes)


def separate(p: Int, loop: str, ranges: Mapping[str, Int], rules: Rules) -> bool:
    """Whether different iterations of `loop` give different values of p, whatever the loops inside
    of it do.
    """
    own = tuple((n, e) for n, e in ranges.items() if n in p.names)
    return _separate(p, loop, own, tuple(rules.items()))


@lru_cache(maxsize=4096)  # every step of a schedule asks again about the loops of all others
def _separate(
    p: Int, loop: str, own: tuple[tuple[str, Int], ...], known: tuple[tuple[Monomial, Int], ...]
) -> bool:
    ranges, rules = dict(own), dict(known)
    terms = terms_over(p, ranges)
    if terms is None:
        return False
    left = [(c, ranges[n], n) for c, n in terms]
    reach = ZERO
    while left:  # mixed radix: each step is larger than what the smaller ones reach together
        for t in left:
            c, e, n = t
            beyond = reduce_modulo(reach + c * (e - 1), rules)
            larger = all(_exceeds(o[0], beyond, rules) for o in left if o is not t)
            if nonnegative(reduce_modulo(c - ONE - reach, rules)) and larger:
                if n == loop:
                    return True
                reach = beyond
                left.remove(t)
                break
        else:
            return False
    return False
