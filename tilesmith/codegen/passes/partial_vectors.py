"""Tiles whose vectors the end of an open axis cuts off. What such a tile computes for itself is
computed in whole vectors; only loads and stores of arrays that end there are masked.

CPU policy: sums stay in registers without a mask, and a mask is the same for all of a tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import BOOL, INT64
from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import accesses
from tilesmith.codegen.passes.guards import Ends, ends_of, guards_of
from tilesmith.codegen.passes.simplify import Ranges
from tilesmith.codegen.passes.strip_vectors import lanes_of
from tilesmith.expr.dynamic import is_loaded, loads_of, map_loads
from tilesmith.expr.intervals import Unknown, bounds
from tilesmith.expr.ints import ZERO, Int, most, of
from tilesmith.expr.nodes import Binary, Const, Expr, IntValue, Load, Select, children
from tilesmith.expr.nodes import rewrite as rewrite_value
from tilesmith.expr.walk import preorder
from tilesmith.ir.nests import only_store
from tilesmith.ir.nodes import (
    Alloc,
    Buffer,
    For,
    If,
    Stmt,
    Store,
    Write,
    nested,
    rewrite,
    statements,
)
from tilesmith.ir.regions import Box, box_of, union


def vectors_of(body: tuple[Stmt, ...], ends: Ends, target: Target) -> int | None:
    """The lanes of a vector of the loops that guards with these bounds cut off; None if these loops
    are not vectorized.
    """
    loops = {s.name: s for s in statements(body) if isinstance(s, For) and s.kind == "vectorize"}
    found: list[int] = []
    for g in guards_of(body):
        if not g.cond.names & loops.keys() or ends_of(g.cond, g.inner) != ends:
            continue
        for n in g.cond.names & loops.keys():
            extent = loops[n].extent.const
            lanes = min(lanes_of(loops[n].body, target), extent or 1)
            others = (c for m, c in g.cond.terms.items() if m and m[0] in g.inner and m != (n,))
            even = g.cond.coefficient(n).const == -1 and not any(c % lanes for c in others)
            found.append(lanes if even else 1)
    return min(found, default=None)


@dataclass(frozen=True, slots=True)
class PartialTile:
    """The tile in which guards with the bounds `ends` hold for `whole` vectors of `lanes`, and for
    at least one lane of the next; None: for any number of lanes. `buffers` are all there are, and
    `private` those that are no arrays of the caller.
    """

    ends: Ends
    lanes: int
    whole: int | None
    buffers: Mapping[str, Buffer]
    private: frozenset[str]
    ranges: Ranges  # of the loops around

    def masked(
        self, body: tuple[Stmt, ...], inner: Ranges, vectors: frozenset[str] = frozenset()
    ) -> tuple[Stmt, ...]:
        """The body with a mask in the last vector alone, where one is needed at all."""
        out: list[Stmt] = []
        for s in body:
            if isinstance(s, For):
                lanes = vectors | {s.name} if s.kind == "vectorize" else vectors
                within = self.masked(s.body, {**inner, s.name: most(s.extent)}, lanes)
                out.append(replace(s, body=within))
            elif isinstance(s, If):
                same = [p for p in s.conds if p.names & vectors and ends_of(p, inner) == self.ends]
                if same:
                    left = tuple(p for p in s.conds if p is not same[0])
                    out += self._guarded(s.body, same[0], left, inner)
                else:
                    out.append(replace(s, body=self.masked(s.body, inner, vectors)))
            else:
                out.append(s)
        return tuple(out)

    def _guarded(
        self, body: tuple[Stmt, ...], cond: Int, left: tuple[Int, ...], inner: Ranges
    ) -> Iterator[Stmt]:
        moving = frozenset(cond.names & inner.keys())
        ranges = {**self.ranges, **inner}
        own = self._is_own(body, moving, ranges)
        full = self._with_safe_loads(body, cond, moving, ranges) if own else body
        if self.whole is None:
            yield If(left, full) if own and left else If((*left, cond), body)
            return
        at = self.ends[1] - cond  # the number of the lane within the tile
        first, last = self.whole * self.lanes, (self.whole + 1) * self.lanes - 1
        if own and full == body:
            yield If((*left, of(last) - at), body)
            return
        if first:
            yield If((*left, of(first - 1) - at), body)
        mask = () if own else (cond,)
        yield If((*left, at - first, of(last) - at, *mask), full)

    def _is_own(self, body: tuple[Stmt, ...], moving: frozenset[str], ranges: Ranges) -> bool:
        """Whether lanes behind the end may be computed: each writes an element of its own, unlike
        those of a sum over lanes, nobody reads it, and nothing fails.
        """
        for s in statements(body):
            if not isinstance(s, Store) or s.intrinsic is not None:
                return False
            for w in s.writes:
                if w.buffer not in self.private or not self._is_inside(w.buffer, w.index, ranges):
                    return False
                if not moving <= {n for p in w.index for n in p.names}:
                    return False
                if any(_may_fail(e) for e in preorder(w.value, children)):
                    return False
        return True

    def _is_inside(self, name: str, index: Sequence[Int], ranges: Ranges) -> bool:
        for p, n in zip(index, self.buffers[name].shape, strict=True):
            try:
                low, high = bounds(p, ranges)
            except Unknown:
                return False
            lo, left = low.const, (n - 1 - high).const
            if lo is None or left is None or lo < 0 or left < 0:
                return False
        return True

    def _with_safe_loads(
        self, body: tuple[Stmt, ...], cond: Int, moving: frozenset[str], ranges: Ranges
    ) -> tuple[Stmt, ...]:
        """The body with loads that may lie behind the end of an array done in lanes inside only. So
        are those of floats that another nest stored, such as a copy of an operand: behind the end
        is whatever was there before, and with denormal numbers a product takes 50 times as long.
        """
        test = Binary("ge", IntValue(cond, INT64), IntValue(ZERO, INT64), BOOL)
        sums = {w.buffer for s in statements(body) if isinstance(s, Store) for w in s.writes}

        def put(e: Expr) -> Expr:
            if not isinstance(e, Load) or not any(p.names & moving for p in e.index):
                return e
            is_left_over = e.buffer in self.private - sums and e.dtype.is_float
            inside = not any(map(is_loaded, e.index)) and self._is_inside(e.buffer, e.index, ranges)
            if inside and not is_left_over:
                return e
            return Select(test, e, Const(0.0 if e.dtype.is_float else 0, e.dtype), e.dtype)

        def go(s: Stmt) -> tuple[Stmt, ...]:
            if not isinstance(s, Store):
                return (s,)
            values = [rewrite_value(w.value, put) for w in s.writes]
            if all(v is w.value for v, w in zip(values, s.writes, strict=True)):
                return (s,)
            writes = tuple(replace(w, value=v) for w, v in zip(s.writes, values, strict=True))
            return (replace(s, writes=writes),)

        return rewrite(body, go)

    def held(self, body: tuple[Stmt, ...]) -> tuple[tuple[Stmt, ...], PartialTile]:
        """The body with sums kept in buffers of their own; and the tile that has these.

        for j in 16:  # vectorize           for j in 16: part[j] = 0
          if n - 1 - j >= 0: y[j] = 0       for k in 9:
        for k in 9:                    ->     for j in 16: part[j] += x[k, j]
          for j in 16:                      for j in 16:
            if n - 1 - j >= 0: ...            if n - 1 - j >= 0: y[j] = part[j]
        """
        made: dict[str, Buffer] = {}
        for name in self._sums(body):
            new = self._placed(body, name, made) or self._in_part(body, name, made)
            body = new or body
        buffers = {**self.buffers, **made}
        return body, replace(self, buffers=buffers, private=self.private | made.keys())

    def _sums(self, body: tuple[Stmt, ...]) -> dict[str, None]:
        """The arrays of the caller that lanes add up to."""
        sums: dict[str, None] = {}
        lanes = {s.name for s in statements(body) if isinstance(s, For) and s.kind == "vectorize"}
        stores = [s for s in statements(body) if isinstance(s, Store)]
        for w in (w for s in stores for w in s.writes if w.buffer not in self.private):
            if any(x.buffer == w.buffer for x in loads_of(w.value)):
                sums[w.buffer] = None
        for s in stores:
            for w in s.writes:
                across = not any(p.names & lanes for p in w.index)
                if across or s.intrinsic is not None:
                    sums.pop(w.buffer, None)
        return sums

    def _placed(
        self, body: tuple[Stmt, ...], name: str, made: dict[str, Buffer]
    ) -> tuple[Stmt, ...] | None:
        """With the part in the innermost list of statements of which several use the sum."""
        users = [k for k, s in enumerate(body) if _uses(s, name)]
        if len(users) > 1:
            return self._in_part(body, name, made)
        s = body[users[0]]
        inner = self._placed(s.body, name, made) if isinstance(s, For | If) else None
        if inner is None or not isinstance(s, For | If):
            return None
        return (*body[: users[0]], replace(s, body=inner), *body[users[0] + 1 :])

    def _in_part(
        self, body: tuple[Stmt, ...], name: str, made: dict[str, Buffer]
    ) -> tuple[Stmt, ...] | None:
        users = [k for k, s in enumerate(body) if _uses(s, name)]
        box: Box | None = None
        for a in accesses(tuple(body[k] for k in users)):
            if a.buffer == name:
                inner = {f.name: most(f.extent) for f in a.path}
                box = union(box, box_of(a.index, self.buffers[name].shape, inner, {}))
        first = body[users[0]]
        elements = _elements(first, name)
        if box is None or elements is None or any((h - l).const is None for l, h in box):
            return None
        low = tuple(first for first, _ in box)
        shape = tuple(high - low + 1 for low, high in box)
        part = Buffer(f"{name}.part", shape, self.buffers[name].dtype, "local")
        made[part.name] = part
        around, w = elements
        at = tuple(p - q for p, q in zip(w.index, low, strict=True))
        there, here = Load(part.name, at, part.dtype), Load(name, w.index, part.dtype)
        out: list[Stmt] = []
        for k, s in enumerate(body):
            if k == users[0]:
                out.append(Alloc(part))
                if any(a.buffer == name and not a.write for a in accesses((s,))):
                    out += nested(around, (Store((Write(part.name, at, here),)),))
            out += (
                rewrite((s,), lambda t: (_moved(t, name, part.name, low),)) if k in users else (s,)
            )
            if k == users[-1]:
                out += nested(around, (Store((Write(name, w.index, there),)),))
        return tuple(out)


def _uses(s: Stmt, name: str) -> bool:
    return any(a.buffer == name for a in accesses((s,)))


def _elements(s: Stmt, name: str) -> tuple[list[For | If], Write] | None:
    """The loops and conditions that go once through what a nest writes of a buffer."""
    found = only_store(s)
    if found is None:
        return None
    around, store = found
    w = next(w for w in store.writes if w.buffer == name)
    moving = {n for p in w.index for n in p.names}
    left = {f.name for f in around if isinstance(f, For)} - moving
    out: list[For | If] = []
    for f in around:
        if isinstance(f, For):
            out += (f,) if f.name in moving else ()
            continue
        if any(p.names & left and p.names & moving for p in f.conds):
            return None
        if conds := tuple(p for p in f.conds if not p.names & left):
            out.append(If(conds, f.body))
    return out, w


def _moved(s: Stmt, name: str, part: str, low: tuple[Int, ...]) -> Stmt:
    """A statement that reads and writes the part instead of the buffer."""

    def within(index: tuple[Int, ...]) -> tuple[Int, ...]:
        return tuple(p - q for p, q in zip(index, low, strict=True))

    def put(x: Load) -> Expr:
        return Load(part, within(x.index), x.dtype) if x.buffer == name else x

    if not isinstance(s, Store):
        return s
    writes = tuple(
        Write(part, within(w.index), map_loads(w.value, put)) if w.buffer == name
        else replace(w, value=map_loads(w.value, put))
        for w in s.writes
    )  # fmt: skip
    return replace(s, writes=writes)


def _may_fail(e: Expr) -> bool:
    """Whether the processor may refuse an operation: a division by whatever is behind the end."""
    return (
        isinstance(e, Binary)
        and e.dtype.is_int
        and e.op in ("div", "floordiv", "mod", "truncdiv", "fmod")
    )
