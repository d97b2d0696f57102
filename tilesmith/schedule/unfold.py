"""Primitives that make one axis of several by tiles: unfold (im2col) turns a sum over windows into
a product of matrices, and merge_tiles runs an element-wise block in the same order.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, ClassVar

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import ZERO, Int, of, product, var
from tilesmith.expr.nodes import (
    Expr,
    Load,
    map_own_ints,
    rewrite,
)
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, Buffer, Fact, Iter, Write, map_writes
from tilesmith.schedule.cache import check_fresh, replaced, top_level
from tilesmith.schedule.layout import unscheduled, vanishes, where_inside
from tilesmith.schedule.loops import trivial_index
from tilesmith.schedule.step import Step

Sizes = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class _Merged:
    """An iterator in place of several. It runs over tiles of the given sizes, one after the other,
    and over each of them in order. `axes` are (name, extent, size of a tile); the first extent may
    be open. `tiles` is the number of tiles, rounded up where it is open.
    """

    kind: str
    axes: tuple[tuple[str, Int, int], ...]
    tiles: Int

    @property
    def name(self) -> str:
        return "_".join(n for n, _, _ in self.axes)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(n for n, _, _ in self.axes)

    @property
    def tile(self) -> int:
        return prod(size for _, _, size in self.axes)

    @property
    def extent(self) -> Int:
        return self.tiles * self.tile

    @property
    def padded(self) -> frozenset[str]:
        return frozenset(a for a, n, size in self.axes if n.const is None or n.const % size)

    def values(self) -> dict[str, Int]:
        """What the old iterators are, over the new one."""
        at = var(self.name)
        out: dict[str, Int] = {}
        step, across = 1, self.tile  # of the axis within a tile, and from one tile to the next
        for k, (name, n, size) in reversed(list(enumerate(self.axes))):
            count = 1 if k == 0 else -(-n.number // size)
            number = at // across if k == 0 else _digit(at, across, count)
            out[name] = number * size + _digit(at, step, size)
            step, across = step * size, across * count
        return out

    def position(self) -> Int:
        """What the new iterator is, over the old ones."""
        number, rest = ZERO, ZERO
        for name, n, size in self.axes:
            number = number * _count(n, size) + var(name) // size
            rest = rest * size + var(name) % size
        return number * self.tile + rest


def _count(n: Int, size: int) -> Int:
    """The tiles of an axis."""
    return (n + size - 1) // size


def _digit(at: Int, step: int, count: int) -> Int:
    return at // step - at // (step * count) * count


@dataclass(frozen=True, slots=True)
class Unfold(Step):
    """Rewrites a sum over windows as a product of matrices: the iterators of `rows` become one, and
    so do those of `terms`, which it sums over. Both run over tiles of the given sizes, so that a
    tile of rows is a box of the image, moved by the window. Elements outside are zero. The first
    axis of rows may be open: then there is a multiple of `several` tiles.

    Y[h, w, f] += X[h + r, w + s, c] * W[r, s, c, f]
    ->
    X.rows[h_w, r_s_c] = X[h(h_w) + r(r_s_c), w(h_w) + s(r_s_c), c(r_s_c)]
    W.rows[r_s_c, f] = W[r(r_s_c), s(r_s_c), c(r_s_c), f]
    Y.rows[h_w, f] += X.rows[h_w, r_s_c] * W.rows[r_s_c, f]
    Y[h, w, f] = Y.rows[h_w(h, w), f]
    """

    name: ClassVar[str] = "unfold"
    block: str
    rows: Sizes
    terms: Sizes
    several: int = 1

    def to_json(self) -> list[Any]:
        return _without_default(self)

    def apply(self, func: Function) -> Function:
        b = replace(unscheduled(func, self.block, "unfold"), domain=frozenset())
        its = trivial_index(b, "unfold")
        if b.combiner is None or b.combiner.op != "add" or not b.init or len(b.writes) != 1:
            raise ScheduleError(f"cannot unfold {b.name}: it is not a sum")
        func, rows = _merged(func, b, self.rows, "S", "unfold", self.several)
        _, terms = _merged(func, b, self.terms, "R", "unfold", 0)
        (write,) = b.writes
        name = f"{b.name}.rows"
        loads = list(dict.fromkeys(b.loads))
        operands = {x: f"{x.buffer}.rows" for x in loads}
        check_fresh(func, f"unfold {b.name}", name, *operands.values())
        if len(set(operands.values())) != len(loads):
            raise ScheduleError(f"cannot unfold {b.name}: it reads an operand at two places")
        for axis in terms.padded:
            if not vanishes(b, partial(_reads_at, axis)):
                raise ScheduleError(
                    f"cannot unfold {b.name}: zeros behind {axis} of its operands would change the "
                    "result"
                )
        stages: list[Block] = []
        buffers: list[Buffer] = []
        new: dict[Load, Expr] = {}
        for x in loads:
            stage, shape = self._operand(func, b, x, (rows, terms), operands[x])
            stages.append(stage)
            buffers.append(Buffer(operands[x], shape, x.dtype))
            new[x] = Load(operands[x], stage.writes[0].index, x.dtype)
        at = tuple(dict.fromkeys(rows.name if n in rows.names else n for n in its))
        extents = {i.name: i.extent for i in b.iters} | {rows.name: rows.extent}
        index = tuple(map(var, at))
        matrices = replace(
            b,
            name=name,
            iters=tuple(
                dict.fromkeys(
                    Iter(m.name, m.kind, m.extent, var(m.name)) if m is not None else i
                    for i in b.iters
                    for m in [next((m for m in (rows, terms) if i.name in m.names), None)]
                )
            ),
            writes=(Write(name, index, _moved(write.value, new, rows.values() | terms.values())),),
        )
        back = tuple(rows.position() if n == rows.name else var(n) for n in at)
        dtype = write.value.dtype
        crop = Block(
            b.name, b.spatial, (Write(write.buffer, write.index, Load(name, back, dtype)),)
        )
        buffers.append(Buffer(name, tuple(extents[n] for n in at), dtype))
        done = replaced(func, top_level(func, b.name), *stages, matrices, crop)
        return replace(done, buffers=(*func.buffers, *buffers))

    def _operand(
        self, func: Function, b: Block, x: Load, merged: tuple[_Merged, ...], name: str
    ) -> tuple[Block, tuple[Int, ...]]:
        """The block that fills a matrix with an operand's elements, and the matrix's shape."""
        buffer = func.all_buffers[x.buffer]
        shape, physical = buffer.shape, _order(buffer)
        places: dict[str, int] = {}  # the last dimension in memory that a new iterator moves
        sizes: dict[str, Int] = {}
        env: dict[str, Int] = {}
        for d, p in enumerate(x.index):
            for i in (i for i in b.iters if i.name in p.names):
                m = next((m for m in merged if i.name in m.names), None)
                own, size = (i.name, i.extent) if m is None else (m.name, m.extent)
                places[own] = max(physical[d], places.get(own, 0))
                sizes[own] = size
                env |= m.values() if m is not None else {}
        limits: list[tuple[Int, Int]] = []
        for p, n in zip(x.index, shape, strict=True):
            padded = p.names & frozenset().union(*(m.padded for m in merged))
            steps = [p.coefficient(n).const for n in padded]
            if not p.plain or any(step is None or step < 1 for step in steps):
                raise ScheduleError(f"cannot unfold {b.name}: it reads {x.buffer} at {p}")
            limits += [(p.substitute(env), n)] if padded else []
            for axis in padded & merged[1].names:
                # Zeros are added only where the index of the operand itself lies outside.
                if p.name is None or n != next(i.extent for i in b.iters if i.name == axis):
                    raise ScheduleError(
                        f"cannot unfold {b.name}: {axis} of {x.buffer} cannot be padded by zeros"
                    )
        index = tuple(p.substitute(env) for p in x.index)
        value = where_inside(limits, Load(x.buffer, index, x.dtype))
        order = sorted(places, key=lambda n: places[n])
        iters = tuple(Iter(n, "S", sizes[n], var(n)) for n in order)
        block = Block(name, iters, (Write(name, tuple(map(var, order)), value),))
        return block, tuple(sizes[n] for n in order)


@dataclass(frozen=True, slots=True)
class MergeTiles(Step):
    """Makes one iterator of several of an element-wise block: it runs over tiles of the given
    sizes, one after the other, and over each of them in order.

    for h in 14:                            for h_w in 256:
      for w in 14:                  ->        Y[h(h_w), w(h_w)] = P[h_w], if that is inside
        Y[h, w] = P[h_w(h, w)]
    """

    name: ClassVar[str] = "merge_tiles"
    block: str
    sizes: Sizes
    several: int = 1

    def to_json(self) -> list[Any]:
        return _without_default(self)

    def apply(self, func: Function) -> Function:
        b = unscheduled(func, self.block, "merge tiles of")
        trivial_index(b, "merge tiles of")
        if b.combiner is not None:
            raise ScheduleError(f"cannot merge tiles of {b.name}: it is a reduction")
        func, merged = _merged(func, b, self.sizes, "S", "merge tiles of", self.several)
        position, env = merged.position(), merged.values()

        def put(p: Int) -> Int:
            return var(merged.name) if p == position else p.substitute(env)

        own = Iter(merged.name, "S", merged.extent, var(merged.name))
        iters = dict.fromkeys(own if i.name in merged.names else i for i in b.iters)
        inside = frozenset(n - 1 - env[a] for a, n, _ in merged.axes if a in merged.padded)
        new = replace(b, iters=tuple(iters), writes=map_writes(b.writes, put), domain=inside)
        return replaced(func, top_level(func, b.name), new)


def _reads_at(axis: str, x: Load) -> bool:
    return any(axis in p.names for p in x.index)


def _moved(value: Expr, new: dict[Load, Expr], env: dict[str, Int]) -> Expr:
    """The value over new iterators: its loads are replaced, and of other values the iterators in
    them. A new iterator may have the name of an old one.
    """

    def put(x: Expr) -> Expr:
        return new[x] if isinstance(x, Load) else map_own_ints(x, lambda p: p.substitute(env))

    return rewrite(value, put)


def _order(buffer: Buffer) -> list[int]:
    """The place of each dimension in memory."""
    names = [f"d{d}" for d in range(len(buffer.shape))]
    if buffer.layout is None or {p.name for p in buffer.layout} != {*names}:
        return list(range(len(names)))
    return [next(k for k, p in enumerate(buffer.layout) if p.name == n) for n in names]


def _without_default(step: Unfold | MergeTiles) -> list[Any]:
    """As JSON: for known extents as it always was, since records are compared by it."""
    values = step.values_by_name
    return [step.name, {n: v for n, v in values.items() if n != "several" or v != 1}]


def _merged(
    func: Function, b: Block, sizes: Sizes, kind: str, why: str, several: int
) -> tuple[Function, _Merged]:
    """Those of a block as one. `several` is 0 if no extent may be open."""
    extents = {i.name: i.extent for i in b.iters if i.kind == kind}
    axes: list[tuple[str, Int, int]] = []
    for name, size in sizes:
        n = extents.get(name)
        is_open = n is not None and n.const is None
        if n is None or size < 1 or (is_open and (axes or not several)):
            what = "reduced" if kind == "R" else "spatial"
            known = (k for k, e in extents.items() if e.const is not None)
            raise ScheduleError(
                f"cannot {why} {b.name}: {name} in tiles of {size}; its {what} iterators of known "
                f"extent are {', '.join(known) or 'none'}"
            )
        axes.append((name, n, size))
    if not axes or len({n for n, _, _ in axes}) != len(axes):
        raise ScheduleError(f"cannot {why} {b.name}: name iterators, each once")
    tiles = product(_count(n, size) for _, n, size in axes)
    if tiles.const is None:
        func, tiles = _rounded_up(func, tiles, several, f"#{b.name}.tiles")
    return func, _Merged(kind, tuple(axes), tiles)


def _rounded_up(func: Function, n: Int, multiple: int, name: str) -> tuple[Function, Int]:
    """An open number, rounded up: the same for all blocks that need it."""
    known = (f for f in func.facts if f.extent == n and f.sizes[1:] == (of(multiple),))
    fact = next(known, None)
    if fact is None:
        fact = Fact((var(name), of(multiple)), n, exact=False)
        func = replace(func, facts=(*func.facts, fact))
    return func, product(fact.sizes)
