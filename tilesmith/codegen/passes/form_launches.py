"""GPU: brings every statement at the top of a Function into launch form (ir/nodes.py): loops over
blocks, loops over threads, and what one thread does.

Loops of one nest that are bound to the same axis count its threads together, the outermost loop
slowest; x counts faster than y, y faster than z. A nest with fewer threads than the launch leaves
the others idle. What stands outside of all loops over threads is done by every thread if it fills
private buffers, and is spread over the threads if it fills shared or global ones
(spread_copies.py).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import BuildError
from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import (
    Access,
    accesses,
    common_loops,
    substitute_body,
    uses_of,
)
from tilesmith.codegen.passes.spread_copies import spread
from tilesmith.expr.ints import ONE, ZERO, Int, of, var
from tilesmith.ir.function import Function
from tilesmith.ir.nests import allocated, perfect_nest, rewrite_outer
from tilesmith.ir.nodes import Alloc, Block, Buffer, For, If, Join, Stmt, Sync, statements
from tilesmith.ir.notes import Cluster

AXES = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
_DIVERGENT = "threads are joined below a condition that holds for some of them only"
BLOCKS = ("blockIdx.x", "blockIdx.y", "blockIdx.z")


def form_launches(func: Function, target: Target) -> Function:
    buffers = func.all_buffers | allocated(func.body)
    scopes = {name: b.scope for name, b in buffers.items()}
    # Each thread holds its part of a fragment.
    scopes = {name: "local" if s == "fragment" else s for name, s in scopes.items()}
    out: list[Stmt] = []
    waiting: list[Alloc] = []  # no loop stands around the threads that share them
    for k, root in enumerate(func.body):
        if not isinstance(root, Alloc):
            used = {a.buffer for a in accesses((root,))}
            mine = [s for s in waiting if s.buffer.name in used]
            out.append(_launch(root, k, func.name, target, scopes, buffers, out, mine))
        elif root.buffer.scope == "global":
            out.append(root)
        else:
            waiting.append(root)
    return replace(func, body=tuple(out))


def _launch(
    root: Stmt, number: int, name: str, target: Target, scopes: dict[str, str],
    buffers: dict[str, Buffer], top: list[Stmt], waiting: list[Alloc],
) -> Stmt:  # fmt: skip
    for s in statements((root,)):
        if isinstance(s, For) and s.kind in AXES and s.extent.const is None:
            raise BuildError(
                f"{name}: loop {s.name} over threads has {s.extent} iterations, which depends on "
                "an open size"
            )
    blocks, body = _blocks((root,), name)
    dropped = {f.name: ZERO for f in blocks if f.extent.const == 1}
    blocks = [f for f in blocks if f.name not in dropped]
    # Allocs stand outside of the loops whose threads use them.
    allocs = [*waiting, *(s for s in statements(body) if isinstance(s, Alloc))]
    body = rewrite_outer(body, lambda s, _: () if isinstance(s, Alloc) else None)
    top += [s for s in allocs if s.buffer.scope == "global"]
    shared = [s for s in allocs if s.buffer.scope in ("shared", "cluster")]
    local = [s for s in allocs if s.buffer.scope in ("local", "fragment")]
    threads, inner = perfect_nest(body, AXES)
    threads.sort(key=lambda f: -AXES.index(f.kind))
    if not threads or _bound_loops(inner):
        total = {a: _extent(body, a) for a in AXES}
        num = prod(total.values())
        loop = For(f"thread{number}", of(num), (), "threadIdx.x")
        threads, inner = [loop], body
    else:
        total, num = {}, prod(f.trips for f in threads)
        dropped |= {f.name: ZERO for f in threads if f.extent.const == 1}
        threads = [f for f in threads if f.name not in dropped]
        threads = threads or [For(f"thread{number}", ONE, (), "threadIdx.x")]
    if num > target.max_threads:
        raise BuildError(
            f"{name} wants {num} threads per block; the target has {target.max_threads}"
        )
    tid = of(0)
    for f in threads:
        tid = tid * f.extent + var(f.name)
    names = frozenset(f.name for f in threads)
    along = {}
    rest, left = tid, num
    for a in AXES:  # x counts fastest
        n = total.get(a, 1)
        along[a] = (rest % n if n < left else rest, n)
        rest, left = (rest // n, left // n) if n < left else (ZERO, 1)
    ranges = {f.name: f.extent for f in (*blocks, *threads)}
    around = {} if total else {n: var(n) for n in names}
    place = _Place(dropped, around, along, ranges, inside=not total)
    done = _Threads(tid, num, names, scopes, buffers).body(inner, place)
    stmts: tuple[Stmt, ...] = (*local, *done)
    for f in reversed(threads):
        stmts = (replace(f, body=stmts, kind="threadIdx.x", notes=()),)
    stmts = (*shared, *stmts)
    for f in reversed(blocks):
        notes = tuple(n for n in f.notes if isinstance(n, Cluster))
        stmts = (replace(f, body=stmts, kind="blockIdx.x", notes=notes),)
    if not blocks:  # a single one
        stmts = (For(f"block{number}", ONE, stmts, "blockIdx.x"),)
    return stmts[0]


def _blocks(body: tuple[Stmt, ...], name: str) -> tuple[list[For], tuple[Stmt, ...]]:
    """The loops over blocks, slowest first, and what stands inside of them."""
    loops: list[For] = []
    allocs: list[Stmt] = []
    while True:
        allocs += [s for s in body if isinstance(s, Alloc)]
        rest = [s for s in body if not isinstance(s, Alloc)]
        if len(rest) != 1 or not isinstance(rest[0], For) or rest[0].kind not in BLOCKS:
            break
        loops.append(rest[0])
        body = rest[0].body
    inner = (*allocs, *rest)
    for s in statements(inner):
        if isinstance(s, For) and s.kind in BLOCKS:
            raise BuildError(
                f"{name}: loop {s.name} is bound to {s.kind} inside of other loops or beside other "
                "statements; loops over blocks stand outermost, one directly in the other"
            )
    loops.sort(key=lambda f: -BLOCKS.index(f.kind))
    return loops, inner


def _bound_loops(body: tuple[Stmt, ...]) -> bool:
    return any(isinstance(s, For) and s.kind in AXES for s in statements(body))


def _extent(body: tuple[Stmt, ...], axis: str) -> int:
    """The threads along an axis that the body needs."""
    most = 1
    for s in body:
        if isinstance(s, For):
            inner = _extent(s.body, axis)
            most = max(most, inner * s.trips if s.kind == axis else inner)
        elif isinstance(s, If):
            most = max(most, _extent(s.body, axis))
    return most


def _require_no_barrier(s: Stmt) -> None:
    if any(isinstance(t, Join | Sync) for t in statements((s,))):
        raise BuildError(_DIVERGENT)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a statement stands, as seen by one thread."""

    env: dict[str, Int]  # values of loops that were replaced
    threads: dict[str, Int]  # values of the loops over threads around it, replaced or not
    along: dict[str, tuple[Int, int]]  # per axis, the thread's number in its group, and their count
    ranges: dict[str, Int]  # the loops around it, after the replacement
    guards: tuple[Int, ...] = ()  # hold for the threads that take part
    inside: bool = False  # whether loops over threads stand around


@dataclass(frozen=True, slots=True)
class _Threads:
    """The threads of a launch while its body is rewritten into what one of them does."""

    tid: Int
    num: int
    names: frozenset[str]  # the loops over threads
    scopes: dict[str, str]  # of the buffers
    buffers: dict[str, Buffer]

    def body(self, body: tuple[Stmt, ...], at: _Place) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for s in body:
            if isinstance(s, For) and s.kind in AXES:
                out += self.body(s.body, self._enter(s, at))
            elif isinstance(s, For | If) and self._open(s):
                (new,) = substitute_body((replace(s, body=()),), at.env)
                assert isinstance(new, For | If)
                if isinstance(new, If) and any(p.names & self.names for p in new.conds):
                    _require_no_barrier(s)
                inner = at
                if isinstance(s, For):
                    inner = replace(at, ranges={**at.ranges, s.name: s.extent})
                out.append(replace(new, body=self.body(s.body, inner)))
            elif isinstance(s, Join):
                (new,) = substitute_body((s,), at.env)
                assert isinstance(new, Join)
                out.append(self._join(new, at))
            elif isinstance(s, Sync):
                out.append(s)
            else:
                out += self._leaf(s, at)
        return tuple(out)

    def _open(self, s: For | If) -> bool:
        """Whether the statement holds parts that different threads carry out differently."""
        if _bound_loops((s,)) or any(isinstance(t, Join) for t in statements((s,))):
            return True
        written = {self.scopes[a.buffer] for a in accesses((s,)) if a.write}
        several = any(isinstance(t, For | If) and len(t.body) > 1 for t in statements((s,)))
        return len(written) > 1 or (several and written != {"local"})

    def _enter(self, f: For, at: _Place) -> _Place:
        """Replaces a loop over threads by the number that a thread has in it."""
        number, count = at.along[f.kind]
        inner = _extent(f.body, f.kind)
        value = number // inner
        guards = at.guards
        if f.trips * inner < count:
            guards = (*guards, f.extent - 1 - value)
        along = {**at.along, f.kind: (number - inner * value, inner)}
        env, threads = {**at.env, f.name: value}, {**at.threads, f.name: value}
        return _Place(env, threads, along, at.ranges, guards, True)

    def _join(self, s: Join, at: _Place) -> Join:
        """Idle threads hold the identity and join in, if that leaves no group without a result."""
        if at.guards:
            raise BuildError(_DIVERGENT)
        used = s.extent * s.stride
        if used < self.num and not at.inside and self.num % s.stride == 0:
            return replace(s, extent=self.num // s.stride)
        if self.num % used:
            raise BuildError(f"{self.num} threads do not form groups of {used} to be joined")
        return s

    def _leaf(self, s: Stmt, at: _Place) -> tuple[Stmt, ...]:
        used = {n for a in accesses((s,)) if a.write for p in a.index for n in p.names}
        (s,) = substitute_body((s,), at.env)
        written = {self.scopes[a.buffer] for a in accesses((s,)) if a.write}
        if written <= {"local"} and not at.inside:
            return (s,)
        by_thread = any(self.names & p.names for a in accesses((s,)) for p in a.index if a.write)
        if at.inside and (written != {"shared"} or by_thread):
            guards = at.guards
            if written != {"local"}:  # of threads that would write the same, one does
                guards += tuple(-number for number, count in at.along.values() if count > 1)
                guards += tuple(-value for n, value in at.threads.items() if n not in used)
            return (If(guards, (s,)),) if guards else (s,)
        reads = {self.scopes[a.buffer] for a in accesses((s,)) if not a.write}
        done = None
        if "local" not in reads:
            done = spread(s, self.tid, self.num, at.ranges, self.buffers)
        return (If((-self.tid,), (s,)),) if done is None else (done,)


def append_scalars(func: Function, _: Target) -> Function:
    """GPU: computes a scalar in the launch before, if that has a single block, instead of in one of
    its own: a launch takes longer than the scalar. Takes blocks whose reductions across threads are
    joined.

    for S.block in 1:  # blockIdx.x             for S.block in 1:  # blockIdx.x
      for t in 32: S += ...            ->         for t in 32: S += ...
    Y = sqrt(S)                                   Y = sqrt(S)
    """
    body: list[Stmt] = []
    for s in func.body:
        last = body[-1] if body else None
        if isinstance(s, Block) and isinstance(last, For) and _is_single(last):
            body[-1] = replace(last, body=(*last.body, s))
        else:
            body.append(s)
    return replace(func, body=tuple(body)) if len(body) < len(func.body) else func


def _is_single(root: For) -> bool:
    return root.kind == "blockIdx.x" and root.extent.const == 1


def place_buffers(func: Function, _: Target) -> Function:
    """GPU: decides where the buffers between the statements of one launch live. Takes lowered
    statements whose virtual threads still stand outside.

    A buffer whose uses all stand inside of the loops over threads is private to a thread. One whose
    uses all stand inside of the loops over blocks is shared by the threads of a block. Any other is
    in global memory. A scope that the schedule gave is widened if the uses are further apart.
    """
    uses = uses_of(func)
    joined = {x.buffer for s in statements(func.body) if isinstance(s, Join) for x in s.values}
    return replace(
        func,
        buffers=tuple(b if b.name in joined else _placed(b, uses[b.name]) for b in func.buffers),
    )


def _placed(b: Buffer, uses: list[Access]) -> Buffer:
    if not uses:
        return b
    around = common_loops(uses)
    kinds = {_axis(f) for f in around}
    if b.scope == "global":
        further = {_axis(f) for a in uses for f in a.path[len(around) :]}
        if "threadIdx" in kinds and "threadIdx" not in further:
            return replace(b, scope="local")
        return replace(b, scope="shared") if "blockIdx" in kinds else b
    if not around:  # several launches
        return replace(b, scope="global")
    if b.scope == "local" and not all(_private(a, len(around)) for a in uses):
        return replace(b, scope="shared")
    return b


def _private(a: Access, depth: int) -> bool:
    """Whether an access below the common loops leaves the buffer private: all threads carry out
    what stands outside of their loops, but nobody else what stands inside.
    """
    return not a.write or all(_axis(f) != "threadIdx" for f in a.path[depth:])


def _axis(f: For) -> str:
    return f.kind.split(".")[0]
