"""The primitive that moves an operand of a sum of products between uint8 and int8, for instructions
that take the other of both, as VNNI takes uint8 times int8.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import ClassVar

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import INT8, UINT8
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import Int, of, var
from tilesmith.expr.nodes import Binary, Cast, Const, Expr, Load
from tilesmith.ir.function import Function, find_block, readers, require_only_writer, writers
from tilesmith.ir.nodes import (
    Block,
    Buffer,
    Write,
    map_write_loads,
    rewrite_blocks,
    walk,
)
from tilesmith.ir.prepare import SUM_DIGITS, AppendSums, Basis, with_step
from tilesmith.schedule.cache import check_fresh, elementwise, rename_nest, top_level
from tilesmith.schedule.loops import nest, trivial_index
from tilesmith.schedule.step import Step

_HALF = 128


def factors_of(b: Block) -> tuple[Load, ...]:
    """Both factors of a sum of products of integers in one wider type; none if `b` is not one."""
    if b.combiner is None or b.combiner.op != "add" or not b.init or len(b.writes) != 1:
        return ()
    e = b.writes[0].value
    if not (isinstance(e, Binary) and e.op == "mul" and e.dtype.is_int):
        return ()
    loads = tuple(
        x.x for x in (e.a, e.b) if isinstance(x, Cast) and isinstance(x.x, Load) and x.dtype.is_int
    )
    return loads if len(loads) == 2 and loads[0].buffer != loads[1].buffer else ()


def sums_ahead(func: Function, b: Block, load: Load) -> tuple[int, ...]:
    """The dimensions over which the block sums this factor, if it is a constant of 8 bits that the
    caller can sum ahead of time; the longest first.
    """
    buf = func.all_buffers[load.buffer]
    if buf.scope != "constant" or buf.layout is not None:
        return ()
    if buf.prepares(Basis) or buf.prepares(AppendSums):
        return ()
    if buf.dtype.bits != 8 or [r.name for r in readers(func, buf.name)] != [b.name]:
        return ()
    reduced = {i.name: i.extent for i in b.reducing}
    dims = {p.name: d for d, p in enumerate(load.index) if p.name in reduced}
    whole = all(buf.shape[d] == reduced[str(n)] for n, d in dims.items())
    alone = all(not p.names & reduced.keys() or p.name in dims for p in load.index)
    if dims.keys() != reduced.keys() or not whole or not alone:
        return ()
    # the longest first: what is appended to it adds least; an open one is last
    return tuple(sorted(dims.values(), key=lambda d: -(buf.shape[d].const or 0)))


@dataclass(frozen=True, slots=True)
class ShiftOperand(Step):
    """Makes a sum of products read a factor of uint8 as int8, or the other way round, through a
    copy that is smaller (or larger) by 128. The sum is corrected by 128 times the sum of the other
    factor, which is exact because integers wrap around. Sums of a constant are the caller's duty,
    as its layout is: `ts.pack` appends them.

    C[i, j] += A[i, k] * B[k, j]    ->    A.shifted[i, k] = int8(A[i, k]) + -128
                                          C.shift[j] += B[k, j]
                                          C.shifted[i, j] += A.shifted[i, k] * B[k, j]
                                          C[i, j] = C.shifted[i, j] + (C.shift[j] * 128)
    """

    name: ClassVar[str] = "shift_operand"
    block: str
    buffer: str

    @property
    def copy(self) -> str:
        return f"{self.buffer}.shifted"

    @property
    def sum(self) -> str:
        """The block that sums the products."""
        return f"{self.block}.shifted"

    @property
    def shift(self) -> str:
        """The block that sums the other factor."""
        return f"{self.block}.shift"

    def apply(self, func: Function) -> Function:
        path, b = find_block(func, self.block)
        require_only_writer(func, b, self.name)
        factors = factors_of(b)
        own = next((x for x in factors if x.buffer == self.buffer), None)
        if own is None or own.dtype not in (INT8, UINT8):
            names = [x.buffer for x in factors if x.dtype in (INT8, UINT8)]
            raise self._refuse(f"it is no factor of 8 bits in a sum of products; these are {names}")
        at = top_level(func, b.name)
        loops = {f"{b.name}.{i.name}" for i in b.iters}
        if b.where or b.domain or b.tile or {f.name for f in path} != loops:
            raise self._refuse("do this before the block's loops are scheduled")
        if len(list(walk((func.body[at],)))) > 1:
            raise self._refuse("the block shares its loops")
        if any(top_level(func, w.name) >= at for w in writers(func, self.buffer)):
            raise self._refuse("it is computed later")
        trivial_index(b, self.name)
        check_fresh(func, f"shift_operand {self.buffer}", self.copy, self.sum, self.shift)
        (other,) = (x for x in factors if x.buffer != self.buffer)
        return self._rewritten(func, b, own, other, at)

    def _refuse(self, why: str) -> ScheduleError:
        return ScheduleError(f"cannot shift_operand {self.buffer} of {self.block}: {why}")

    def _rewritten(self, func: Function, b: Block, own: Load, other: Load, at: int) -> Function:
        kind = INT8 if own.dtype is UINT8 else UINT8
        copy = self._copied(func.all_buffers[own.buffer], kind is INT8)
        (w,) = b.writes
        total = w.value.dtype
        times = _HALF if kind is INT8 else -_HALF
        params, shift = self._summed(func, b, other, times)
        more: Expr = Load(self.shift, tuple(var(i.name) for i in shift.spatial), total)
        if shift.reducing:
            more = Binary("mul", more, Const(total.wrap(times), total), total)
        corrected = replace(w, value=Binary("add", Load(self.sum, w.index, total), more, total))

        def put(load: Load) -> Expr:
            return Load(self.copy, load.index, kind) if load.buffer == self.buffer else load

        func = rename_nest(func, b.name, self.sum)
        ((products,), (_, inner)) = (func.body[at : at + 1], find_block(func, self.sum))
        writes = (replace(map_write_loads(inner.writes, put)[0], buffer=self.sum),)
        body = (
            *func.body[:at],
            nest(func, copy),
            nest(func, shift),
            *rewrite_blocks((products,), lambda o: replace(o, writes=writes)),
            nest(func, Block(b.name, b.spatial, (corrected,))),
            *func.body[at + 1 :],
        )
        buffers = func.all_buffers
        new = (
            Buffer(self.copy, buffers[own.buffer].shape, kind),
            Buffer(self.shift, tuple(i.extent for i in shift.spatial), total),
            Buffer(self.sum, buffers[w.buffer].shape, total),
        )
        return replace(func, params=params, body=body, buffers=(*func.buffers, *new))

    def _copied(self, buf: Buffer, signed: bool) -> Block:
        kind = INT8 if signed else UINT8

        def value(index: tuple[Int, ...]) -> Expr:
            same_bits = Cast(Load(buf.name, index, buf.dtype), kind)
            return Binary("add", same_bits, Const(kind.wrap(_HALF), kind), kind)

        return elementwise(self.copy, buf.shape, value)

    def _summed(
        self, func: Function, b: Block, load: Load, times: int
    ) -> tuple[tuple[Buffer, ...], Block]:
        """The parameters, and the block that sums the factor that is not shifted. Of sums that are
        taken ahead, it also takes the multiple.
        """
        total = b.writes[0].value.dtype
        used = {n for p in load.index for n in p.names}
        spatial = tuple(i for i in b.spatial if i.name in used)
        index = tuple(var(i.name) for i in spatial)
        over = sums_ahead(func, b, load)
        if not over:
            write = Write(self.shift, index, Cast(load, total))
            iters = (*spatial, *b.reducing)
            return func.params, Block(self.shift, iters, (write,), b.combiner, init=True)
        buf = func.all_buffers[load.buffer]
        n = buf.shape[over[0]]
        digits: list[Expr] = []
        for k in range(SUM_DIGITS):
            zero = dict.fromkeys(over, of(0)) | {over[0]: n + k}
            place: tuple[Int, ...] = tuple(zero.get(d, p) for d, p in enumerate(load.index))
            digit = Cast(replace(load, index=place), total)
            unit = Const(total.wrap(times << 8 * k), total)
            digits.append(Binary("mul", digit, unit, total))
        value = reduce(lambda x, y: Binary("add", x, y, total), digits)
        shape = tuple(n + SUM_DIGITS if d == over[0] else e for d, e in enumerate(buf.shape))
        prepared = with_step(buf.prepared, AppendSums(over))
        grown = replace(buf, shape=shape, prepared=prepared)
        params = tuple(grown if p.name == buf.name else p for p in func.params)
        return params, Block(self.shift, spatial, (Write(self.shift, index, value),))
