"""Where a hardware instruction fits a block: which of the block's iterators the instruction's own
stand for, and which loads are its operands. Extents and memory layouts need not fit; padding and
packing make them. An operand of uint8 may stand for one of int8, or the other way round: it is then
shifted by 128.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import INT8, UINT8
from tilesmith.expr.intervals import step_along
from tilesmith.expr.ints import Int, var
from tilesmith.expr.nodes import Binary, Cast, Const, Expr, Load, Select, Unary
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, Buffer, Intrinsic, Iter, walk
from tilesmith.schedule.cache import digits
from tilesmith.schedule.shift import factors_of, sums_ahead
from tilesmith.space import analysis

_COMMUTATIVE = ("add", "mul", "max", "min")

_FAR = 256  # bytes between rows

Pairs = dict[str, Load]  # what the block accesses, by names of the instruction's operands


@dataclass(frozen=True)
class Match:
    """`axes` are the block's iterators in the order of the instruction's, with its extents."""

    intrinsic: Intrinsic
    axes: tuple[tuple[str, int], ...]
    operands: tuple[tuple[str, Load], ...]
    output: str  # the name of the instruction's output
    long: tuple[tuple[str, Int], ...]  # the block's iterators of more than one value, with extents
    shifted: str = ""  # the operand that is of the other type of 8 bits; "" if all types fit

    @property
    def sizes(self) -> dict[str, int]:
        return dict(self.axes)

    def cost(self, b: Block) -> float:
        """The cost of the whole block in vector instructions, padding included."""
        uses = 1
        for i in b.iters:
            n, size = max(1, analysis.length(i)), self.sizes.get(i.name, 1)
            uses *= -(-n // size)
        return uses * self.intrinsic.cost

    def padding(self, b: Block) -> tuple[tuple[str, int], ...]:
        """The iterators whose extents the instruction does not divide, with its extents."""
        extents = {i.name: analysis.length(i) for i in b.iters}
        return tuple((n, size) for n, size in self.axes if extents[n] % size)

    def order_of(self, operand: str) -> tuple[str, ...]:
        """The block's iterators along the dimensions of an operand of the instruction."""
        described = block_of(self.intrinsic)
        index = _accesses(described)[operand].index
        by_name = {i.name: n for i, (n, _) in zip(described.iters, self.axes, strict=True)}
        return tuple(by_name[p.name] for p in index if p.name in by_name)

    def digits_of(self, operand: str) -> tuple[Int, ...]:
        """How an operand of the instruction lies in memory, over its indices d0, d1, ..."""
        buffer: Buffer = self.intrinsic.description.all_buffers[operand]
        plain = tuple(var(f"d{k}") for k in range(len(buffer.shape)))
        return plain if buffer.layout is None else buffer.layout

    def is_plain(self, operand: str) -> bool:
        """Whether every axis of an operand has a dimension of its own, or is a part of one as a
        digit is of a number, so that it can be packed.
        """
        load = dict(self.operands)[operand]
        names = {p.name for p in load.index}
        for p in load.index:
            names |= {*digits(p, dict(self.long))}
        return names.issuperset(self.order_of(operand))

    def is_dense(self, func: Function, operand: str) -> bool:
        """Whether the operand lies in memory as the instruction wants it."""
        load = dict(self.operands)[operand]
        buffer = func.all_buffers[load.buffer]
        want: Buffer = self.intrinsic.description.all_buffers[operand]
        if buffer.layout is not None or want.layout is not None:
            return False
        order = self.order_of(operand)
        free = order[:1] if operand in self.intrinsic.by_address else ()
        steps = dict(zip(order, want.strides, strict=True))
        return all(
            step_along(n, load.index, buffer.strides) == steps[n] for n in order if n not in free
        )

    def is_apart(self, func: Function, operand: str) -> bool:
        """Whether the operand lies as the instruction wants it, but with rows so far apart that few
        sets of a cache hold them; a packed copy may pay.
        """
        if operand == self.output or not self.is_dense(func, operand):
            return False
        load = dict(self.operands)[operand]
        buffer = func.all_buffers[load.buffer]
        step = step_along(self.order_of(operand)[0], load.index, buffer.strides).const
        return self.is_plain(operand) and step is not None and step * buffer.dtype.nbytes >= _FAR


def block_of(unit: Intrinsic) -> Block:
    ((_, block),) = walk(unit.description.body)
    return block


def _accesses(described: Block) -> dict[str, Load]:
    written = {w.buffer: w.held for w in described.writes}
    return written | {load.buffer: load for load in described.loads}


def matches(func: Function, b: Block, unit: Intrinsic, shifted: bool = False) -> list[Match]:
    """Every way in which the instruction fits, the cheapest first; with `shifted`, every way in
    which it would if one operand were of the other type of 8 bits.
    """
    d = block_of(unit)
    if len(b.writes) != 1 or (b.combiner is None) != (d.combiner is None):
        return []
    if b.combiner and d.combiner and b.combiner.values != d.combiner.values:
        return []
    (w,), (dw,) = b.writes, d.writes
    out: dict[tuple[tuple[str, int], ...], Match] = {}
    long = tuple((i.name, i.extent) for i in b.iters if i.extent.const != 1)
    for pairs in _unify(w.value, dw.value, {}):
        pairs = {**pairs, dw.buffer: w.held}
        others = _other_dtypes(func, unit, pairs)
        if others is None or len(others) != shifted:
            continue
        for axes in _assignments(b, d, pairs):
            sized = tuple((i.name, e.extent.number) for i, e in zip(axes, d.iters, strict=True))
            operands = tuple(pairs.items())
            found = Match(unit, sized, operands, dw.buffer, long, "".join(others))
            out.setdefault(sized, found)
    return sorted(out.values(), key=lambda m: m.cost(b))


def shifted_matches(func: Function, b: Block, units: Sequence[Intrinsic]) -> list[list[Match]]:
    """Every way in which the instructions would fit if one factor were of the other type of 8 bits:
    the one whose shift costs least.
    """
    found = [m for unit in units for m in matches(func, b, unit, shifted=True)]
    if not found:
        return [[] for _ in units]
    factors = factors_of(b)
    costs = {}
    for own, other in zip(factors, reversed(factors), strict=True):
        along_sums = not other.index or other.index[-1].name in {i.name for i in b.reducing}
        size = func.all_buffers[other.buffer].size.number
        costs[own.buffer] = (not sums_ahead(func, b, other), along_sums, size)
    by_buffer: dict[str, list[Match]] = {}
    for m in found:
        by_buffer.setdefault(dict(m.operands)[m.shifted].buffer, []).append(m)
    best = min(by_buffer.keys() & costs.keys(), key=lambda n: costs[n], default="")
    chosen = by_buffer.get(best, [])
    return [[m for m in chosen if m.intrinsic is unit] for unit in units]


def _other_dtypes(func: Function, unit: Intrinsic, pairs: Pairs) -> list[str] | None:
    """The operands of the other type of 8 bits; None if another type does not fit."""
    have, want = func.all_buffers, unit.description.all_buffers
    types = {name: (have[load.buffer].dtype, want[name].dtype) for name, load in pairs.items()}
    others = {name: pair for name, pair in types.items() if pair[0] is not pair[1]}
    return [*others] if all({*pair} == {INT8, UINT8} for pair in others.values()) else None


def _assignments(b: Block, d: Block, pairs: Pairs) -> Iterator[tuple[Iter, ...]]:
    """The block's iterators that can stand for the instruction's: of the same kind, and they move
    the same operands, each along a dimension of its own.
    """
    wanted = _accesses(d)
    choices = []
    for e in d.iters:
        moved = {name for name, load in wanted.items() if _moves(e.name, load)}
        fits = [
            i
            for i in b.iters
            if i.kind == e.kind
            and i.extent.const is not None
            and i.extent.const > 1
            and {n for n, load in pairs.items() if _moves(i.name, load)} == moved
            and all(_steps_along(i.name, load) for load in pairs.values())
        ]
        choices.append(fits)
    for picked in product(*choices):
        if len({i.name for i in picked}) == len(picked):
            yield picked


def _moves(it: str, load: Load) -> bool:
    return any(it in p.names for p in load.index)


def _steps_along(it: str, load: Load) -> bool:
    """Whether the iterator moves by equal steps, along one dimension at most."""
    moved = [p for p in load.index if it in p.names]
    return len(moved) <= 1 and all(
        p.coefficient(it).const is not None and it not in (p - var(it) * p.coefficient(it)).names
        for p in moved
    )


def _unify(e: Expr, d: Expr, pairs: Pairs) -> Iterator[Pairs]:
    """The ways to read an expression as the instruction's."""
    match e, d:
        case Load(), Load():
            if pairs.get(d.buffer, e) == e:
                yield {**pairs, d.buffer: e}
        case Binary(op=p, a=a, b=b), Binary(op=q, a=da, b=db) if p == q:
            orders = permutations((a, b)) if p in _COMMUTATIVE else iter(((a, b),))
            for left, right in orders:
                for first in _unify(left, da, pairs):
                    yield from _unify(right, db, first)
        case (Cast(x=x), Cast(x=y)) if e.dtype is d.dtype:
            yield from _unify(x, y, pairs)
        case (Unary(op=p, x=x), Unary(op=q, x=y)) if p == q:
            yield from _unify(x, y, pairs)
        case Const(), Const() if e == d:
            yield pairs
        case Select(), Select():
            for first in _unify(e.cond, d.cond, pairs):
                for second in _unify(e.a, d.a, first):
                    yield from _unify(e.b, d.b, second)
