"""Guards in a body, with the work that depends on each, and the separation of a body into a version
for full tiles and one for partial tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import gcd

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import INT64
from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import accesses, counted, substitute_body, tile_ranges
from tilesmith.codegen.passes.simplify import Ranges, simplify_body
from tilesmith.expr.dynamic import code_cost, condition_parts, index_loads, selects_of
from tilesmith.expr.intervals import Unknown, bounds
from tilesmith.expr.ints import ZERO, Int, is_size, most, of, var
from tilesmith.expr.nodes import COMPARISONS, Binary, Expr, IntValue, Select
from tilesmith.expr.nodes import rewrite as rewrite_value
from tilesmith.ir.function import Function
from tilesmith.ir.nests import allocated
from tilesmith.ir.nodes import Alloc, For, If, Stmt, Store, rewrite, statements

Ends = tuple[Int, Int]
_MOST_LANES = 128  # that a vectorized loop is written out for


@dataclass(frozen=True, slots=True)
class Guard:
    """The test `cond` >= 0 inside the loops `inner`; it runs `times` times per run of the body."""

    cond: Int
    inner: Ranges
    counted: frozenset[str]  # the loops of `inner` that are not unrolled
    times: int
    body: tuple[Stmt, ...]
    select: bool = False  # it is the condition of a select, not of an If

    @property
    def work(self) -> int:
        """The number of executed operations that depend on it."""
        return self.times * effort(self.body)


def guards_of(
    body: tuple[Stmt, ...],
    inner: Ranges | None = None,
    counted: frozenset[str] = frozenset(),
    times: int = 1,
) -> Iterator[Guard]:
    inner = inner or {}
    for s in body:
        match s:
            case For():
                more = frozenset() if s.kind in ("unroll", "vectorize") else {s.name}
                within = {**inner, s.name: most(s.extent)}
                yield from guards_of(s.body, within, counted | more, times * _turns(s))
            case If():
                around = {**inner, **tile_ranges(s.body)}
                for p in s.conds:
                    yield Guard(p, around, counted, times, s.body)
                yield from guards_of(s.body, inner, counted, times)
            case Store():
                here = {**inner, **dict(s.tile)}
                for w in s.writes:
                    for p in _select_conditions(w.value):
                        yield Guard(p, here, counted, times, (s,), select=True)


def is_open_guard(g: Guard) -> bool:
    """Whether it depends on an open size."""
    return any(map(is_size, g.cond.names))


def is_guarded(body: tuple[Stmt, ...]) -> bool:
    """Whether `guards_of` finds any."""
    return any(
        isinstance(s, If)
        or (isinstance(s, For) and is_guarded(s.body))
        or (
            isinstance(s, Store)
            and any(True for w in s.writes for _ in _select_conditions(w.value))
        )
        for s in body
    )


def _select_conditions(e: Expr) -> Iterator[Int]:
    for x in selects_of(e):
        yield from condition_parts(x.cond)[0]


def ends_of(cond: Int, inner: Ranges) -> tuple[Int, ...]:
    """Lower and upper bound of a condition over the inner loops; () if they are unknown."""
    try:
        return bounds(cond, inner)
    except Unknown:
        return ()


def weight(body: tuple[Stmt, ...]) -> int:
    """Operations in the code after unrolling, the size of a copy. Eight lanes count as one."""
    return counted(body, _copies, _code_size)


def effort(body: tuple[Stmt, ...]) -> int:
    """Operations executed."""
    return counted(body, _turns, _code_size)


def _code_size(s: Store) -> int:
    return sum(code_cost(w.value) for w in s.writes)


def _turns(s: For) -> int:
    n = s.likely_trips
    return max(1, n // 8) if s.kind == "vectorize" else n


def _copies(s: For) -> int:
    """Long vectors become a loop over strips (strip_vectors.py), however long they are."""
    if s.kind == "vectorize":
        return min(_turns(s), _MOST_LANES // 8)
    return _turns(s) if s.kind == "unroll" else 1


def spatial(name: str, body: tuple[Stmt, ...]) -> bool:
    """Whether every iteration writes elements of its own. Then no register carries a value from one
    iteration to the next, so a branch cannot force one to memory.
    """
    own = allocated(body)
    return all(
        any(name in p.names for p in a.index)
        for a in accesses(body)
        if a.write and a.buffer not in own
    )


def separated(s: For, body: tuple[Stmt, ...], here: Ranges) -> tuple[Stmt, ...]:
    """The body of a counted loop, with the guards that most of it depends on tested once: whether
    this tile is full, or the last and partial. Guards that a counted loop further inside can test
    are left to that loop.
    """
    if not spatial(s.name, body):
        return body
    groups: dict[Ends, int] = {}
    for g in guards_of(body):
        if is_open_guard(g):  # these have been separated
            continue
        if s.name in g.cond.names and not g.select and not g.cond.names & g.counted:
            match ends_of(g.cond, g.inner):
                case (low, high):
                    groups[low, high] = groups.get((low, high), 0) + g.work
    most = effort(body)
    wanted = [ends for ends, work in groups.items() if 2 * work >= most]
    return _separate(s.name, body, here, wanted)


def _separate(
    name: str, body: tuple[Stmt, ...], here: Ranges, wanted: list[Ends]
) -> tuple[Stmt, ...]:
    if not wanted:
        return body
    (low, high), *others = wanted
    full = _separate(name, given(body, (low, high), True, {}), here, others)
    out: list[Stmt] = [If((low,), full)]
    if low != high:
        out += _tail(name, body, here, low, high)
    rest = simplify_body(given(body, (low, high), False, {}), here, {})
    if any(isinstance(t, Store) for t in statements(rest)):
        out.append(If((-high - 1,), _separate(name, rest, here, others)))
    return tuple(out)


def _tail(name: str, body: tuple[Stmt, ...], here: Ranges, low: Int, high: Int) -> tuple[Stmt, ...]:
    """The iterations in which the guard holds for a part of the tile: low < 0 <= high. If there is
    only one, its loop variable is a constant, and so is the size of the partial tile.
    """
    steps = {m: c for m, c in low.terms.items() if m}
    step = gcd(*steps.values())
    start, stop = high - Int(steps), low - Int(steps)
    move = Int(
        {m: c // step for m, c in steps.items()}
    )  # step*move + start >= 0 > step*move + stop
    way = move.coefficient(name).const
    a, b = start.const, stop.const
    if a is not None and b is not None and way in (1, -1):
        first, last = -(a // step), -(b // step) - 1
        if first > last:
            return ()
        if first == last:
            value = (of(first) - move + var(name) * way) * way
            tail = simplify_body(substitute_body(body, {name: value}), here, {})
            return (If((move - first, of(first) - move), tail),) if tail else ()
    return (If((-low - 1, high), body),)


def full_and_partial(
    body: tuple[Stmt, ...], ends: Ends, here: Ranges
) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
    """The body where a guard with these bounds holds for all of a tile; and with its test where it
    holds for a part, whose size is a constant if all such tiles are alike.
    """
    low, high = ends
    full = simplify_body(given(body, ends, True, {}), here, {})
    step = gcd(*(c for m, c in low.terms.items() if m))
    name = next((n for n in sorted(low.names) if low.coefficient(n).const in (step, -step)), "")
    return full, _tail(name, body, here, low, high) if low != high else ()


def given(body: tuple[Stmt, ...], ends: Ends, truth: bool, inner: Ranges) -> tuple[Stmt, ...]:
    """The body, given that guards with these bounds always (or never) hold."""
    out: list[Stmt] = []
    for s in body:
        match s:
            case For():
                new = given(s.body, ends, truth, {**inner, s.name: most(s.extent)})
                if new:
                    out.append(For(s.name, s.extent, new, s.kind, s.notes))
            case If():
                around = {**inner, **tile_ranges(s.body)}
                same = [p for p in s.conds if ends_of(p, around) == ends]
                if same and not truth:
                    continue
                left = tuple(p for p in s.conds if p not in same)
                new = given(s.body, ends, truth, inner)
                out.extend((If(left, new),) if left and new else new)
            case _:
                out.append(s)
    return tuple(out)


Deciding = Callable[[Int, Ranges], bool]


def decided(body: tuple[Stmt, ...], holds: Deciding, inner: Ranges) -> tuple[Stmt, ...]:
    """The body without conditions of which it is known that they hold, also in selects. `holds` is
    asked about each and the loops of the body around it.
    """
    out: list[Stmt] = []
    for s in body:
        match s:
            case For():
                new = decided(s.body, holds, {**inner, s.name: most(s.extent)})
                out.append(For(s.name, s.extent, new, s.kind, s.notes))
            case If():
                around = {**inner, **tile_ranges(s.body)}
                left = tuple(p for p in s.conds if not holds(p, around))
                new = decided(s.body, holds, inner)
                out.extend((If(left, new),) if left else new)
            case Store():
                settle = partial(_settled, holds=holds, ranges={**inner, **dict(s.tile)})
                writes = (replace(w, value=rewrite_value(w.value, settle)) for w in s.writes)
                out.append(replace(s, writes=tuple(writes)))
            case _:
                out.append(s)
    return tuple(out)


def assume(body: tuple[Stmt, ...], facts: Sequence[Int]) -> tuple[Stmt, ...]:
    """The body where these are all at least 0: lower bounds of conditions over loops inside."""

    def holds(p: Int, inner: Ranges) -> bool:
        ends = ends_of(p, inner)
        return bool(ends) and any(
            (more := (ends[0] - f).const) is not None and more >= 0 for f in facts
        )

    return decided(body, holds, {})


def with_zero(body: tuple[Stmt, ...], zero: Int) -> tuple[Stmt, ...]:
    """The body where an expression with open sizes is 0: conditions whose sizes cancel against it
    depend on loops alone.
    """

    def put(p: Int) -> Int:
        for m, c in zero.terms.items():
            times, left = divmod(p.terms.get(m, 0), c)
            if times and not left and any(map(is_size, Int({m: 1}).names)):
                less = p - zero * times
                return p if any(map(is_size, less.names)) else less
        return p

    def value(e: Expr) -> Expr:
        match e:
            case Binary(op=op, a=IntValue(value=p), b=IntValue(value=q)) if op in COMPARISONS:
                less = put(p - q)
                return e if less == p - q else Binary(op, _int64(less), _int64(ZERO), e.dtype)
        return e

    def go(s: Stmt) -> tuple[Stmt, ...]:
        match s:
            case If():
                return (replace(s, conds=tuple(map(put, s.conds))),)
            case Store():
                writes = (replace(w, value=rewrite_value(w.value, value)) for w in s.writes)
                return (replace(s, writes=tuple(writes)),)
        return (s,)

    return rewrite(body, go)


def _int64(p: Int) -> IntValue:
    return IntValue(p, INT64)


def _settled(e: Expr, holds: Deciding, ranges: Ranges) -> Expr:
    def always(c: Expr) -> bool:
        parts, rest = condition_parts(c)
        return not rest and all(holds(p, ranges) for p in parts)

    match e:
        case Binary(op="and"):
            return e.b if always(e.a) else e.a if always(e.b) else e
        case Select() if always(e.cond):
            return e.a
    return e


def hoist_guards(func: Function, _: Target) -> Function:
    """Moves a guard out of loops that it does not depend on (loop unswitching). It is then tested
    once, and the loops inside have no branch. Neighbours with the same guard share it, and what is
    read only where a guard holds is computed only there.
    """
    # A guard that depends on an instruction's own loops must stay with the instruction.
    tiles = {n for s in statements(func.body) if isinstance(s, Store) for n, _ in s.tile}

    def go(s: Stmt) -> tuple[Stmt, ...]:
        """Inner statements come first, so that a guard moves out as far as possible."""
        if not isinstance(s, For):
            return (s,)
        body = _shared(_as_read(s.body))
        *own, guard = body
        if not isinstance(guard, If) or not all(isinstance(x, Alloc) for x in own):
            return (replace(s, body=body),)
        free = tuple(p for p in guard.conds if not p.names & (tiles | {s.name}))
        if not free:
            return (replace(s, body=body),)
        bound = tuple(p for p in guard.conds if p not in free)
        within = (If(bound, guard.body),) if bound else guard.body
        return (If(free, (replace(s, body=(*own, *within)),)),)

    return replace(func, body=rewrite(func.body, go))


def _as_read(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Statements that compute what others of the body read, under the guards of all of these."""
    own = {s.buffer.name for s in body if isinstance(s, Alloc)}
    if not own or not any(isinstance(s, If) for s in body):
        return body
    uses = [{(a.buffer, a.write) for a in accesses((s,))} for s in body]
    out = list(body)
    for k in reversed(range(len(body))):
        made = {x for x, write in uses[k] if write}
        if isinstance(s := out[k], Alloc) or not made or not made <= own:
            continue
        others = [t for n, t in enumerate(out) if n != k and made & {x for x, _ in uses[n]}]
        guards = [t.conds if isinstance(t, If) else () for t in others if not isinstance(t, Alloc)]
        held = s.conds if isinstance(s, If) else ()
        common = tuple(
            p for p in (guards[0] if guards else ())
            if p not in held and all(p in g for g in guards) and not any(index_loads(p))
        )  # fmt: skip
        if common:
            out[k] = If((*common, *held), s.body if isinstance(s, If) else (s,))
    return tuple(out)


def _shared(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Neighbours with the same guard as one statement."""
    out: list[Stmt] = []
    for s in body:
        last = out[-1] if out else None
        if isinstance(s, If) and isinstance(last, If) and {*s.conds} == {*last.conds}:
            out[-1] = replace(last, body=(*last.body, *s.body))
        else:
            out.append(s)
    return tuple(out)


def full_vectors(func: Function, _: Target) -> Function:
    """Tests once per vectorized loop whether a guard holds for all of its lanes, so that only
    partial vectors are masked.

    CPU policy: a branch that is nearly always taken costs less than a mask in every vector, which
    some processors carry out lane by lane. Sums that are kept in registers stay as they are: a
    branch around them would force them to memory.
    """
    return replace(func, body=rewrite(func.body, _versions))


def _versions(s: Stmt) -> tuple[Stmt, ...]:
    """for j in 4:  # vectorize          if 255 - i - 3 >= 0:
    if 255 - i - j >= 0: ...    ->       for j in 4: ...
                                       if i + 3 - 255 > 0 and 255 - i >= 0:
                                         for j in 4:
                                           if 255 - i - j >= 0: ...
    """
    if not (isinstance(s, For) and s.kind == "vectorize" and len(s.body) == 1):
        return (s,)
    (guard,) = s.body
    if not isinstance(guard, If) or any(
        isinstance(t, Store) and any(w.accumulates for w in t.writes) for t in statements(s.body)
    ):
        return (s,)
    for p in guard.conds:
        if s.name not in p.names or not p.names - {s.name} or any(map(is_size, p.names)):
            continue
        ends = ends_of(p, {s.name: s.extent})
        if len(ends) != 2:
            continue
        low, high = ends
        left = tuple(q for q in guard.conds if q != p)
        full = replace(s, body=(If(left, guard.body),) if left else guard.body)
        return (If((low,), _versions(full)), If((-low - 1, high), (s,)))
    return (s,)
