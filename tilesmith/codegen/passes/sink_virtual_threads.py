"""GPU: moves virtual threads inside of the loops that the threads of a block run together, and
gives each one registers of its own.

A virtual thread is an unrolled loop outside of the threads. What does not depend on it, such as a
copy to shared memory, is done once for all of them.

    for v in 2:  # vthread                        for t in 16:  # threadIdx.x
      for t in 16:  # threadIdx.x                   for k in 8:
        for k in 8:                          ->       A.shared[...] = ...
          A.shared[...] = ...                         for v in 2:  # unroll
          C.local[16*v + t] += A.shared[...]            C.local[v, t] += A.shared[...]
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import Access, accesses, map_access, with_dimensions
from tilesmith.expr.dynamic import below
from tilesmith.expr.intervals import Unknown, bounds
from tilesmith.expr.ints import ONE, ZERO, Int, nonnegative, var
from tilesmith.expr.nodes import own_ints
from tilesmith.expr.walk import preorder
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Buffer, For, If, Join, Stmt, Store, rewrite, statements

VTHREAD = "vthread"


def sink_virtual_threads(func: Function, _: Target) -> Function:
    """Takes lowered statements."""
    virtual: dict[str, Int] = {}
    body: tuple[Stmt, ...] = ()
    for root in func.body:
        new = _sink((root,), (), virtual)
        if len(new) > 1:  # still one launch
            assert isinstance(root, For)
            new = (For(f"{root.name}.block", ONE, new, "blockIdx.x"),)
        body += new
    if not virtual:
        return func
    private = {b.name for b in func.buffers if b.scope in ("local", "fragment")}
    own: dict[str, tuple[str, ...]] = {}  # the virtual threads around all uses of a private buffer
    for a in accesses(body):
        if a.buffer in private:
            here = tuple(f.name for f in a.path if f.name in virtual)
            own[a.buffer] = tuple(v for v in own.get(a.buffer, here) if v in here)
    buffers = {b.name: b for b in func.buffers}
    # A guard may be all that keeps an index inside of its buffer, and it does not move along.
    moves = dict.fromkeys(own, True)
    for a in accesses(body):
        if a.buffer in own:
            moves[a.buffer] &= _stays_inside(a, buffers[a.buffer], own[a.buffer])

    def move(name: str, index: tuple[Int, ...]) -> tuple[Int, ...]:
        mine = own.get(name, ())
        zero = dict.fromkeys(mine, ZERO) if moves.get(name) else {}
        return (*map(var, mine), *(p.substitute(zero) for p in index))

    def go(s: Stmt) -> tuple[Stmt, ...]:
        return (map_access(s, move),) if isinstance(s, Store | Join) else (s,)

    def wide(b: Buffer) -> Buffer:
        return with_dimensions(b, tuple(virtual[v] for v in own.get(b.name, ())))

    return replace(func, body=rewrite(body, go), buffers=tuple(map(wide, func.buffers)))


def _stays_inside(a: Access, b: Buffer, virtual: tuple[str, ...]) -> bool:
    """Whether an index inside of the buffer stays so with 0 for the loops `virtual`."""
    zero = dict.fromkeys(virtual, ZERO)
    ranges = {f.name: f.extent for f in a.path} | dict(a.tile)
    for p, n in zip(a.index, b.shape, strict=True):
        moved = p.substitute(zero)
        try:
            low, high = bounds(moved, ranges)
            less, _ = bounds(p - moved, ranges)
        except Unknown:
            return False
        if not nonnegative(low) or not (nonnegative(less) or nonnegative(n - 1 - high)):
            return False
    return True


def _sink(
    body: tuple[Stmt, ...], around: tuple[For, ...], virtual: dict[str, Int]
) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, For) and s.kind == VTHREAD:
            virtual[s.name] = s.extent
            out += _sink(s.body, (*around, s), virtual)
        elif (
            isinstance(s, For)
            and (
                (s.kind != "serial" and "Idx" in s.kind)
                or any(isinstance(t, For) and t.kind == VTHREAD for t in statements(s.body))
                or not all(_uses(t, v.name) for t in _leaves(s.body) for v in around)
                or _reduces(s)
            )
        ) or (isinstance(s, If) and not all(_uses(t, v.name) for t in s.body for v in around)):
            tested = [v for v in around if isinstance(s, If) and _tests(s, v.name)]
            below = tuple(v for v in around if v not in tested)
            new: Stmt = replace(s, body=_sink(s.body, below, virtual))
            for v in reversed(tested):
                new = For(v.name, v.extent, (new,), "unroll")
            out.append(new)
        else:
            for v in reversed(around):
                if _uses(s, v.name):
                    s = For(v.name, v.extent, (s,), "unroll")
            out.append(s)
    return tuple(out)


def _reduces(s: For) -> bool:
    """Whether the loop, or one inside of it, is reduced over. Virtual threads stand inside of such
    loops, so that each step loads what all of them use only once.
    """
    writes = {n for t in _leaves((s,)) if isinstance(t, Store) for w in t.writes for p in w.index
              for n in p.names}  # fmt: skip
    inner = [s]
    while inner:
        f = inner.pop()
        if f.name not in writes:
            return True
        inner += [t for t in f.body if isinstance(t, For)]
    return False


def _leaves(body: tuple[Stmt, ...]) -> list[Stmt]:
    out: list[Stmt] = []
    for s in body:
        out += _leaves(s.body) if isinstance(s, For | If) else [s]
    return out


def _tests(s: If, name: str) -> bool:
    return any(name in p.names for p in s.conds)


def _uses(s: Stmt, name: str) -> bool:
    match s:
        case For():
            return any(_uses(t, name) for t in s.body)
        case If():
            return _tests(s, name) or any(_uses(t, name) for t in s.body)
        case Store():
            return any(
                name in p.names
                for w in s.writes
                for p in (*w.index, *(q for e in preorder(w.value, below) for q in own_ints(e)))
            )
        case Join():
            return any(name in p.names for x in s.values for p in x.index)
    return False
