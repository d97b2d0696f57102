"""The primitive that gives the groups of a sum, such as those of a grouped convolution, an axis of
their own: in its result and in the operands that it reads by group.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.intervals import Unknown, bounds
from tilesmith.expr.ints import Int, of, var
from tilesmith.expr.nodes import Expr, Load
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, Buffer, Iter, Write, map_write_loads, map_writes
from tilesmith.schedule.cache import check_fresh, replaced, top_level
from tilesmith.schedule.iterators import part_names, without_divisions
from tilesmith.schedule.layout import unscheduled
from tilesmith.schedule.loops import trivial_index
from tilesmith.schedule.step import Step


@dataclass(frozen=True, slots=True)
class Ungroup(Step):
    """Splits an iterator of a sum into groups of `factor` elements. Its result and the operands
    that have the groups one after the other along a dimension get a dimension of groups. Each group
    can then be padded by itself, and tiled as one product of a batch.

    C[n, f] += A[n, 4*(f // 8) + c] * W[c, f]
    ->
    A.groups[n, g, c] = A[n, 4*g + c]
    W.groups[c, g, f] = W[c, 8*g + f]
    C.groups[n, g, f] += A.groups[n, g, c] * W.groups[c, g, f]
    C[n, f] = C.groups[n, f // 8, f - f // 8 * 8]
    """

    name: ClassVar[str] = "ungroup"
    block: str
    iterator: str
    factor: int

    @property
    def parts(self) -> tuple[str, str]:
        return part_names(self.iterator)

    @property
    def made(self) -> str:
        return f"{self.block}.groups"

    def apply(self, func: Function) -> Function:
        b = replace(unscheduled(func, self.block, "ungroup"), domain=frozenset())
        its = trivial_index(b, "ungroup")
        old = next((i for i in b.spatial if i.name == self.iterator), None)
        if old is None or b.combiner is None or len(b.writes) != 1:
            raise self._refuse("it is no spatial iterator of a reduction with one result")
        extent = old.extent.const
        if extent is None or self.factor < 1 or extent % self.factor:
            raise self._refuse(f"{self.factor} does not divide its extent {old.extent}")
        sizes = (extent // self.factor, self.factor)
        new = tuple(
            Iter(n, "S", of(size), var(n)) for n, size in zip(self.parts, sizes, strict=True)
        )
        if {*self.parts} & {i.name for i in b.iters}:
            raise self._refuse("it has iterators of the names of the parts")
        iters = tuple(x for i in b.iters for x in (new if i is old else (i,)))
        ranges = {i.name: i.extent for i in iters}
        group, own = (var(n) for n in self.parts)
        env = {self.iterator: group * self.factor + own}

        def put(p: Int) -> Int:
            return without_divisions(p.substitute(env), ranges)

        split = map_writes(b.writes, put)
        loads = [x for w in split for x in Block(b.name, iters, (w,)).loads]
        views = self._views(func, loads, ranges)
        check_fresh(func, f"ungroup {b.name}", self.made, *(v.buffer.name for v in views.values()))

        def read(x: Load) -> Expr:
            return views[x.buffer].of(x) if x.buffer in views else x

        (write,) = map_write_loads(split, read)
        index = tuple(var(n) for k in its for n in (self.parts if k == self.iterator else (k,)))
        total = replace(
            b, name=self.made, iters=iters, writes=(replace(write, buffer=self.made, index=index),)
        )
        at = var(self.iterator)
        back = tuple(
            p
            for n in its
            for p in (
                (at // self.factor, at - at // self.factor * self.factor)
                if n == self.iterator
                else (var(n),)
            )
        )
        (stored,) = b.writes
        dtype = stored.value.dtype
        joined = Block(
            b.name, b.spatial, (Write(stored.buffer, stored.index, Load(self.made, back, dtype)),)
        )
        shape = tuple(ranges[p.name or ""] for p in index)
        buffers = (*(v.buffer for v in views.values()), Buffer(self.made, shape, dtype))
        blocks = (*(v.block for v in views.values()), total, joined)
        done = replaced(func, top_level(func, b.name), *blocks)
        return replace(done, buffers=(*func.buffers, *buffers))

    def _views(self, func: Function, loads: list[Load], ranges: dict[str, Int]) -> dict[str, _View]:
        """Of each operand that is read by group."""
        group = self.parts[0]
        views: dict[str, _View] = {}
        for x in loads:
            dims = [d for d, p in enumerate(x.index) if group in p.names]
            if not dims:
                continue
            if len(dims) > 1 or sum(1 for y in loads if y.buffer == x.buffer) > 1:
                raise self._refuse(f"{x.buffer} is read at several places")
            (d,) = dims
            buffer = func.all_buffers[x.buffer]
            size = x.index[d].coefficient(group).const
            rest = x.index[d] - var(group) * (size or 0)
            if not size or not _lies_in(rest, size, ranges) or buffer.layout is not None:
                raise self._refuse(f"groups of {x.buffer} do not lie one after the other")
            if buffer.shape[d] != ranges[group] * size:
                raise self._refuse(f"{x.buffer} has other elements than those of the groups")
            views[x.buffer] = _View.make(buffer, d, size, group)
        return views

    def _refuse(self, why: str) -> ScheduleError:
        return ScheduleError(f"cannot ungroup {self.iterator} of {self.block}: {why}")


@dataclass(frozen=True, slots=True)
class _View:
    """An operand with dimension `dim` split into groups."""

    buffer: Buffer
    block: Block
    dim: int
    group: str

    @classmethod
    def make(cls, given: Buffer, dim: int, size: int, group: str) -> _View:
        name = f"{given.name}.groups"
        split = (of(given.shape[dim].number // size), of(size))
        shape = (*given.shape[:dim], *split, *given.shape[dim + 1 :])
        at = tuple(var(f"ax{k}") for k in range(len(shape)))
        index = (*at[:dim], at[dim] * size + at[dim + 1], *at[dim + 2 :])
        iters = tuple(Iter(p.name or "", "S", n, p) for p, n in zip(at, shape, strict=True))
        block = Block(name, iters, (Write(name, at, Load(given.name, index, given.dtype)),))
        return cls(Buffer(name, shape, given.dtype), block, dim, group)

    def of(self, x: Load) -> Load:
        p = x.index[self.dim]
        group = var(self.group)
        parts = (group, p - group * p.coefficient(self.group))
        index = (*x.index[: self.dim], *parts, *x.index[self.dim + 1 :])
        return Load(self.buffer.name, index, x.dtype)


def _lies_in(p: Int, size: int, ranges: dict[str, Int]) -> bool:
    try:
        low, high = (q.const for q in bounds(p, ranges))
    except Unknown:
        return False
    return low is not None and high is not None and low >= 0 and high < size
