"""Whether `roll` (roll.py) is legal: which reductions a sum depends on, which factors of its terms
are the same for a whole row, and how the terms change with the running statistic m. Each term may
have the factor exp(-m) once. Old and new terms then differ by exp(m - m'), which does not depend on
the summed axis, so sums distribute over it. Everything else is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.dynamic import condition_parts, loads_of
from tilesmith.expr.intervals import Unknown, bounds
from tilesmith.expr.ints import ZERO, Int, var
from tilesmith.expr.nodes import Binary, Cast, Const, Expr, Load, Select, Unary, substitute
from tilesmith.expr.nodes import rewrite as rewrite_value
from tilesmith.ir.function import (
    Function,
    readers,
    require_not_output,
    require_only_writer,
    writers,
)
from tilesmith.ir.nodes import Block, Path, walk
from tilesmith.ir.regions import box_of, extent, inner_ranges
from tilesmith.schedule.loops import trivial_index

ONE_ELEMENT = "one "  # before the name of an axis of one element that the sum does not have

Refuse = Callable[[str], ScheduleError]


@dataclass(frozen=True)
class Chain:
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
    def of(cls, func: Function, last: Block, refuse: Refuse) -> Chain:
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
            found[i.name] = f"{ONE_ELEMENT}{b.name}.{i.name}"
    complete = all(found.get(i.name) for i in b.iters)
    return found if complete and len({*found.values()}) == len(found) else None


class Terms:
    """The terms of the sums of a chain, by block, without the factors that are the same for a row;
    those factors, over the iterators of `last`; the statistic that the terms depend on; and how
    often each has the factor exp(-m), where m is that statistic.
    """

    def __init__(self, func: Function, chain: Chain, refuse: Refuse) -> None:
        self.func, self.chain, self.refuse = func, chain, refuse
        self.results = {b.writes[0].buffer: b for b in chain.statistics}
        # Of each buffer, how often its elements have the factor that repairs; and by what.
        self.degrees: dict[str, int] = {}
        self.running: Block | None = None
        self.values, self.factors = self._without_factors()
        self._find_running()

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
            env = {
                n: ZERO if a.startswith(ONE_ELEMENT) else var(a)
                for n, a in chain.axes[b.name].items()
            }
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
    def _find_running(self) -> None:
        """The statistic that terms depend on, if any, and how."""
        used = {
            x.buffer
            for b in (*self.chain.blocks, self.chain.last)
            for x in loads_of(self.values[b.name])
            if x.buffer in self.results
        }
        if len(used) > 1:
            names = ", ".join(sorted(used))
            raise self.refuse(f"its terms depend on {names}, and only one can be repaired")
        if used:
            self.running = self.results[used.pop()]
            combiner, value = self.running.combiner, self.values[self.running.name]
            assert combiner is not None
            if combiner.op != "max" or not value.dtype.is_float:
                raise self.refuse(f"{self.running.name} is not the largest of some floats")
        for b in (*self.chain.blocks, self.chain.last):
            self.degrees[b.writes[0].buffer] = self._degree(self.values[b.name])

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

    def require_sum(self, b: Block) -> None:
        degree = self.degrees[b.writes[0].buffer]
        if degree > 1 or (degree and (b.combiner is None or b.combiner.op != "add")):
            raise self.refuse(f"{b.name} is not a sum of terms with one factor to repair")

    def _seen(self, e: Expr) -> list[Int]:
        """Conditions without which the value is -inf, also where another block computes it."""
        match e:
            case Select(cond=c, a=a, b=Const() as b) if b.value == -inf:
                return [*condition_parts(c)[0], *self._seen(a)]
            case Binary(op="mul", a=a, b=Const() as c) if 0 < c.value < inf:
                return self._seen(a)
            case Cast(x=x) if e.dtype.is_float and x.dtype.is_float:
                return self._seen(x)
            case Load():
                made = writers(self.func, e.buffer)
                if len(made) == 1 and made[0].combiner is None and len(made[0].writes) == 1:
                    (w,) = made[0].writes
                    names = [p.name for p in w.index]
                    if all(names):
                        env = {n or "": i for n, i in zip(names, e.index, strict=True)}
                        return self._seen(substitute(w.value, env))
        return []

    def guards(self, path: Path, loop: str) -> frozenset[Int]:
        """Conditions on a tile of the loop without which all its elements are -inf: nothing is
        changed then.
        """
        if self.running is None:
            return frozenset()
        b = self.running
        conds = self._seen(self.values[b.name])
        last, rules = self.chain.last, self.func.rules
        inner = inner_ranges(path, last, loop, "shared")  # the same for all threads
        env, ranges = {}, dict[str, Int]()
        for n, a in self.chain.axes[b.name].items():
            if a.startswith(ONE_ELEMENT):
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
            if loop in most.names:
                guards.add(most)
        return frozenset(guards)


def _is_zero(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == 0
