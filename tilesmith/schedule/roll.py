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
from dataclasses import dataclass, replace
from functools import reduce
from math import inf
from typing import ClassVar

from tilesmith.base.dtype import DType
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.dynamic import condition_parts, loads_of
from tilesmith.expr.intervals import Unknown, bounds
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
from tilesmith.expr.nodes import rewrite as rewrite_value
from tilesmith.ir.dependence import check_kinds
from tilesmith.ir.function import (
    Function,
    find_block,
    find_loop,
    is_own_loop,
    readers,
    require_not_output,
    require_only_writer,
    writers,
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
    walk,
)
from tilesmith.ir.regions import box_of, extent, inner_ranges
from tilesmith.schedule.cache import check_fresh
from tilesmith.schedule.loops import Span, drop, nest, place, trivial_index
from tilesmith.schedule.step import Step

_ONE = "one "  # before the name of an axis of one element that the sum does not have
_TILE = "tile"  # the iterator over tiles of the blocks that this makes


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
    """

    name: ClassVar[str] = "roll"
    block: str
    loop: str

    def apply(self, func: Function) -> Function:
        path, last = find_block(func, self.block)
        self._check(func, path, last)
        chain = _Chain.of(func, last, self.refuse)
        return _Rolling(self, func, path, chain).done()

    def refuse(self, why: str) -> ScheduleError:
        return ScheduleError(f"cannot roll {self.block} over loop {self.loop}: {why}")

    def _check(self, func: Function, path: Path, last: Block) -> None:
        find_loop(func, self.loop)
        require_only_writer(func, last, "roll")
        require_not_output(func, last, "roll")
        trivial_index(last, "roll")
        if last.combiner is None or last.combiner.op != "add" or not last.init or last.tile:
            raise self.refuse("it is not a whole sum; do this before decompose_reduction")
        if len(last.reducing) != 1:
            raise self.refuse(f"it sums over {len(last.reducing)} axes, not one")
        if self.loop not in last.reducing_loops & {f.name for f in path}:
            raise self.refuse("it does not sum over that loop")
        for f in path[[f.name for f in path].index(self.loop) :]:
            if not is_own_loop(last, f):
                raise self.refuse(f"{f.name} is not a loop of its own")


Refuse = Callable[[str], ScheduleError]


@dataclass(frozen=True)
class _Chain:
    """`last`, and the blocks between the first of the reductions that it depends on and it, in
    order. `axes` has, for each block, the iterator of `last` that each of its own stands for.
    """

    last: Block
    blocks: tuple[Block, ...]
    axes: dict[str, dict[str, str]]
    key: str  # the iterator that `last` sums over

    @property
    def statistics(self) -> tuple[Block, ...]:
        """The reductions: one value for each row."""
        return tuple(b for b in self.blocks if b.combiner is not None)

    @classmethod
    def of(cls, func: Function, last: Block, refuse: Refuse) -> _Chain:
        order = [b for _, b in walk(func.body)]
        known: dict[tuple[str, int], str] = {}  # the iterator of `last` along a dimension
        axes: dict[str, dict[str, str]] = {last.name: {i.name: i.name for i in last.iters}}
        (key,) = (i.name for i in last.reducing)
        needed = {last.name}
        for b in reversed(order):
            if b.name not in needed:
                continue
            if b is not last:
                found = _axes(b, known)
                if found is None:
                    needed.discard(b.name)  # it has an axis that `last` does not know
                    continue
                axes[b.name] = found
            for x in b.loads:
                needed |= {w.name for w in writers(func, x.buffer)}
                for d, p in enumerate(x.index):
                    if p.name in axes[b.name]:
                        at = axes[b.name][p.name]
                        if known.setdefault((x.buffer, d), at) != at:
                            known[x.buffer, d] = ""
        rows = {
            b.name
            for b in order
            if b.name in axes
            and b is not last
            and {axes[b.name][i.name] for i in b.reducing} == {key}
        }
        moved = set(rows)
        for b in order:
            if any(w.name in moved for x in b.loads for w in writers(func, x.buffer)):
                moved.add(b.name)
        blocks = tuple(b for b in order if b.name in moved & axes.keys() and b is not last)
        if not blocks:
            raise refuse("no reduction over the same axis comes before it")
        inside = {b.name for b in (*blocks, last)}
        for b in blocks:
            require_only_writer(func, b, "roll")
            require_not_output(func, b, "roll")
            outside = {r.name for w in b.writes for r in readers(func, w.buffer)} - inside
            if outside:
                raise refuse(f"{min(outside)} reads {b.name} as well")
            if b.tile or b.domain or b.where or len(b.writes) != 1:
                raise refuse(f"{b.name} is scheduled already; do this first")
            trivial_index(b, "roll")
        return cls(last, blocks, axes, key)


def _axes(b: Block, known: dict[tuple[str, int], str]) -> dict[str, str] | None:
    """What each iterator of a block stands for: by the place of its results, and for those that it
    reduces over by what it reads. None if one is not known.
    """
    found: dict[str, str] = {}
    for d, p in enumerate(b.writes[0].index):
        if p.name is not None:
            found[p.name] = known.get((b.writes[0].buffer, d), "")
    reducing = {i.name for i in b.reducing}
    for x in b.loads:
        for d, p in enumerate(x.index):
            if p.name in reducing:
                found.setdefault(p.name, known.get((x.buffer, d), ""))
    for i in b.iters:  # an axis of one element need not be indexed
        if i.extent.const == 1 and not found.get(i.name):
            found[i.name] = f"{_ONE}{b.name}.{i.name}"
    complete = all(found.get(i.name) for i in b.iters)
    return found if complete and len({*found.values()}) == len(found) else None


class _Rolling:
    """One roll, while it is carried out."""

    def __init__(self, step: Roll, func: Function, path: Path, chain: _Chain) -> None:
        self.step, self.func, self.path, self.chain = step, func, path, chain
        self.refuse = step.refuse
        self.buffers = func.all_buffers
        self.results = {b.writes[0].buffer: b for b in chain.statistics}
        self.trips = next(f.extent for f in path if f.name == step.loop)
        self.spans = self._spans()
        # Of each buffer, how often its elements have the factor that repairs; and by what.
        self.degrees: dict[str, int] = {}
        self.running: Block | None = None

    def _spans(self) -> dict[str, Span]:
        """Of each iterator of the sum, the values in one iteration of the loop."""
        last, rules = self.chain.last, self.func.rules
        inner = inner_ranges(self.path, last, self.step.loop)
        spans = {}
        for i in last.iters:
            (span,) = box_of([i.bind], (i.extent,), inner, rules)
            spans[i.name] = (span[0], extent(span, rules))
        first = spans[self.chain.key][0]
        if {n for n in first.names if n[0] != "#"} != {self.step.loop}:
            raise self.refuse("its tiles are not cut by that loop alone")
        return spans

    def done(self) -> Function:
        chain, step = self.chain, self.step
        values, factors = self._without_factors()
        self._find_running(values)
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
                self._require_sum(b)
                new += [*self._repair(b), b]
        last = replace(
            chain.last, writes=(replace(chain.last.writes[0], value=values[chain.last.name]),)
        )
        self._require_sum(last)
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
        guards = self._guards(values)
        for at, b in enumerate(new):
            func = place(func, b, self._placed(b), guards, step.loop, at)
        if guards:
            func = replace(
                func, body=rewrite_blocks(func.body, lambda o: _guarded(o, last.name, guards))
            )
        if self.running is not None:
            func = self._started(func, self.running)
        func = self._scaled(func, factors)
        check_kinds(func, f"roll {step.block}")
        return func

    def _guards(self, values: dict[str, Expr]) -> frozenset[Int]:
        """Conditions on a tile without which all its elements are -inf: nothing is changed then."""
        if self.running is None:
            return frozenset()
        b = self.running
        e = values[b.name]
        conds: list[Int] = []
        while isinstance(e, Select) and isinstance(e.b, Const) and e.b.value == -inf:
            conds += condition_parts(e.cond)[0]
            e = e.a
        last, rules = self.chain.last, self.func.rules
        inner = inner_ranges(self.path, last, self.step.loop, "shared")  # the same for all threads
        env, ranges = {}, dict[str, Int]()
        for n, a in self.chain.axes[b.name].items():
            if a.startswith(_ONE):
                env[n] = ZERO
                continue
            bind = next(i.bind for i in last.iters if i.name == a)
            extent_of = next(i.extent for i in last.iters if i.name == a)
            (span,) = box_of([bind], (extent_of,), inner, rules)
            env[n], ranges[f"{a}.at"] = span[0] + var(f"{a}.at"), extent(span, rules)
        guards = set()
        for p in conds:
            try:
                most = bounds(p.substitute(env), ranges)[1]
            except Unknown:
                continue
            if self.step.loop in most.names:
                guards.add(most)
        return frozenset(guards)

    # factors of a whole row
    def _without_factors(self) -> tuple[dict[str, Expr], list[Expr]]:
        """The terms of all blocks without the factors that are the same for a row, and those
        factors, over the iterators of the sum. Only the sum's own terms, and what nothing but the
        sum reads, are looked at.
        """
        chain = self.chain
        values = {b.name: self._never_empty(b.writes[0].value) for b in (*chain.blocks, chain.last)}
        factors: list[Expr] = []
        front = [chain.last]
        while front:
            b = front.pop()
            values[b.name], found = self._pull(values[b.name])
            env = {n: ZERO if a.startswith(_ONE) else var(a) for n, a in chain.axes[b.name].items()}
            factors += [substitute(f, env) for f in found]
            for p in chain.blocks:
                mine = [x for x in loads_of(values[b.name]) if x.buffer == p.writes[0].buffer]
                users = {r.name for r in readers(self.func, p.writes[0].buffer)}
                if (
                    p.combiner is None
                    and mine
                    and users == {b.name}
                    and self._is_linear(values[b.name], p.writes[0].buffer)
                ):
                    front.append(p)
        return values, factors

    def _never_empty(self, e: Expr) -> Expr:
        """The value without a choice for rows of which the largest element is -inf: what is known
        so far of a row is always a number.
        """

        def put(x: Expr) -> Expr:
            match x:
                case Select(cond=Binary(op="eq", a=Load() as a, b=Const() as c), b=Load() as b):
                    if a == b and a.buffer in self.results and c.value == -inf:
                        return b
            return x

        return rewrite_value(e, put)

    def _is_row(self, e: Expr) -> bool:
        """Whether it is a value of the row: of statistics and numbers alone."""
        loads = list(loads_of(e))
        return bool(loads) and all(x.buffer in self.results for x in loads)

    def _pull(self, e: Expr) -> tuple[Expr, list[Expr]]:
        match e:
            case Binary(op="mul", a=a, b=b) if self._is_row(b) and not self._is_row(a):
                left, found = self._pull(a)
                return left, [*found, b]
            case Binary(op="mul", a=a, b=b) if self._is_row(a) and not self._is_row(b):
                left, found = self._pull(b)
                return left, [*found, a]
            case Binary(op="mul", a=a, b=b):
                left, found = self._pull(a)
                right, more = self._pull(b)
                return Binary("mul", left, right, e.dtype), [*found, *more]
            case Binary(op="div", a=a, b=b) if self._is_row(b) and e.dtype.is_float:
                left, found = self._pull(a)
                one = Const(e.dtype.wrap(1), e.dtype)
                return left, [*found, Binary("div", one, b, e.dtype)]
            case Cast(x=x) if e.dtype.is_float and x.dtype.is_float:
                inner, found = self._pull(x)
                return Cast(inner, e.dtype), found
            case Select(cond=c, a=a, b=b) if _is_zero(b):
                inner, found = self._pull(a)
                return Select(c, inner, b, e.dtype), found
        return e, []

    def _is_linear(self, e: Expr, buffer: str) -> bool:
        """Whether the value is a multiple of the buffer's element."""
        match e:
            case Load():
                return e.buffer == buffer
            case Binary(op="mul", a=a, b=b):
                return self._is_linear(a, buffer) != self._is_linear(b, buffer)
            case Cast(x=x):
                return e.dtype.is_float and x.dtype.is_float and self._is_linear(x, buffer)
            case Select(a=a, b=b):
                return _is_zero(b) and self._is_linear(a, buffer)
        return False

    # what is repaired
    def _find_running(self, values: dict[str, Expr]) -> None:
        """The statistic that terms depend on, if any, and how."""
        used = {
            x.buffer
            for b in (*self.chain.blocks, self.chain.last)
            for x in loads_of(values[b.name])
            if x.buffer in self.results
        }
        if len(used) > 1:
            names = ", ".join(sorted(used))
            raise self.refuse(f"its terms depend on {names}, and only one can be repaired")
        if used:
            self.running = self.results[used.pop()]
            combiner, value = self.running.combiner, values[self.running.name]
            assert combiner is not None
            if combiner.op != "max" or not value.dtype.is_float:
                raise self.refuse(f"{self.running.name} is not the largest of some floats")
        for b in (*self.chain.blocks, self.chain.last):
            self.degrees[b.writes[0].buffer] = self._degree(values[b.name])

    def _degree(self, e: Expr) -> int:
        """How often the value has the factor exp(-m), where m is the running statistic."""
        if not any(x.buffer in self.degrees or self._is_running(x) for x in loads_of(e)):
            return 0
        match e:
            case Load() if not self._is_running(e):
                return self.degrees.get(e.buffer, 0)
            case Unary(op="exp", x=Binary(op="sub", a=a, b=Load() as m)) if self._is_running(m):
                if self._degree(a) == 0 and not any(map(self._is_running, loads_of(a))):
                    return 1
            case Binary(op="mul", a=a, b=b):
                return self._degree(a) + self._degree(b)
            case Cast(x=x) if e.dtype.is_float and x.dtype.is_float:
                return self._degree(x)
            case Select(cond=c, a=a, b=b):
                if not any(x.buffer in self.degrees or self._is_running(x) for x in loads_of(c)):
                    sides = {self._degree(x) for x in (a, b) if not _is_zero(x)}
                    if len(sides) <= 1:
                        return max(sides, default=0)
            case Binary(op="add" | "sub", a=a, b=b):
                sides = {self._degree(a), self._degree(b)}
                if len(sides) == 1:
                    return sides.pop()
        if not any(map(self._is_running, loads_of(e))) and not any(
            self.degrees.get(x.buffer) for x in loads_of(e)
        ):
            return 0
        raise self.refuse(
            f"it does not follow how {e!r} changes with "
            f"{self.running.name if self.running else 'the row'}; terms must be products with "
            "exp(x - m)"
        )

    def _is_running(self, x: Load) -> bool:
        return self.running is not None and x.buffer == self.running.writes[0].buffer

    def _require_sum(self, b: Block) -> None:
        degree = self.degrees[b.writes[0].buffer]
        if degree > 1 or (degree and (b.combiner is None or b.combiner.op != "add")):
            raise self.refuse(f"{b.name} is not a sum of terms with one factor to repair")

    def _repair(self, b: Block) -> list[Block]:
        """Multiplies what was summed in earlier tiles."""
        (w,) = b.writes
        if not self.degrees[w.buffer] or self.trips.const == 1:
            return []
        assert self.running is not None
        tile = Iter(_TILE, "R", self.trips, var(self.step.loop))
        own = {a: n for n, a in self.chain.axes[b.name].items()}
        axes = self.chain.axes[self.running.name]
        place_of = [axes[p.name or ""] for p in self.running.writes[0].index]
        at = (*(var(own[a]) if a in own else ZERO for a in place_of), var(_TILE))
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
        index = (*w.index, var(_TILE))
        first, count = self.spans[self.chain.key]
        (key,) = b.reducing
        place = first.substitute({self.step.loop: var(_TILE)}) + var(key.name)
        tile = Iter(_TILE, "S", self.trips, var(self.step.loop))
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
        held, new = w.held, _scaled(Load(made[0].name, index, w.value.dtype), scale)
        grown = Binary("max", held, new, w.value.dtype)
        difference = Binary("sub", held, grown, w.value.dtype)
        fix = Block(
            made[1].name,
            (*b.spatial, tile),
            (Write(made[1].name, index, Unary("exp", difference, w.value.dtype)),),
        )
        update = Block(
            b.name, (*b.spatial, replace(tile, kind="R")), (replace(w, value=new),), b.combiner
        )
        if self.trips.const == 1:  # nothing comes before the only tile
            return [largest, update], made[:1]
        return [largest, fix, update], made

    def _placed(self, b: Block) -> dict[str, Span]:
        """The span of each iterator of a block in one iteration of the loop."""
        base = next(
            (o for o in (*self.chain.blocks, self.chain.last) if o.name == b.name or
             b.name in (f"{o.name}.repair", f"{o.name}.tile", f"{o.name}.fix")), b,
        )  # fmt: skip
        axes = self.chain.axes[base.name]
        spans: dict[str, Span] = {}
        for i in b.iters:
            if i.name == _TILE:
                spans[i.name] = (var(self.step.loop), ONE)
            elif i.kind == "R" and b.name == f"{base.name}.tile":
                continue  # counts within the tile
            else:
                spans[i.name] = self._span(axes[i.name])
        return spans

    def _span(self, axis: str) -> Span:
        return (ZERO, ONE) if axis.startswith(_ONE) else self.spans[axis]

    def _started(self, func: Function, b: Block) -> Function:
        """Sets the running statistic to the smallest number before the loop: not to -inf, whose
        differences are no numbers.
        """
        (w,) = b.writes
        dtype = w.value.dtype
        init = Block(f"{b.name}.init", b.spatial, (replace(w, value=_smallest(dtype)),))
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

    def _scaled(self, func: Function, factors: Sequence[Expr]) -> Function:
        """Multiplies the sum by the factors of its rows, where it is read."""
        (w,) = self.chain.last.writes
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


def _is_zero(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == 0


def _smallest(dtype: DType) -> Const:
    """The smallest number that is not infinite."""
    return Const(-dtype.largest, dtype)
