"""GPU: keeps the part of a row that a thread reads several times in its registers.

A note `hold` on a loop over rows says how many elements a thread may keep. What the loops inside of
it read again, each thread at the same places, is loaded once, before the first of them.

    for i in 64:  # blockIdx.x, hold 32              for i in 64:  # blockIdx.x
      for k in 4:                                      for k in 4:
        for t in 32:  # threadIdx.x                      for t in 32:  # threadIdx.x
          M.thread max= X[i, 32*k + t]                     X.held[k] = X[i, 32*k + t]
      join M.thread over 32 threads             ->     for k in 4: (over threads, too)
      for j in 4:                                        M.thread max= X.held[k]
        for u in 32:  # threadIdx.x                    join M.thread over 32 threads
          Y[i, 32*j + u] = X[i, 32*j + u] - M          for j in 4:
                                                         Y[i, 32*j + u] = X.held[j] - M
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tilesmith.base.dataclass import dataclass
from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import accesses, substitute_body
from tilesmith.codegen.passes.simplify import simplify_body
from tilesmith.expr.dynamic import loads_of, map_loads
from tilesmith.expr.intervals import linear, row_major
from tilesmith.expr.ints import Int, product, var
from tilesmith.expr.nodes import Expr, Load
from tilesmith.ir.function import Function
from tilesmith.ir.nests import perfect_nest, rewrite_outer, unguarded
from tilesmith.ir.nodes import Alloc, Buffer, For, If, Path, Stmt, Store, Write, nested, rewrite
from tilesmith.ir.notes import HoldRow


def hold_rows(func: Function, _: Target) -> Function:
    """Takes lowered statements, before loops over threads are replaced."""
    inputs = {b.name for b in func.inputs}

    def go(s: Stmt, path: Path) -> tuple[Stmt, ...] | None:
        most = s.count(HoldRow) if isinstance(s, For) else None
        if most is None or not isinstance(s, For):
            return None
        if not most:
            return (s,)
        # Guards that always hold, and loops of one iteration, would hide what is alike.
        ranges = {f.name: f.extent for f in (*path, s)}
        s = replace(s, body=simplify_body(s.body, ranges, {}))
        for name in sorted(inputs & {a.buffer for a in accesses(s.body)}):
            s = _held(s, name, most)
        return (s,)

    return replace(func, body=rewrite_outer(func.body, go))


@dataclass(frozen=True, slots=True)
class _Pass:
    """A loop nest that reads a row: its position, its loops, the index in terms of these, and the
    conditions under which it reads.
    """

    at: int
    loops: tuple[For, ...]
    index: tuple[Int, ...]
    conds: tuple[Int, ...]  # of a row whose end not all threads reach

    @property
    def shape(self) -> tuple[tuple[Int, bool], ...]:
        return tuple((f.extent, _is_thread(f)) for f in self.loops)

    def over(self, names: tuple[str, ...]) -> tuple[tuple[Int, ...], frozenset[Int]]:
        """The index and the conditions with other names for the loops."""
        put = {f.name: var(n) for f, n in zip(self.loops, names, strict=True)}
        index = tuple(p.substitute(put) for p in self.index)
        return index, frozenset(p.substitute(put) for p in self.conds)


def _held(row: For, buffer: str, most: int) -> For:
    found = [p for k, s in enumerate(row.body) if (p := _pass(k, s, buffer)) is not None]
    if not found:
        return row
    shape, count = Counter(p.shape for p in found).most_common(1)[0]
    number = product(n for n, threads in shape if not threads).const
    if count < 2 or number is None or number > most:
        return row
    names = tuple(f"{buffer}.hold{k}" for k in range(len(shape)))
    first = next(p for p in found if p.shape == shape)
    same = [p for p in found if p.shape == shape and p.over(names) == first.over(names)]
    (load,) = {x for x in _loads(row.body[first.at]) if x.buffer == buffer}
    kept = Buffer(f"{buffer}.held", (_size(first),), load.dtype, "local")
    copy: Stmt = Store((Write(kept.name, (_place(first),), load),))
    if first.conds:
        copy = If(first.conds, (copy,))
    stmt = _renamed(copy, first.loops, names)
    body = list(row.body)
    for p in same:
        (body[p.at],) = rewrite((body[p.at],), lambda s, p=p: (_reads(s, buffer, kept, p),))  # type: ignore[misc]
    if len(same) < 2:
        return row
    body.insert(first.at, stmt)
    return replace(row, body=(Alloc(kept), *body))


def _pass(at: int, s: Stmt, buffer: str) -> _Pass | None:
    """The nest around a single store that reads one element of the buffer."""
    loops, inside = perfect_nest((s,))
    body, conds = unguarded(inside)
    if len(body) != 1 or not isinstance(s := body[0], Store):
        return None
    if s.intrinsic is not None or not any(map(_is_thread, loops)):
        return None
    indices = {x.index for w in s.writes for x in loads_of(w.value) if x.buffer == buffer}
    if len(indices) != 1 or any(w.buffer == buffer for w in s.writes):
        return None
    (index,) = indices
    used = {n for p in index for n in p.names}
    if not all(f.name in used for f in loops if f.extent.const != 1):
        return None
    return _Pass(at, tuple(loops), index, conds)


def _is_thread(f: For) -> bool:
    return f.kind.startswith("threadIdx")


def _own(p: _Pass) -> list[For]:
    return [f for f in p.loops if not _is_thread(f)]


def _size(p: _Pass) -> Int:
    return product(f.extent for f in _own(p))


def _place(p: _Pass) -> Int:
    """The number of an element among those that a thread keeps."""
    own = _own(p)
    return linear((var(f.name) for f in own), row_major(tuple(f.extent for f in own)))


def _loads(s: Stmt) -> set[Load]:
    (s, *_), _ = unguarded(perfect_nest((s,))[1])
    return {x for w in s.writes for x in loads_of(w.value)} if isinstance(s, Store) else set()


def _reads(s: Stmt, buffer: str, kept: Buffer, p: _Pass) -> Stmt:
    """The statement with reads of the buffer replaced by those of the kept elements."""
    if not isinstance(s, Store):
        return s

    def put(load: Load) -> Expr:
        return Load(kept.name, (_place(p),), load.dtype) if load.buffer == buffer else load

    return replace(s, writes=tuple(replace(w, value=map_loads(w.value, put)) for w in s.writes))


def _renamed(s: Stmt, loops: tuple[For, ...], names: tuple[str, ...]) -> Stmt:
    """The statement inside of the loops, which get other names."""
    new = [replace(f, name=n, notes=()) for f, n in zip(loops, names, strict=True)]
    put: dict[str, Int] = {f.name: var(n) for f, n in zip(loops, names, strict=True)}
    (stmt,) = nested(new, substitute_body((s,), put))
    return stmt
