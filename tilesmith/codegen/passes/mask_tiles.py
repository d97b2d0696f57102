"""GPU: conditions on the elements of a fragment, such as a mask, tile by tile of the loop around.

A tile that a condition empties is skipped, with all that is computed for it alone. One that it
leaves whole is computed without it. Conditions of the others stay with each element.

    for t in 8:                                 for t in 8:
      S = Q * K[t]                                if 127 - 64*t >= 0:
      for i in 64:                          ->      S = Q * K[t]
        for j in 64:                                if -64 - 64*t >= 0: P[i, j] = f(S[i, j])
          if 127 - 64*t >= 0:                       else: P[i, j] = f(where(i - 64*t - j >= 0, ...))
            P[i, j] = f(where(i - 64*t - j >= 0, S[i, j], -inf))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce

from tilesmith.base.dtype import BOOL, INT64
from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import accesses
from tilesmith.codegen.passes.simplify import simplify_body
from tilesmith.expr.dynamic import condition_parts
from tilesmith.expr.intervals import Unknown, bounds
from tilesmith.expr.ints import ZERO, Int, maximum
from tilesmith.expr.nodes import (
    Binary,
    Const,
    Expr,
    IntValue,
    Select,
    children,
    plain_combiner,
)
from tilesmith.expr.nodes import rewrite as rewrite_value
from tilesmith.expr.walk import preorder
from tilesmith.ir.function import Function
from tilesmith.ir.nests import allocated
from tilesmith.ir.nodes import For, If, Path, Stmt, Store, Write, rewrite, statements

_MOST_PARTS = 4  # conditions of which each alone may cut a tile


def mask_tiles(func: Function, _: Target) -> Function:
    """Takes launch form with fragments."""
    fragments = {n for n, b in allocated(func.body).items() if b.scope == "fragment"}
    if not fragments:
        return func
    return replace(func, body=_Masking(func, fragments).body(func.body, ()))


class _Masking:
    def __init__(self, func: Function, fragments: set[str]) -> None:
        self.func, self.fragments = func, fragments
        self.uses = [a.buffer for a in accesses(func.body)]

    def body(self, body: tuple[Stmt, ...], path: Path) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for s in body:
            if isinstance(s, For) and s.kind == "serial" and self._is_rolled(s):
                inside = (*path, s)
                inner = self._whole(self._skipped(s, path), inside)
                out.append(replace(s, body=inner))
            elif isinstance(s, For) and s.kind != "serial":
                out.append(replace(s, body=self.body(s.body, (*path, s))))
            else:
                out.append(s)
        done = tuple(out)
        # A loop of one iteration is gone.
        return self._whole(done, path) if path and path[-1].kind == "threadIdx.x" else done

    def _is_rolled(self, s: For) -> bool:
        """Whether the loop makes fragments of which it makes others: several matrix products, or
        what threads without such instructions compute of it.
        """
        products = [t for t in s.body if any(map(is_matrix_product, statements((t,))))]
        nests = [t for t in s.body if isinstance(t, For) and self._fills(t)]
        return len(products) > 1 or (not products and len(nests) > 1)

    def _fills(self, s: For) -> bool:
        return any(a.write and a.buffer in self.fragments for a in accesses((s,)))

    # tiles that are empty
    def _skipped(self, s: For, path: Path) -> tuple[Stmt, ...]:
        stores = list(_with_conditions(s.body, ()))
        blocks = {s.name, *(f.name for f in path if f.kind == "blockIdx.x")}
        found = dict.fromkeys(p for _, conds in stores for p in conds if p.names <= blocks)
        skipping: list[Int] = []
        for p in (p for p in found if s.name in p.names):
            free = [t for t, conds in stores if p not in conds]
            made = {w.buffer for t in free for w in t.writes}
            inside = [a.buffer for a in accesses(s.body)]
            private = all(self.uses.count(n) == inside.count(n) for n in made)
            first = {n: next(t for t in free for w in t.writes if w.buffer == n) for n in made}
            anew = not any(w.accumulates for t in first.values() for w in t.writes)
            if private and anew:
                skipping.append(p)
        if not skipping:
            return s.body
        return (If(tuple(skipping), _without(s.body, frozenset(skipping))),)

    # tiles that are whole
    def _whole(self, body: tuple[Stmt, ...], path: Path) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        run: list[Stmt] = []
        for s in body:
            if isinstance(s, If) and any(map(is_matrix_product, statements(s.body))):
                out += self._apart(tuple(run), path)
                run = []
                out.append(replace(s, body=self._whole(s.body, path)))
            elif self._is_nest(s):
                run.append(s)
            else:
                out += self._apart(tuple(run), path)
                run = []
                out.append(s)
        return (*out, *self._apart(tuple(run), path))

    def _is_nest(self, s: Stmt) -> bool:
        stores = [t for t in statements((s,)) if isinstance(t, Store)]
        return isinstance(s, For) and all(
            t.intrinsic is None and {w.buffer for w in t.writes} <= self.fragments for t in stores
        )

    def _apart(self, run: tuple[Stmt, ...], path: Path) -> tuple[Stmt, ...]:
        """Nests one after the other: those that a condition cuts, twice."""
        threads = {f.name for f in path if f.kind == "threadIdx.x"}
        run = tuple(self._of_all_rows(s, threads) for s in run)
        cut = [k for k, s in enumerate(run) if self._least((s,), path)]
        if not cut:
            return run
        first, last = cut[0], cut[-1] + 1
        return (*run[:first], *self._twice(run[first:last], path), *run[last:])

    def _of_all_rows(self, s: Stmt, threads: set[str]) -> Stmt:
        """Rows do not depend on one another: padded ones are computed like others, but do not
        read what lies outside of them. A mask of whole rows is a choice of values, and stays.
        """
        assert isinstance(s, For)
        outside = any(a.buffer not in self.fragments for a in accesses((s,)))
        inner = {f.name for f in statements((s,)) if isinstance(f, For)}
        rows = frozenset(
            p
            for t in statements((s,))
            if isinstance(t, If)
            for p in t.conds
            if p.names & inner <= {s.name} and p.names & {s.name, *threads}
        )
        if rows and outside:
            (s,) = rewrite((s,), lambda t: _chosen(t, rows))
        (done,) = _without((s,), rows) if rows and not outside else (s,)
        return done

    def _least(self, run: tuple[Stmt, ...], path: Path) -> dict[Int, Int]:
        """Of conditions that may cut a tile, the smallest value over it."""
        inner = {f.name: f.extent for s in run for f in statements((s,)) if isinstance(f, For)}
        threads = {f.name: f.extent for f in path if f.kind == "threadIdx.x"}
        around = {f.name: f.extent for f in path}
        least: dict[Int, Int] = {}  # of a condition, over a tile
        for p in dict.fromkeys(_conditions(run)):
            if not p.names & inner.keys():
                continue
            try:
                least[p] = bounds(p, {**inner, **threads})[0]
            except Unknown:
                continue
        return {p: u for p, u in least.items() if u.names <= around.keys() - threads.keys()}

    def _twice(self, run: tuple[Stmt, ...], path: Path) -> tuple[Stmt, ...]:
        around = {f.name: f.extent for f in path}
        least = self._least(run, path)
        unique = list(dict.fromkeys(least.values()))
        if len(unique) > _MOST_PARTS:
            return run
        smallest = -reduce(maximum, (-u for u in unique))
        whole = If((smallest,), _without(run, frozenset(least)))
        parts = If((-smallest - 1,), run)
        return simplify_body((whole, parts), around, {})


def is_matrix_product(s: Stmt) -> bool:
    """Whether a matrix instruction computes the statement."""
    return isinstance(s, Store) and s.intrinsic is not None and s.intrinsic.fragment is not None


def _with_conditions(
    body: tuple[Stmt, ...], conds: tuple[Int, ...]
) -> Iterator[tuple[Store, tuple[Int, ...]]]:
    for s in body:
        match s:
            case Store():
                yield s, conds
            case If():
                yield from _with_conditions(s.body, (*conds, *s.conds))
            case For():
                yield from _with_conditions(s.body, conds)


def _conditions(body: tuple[Stmt, ...]) -> Iterator[Int]:
    for s in statements(body):
        if isinstance(s, If):
            yield from s.conds
        elif isinstance(s, Store):
            for w in s.writes:
                for e in preorder(w.value, children):
                    if isinstance(e, Select):
                        yield from condition_parts(e.cond)[0]


def _chosen(s: Stmt, rows: frozenset[Int]) -> tuple[Stmt, ...]:
    """A store under conditions on rows as one of a value that depends on them."""
    if not isinstance(s, If) or len(s.body) != 1 or not isinstance(store := s.body[0], Store):
        return (s,)
    mine = [p for p in s.conds if p in rows]
    if not mine:
        return (s,)
    cond = _all(mine)

    def chosen(w: Write) -> Write:
        e = w.value
        if isinstance(e, Const):
            return w
        if w.accumulates and isinstance(e, Binary):
            identity = plain_combiner(e.op, e.dtype).identity[0]
            term = Select(cond, e.b, identity, e.dtype)
            return replace(w, value=Binary(e.op, e.a, term, e.dtype))
        return replace(w, value=Select(cond, e, Const(e.dtype.wrap(0), e.dtype), e.dtype))

    new = replace(store, writes=tuple(map(chosen, store.writes)))
    left = tuple(p for p in s.conds if p not in rows)
    return (If(left, (new,)),) if left else (new,)


def _all(conds: Sequence[Int]) -> Expr:
    held = (Binary("ge", IntValue(p, INT64), IntValue(ZERO, INT64), BOOL) for p in conds)
    return reduce(lambda a, b: Binary("and", a, b, BOOL), held)


def _without(body: tuple[Stmt, ...], gone: frozenset[Int]) -> tuple[Stmt, ...]:
    """The statements where these conditions hold."""

    def value(e: Expr) -> Expr:
        if isinstance(e, Select):
            parts, others = condition_parts(e.cond)
            left = [p for p in parts if p not in gone]
            if not left and not others:
                return e.a
            if len(left) < len(parts) and not others:
                return Select(_all(left), e.a, e.b, e.dtype)
        return e

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, If):
            left = tuple(p for p in s.conds if p not in gone)
            return (replace(s, conds=left),) if left else s.body
        if isinstance(s, Store) and s.intrinsic is None:
            writes = tuple(replace(w, value=rewrite_value(w.value, value)) for w in s.writes)
            return (replace(s, writes=writes),)
        return (s,)

    return rewrite(body, go)
