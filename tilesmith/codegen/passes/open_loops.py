"""Loops over open sizes, whose extents are known when the kernel is called. Only outer trip counts
depend on such a size: vectorized and unrolled loops keep constant extents, and a tile that the end
of an axis cuts off is computed by code of its own. Functions without open sizes stay as they are.

CPU policy: a mask in every vector costs time, and so does a branch in a register tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilesmith.base.dataclass import dataclass
from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import substitute_body
from tilesmith.codegen.passes.guards import (
    Ends,
    Guard,
    assume,
    ends_of,
    given,
    guards_of,
    spatial,
    weight,
    with_zero,
)
from tilesmith.codegen.passes.partial_vectors import PartialTile, vectors_of
from tilesmith.codegen.passes.simplify import Ranges, simplify_body
from tilesmith.expr.ints import Int, is_size, maximum, most, of, var
from tilesmith.ir.function import Function
from tilesmith.ir.nests import allocated
from tilesmith.ir.nodes import Alloc, Buffer, For, If, Stmt, Store, statements

_LIMIT = 6144  # operations of the code for partial tiles, in total
_MOST_CASES = 16  # of one partial tile
# Operations of a step of a sum in a partial tile, above which its reducing loops are not unrolled.
_LIGHT = 128
_MOST_BORDERS = 1024  # operations of a body that gets a version without the tests of a border


def split_open_loops(func: Function, target: Target) -> Function:
    """Separates full tiles from the one that the end of an open axis cuts off, which gets a branch
    for each number of rows that it may have, and masks in its last vector.

    for i.0 in (n + 7) // 8:                   for i.0 in (n + 7) // 8:
      for i.1 in 8:  # unroll                    if n - 8 - 8*i.0 >= 0:
        if n - 1 - 8*i.0 - i.1 >= 0: ...    ->     for i.1 in 8: ...
                                                 if n - 1 - 8*i.0 = 0: ...    # one element
                                                 if n - 1 - 8*i.0 = 1:
                                                   for i.1 in 2: ...          # and so on
    """
    if not is_open(func):
        return func
    private = allocated(func.body)
    splitting = _Splitting(target, _LIMIT, func.all_buffers | private, frozenset(private))
    return replace(func, body=splitting.body(func.body, {}))


def is_open(func: Function) -> bool:
    return any(e.const is None for b in func.params for e in b.shape)


@dataclass(slots=True)
class _Splitting:
    """`is_partial`: inside of code for a partial tile. There, tests of borders stay as they are."""

    target: Target
    budget: int
    buffers: Mapping[str, Buffer]
    private: frozenset[str]  # those that are no arrays of the caller
    is_partial: bool = False

    def body(self, body: tuple[Stmt, ...], ranges: Ranges) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for s in body:
            if isinstance(s, For):
                out.extend(self._loop(s, ranges))
            elif isinstance(s, If):
                out.append(replace(s, body=self.body(s.body, ranges)))
            else:
                out.append(s)
        return tuple(out)

    def _loop(self, s: For, ranges: Ranges) -> tuple[Stmt, ...]:
        if s.kind == "vectorize":
            return (s,)
        if s.kind == "unroll":
            return (replace(s, body=self.body(s.body, {**ranges, s.name: s.extent})),)
        s = _cut_short(s)
        here = {**ranges, s.name: most(s.extent)}
        tiles = _tiles(s)
        if not spatial(s.name, s.body):
            for ends in tiles:
                if s.kind == "serial" and (cut := self._cut(s, ends, ranges)) is not None:
                    return cut
            return (replace(s, body=self.body(s.body, here)),)
        borders = () if self.is_partial else _borders(s)
        return (replace(s, body=self._versions(s.body, tiles, borders, here)),)

    def _versions(
        self, body: tuple[Stmt, ...], tiles: list[Ends], borders: tuple[Int, ...], here: Ranges
    ) -> tuple[Stmt, ...]:
        """The body for full tiles, and for partial ones."""
        if tiles:
            (ends, *others) = tiles
            full = simplify_body(assume(body, (ends[0],)), here, {})
            inside = self._versions(full, others, borders, here)
            return (If((ends[0],), inside), If((-ends[0] - 1,), self._partial(body, ends, here)))
        size = weight(body)
        if not borders or size > min(self.budget, _MOST_BORDERS):
            return self.body(body, here)
        self.budget -= size
        within = -_highest([-p for p in borders])
        plain = simplify_body(assume(body, borders), here, {})
        outside, self.is_partial = self.is_partial, True
        rest = self.body(body, here)
        self.is_partial = outside
        return (If((within,), self.body(plain, here)), If((-within - 1,), rest))

    def _partial(self, body: tuple[Stmt, ...], ends: Ends, here: Ranges) -> tuple[Stmt, ...]:
        """The tile of which a part is inside. Statements whose loops may end early do so; those
        with unrolled and vectorized ones get a version for each number of rows or vectors.
        """
        out: list[Stmt] = [s for s in body if isinstance(s, Alloc)]
        run: list[Stmt] = []
        outside, self.is_partial = self.is_partial, True
        for s in (s for s in body if not isinstance(s, Alloc)):
            if _is_cut_off(s, ends):
                run.append(s)
                continue
            out += self._cases(tuple(run), ends, here)
            run.clear()
            out += self.body((s,), here)
        out += self._cases(tuple(run), ends, here)
        self.is_partial = outside
        return tuple(out)

    def _cases(self, body: tuple[Stmt, ...], ends: Ends, here: Ranges) -> Iterator[Stmt]:
        if not body:
            return
        low, high = ends
        span = (high - low).const
        assert span is not None
        if (lanes := vectors_of(body, ends, self.target)) is not None:
            yield from self._vector_cases(_light(body), ends, lanes, here)
            return
        if all(_is_outermost(t, high) for t in body):  # nothing is kept from row to row
            yield If((high,), self.body(_one_by_one(body, ends) or body, here))
            return
        cases = [self._rows(body, ends, q, here) for q in range(min(span, _MOST_CASES))]
        size = sum(map(weight, cases))
        if span > _MOST_CASES or size > self.budget:
            counted = _one_by_one(body, ends)
            yield If((high,), self.body(body if counted is None else counted, here))
            return
        self.budget -= size
        for q, inside in enumerate(cases):
            if any(isinstance(t, Store) for t in statements(inside)):
                yield If((high - q, of(q) - high), self.body(inside, here))

    def _rows(
        self, body: tuple[Stmt, ...], ends: Ends, last: int, here: Ranges
    ) -> tuple[Stmt, ...]:
        """The body if the last row of the tile that is inside has this number."""
        return _light(simplify_body(with_zero(body, ends[1] - last), here, {}))

    def _vector_cases(
        self, body: tuple[Stmt, ...], ends: Ends, lanes: int, here: Ranges
    ) -> Iterator[Stmt]:
        low, high = ends
        count = -(-(high - low + 1).number // lanes)
        size = weight(body)
        each = lanes > 1 and count <= _MOST_CASES and count * size <= self.budget
        for k in range(count) if each else (None,):
            tile = PartialTile(ends, lanes, k, self.buffers, self.private, here)
            inside, tile = tile.held(body)
            inside = simplify_body(tile.masked(inside, {}), here, {})
            if not any(isinstance(t, Store) for t in statements(inside)):
                continue
            self.budget -= size
            self.buffers, self.private = tile.buffers, tile.private
            conds = (high,) if k is None else (high - k * lanes, of((k + 1) * lanes - 1) - high)
            yield If(conds, self.body(inside, here))

    def _cut(self, s: For, ends: Ends, ranges: Ranges) -> tuple[Stmt, ...] | None:
        """A loop over full tiles, and the partial one behind it: sums stay in registers."""
        last = _last(ends[0], s.name)
        if last is None:
            return None
        count = _minimum(s.extent, last + 1)
        part = {**ranges, s.name: most(count)}
        full = simplify_body(assume(s.body, (ends[0],)), part, {})
        env = {s.name: count}
        low, high = (p.substitute(env) for p in ends)
        tail = substitute_body(s.body, env)
        behind = _one_by_one(tail, (low, high))
        outside, self.is_partial = self.is_partial, True
        if behind is None:
            behind = tuple(self._cases(tail, (low, high), ranges))
        else:
            behind = self.body(behind, ranges)
        self.is_partial = outside
        return (
            replace(s, extent=count, body=self.body(full, part)),
            If((count, s.extent - 1 - count, high), behind),
        )


def _cut_short(s: For) -> For:
    """A counted loop that ends where a guard of all that it does fails for good."""
    if s.kind != "serial":
        return s
    seen: set[Ends] = set()
    for g in guards_of(s.body):
        if not _is_open_end(g, s.name):
            continue
        ends = ends_of(g.cond, g.inner)
        if len(ends) != 2 or (pair := (ends[0], ends[1])) in seen:
            continue
        seen.add(pair)
        last = _last(pair[1], s.name)
        if last is None or last + 1 == s.extent or not _is_all(s.body, pair):
            continue
        s = replace(s, extent=_minimum(s.extent, last + 1))
        if pair[0] == pair[1]:
            s = replace(s, body=given(s.body, pair, True, {}))
    return s


def _tiles(s: For) -> list[Ends]:
    """The bounds of guards that end an open axis within an iteration, and that unrolled and
    vectorized loops alone test further inside.
    """
    found: dict[Ends, None] = {}
    for g in guards_of(s.body):
        if not _is_open_end(g, s.name) or _waits(g, s.body):
            continue
        ends = ends_of(g.cond, g.inner)
        if len(ends) == 2 and (ends[1] - ends[0]).const:
            found[ends[0], ends[1]] = None
    return list(found)


def _is_open_end(g: Guard, name: str) -> bool:
    return not g.select and name in g.cond.names and any(map(is_size, g.cond.names))


def _waits(g: Guard, body: tuple[Stmt, ...]) -> bool:
    """Whether a counted loop further inside can test the guard."""
    within = g.cond.names & g.counted
    return bool(within) and any(
        spatial(t.name, t.body) for t in statements(body) if isinstance(t, For) and t.name in within
    )


def _borders(s: For) -> tuple[Int, ...]:
    """What must be at least 0 so that conditions of selects hold in a whole iteration of a loop."""
    found: dict[Int, None] = {}
    for g in guards_of(s.body):
        if g.select and s.name in g.cond.names and not _waits(g, s.body):
            ends = ends_of(g.cond, g.inner)
            if len(ends) == 2 and not (ends[0].const or -1) >= 0:
                found[ends[0]] = None
    return tuple(found)


def _is_cut_off(s: Stmt, ends: Ends) -> bool:
    """Whether guards with these bounds lie inside of unrolled or vectorized loops that they depend
    on.
    """
    return any(
        ends_of(g.cond, g.inner) == ends and g.cond.names & (g.inner.keys() - g.counted)
        for g in guards_of((s,))
    )


def _one_by_one(body: tuple[Stmt, ...], ends: Ends) -> tuple[Stmt, ...] | None:
    """The body with a counted loop over what is left in place of an unrolled or vectorized one that
    a guard cuts off; None if the guard depends on other loops, too.
    """
    _, high = ends

    def go(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for s in body:
            if isinstance(s, If):
                s = replace(s, body=go(s.body))
            if not isinstance(s, For):
                out.append(s)
                continue
            guards = [g for g in guards_of((s,)) if s.name in g.cond.names]
            if not any(high - g.cond == var(s.name) for g in guards):
                out.append(replace(s, body=go(s.body)))
                continue
            end = high - var(s.name)
            whole = given(s.body, (end, end), True, {})
            out.append(replace(s, kind="serial", extent=_minimum(s.extent, high + 1), body=whole))
        return tuple(out)

    out = go(body)
    left = [g for g in guards_of(out) if ends_of(g.cond, g.inner) == ends]
    return None if left or out == body else out


def _is_outermost(s: Stmt, high: Int) -> bool:
    """Whether the loop that a guard with this upper bound cuts off is the outermost one."""
    return isinstance(s, For) and any(high - g.cond == var(s.name) for g in guards_of((s,)))


def _is_all(body: tuple[Stmt, ...], ends: Ends) -> bool:
    rest = given(body, ends, False, {})
    return not any(isinstance(t, Store) for t in statements(rest))


def _last(end: Int, name: str) -> Int | None:
    """The last value of v at which r - c*v >= 0; None if it is not of that form."""
    step = end.coefficient(name).const
    rest = end + var(name) * -(step or 0)
    if step is None or step >= 0 or name in rest.names:
        return None
    return rest // -step


def _minimum(a: Int, b: Int) -> Int:
    return a if a == b else a + b - maximum(a, b)


def _highest(values: list[Int]) -> Int:
    out = values[0]
    for p in values[1:]:
        out = maximum(out, p)
    return out


def _light(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Statements whose reducing loops are unrolled less: there is code for many cases."""

    def go(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for s in body:
            if isinstance(s, For) and s.kind == "unroll" and _only_reduces(s):
                each = max(1, weight(s.body))
                out.append(_unrolled_less(s, _LIGHT // each))
            elif isinstance(s, For | If) and not (isinstance(s, For) and s.kind == "vectorize"):
                out.append(replace(s, body=go(s.body)))
            else:
                out.append(s)
        return tuple(out)

    return go(body)


def _only_reduces(s: For) -> bool:
    return not any(
        s.name in p.names
        for t in statements(s.body)
        if isinstance(t, Store)
        for w in t.writes
        for p in w.index
    )


def _unrolled_less(s: For, most_copies: int) -> For:
    n = s.trips
    copies = max((d for d in range(1, n + 1) if n % d == 0 and d <= most_copies), default=1)
    if copies == n:
        return s
    if copies == 1:
        return replace(s, kind="serial")
    outer, inner = f"{s.name}.turn", f"{s.name}.copy"
    body = substitute_body(s.body, {s.name: var(outer) * copies + var(inner)})
    one = replace(s, name=inner, extent=of(copies), body=body)
    return replace(s, name=outer, extent=of(n // copies), body=(one,), kind="serial")
