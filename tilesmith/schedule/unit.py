"""Primitives that make an inner loop nest a unit (blockize), and map it to a hardware instruction
(tensorize).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.intervals import step_along
from tilesmith.expr.ints import Int
from tilesmith.expr.nodes import Binary, Cast, Const, Expr, Load, Select, Unary
from tilesmith.expr.walk import show
from tilesmith.ir.dependence import check_kinds
from tilesmith.ir.function import Function, find_loop
from tilesmith.ir.intrinsics import label_of
from tilesmith.ir.nodes import Block, For, Intrinsic, Stmt, Write, rewrite, walk
from tilesmith.schedule.loops import require_no_notes
from tilesmith.schedule.step import Step


@dataclass(frozen=True, slots=True)
class Blockize(Step):
    """Makes the loops from `loop` down to the block part of the block, as its tile. Later
    primitives leave the tile alone.

    for i.0 in 8:                     for i.0 in 8:
      for i.1 in 16:           ->       B(i=16*i.0 + i.1):  # over i.1 in 16
        B(i=16*i.0 + i.1)
    """

    name: ClassVar[str] = "blockize"
    loop: str

    def apply(self, func: Function) -> Function:
        _, loop = find_loop(func, self.loop)
        tile: list[tuple[str, Int]] = []
        cur: Stmt = loop
        while isinstance(cur, For):
            require_no_notes(cur, f"blockize {self.loop} over")
            tile.append((cur.name, cur.extent))
            if len(cur.body) != 1:
                raise ScheduleError(
                    f"cannot blockize {self.loop}: the body of {cur.name} is not a single nest"
                )
            cur = cur.body[0]
        if not isinstance(cur, Block):
            raise ScheduleError(f"cannot blockize {self.loop}: there is no block inside")
        if cur.tile:
            raise ScheduleError(f"cannot blockize {self.loop}: {cur.name} is a unit already")
        unit = replace(cur, tile=tuple(tile))

        def go(s: Stmt) -> tuple[Stmt, ...]:
            return (unit,) if isinstance(s, For) and s.name == self.loop else (s,)

        done = replace(func, body=rewrite(func.body, go))
        check_kinds(done, f"blockize loop {self.loop}")
        return done


@dataclass(frozen=True, slots=True)
class Tensorize(Step):
    """Maps the loop nest from `loop` down to a hardware instruction that computes the same.

        for i in 16:
          for k in 4:
            C[i] += int32(A[k]) * int32(B[i, k])
    ->  C(...):  # over i in 16, k in 4 by avx512.dot_u8s8
          C[i] += int32(A[k]) * int32(B[i, k])
    """

    name: ClassVar[str] = "tensorize"
    loop: str
    intrinsic: Intrinsic

    def to_json(self) -> list[Any]:
        return [self.name, {"loop": self.loop, "intrinsic": label_of(self.intrinsic)}]

    def __str__(self) -> str:
        return f"tensorize(loop={self.loop!r}, intrinsic={self.intrinsic.name!r})"

    def apply(self, func: Function) -> Function:
        unit = Blockize(self.loop).apply(func)
        block = next(b for _, b in walk(unit.body) if b.tile and b.tile[0][0] == self.loop)
        operands = self._match(block, unit)
        done = replace(block, intrinsic=self.intrinsic, operands=operands)
        return replace(unit, body=rewrite(unit.body, lambda s: (done,) if s is block else (s,)))

    def _match(self, b: Block, func: Function) -> tuple[tuple[str, Load], ...]:
        description: Function = self.intrinsic.description
        (_, d), *_ = walk(description.body)
        loops = [(i.name, i.extent) for i in d.iters]
        if [e for _, e in b.tile] != [e for _, e in loops]:
            raise self._refuse(
                f"its loops run over {[str(e) for _, e in b.tile]}, "
                f"the instruction over {[str(e) for _, e in loops]}"
            )
        if (b.combiner is None) != (d.combiner is None) or (
            b.combiner and d.combiner and b.combiner.values != d.combiner.values
        ):
            raise self._refuse("it joins its values in another way")
        # each loop of the nest corresponds to one iterator of the instruction's description
        part = {name: it for (name, _), (it, _) in zip(b.tile, loops, strict=True)}
        pairs: dict[str, tuple[str, tuple[Int, ...]]] = {}
        if len(b.writes) != 1:
            raise self._refuse(f"{b.name} writes several buffers")
        (w,), (dw,) = b.writes, d.writes
        self._same(w.value, dw.value, b, part, pairs, description, func)
        self._access(w, dw, b, part, pairs, description, func)
        return tuple(
            (name, Load(buffer, index, description.all_buffers[name].dtype))
            for name, (buffer, index) in pairs.items()
        )

    def _same(
        self, e: Expr, d: Expr, b: Block, part: dict[str, str],
        pairs: dict[str, tuple[str, tuple[Int, ...]]], description: Function, func: Function,
    ) -> None:  # fmt: skip
        match e, d:
            case Load(), Load():
                self._access(e, d, b, part, pairs, description, func)
            case Binary(op=p, a=a, b=x), Binary(op=q, a=da, b=dx) if p == q:
                try:
                    trial = dict(pairs)
                    self._same(a, da, b, part, trial, description, func)
                    self._same(x, dx, b, part, trial, description, func)
                except ScheduleError as first:
                    if p not in ("add", "mul", "max", "min"):
                        raise
                    trial = dict(pairs)  # a product is commutative
                    try:
                        self._same(a, dx, b, part, trial, description, func)
                        self._same(x, da, b, part, trial, description, func)
                    except ScheduleError:
                        raise first from None
                pairs.update(trial)
            case Cast(x=x), Cast(x=dx) if e.dtype is d.dtype:
                self._same(x, dx, b, part, pairs, description, func)
            case Unary(op=p, x=x), Unary(op=q, x=dx) if p == q:
                self._same(x, dx, b, part, pairs, description, func)
            case Const(), Const() if e == d:
                pass
            case Select(), Select():
                for u, v in ((e.cond, d.cond), (e.a, d.a), (e.b, d.b)):
                    self._same(u, v, b, part, pairs, description, func)
            case _:
                raise self._refuse(f"it has {show(e)} where the instruction has {show(d)}")

    def _access(
        self, e: Load | Write, d: Load | Write, b: Block, part: dict[str, str],
        pairs: dict[str, tuple[str, tuple[Int, ...]]], description: Function, func: Function,
    ) -> None:  # fmt: skip
        """Requires the same strides along the tile as in the instruction's description.

        The strides of a copy are fixed only when it is compacted; code generation checks those.
        """
        buf, want = func.all_buffers[e.buffer], description.all_buffers[d.buffer]
        if buf.dtype is not want.dtype:
            raise self._refuse(f"{e.buffer} is {buf.dtype}, the instruction takes {want.dtype}")
        used = {n for p in e.index for n in p.substitute(b.binding).names}
        wanted = {n for p in d.index for n in p.names}
        for loop, it in part.items():
            if (loop in used) != (it in wanted):
                verb = "moves" if loop in used else "does not move"
                raise self._refuse(
                    f"{e.buffer} {verb} along {loop}, unlike {d.buffer} of the instruction"
                )
        key = tuple(p.substitute(b.binding) for p in e.index)
        if pairs.setdefault(d.buffer, (e.buffer, e.index)) != (e.buffer, e.index):
            raise self._refuse(f"{d.buffer} of the instruction would be two operands at once")
        is_param = any(p.name == e.buffer for p in func.params)
        if is_param and buf.layout is None:
            for loop, it in part.items():
                if d.buffer in self.intrinsic.by_address and d.index[0].name == it:
                    continue  # its rows may be any number of elements apart
                have = step_along(loop, key, buf.strides)
                need = step_along(it, d.index, want.strides)
                if have != need:
                    raise self._refuse(
                        f"{e.buffer} moves by {have} elements along {loop}, "
                        f"the instruction wants {need}; cache_read it with another layout"
                    )

    def _refuse(self, why: str) -> ScheduleError:
        return ScheduleError(f"cannot tensorize loop {self.loop} by {self.intrinsic.name}: {why}")
