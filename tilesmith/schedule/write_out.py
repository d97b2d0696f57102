"""write_out: a short reduction becomes one expression with all of its terms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import ClassVar

from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import Int, of
from tilesmith.expr.nodes import Expr, substitute
from tilesmith.ir.function import Function, find_block, require_only_writer
from tilesmith.ir.nodes import Block, Write, walk
from tilesmith.schedule.cache import top_level
from tilesmith.schedule.loops import nest
from tilesmith.schedule.step import Step

_MOST_TERMS = 64


@dataclass(frozen=True, slots=True)
class WriteOut(Step):
    """Replaces a reduction by an expression of all its terms, in the order of its loops. Its result
    needs no memory between the terms, so it can be inlined into its consumer.

    for i in 8:                                       for i in 8:
      for r in 3:                              ->       Y(i=i): Y[i] = X[i]*W[0] + X[i + 1]*W[1]
        Y(i=i, r:R=r): Y[i] += X[i + r]*W[r]                           + X[i + 2]*W[2]
    """

    name: ClassVar[str] = "write_out"
    block: str

    def apply(self, func: Function) -> Function:
        _, b = find_block(func, self.block)
        require_only_writer(func, b, "write_out")
        if b.combiner is None or not b.init:
            raise self._refuse("it is not a whole reduction")
        if any(i.extent.const is None for i in b.reducing):
            raise self._refuse("it has an open number of terms, not 1 to 64")
        terms = prod(i.extent.number for i in b.reducing)
        if not 0 < terms <= _MOST_TERMS:
            raise self._refuse(f"it has {terms} terms, not 1 to 64")
        at = top_level(func, b.name)
        plain = all(i.bind.name is not None for i in b.iters)
        if len(list(walk((func.body[at],)))) > 1 or b.tile or b.where or b.domain or not plain:
            raise self._refuse("it shares its loops, or they were cut; do this first")
        body = nest(replace(func, body=(*func.body[:at], *func.body[at + 1 :])), _written_out(b))
        return replace(func, body=(*func.body[:at], body, *func.body[at + 1 :]))

    def _refuse(self, why: str) -> ScheduleError:
        return ScheduleError(f"cannot write_out {self.block}: {why}")


def _written_out(b: Block) -> Block:
    assert b.combiner is not None
    total: tuple[Expr, ...] | None = None
    for taps in product(*(range(i.extent.number) for i in b.reducing)):
        env: dict[str, Int] = {i.name: of(t) for i, t in zip(b.reducing, taps, strict=True)}
        terms = tuple(substitute(w.value, env) for w in b.writes)
        total = terms if total is None else b.combiner.join(total, terms)
    assert total is not None
    writes = tuple(Write(w.buffer, w.index, v) for w, v in zip(b.writes, total, strict=True))
    return Block(b.name, b.spatial, writes)
