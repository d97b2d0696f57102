"""Primitives that change the iterators of a block, but not what it computes or in which order: one
is split, or two neighbouring axes become one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.intervals import Unknown, bounds, proves
from tilesmith.expr.ints import FloorDiv, Int, atom, of, product, var
from tilesmith.expr.nodes import Expr, Load
from tilesmith.ir.function import Function, find_block, is_own_loop
from tilesmith.ir.nodes import (
    Block,
    Buffer,
    For,
    Iter,
    Path,
    Stmt,
    Write,
    map_bindings,
    map_write_loads,
    map_writes,
    rewrite,
    walk,
)
from tilesmith.ir.prepare import Merge, with_step
from tilesmith.schedule.loops import loop_names, require_no_notes
from tilesmith.schedule.step import Step


def part_names(iterator: str) -> tuple[str, str]:
    """The names of the two iterators that one is split into."""
    return f"{iterator}_outer", f"{iterator}_inner"


@dataclass(frozen=True, slots=True)
class SplitIterator(Step):
    """Splits an iterator that a block divides by `factor` into two, so that its indices need no
    division: channels become groups, and channels within a group.

    for f in 8:                           for f_outer in 2:
      C(f=f): C[f] = A[f // 4]       ->     for f_inner in 4:
                                              C(f_outer=f_outer, f_inner=f_inner):
                                                C[4*f_outer + f_inner] = A[f_outer]
    """

    name: ClassVar[str] = "split_iterator"
    block: str
    iterator: str
    factor: int

    @property
    def parts(self) -> tuple[str, str]:
        return part_names(self.iterator)

    def apply(self, func: Function) -> Function:
        path, b = find_block(func, self.block)
        old, new = self._iterators(b)
        loop = old.bind.name
        movers = [i for i in b.iters if loop in i.bind.names]
        own = next((f for f in path if f.name == loop), None)
        if own is None or len(movers) > 1 or not is_own_loop(b, own) or b.tile or open_domain(b):
            raise self._refuse(
                f"{self.iterator} does not run over a plain loop of its own; do this first"
            )
        assert loop is not None
        require_no_notes(own, "split the iterator of")
        names = [i.bind.name or "" for i in new]
        taken = sorted({*names} & loop_names(func)) or sorted(
            {*self.parts} & {i.name for i in b.iters}
        )
        if taken:
            raise self._refuse(f"there is a {taken[0]} already")
        merged = {loop: var(names[0]) * self.factor + var(names[1])}

        def go(s: Stmt) -> tuple[Stmt, ...]:
            if isinstance(s, For) and s.name == loop:
                inner = For(names[1], new[1].extent, s.body, owner=s.owner)
                return (For(names[0], new[0].extent, (inner,), owner=s.owner),)
            if not isinstance(s, Block):
                return (s,)
            own = s.name == b.name
            s = map_bindings(s, lambda p: p.substitute(merged))
            return (self._divided(s, new) if own else s,)

        return replace(func, body=rewrite(func.body, go))

    def _iterators(self, b: Block) -> tuple[Iter, tuple[Iter, Iter]]:
        """The iterator, and the two that it becomes, each over a loop of its own."""
        old = next((i for i in b.iters if i.name == self.iterator), None)
        if old is None:
            names = ", ".join(i.name for i in b.iters)
            raise self._refuse(f"there is none of that name; it has {names}")
        n = old.extent
        if self.factor < 1 or n // self.factor * self.factor != n:
            raise self._refuse(f"its extent is {n}, which {self.factor} does not divide")
        sizes = (n // self.factor, of(self.factor))
        outer, inner = (
            Iter(name, old.kind, size, var(f"{b.name}.{name}"))
            for name, size in zip(self.parts, sizes, strict=True)
        )
        return old, (outer, inner)

    def _divided(self, b: Block, new: tuple[Iter, Iter]) -> Block:
        iters = tuple(x for i in b.iters for x in (new if i.name == self.iterator else (i,)))
        env = {self.iterator: var(new[0].name) * self.factor + var(new[1].name)}
        ranges = {i.name: i.extent for i in iters}

        def put(p: Int) -> Int:
            return without_divisions(p.substitute(env), ranges)

        return replace(b, iters=iters, writes=map_writes(b.writes, put), domain=frozenset())

    def _refuse(self, why: str) -> ScheduleError:
        return ScheduleError(f"cannot split the iterator {self.iterator} of {self.block}: {why}")


def open_domain(b: Block) -> frozenset[Int]:
    """The conditions on a block's iterators that do not hold for all their values."""
    ranges = {i.name: i.extent for i in b.iters}
    return frozenset(p for p in b.domain if not proves(p, ranges, {}))


def without_divisions(p: Int, ranges: dict[str, Int]) -> Int:
    """Replaces divisions that are constant over the ranges by that constant."""
    out = of(0)
    for m, c in p.terms.items():
        factors = (_settled(a, ranges) if isinstance(a, FloorDiv) else atom(a) for a in m)
        out = out + product([of(c), *factors])
    return out


def _settled(a: FloorDiv, ranges: dict[str, Int]) -> Int:
    inside = without_divisions(a.a, ranges)
    try:
        low, high = (q // a.b for q in bounds(inside, ranges))
    except Unknown:
        return inside // a.b
    return low if low == high and low.const is not None else inside // a.b


@dataclass(frozen=True, slots=True)
class MergeIterators(Step):
    """Merges two iterators that index neighbouring dimensions into one, and these dimensions too,
    in all blocks that use the same arrays. No element moves, and the caller's arrays keep their
    shapes. A 1x1 convolution, which treats all pixels alike, becomes a product of matrices.

    for f in 8:                                        for f in 8:
      for h in 14:                                       for h_w in 196:
        for w in 14:                            ->         for c in 4:
          for c in 4:                                        Y[f, h_w] += X[c, h_w]*W[f, c]
            Y[f, h, w] += X[c, h, w]*W[f, c]
    """

    name: ClassVar[str] = "merge_iterators"
    block: str
    iterators: tuple[str, ...]

    @property
    def loop(self) -> str:
        """The loop of the merged iterator."""
        return f"{self.block}.{'_'.join(self.iterators)}"

    def apply(self, func: Function) -> Function:
        find_block(func, self.block)
        try:
            if len(self.iterators) != 2:
                raise _Refusal("it takes two")
            changes = _Changes(func)
            changes.add(_Pair(self.block, *self.iterators))
            return changes.applied()
        except _Refusal as e:
            names = " and ".join(self.iterators) or "none"
            raise ScheduleError(
                f"cannot merge the iterators {names} of {self.block}: {e}"
            ) from None


class _Refusal(Exception):
    pass


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two iterators of a block that become one."""

    block: str
    first: str
    second: str

    @property
    def merged(self) -> str:
        return f"{self.first}_{self.second}"


class _Changes:
    """What to merge. A pair of iterators leads to the buffers that it indexes, and a buffer to the
    pairs that index it in other blocks.
    """

    def __init__(self, func: Function) -> None:
        self.func, self.buffers = func, func.all_buffers
        self.blocks: dict[str, tuple[Path, Block]] = {b.name: (p, b) for p, b in walk(func.body)}
        self.pairs: dict[_Pair, Iter] = {}  # and what each becomes
        self.dims: dict[str, set[int]] = {}  # the first dimension of two, by buffer

    def add(self, pair: _Pair) -> None:
        if pair in self.pairs:
            return
        _, b = self.blocks[pair.block]
        self.pairs[pair] = self._merged(pair)
        for buffer, index in _accesses(b):
            at = [d for d, p in enumerate(index) if p.names & {pair.first, pair.second}]
            if not at:
                continue
            if self._pair_at(b, buffer, index, at[0]) != pair or len(at) > 2:
                raise _used_otherwise(b, buffer, index)
            self._add_dims(buffer, at[0])

    def _add_dims(self, buffer: str, d: int) -> None:
        known = self.dims.setdefault(buffer, set())
        if d in known:
            return
        known.add(d)
        old = self.buffers[buffer]
        lies_otherwise = not old.is_as_given and not _is_one_row(old, d)
        if lies_otherwise or old.align is not None or known & {d - 1, d + 1}:
            raise _Refusal(f"{buffer} has a layout of its own, or three dimensions would be one")
        for _, b in self.blocks.values():
            for name, index in _accesses(b):
                if name == buffer:
                    pair = self._pair_at(b, buffer, index, d)
                    if pair is None:
                        raise _used_otherwise(b, buffer, index)
                    self.add(pair)

    def _pair_at(self, b: Block, buffer: str, index: tuple[Int, ...], d: int) -> _Pair | None:
        """The iterators that index the dimensions d and d + 1, if the second runs over all of its
        dimension, and the first over a piece of its own.
        """
        if d + 1 >= len(index):
            return None
        extents = {i.name: i.extent for i in b.iters}
        p, q = _without_ones(b, index[d]), _without_ones(b, index[d + 1])
        if q.name is None or extents.get(q.name) != self.buffers[buffer].shape[d + 1]:
            return None
        names = [n for n in p.names if n in extents and (p - var(n)).const is not None]
        return _Pair(b.name, names[0], q.name) if len(names) == 1 else None

    def _merged(self, pair: _Pair) -> Iter:
        """The new iterator. Refuses those that do not run over plain loops of their own."""
        path, b = self.blocks[pair.block]
        by_name = {i.name: i for i in b.iters}
        both = [by_name.get(pair.first), by_name.get(pair.second)]
        first, second = both
        if first is None or second is None:
            raise _Refusal(f"{b.name} has the iterators {', '.join(by_name) or 'none'}")
        if first.kind != second.kind or first is second:
            raise _Refusal(f"{b.name} sums over one of {pair.first} and {pair.second} only")
        loops = {f.name: f for f in path}
        names = [first.bind.name or "", second.bind.name or ""]
        plain = all(
            (f := loops.get(n)) is not None and is_own_loop(b, f) and f.extent == i.extent
            for n, i in zip(names, (first, second), strict=True)
        )
        others = [i for i in b.iters if i not in both and i.bind.names & {*names}]
        asked = {n for p in b.where for n in p.names} & {*names}
        if not plain or others or asked or b.tile or open_domain(b):
            raise _Refusal(f"loops of {b.name} were changed; do this first")
        outer, inner = (loops[n] for n in names)
        if outer.body != (inner,):
            raise _Refusal(f"{inner.name} is not directly inside {outer.name}")
        if guests := [o.name for _, o in walk(inner.body) if o.name != b.name]:
            raise _Refusal(f"{guests[0]} is in the loops of {b.name}; do this first")
        for loop in (outer, inner):
            require_no_notes(loop, "merge")
        name = f"{b.name}.{pair.merged}"
        if name in loop_names(self.func) or pair.merged in by_name:
            raise _Refusal(f"there is a {name} already")
        return Iter(pair.merged, first.kind, first.extent * second.extent, var(name))

    def applied(self) -> Function:
        by_loop: dict[str, tuple[For, Iter]] = {}
        for pair, new in self.pairs.items():
            path, b = self.blocks[pair.block]
            bound = [b.binding[pair.first].name, b.binding[pair.second].name]
            outer, inner = (next(f for f in path if f.name == n) for n in bound)
            if {outer.name, inner.name} & by_loop.keys():
                raise _Refusal(f"three iterators of {b.name} would be one")
            by_loop[outer.name] = by_loop[inner.name] = inner, new

        def go(s: Stmt) -> tuple[Stmt, ...]:
            if isinstance(s, Block):
                return (self._block(s),)
            if not isinstance(s, For) or s.name not in by_loop:
                return (s,)
            inner, new = by_loop[s.name]
            if s.name == inner.name:
                return (For(new.bind.name or "", new.extent, s.body, owner=s.owner),)
            return s.body

        return replace(
            self.func,
            params=tuple(self._buffer(p, is_param=True) for p in self.func.params),
            buffers=tuple(map(self._buffer, self.func.buffers)),
            body=rewrite(self.func.body, go),
        )

    def _block(self, b: Block) -> Block:
        pairs = {p: new for p, new in self.pairs.items() if p.block == b.name}

        def load(x: Load) -> Expr:
            return replace(x, index=self._index(b, x.buffer, x.index))

        writes = tuple(
            Write(w.buffer, self._index(b, w.buffer, w.index), w.value)
            for w in map_write_loads(b.writes, load)
        )
        gone = {n for p in pairs for n in (p.first, p.second)}
        if left := gone & _names(writes):
            raise _Refusal(f"{b.name} uses {min(left)} by itself as well")
        by_first = {p.first: new for p, new in pairs.items()}
        iters = (by_first.get(i.name, i) for i in b.iters)
        iters = (i for i in iters if i.name not in gone)
        domain = frozenset(p for p in b.domain if not p.names & gone)
        return replace(b, iters=tuple(iters), writes=writes, domain=domain)

    def _index(self, b: Block, buffer: str, index: tuple[Int, ...]) -> tuple[Int, ...]:
        dims = self.dims.get(buffer, set())
        out: list[Int] = []
        for d, p in enumerate(index):
            if d in dims:
                pair = self._pair_at(b, buffer, index, d)
                assert pair is not None
                row = self.buffers[buffer].shape[d + 1]
                before = _without_ones(b, p) - var(pair.first)
                out.append(before * row + var(self.pairs[pair].name))
            elif d - 1 not in dims:
                out.append(p)
        return tuple(out)

    def _buffer(self, b: Buffer, is_param: bool = False) -> Buffer:
        dims = self.dims.get(b.name)
        if not dims:
            return b
        shape = tuple(
            n * b.shape[d + 1] if d in dims else n
            for d, n in enumerate(b.shape)
            if d - 1 not in dims
        )
        prepared = with_step(b.prepared, Merge(b.given_shape)) if is_param else ()
        layout = b.layout
        if layout is not None:
            kept = [d for d in range(len(b.shape)) if d not in dims]  # a pair has its second stride
            (place,) = layout
            layout = (
                sum((place.coefficient(f"d{d}") * var(f"d{k}") for k, d in enumerate(kept)), of(0)),
            )
        return replace(b, shape=shape, prepared=prepared, layout=layout)


def _is_one_row(b: Buffer, d: int) -> bool:
    """Whether the dimensions d and d + 1 of an array with strides are one row of elements, as those
    of an image are whose channels are a part of a larger array.
    """
    if b.layout is None or len(b.layout) != 1 or d + 1 >= len(b.shape):
        return False
    (place,) = b.layout
    strides = [place.coefficient(f"d{k}") for k in range(len(b.shape))]
    if sum((n * var(f"d{k}") for k, n in enumerate(strides)), of(0)) != place:
        return False
    return b.preparation == (b.layout,) and strides[d] == strides[d + 1] * b.shape[d + 1]


def _accesses(b: Block) -> Iterator[tuple[str, tuple[Int, ...]]]:
    """What the block reads and writes, each place once."""
    places = [(load.buffer, load.index) for load in b.loads]
    yield from dict.fromkeys([*places, *((w.buffer, w.index) for w in b.writes)])


def _without_ones(b: Block, p: Int) -> Int:
    """An index without iterators of extent 1, such as those of a 1x1 filter."""
    return p.substitute({i.name: of(0) for i in b.iters if i.extent.const == 1})


def _names(writes: tuple[Write, ...]) -> set[str]:
    names: set[str] = set()

    def collect(p: Int) -> Int:
        names.update(p.names)
        return p

    map_writes(writes, collect)
    return names


def _used_otherwise(b: Block, buffer: str, index: tuple[Int, ...]) -> _Refusal:
    place = ", ".join(map(str, index))
    return _Refusal(
        f"{b.name} uses {buffer}[{place}]; two iterators that run over whole neighbouring "
        "dimensions are merged"
    )
