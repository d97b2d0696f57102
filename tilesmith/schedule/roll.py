"""`roll`: reductions over one axis, of which later ones need the results of earlier ones, in one
loop over tiles of that axis.

Softmax in front of a product needs the largest score of a row before it can sum. In one loop, each
tile works with the largest score so far, and what was summed before is *repaired* when that grows:

    m = max s[k]                            m = lowest
    l = sum exp(s[k] - m)                   for t in tiles:
    o = sum exp(s[k] - m) / l * v[k]   ->     m.tile = max s[k] of the tile
                                              m.fix = exp(m - max(m, m.tile))
                                              m = max(m, m.tile)
                                              l = l * m.fix + sum exp(s[k] - m) of the tile
                                              o = o * m.fix + sum exp(s[k] - m) * v[k] of the tile
                                            o / l

That is right because exp(s - m') = exp(m - m') * exp(s - m): a term with the old value and one with
the new value differ by a factor that does not depend on k, and sums distribute over it. Factors
that are the same for a whole row, such as 1 / l, are left out of the sums and applied behind them.
The order of additions and the place of roundings change, as in any other split of a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from math import inf
from typing import ClassVar

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import BOOL, DType
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import ONE, ZERO, Int, var
from tilesmith.expr.nodes import (
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Unary,
    plain_combiner,
    substitute,
)
from tilesmith.ir.dependence import check_kinds
from tilesmith.ir.function import (
    Function,
    find_block,
    find_loop,
    is_own_loop,
    readers,
    require_not_output,
    require_only_writer,
)
from tilesmith.ir.nodes import (
    Block,
    Buffer,
    For,
    Iter,
    Path,
    Stmt,
    Write,
    map_write_loads,
    rewrite,
    rewrite_blocks,
)
from tilesmith.ir.regions import box_of, extent, inner_ranges
from tilesmith.schedule.cache import check_fresh
from tilesmith.schedule.loops import Span, drop, nest, place, trivial_index
from tilesmith.schedule.roll_legality import ONE_ELEMENT, Chain, Terms
from tilesmith.schedule.step import Step

TILE = "tile"  # the iterator over tiles of the blocks that this makes
PARTS = ("repair", "tile", "new", "fix")  # of names of the blocks that are made for another one
MOST_SLACK = 8.0  # terms up to 3,000 fit into float16, as does their product with values up to 20


@dataclass(frozen=True, slots=True)
class Roll(Step):
    """Computes the reductions that a sum depends on in its own loop over tiles, each from what is
    known so far, and repairs what was summed before. Blocks that do not depend on them, such as the
    scores, are moved by compute_at.

    for k in 8: M max= S[k]               for t in 4:
    for t in 4:                             for k in 2: M.tile max= S[2*t + k]
      for k in 2:                    ->     M.fix = exp(M - max(M, M.tile)); M max= M.tile
        O += exp(S[2*t + k] - M)            O *= M.fix
                                            for k in 2: O += exp(S[2*t + k] - M)

    With a `slack`, a row whose largest value grows by at most so much keeps the one it has, and
    nothing is repaired: terms are then up to exp(slack) instead of 1, which a float holds as well.
    """

    name: ClassVar[str] = "roll"
    block: str
    loop: str
    slack: float = 0.0

    def apply(self, func: Function) -> Function:
        path, last = find_block(func, self.block)
        if not 0 <= self.slack <= MOST_SLACK:
            raise self.refuse(f"its slack is {self.slack}, not a number from 0 to {MOST_SLACK}")
        require_whole_sum(func, path, last, self.loop, self.refuse)
        chain = Chain.of(func, last, self.refuse)
        return _Rolling(self, func, path, chain).done()

    def refuse(self, why: str) -> ScheduleError:
        return ScheduleError(f"cannot roll {self.block} over loop {self.loop}: {why}")


def require_whole_sum(
    func: Function, path: Path, last: Block, loop: str, refuse: Callable[[str], ScheduleError]
) -> None:
    """That a block is a sum over one axis, of which the loop is the outer part."""
    find_loop(func, loop)
    require_only_writer(func, last, "roll")
    require_not_output(func, last, "roll")
    trivial_index(last, "roll")
    if last.combiner is None or last.combiner.op != "add" or not last.init or last.tile:
        raise refuse("it is not a whole sum; do this before decompose_reduction")
    if len(last.reducing) != 1:
        raise refuse(f"it sums over {len(last.reducing)} axes, not one")
    if loop not in last.reducing_loops & {f.name for f in path}:
        raise refuse("it does not sum over that loop")
    for f in path[[f.name for f in path].index(loop) :]:
        if not is_own_loop(last, f):
            raise refuse(f"{f.name} is not a loop of its own")


def spans_of(
    func: Function, path: Path, last: Block, key: str, loop: str,
    refuse: Callable[[str], ScheduleError],
) -> dict[str, Span]:  # fmt: skip
    """Of each iterator of a sum, the values in one iteration of the loop."""
    inner = inner_ranges(path, last, loop)
    spans = {}
    for i in last.iters:
        (span,) = box_of([i.bind], (i.extent,), inner, func.rules)
        spans[i.name] = (span[0], extent(span, func.rules))
    if {n for n in spans[key][0].names if n[0] != "#"} != {loop}:
        raise refuse("its tiles are not cut by that loop alone")
    return spans


class _Rolling:
    """One roll, while it is carried out."""

    def __init__(self, step: Roll, func: Function, path: Path, chain: Chain) -> None:
        self.step, self.func, self.path, self.chain = step, func, path, chain
        self.refuse = step.refuse
        self.buffers = func.all_buffers
        self.trips = next(f.extent for f in path if f.name == step.loop)
        self.spans = spans_of(func, path, chain.last, chain.key, step.loop, step.refuse)
        self.terms = Terms(func, chain, step.refuse)
        self.running = self.terms.running

    def done(self) -> Function:
        chain, step = self.chain, self.step
        values = self.terms.values
        new: list[Block] = []
        buffers: list[Buffer] = []
        for b in chain.blocks:
            b = replace(b, writes=(replace(b.writes[0], value=values[b.name]),))
            if b is self.running or (self.running and b.name == self.running.name):
                made, added = self._running_parts(b)
                new += made
                buffers += added
            elif b.combiner is None:
                new.append(b)
            else:
                self.terms.require_sum(b)
                new += [*self._repair(b), b]
        last = replace(
            chain.last, writes=(replace(chain.last.writes[0], value=values[chain.last.name]),)
        )
        self.terms.require_sum(last)
        new += self._repair(last)
        names = [b.name for b in new if b.name not in {o.name for o in chain.blocks}]
        check_fresh(self.func, f"roll {step.block}", *names)
        func = self.func
        for b in chain.blocks:
            func = drop(func, b.name)
        func = replace(
            func, body=rewrite_blocks(func.body, lambda o: last if o.name == last.name else o)
        )
        func = replace(func, buffers=(*func.buffers, *buffers))
        guards = self.terms.guards(self.path, step.loop)
        for at, b in enumerate(new):
            func = place(func, b, self._placed(b), guards, step.loop, at)
        if guards:
            func = replace(
                func, body=rewrite_blocks(func.body, lambda o: _guarded(o, last.name, guards))
            )
        if self.running is not None:
            func = self._started(func, self.running)
        func = scaled(func, chain.last, self.terms.factors)
        check_kinds(func, f"roll {step.block}")
        return func

    def _repair(self, b: Block) -> list[Block]:
        """Multiplies what was summed in earlier tiles."""
        (w,) = b.writes
        if not self.terms.degrees[w.buffer] or self.trips.const == 1:
            return []
        assert self.running is not None
        tile = Iter(TILE, "R", self.trips, var(self.step.loop))
        own = {a: n for n, a in self.chain.axes[b.name].items()}
        axes = self.chain.axes[self.running.name]
        place_of = [axes[p.name or ""] for p in self.running.writes[0].index]
        at = (*(var(own[a]) if a in own else ZERO for a in place_of), var(TILE))
        dtype = self.running.writes[0].value.dtype
        value: Expr = Load(f"{self.running.name}.fix", at, dtype)
        if dtype is not w.value.dtype:
            value = Cast(value, w.value.dtype)
        extents = {i.name: i.extent for i in b.iters}
        mine = {axes[i.name]: i.extent for i in self.running.spatial}
        domain = {
            mine[a] - 1 - var(own[a]) for a in place_of if a in own and mine[a] != extents[own[a]]
        }  # padded rows have nothing to repair
        combiner = plain_combiner("mul", w.value.dtype)
        name = f"{b.name}.repair"
        writes = (Write(w.buffer, w.index, value),)
        return [Block(name, (*b.spatial, tile), writes, combiner, domain=frozenset(domain))]

    def _running_parts(self, b: Block) -> tuple[list[Block], list[Buffer]]:
        """The largest value of a tile, the factor that it means for earlier ones, and of all."""
        (w,) = b.writes
        old = self.buffers[w.buffer]
        shape = (*old.shape, self.trips)
        made = [replace(old, name=f"{b.name}.{part}", shape=shape) for part in ("tile", "fix")]
        index = (*w.index, var(TILE))
        first, count = self.spans[self.chain.key]
        (key,) = b.reducing
        place = first.substitute({self.step.loop: var(TILE)}) + var(key.name)
        tile = Iter(TILE, "S", self.trips, var(self.step.loop))
        scale, unscaled = _scale_of(w.value)
        value = substitute(unscaled, {key.name: place})
        largest = Block(
            made[0].name,
            (*b.spatial, tile, replace(key, extent=count)),
            (Write(made[0].name, index, value),),
            plain_combiner("max", w.value.dtype),
            init=True,
            domain=frozenset({key.extent - 1 - place}),
        )
        dtype = w.value.dtype
        held, new = w.held, _scaled(Load(made[0].name, index, dtype), scale)
        grown: Expr = Binary("max", held, new, dtype)
        kept: list[Block] = []
        if self.step.slack:
            far = Binary("add", held, Const(self.step.slack, dtype), dtype)
            value = Select(Binary("gt", new, far, BOOL), new, held, dtype)
            made.append(replace(old, name=f"{b.name}.new", shape=shape))
            writes = (Write(made[2].name, index, value),)
            kept = [Block(made[2].name, (*b.spatial, tile), writes)]
            grown = new = Load(made[2].name, index, dtype)
        fix = Block(
            made[1].name,
            (*b.spatial, tile),
            (Write(made[1].name, index, Unary("exp", Binary("sub", held, grown, dtype), dtype)),),
        )
        update = Block(
            b.name, (*b.spatial, replace(tile, kind="R")), (replace(w, value=new),), b.combiner
        )
        if self.trips.const == 1:  # nothing comes before the only tile
            return [largest, *kept, update], [x for x in made if x.name != fix.name]
        return [largest, *kept, fix, update], made

    def _placed(self, b: Block) -> dict[str, Span]:
        """The span of each iterator of a block in one iteration of the loop."""
        base = next(
            (o for o in (*self.chain.blocks, self.chain.last) if o.name == b.name or
             b.name in (f"{o.name}.{part}" for part in PARTS)), b,
        )  # fmt: skip
        axes = self.chain.axes[base.name]
        spans: dict[str, Span] = {}
        for i in b.iters:
            if i.name == TILE:
                spans[i.name] = (var(self.step.loop), ONE)
            elif i.kind == "R" and b.name == f"{base.name}.tile":
                continue  # counts within the tile
            else:
                spans[i.name] = self._span(axes[i.name])
        return spans

    def _span(self, axis: str) -> Span:
        return (ZERO, ONE) if axis.startswith(ONE_ELEMENT) else self.spans[axis]

    def _started(self, func: Function, b: Block) -> Function:
        """Sets the running statistic to the smallest number before the loop: not to -inf, whose
        differences are no numbers.
        """
        (w,) = b.writes
        dtype = w.value.dtype
        init = Block(f"{b.name}.init", b.spatial, (replace(w, value=smallest(dtype)),))
        outside = [f.name for f in self.path]
        at = outside.index(self.step.loop)
        axes = self.chain.axes[b.name]
        spans = {i.name: self._span(axes[i.name]) for i in b.spatial}
        if at:
            position = next(
                k
                for k, s in enumerate(find_loop(func, outside[at - 1])[1].body)
                if isinstance(s, For) and s.name == self.step.loop
            )
            return place(func, init, spans, frozenset(), outside[at - 1], position)
        stmt = nest(func, init)

        def go(s: Stmt) -> tuple[Stmt, ...]:
            return (stmt, s) if isinstance(s, For) and s.name == self.step.loop else (s,)

        return replace(func, body=rewrite(func.body, go))


def scaled(func: Function, last: Block, factors: Sequence[Expr]) -> Function:
    """Multiplies a sum by the factors of its rows, where it is read."""
    (w,) = last.writes
    if not factors:
        return func
    factor = reduce(lambda a, b: Binary("mul", a, _as(b, a.dtype), a.dtype), factors)
    own = [p.name or "" for p in w.index]
    names = {b.name for b in readers(func, w.buffer)}

    def put(x: Load) -> Expr:
        if x.buffer != w.buffer:
            return x
        env = dict(zip(own, x.index, strict=True))
        return Binary("mul", x, _as(substitute(factor, env), x.dtype), x.dtype)

    def go(b: Block) -> Block:
        return replace(b, writes=map_write_loads(b.writes, put)) if b.name in names else b

    return replace(func, body=rewrite_blocks(func.body, go))


def _scale_of(e: Expr) -> tuple[Const | None, Expr]:
    """A positive factor of all elements, which their largest one may be multiplied by instead: a
    product is never rounded below that of a smaller number.
    """
    match e:
        case Binary(op="mul", a=a, b=Const() as c) if 0 < c.value < inf:
            return c, a
        case Select(cond=c, a=a, b=Const() as b) if b.value == -inf:
            scale, inner = _scale_of(a)
            return scale, Select(c, inner, b, e.dtype)
    return None, e


def _scaled(e: Expr, scale: Const | None) -> Expr:
    return e if scale is None else Binary("mul", e, scale, e.dtype)


def _guarded(b: Block, name: str, guards: frozenset[Int]) -> Block:
    return replace(b, where=b.where | guards) if b.name == name else b


def _as(e: Expr, dtype: DType) -> Expr:
    return e if e.dtype is dtype else Cast(e, dtype)


def smallest(dtype: DType) -> Const:
    """The smallest number that is not infinite."""
    return Const(-dtype.largest, dtype)
