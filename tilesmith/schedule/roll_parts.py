"""`roll_parts`: reductions over one axis, of which later ones need the results of earlier ones, in
parts of that axis that do not wait for one another, as in FlashDecoding.

Each part has its own maximum, weights and sums, and is repaired when all are known (see roll.py):

                                          for t in parts:
    m = max s[k]                            m.part[t] = max s[k] of the part; m.parts = m.part
    l = sum exp(s[k] - m)                   l.part[t] = sum exp(s[k] - m.part[t]) of the part
    o = sum exp(s[k] - m) / l * v[k]   ->   o.part[t] = sum exp(s[k] - m.part[t]) * v[k] of the part
                                          m = max m.parts[t]
                                          m.fix[t] = exp(m.parts[t] - m)
                                          l = sum l.part[t] * m.fix[t]
                                          o = sum o.part[t] * m.fix[t]
                                          o / l
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import BOOL, INT64, DType
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import ZERO, Int, var
from tilesmith.expr.nodes import (
    Binary,
    Cast,
    Const,
    Expr,
    IntValue,
    Load,
    Select,
    Unary,
    substitute,
)
from tilesmith.expr.nodes import rewrite as rewrite_value
from tilesmith.ir.dependence import check_kinds
from tilesmith.ir.function import Function, find_block
from tilesmith.ir.nodes import Block, Buffer, Iter, Path, Write
from tilesmith.schedule.cache import check_fresh, elementwise, top_level
from tilesmith.schedule.iterators import part_names
from tilesmith.schedule.loops import drop, nest
from tilesmith.schedule.roll import require_whole_sum, scaled, smallest, spans_of
from tilesmith.schedule.roll_legality import ONE_ELEMENT, Chain, Terms
from tilesmith.schedule.step import Step


@dataclass(frozen=True, slots=True)
class RollParts(Step):
    """Computes a sum and the reductions that it depends on for each iteration of a loop by itself;
    further blocks join these parts. The loop comes from a split of the summed axis.

    for t in 4:                             for t in 4: for k in 2: M.part[t] max= S[2*t + k]
      for k in 2:                           for t in 4: for k in 2:
        O += exp(S[2*t + k] - M)     ->       O.part[t] += exp(S[2*t + k] - M.part[t])
                                            M = ...; M.fix[t] = exp(M.parts[t] - M)
                                            for t in 4: O += O.part[t] * M.fix[t]
    """

    name: ClassVar[str] = "roll_parts"
    block: str
    loop: str

    def apply(self, func: Function) -> Function:
        path, last = find_block(func, self.block)
        require_whole_sum(func, path, last, self.loop, self.refuse)
        if not all(f.owner == last.name for f in path):
            raise self.refuse("it shares its loops; do this before compute_at")
        return _Parts(self, func, path, Chain.of(func, last, self.refuse)).done()

    def refuse(self, why: str) -> ScheduleError:
        return ScheduleError(f"cannot roll parts of {self.block} over loop {self.loop}: {why}")


class _Parts:
    """One such step, while it is carried out."""

    def __init__(self, step: RollParts, func: Function, path: Path, chain: Chain) -> None:
        self.step, self.func, self.chain = step, func, chain
        self.refuse: Callable[[str], ScheduleError] = step.refuse
        self.trips = next(f.extent for f in path if f.name == step.loop)
        spans = spans_of(func, path, chain.last, chain.key, step.loop, step.refuse)
        self.first, self.count = spans[chain.key]
        self.terms = Terms(func, chain, step.refuse)
        self.keys: dict[str, str] = {}  # of each block, its iterator over the summed axis
        for b in (*chain.blocks, chain.last):
            own = [n for n, a in chain.axes[b.name].items() if a == chain.key]
            if not own:
                raise step.refuse(f"{b.name} has no such axis")
            (self.keys[b.name],) = own
        self.made = {b.writes[0].buffer: b for b in (*chain.blocks, chain.last)}

    def done(self) -> Function:
        func, chain = self.func, self.chain
        parts, buffers = [], []
        for b in (*chain.blocks, chain.last):
            if b.combiner is not None and b is not self.terms.running:
                self.terms.require_sum(b)
            part, buffer = self._part(b)
            parts.append(part)
            buffers.append(buffer)
        for b in (b for b in chain.statistics if b is self.terms.running):
            copy, buffer = self._all(b)
            parts.append(copy)
            buffers.append(buffer)
        joins: list[Block] = []
        for b in (*chain.statistics, chain.last):
            joins.append(self._join(b))
            if b is self.terms.running:
                fix, buffer = self._fix(b)
                joins.append(fix)
                buffers.append(buffer)
        new = [*parts, *joins]
        olds = {b.name for b in (*chain.blocks, chain.last)}
        names = [b.name for b in new if b.name not in olds]
        check_fresh(func, f"roll parts of {self.step.block}", *names)
        for b in chain.blocks:
            func = drop(func, b.name)
        at = top_level(func, chain.last.name)
        before, after = func.body[:at], func.body[at + 1 :]
        for b in new:
            rest = replace(func, body=(*before, *after))
            before = (*before, nest(rest, b))
        gone = {b.writes[0].buffer for b in chain.blocks if b.combiner is None}
        kept = tuple(x for x in func.buffers if x.name not in gone)
        func = replace(func, body=(*before, *after), buffers=(*kept, *buffers))
        func = scaled(func, chain.last, self.terms.factors)
        check_kinds(func, f"roll parts of {self.step.block}")
        return func

    def _part(self, b: Block) -> tuple[Block, Buffer]:
        """The block as it is for one part, and its buffer."""
        (w,), key = b.writes, self.keys[b.name]
        outer, inner = part_names(key)
        place = self.first.substitute({self.step.loop: var(outer)}) + var(inner)
        extent = next(i.extent for i in b.iters if i.name == key)
        part = Iter(outer, "S", self.trips, var(outer))
        iters: list[Iter] = []
        for i in b.iters:
            own = replace(i, bind=var(i.name))
            if i.name == key:
                iters += [part, Iter(inner, i.kind, self.count, var(inner))]
            else:
                iters.append(own)
        spatial = [i for i in iters if i.kind == "S"]
        value = substitute(self._of_part(b, self.terms.values[b.name]), {key: place})
        old, shape, index = self.func.all_buffers[w.buffer], list[Int](), list[Int]()
        for p, n in zip(w.index, old.shape, strict=True):
            shape += [self.trips, self.count] if p.name == key else [n]
            index += [var(outer), var(inner)] if p.name == key else [p]
        if b.combiner is not None:
            shape, index = [self.trips, *shape], [var(outer), *index]
        name, domain = f"{b.name}.part", frozenset({extent - 1 - place})
        if b.combiner is None:  # zeros behind the last element, so that parts are whole
            inside = Binary("lt", IntValue(place, INT64), IntValue(extent, INT64), BOOL)
            value = Select(inside, value, Const(value.dtype.wrap(0), value.dtype), value.dtype)
            domain = frozenset()
        reducing = [i for i in iters if i.kind != "S"]
        writes = (Write(name, tuple(index), value),)
        made = Block(name, (*spatial, *reducing), writes, b.combiner, init=b.init, domain=domain)
        return made, replace(old, name=name, scope="global", shape=tuple(shape))

    def _of_part(self, b: Block, value: Expr) -> Expr:
        """A value that reads what belongs to the part."""
        outer, inner = part_names(self.keys[b.name])

        def put(x: Expr) -> Expr:
            p = self.made.get(x.buffer) if isinstance(x, Load) else None
            if p is None or not isinstance(x, Load):
                return x
            name = f"{p.name}.part"
            if p.combiner is not None:
                found = Load(name, (var(outer), *x.index), x.dtype)
                return _finite(found) if p is self.terms.running else found
            index: list[Int] = []
            for q, own in zip(x.index, p.writes[0].index, strict=True):
                index += [var(outer), var(inner)] if own.name == self.keys[p.name] else [q]
            return Load(name, tuple(index), x.dtype)

        return rewrite_value(value, put)

    def _all(self, b: Block) -> tuple[Block, Buffer]:
        """A copy of what the parts found, for the blocks that join them."""
        old = self.func.all_buffers[b.writes[0].buffer]
        name, shape = f"{b.name}.parts", (self.trips, *old.shape)
        made = elementwise(name, shape, lambda at: Load(f"{b.name}.part", at, old.dtype))
        return made, replace(old, name=name, scope="global", shape=shape)

    def _join(self, b: Block) -> Block:
        (w,) = b.writes
        outer, _ = part_names(self.keys[b.name])
        value: Expr = Load(self._read(b), (var(outer), *w.index), w.value.dtype)
        if self.terms.degrees[w.buffer]:
            value = Binary("mul", value, self._factor(b, outer, value.dtype), value.dtype)
        spatial = tuple(replace(i, bind=var(i.name)) for i in b.spatial)
        part = Iter(outer, "R", self.trips, var(outer))
        writes = (replace(w, value=value),)
        return Block(b.name, (*spatial, part), writes, b.combiner, init=True)

    def _read(self, b: Block) -> str:
        """The buffer of all parts of a reduction."""
        return f"{b.name}.parts" if b is self.terms.running else f"{b.name}.part"

    def _fix(self, b: Block) -> tuple[Block, Buffer]:
        """What the sums of a part are multiplied by."""
        (w,), old = b.writes, self.func.all_buffers[b.writes[0].buffer]
        outer, _ = part_names(self.keys[b.name])
        name, index, dtype = f"{b.name}.fix", (var(outer), *w.index), w.value.dtype
        part = _finite(Load(self._read(b), index, dtype))
        grown = Binary("sub", part, _finite(w.held), dtype)
        own = (replace(i, bind=var(i.name)) for i in b.spatial)
        spatial = (Iter(outer, "S", self.trips, var(outer)), *own)
        made = Block(name, spatial, (Write(name, index, Unary("exp", grown, dtype)),))
        return made, replace(old, name=name, scope="global", shape=(self.trips, *old.shape))

    def _factor(self, b: Block, outer: str, dtype: DType) -> Expr:
        running = self.terms.running
        assert running is not None
        (w,), axes = running.writes, self.chain.axes[running.name]
        own = {a: n for n, a in self.chain.axes[b.name].items() if not a.startswith(ONE_ELEMENT)}
        places = (own.get(axes[p.name or ""]) for p in w.index)
        index = (var(outer), *(ZERO if n is None else var(n) for n in places))
        fix = Load(f"{running.name}.fix", index, w.value.dtype)
        return fix if fix.dtype is dtype else Cast(fix, dtype)


def _finite(e: Expr) -> Expr:
    """A largest element that may be taken from others: infinite ones have no difference."""
    return Binary("max", e, smallest(e.dtype), e.dtype)
