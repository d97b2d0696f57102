"""Checks the invariants of a Function; tests run it between passes. Raises a VerifyError that names
the violation.

A race of a CPU program is one: an iteration of a parallel or vectorized loop may write what another
one reads or writes, whatever made the loop run that way. `dependence.py` decides which blocks may
run at the same time. Here, what it takes for granted is proven as well: that the points of a block
write different elements, and that blocks inside of one loop stay out of the way of each other. What
cannot be proven is tried, if it is small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import combinations, combinations_with_replacement
from math import inf, prod
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError, VerifyError
from tilesmith.expr.dynamic import below, is_loaded, loads_of
from tilesmith.expr.intervals import Unknown, bounds, is_injective, proves
from tilesmith.expr.ints import (
    ZERO,
    FloorDiv,
    Int,
    is_size,
    opaque_atoms,
    var,
)
from tilesmith.expr.nodes import Expr, Load, own_ints
from tilesmith.expr.walk import preorder
from tilesmith.ir.dependence import (
    are_own_points,
    check_not_in_lanes,
    is_disjoint,
    is_vector_sum,
    running_kind,
    users_of,
)
from tilesmith.ir.evaluators import integer
from tilesmith.ir.function import Function, all_loops
from tilesmith.ir.nodes import (
    Alloc,
    Block,
    Buffer,
    For,
    If,
    Join,
    Path,
    Stmt,
    Store,
    Sync,
    Write,
    statements,
    walk,
)
from tilesmith.ir.notes import PassNote
from tilesmith.ir.printer import show_statement

KINDS = ("serial", "parallel", "vectorize", "unroll")
THREAD_AXES = tuple(f"{k}.{d}" for k in ("blockIdx", "threadIdx") for d in "xyz") + ("vthread",)


def verify(func: Function) -> None:
    names = [b.name for b in (*func.params, *func.buffers)]
    if len(set(names)) != len(names):
        raise VerifyError(f"{func.name}: two buffers share a name")
    if func.num_outputs < 1 or func.num_outputs > len(func.params):
        raise VerifyError(f"{func.name} has {func.num_outputs} outputs")
    for b in (*func.params, *func.buffers):
        if not all(is_size(n) for e in b.shape for n in e.names):
            raise VerifyError(f"the shape {list(b.shape)} of {b.name} depends on a loop")
    loops = [s.name for s in statements(func.body) if isinstance(s, For)]
    loops += [n for _, b in walk(func.body) for n, _ in b.tile]
    blocks = [b.name for _, b in walk(func.body)]
    for what, all_names in (("loops", loops), ("blocks", blocks)):
        twice = (
            {n for n in all_names if all_names.count(n) > 1}
            if len(set(all_names)) != len(all_names)
            else ()
        )
        if twice and blocks:  # lowering splits loops into parts that keep the name
            raise VerifyError(f"{func.name}: two {what} are named {sorted(twice)[0]!r}")
    written = {w.buffer for _, b in walk(func.body) for w in b.writes} | {
        w.buffer for s in statements(func.body) if isinstance(s, Store) for w in s.writes
    }
    for b in func.inputs:
        if b.name in written:
            raise VerifyError(f"{func.name} writes its input {b.name}")
    for b in func.outputs:
        if b.name not in written and not any(n.const == 0 for n in b.shape):
            raise VerifyError(f"{func.name} never writes its output {b.name}")
    _body(func, func.body, frozenset(), func.all_buffers)
    _check_barriers(func.body, {}, frozenset())
    check_races(func)


def _check_barriers(
    body: tuple[Stmt, ...], ranges: dict[str, Int], threads: frozenset[str], cond: Int | None = None
) -> None:
    """No barrier stands below a condition that threads of a block may decide differently: some
    would wait for others that never come.
    """
    for s in body:
        match s:
            case For():
                mine = threads | {s.name} if s.kind.startswith("threadIdx") else threads
                _check_barriers(s.body, {**ranges, s.name: s.extent}, mine, cond)
            case If():
                own = (p for p in s.conds if p.names & threads and not proves(p, ranges, {}))
                _check_barriers(s.body, ranges, threads, cond or next(own, None))
            case Sync() | Join() if cond is not None:
                raise VerifyError(
                    f"divergent `{show_statement(s)}`: it stands below the condition {cond} >= 0, "
                    "which depends on the thread"
                )


def _body(
    func: Function, body: tuple[Stmt, ...], scope: frozenset[str], buffers: dict[str, Buffer]
) -> None:
    buffers = dict(buffers)
    for s in body:
        match s:
            case For():
                if not all(is_size(n) for n in s.extent.names):
                    raise VerifyError(f"the extent {s.extent} of loop {s.name} depends on a loop")
                if s.name in scope:
                    raise VerifyError(f"loop {s.name} lies inside another loop of that name")
                if s.kind not in KINDS and s.kind not in THREAD_AXES:
                    raise VerifyError(f"loop {s.name} is of unknown kind {s.kind!r}")
                if any(isinstance(n, PassNote) for n in s.notes) and any(walk(s.body)):
                    raise VerifyError(f"loop {s.name} has a note that only passes may leave")
                _body(func, s.body, scope | {s.name}, buffers)
            case If():
                for p in s.conds:
                    _scoped(p, scope, f"a condition in {func.name}")
                _body(func, s.body, scope, buffers)
            case Block():
                _block(s, scope, buffers)
            case Store():
                inner = scope | {n for n, _ in s.tile}
                for w in s.writes:
                    _write(w, inner, buffers, f"a store to {w.buffer}")
            case Alloc(buffer=b):
                if b.name in buffers:
                    raise VerifyError(f"buffer {b.name} is allocated twice")
                buffers[b.name] = b
            case Join():
                for x in s.values:
                    _access(x.buffer, x.index, buffers, "a join")
                    if buffers[x.buffer].scope != "local":
                        raise VerifyError(f"{x.buffer} is joined across threads but not local")
                if len(s.values) != len(s.combiner.values):
                    raise VerifyError(f"a join of {s.values[0].buffer} has too few values")
            case Sync():
                pass


def _block(b: Block, scope: frozenset[str], buffers: dict[str, Buffer]) -> None:
    scope = scope | {n for n, _ in b.tile}
    iters = frozenset(i.name for i in b.iters)
    if len(iters) != len(b.iters):
        raise VerifyError(f"block {b.name} has two iterators of one name")
    for i in b.iters:
        if not all(map(is_size, i.extent.names)):
            raise VerifyError(f"the extent {i.extent} of {i.name} in {b.name} depends on a loop")
        _scoped(i.bind, scope, f"the binding of {i.name} in block {b.name}")
        if i.kind not in "SR":
            raise VerifyError(f"iterator {i.name} of block {b.name} is of unknown kind {i.kind!r}")
    for p in b.where:
        _scoped(p, scope, f"a guard of block {b.name}")
    for p in b.domain:
        _scoped(p, iters, f"the domain of block {b.name}")
    if not b.writes:
        raise VerifyError(f"block {b.name} writes nothing")
    if b.init and b.combiner is None:
        raise VerifyError(f"block {b.name} has an init but no reduction")
    if b.combiner is not None and len(b.combiner.values) != len(b.writes):
        raise VerifyError(f"block {b.name} joins {len(b.combiner.values)} values")
    if b.scatters and (b.combiner is None or b.init or len(b.writes) > 1):
        raise VerifyError(f"block {b.name} writes at loaded places, but is no update of elements")
    reducing = {i.name for i in b.reducing}
    for w in b.writes:
        _write(w, iters, buffers, f"block {b.name}")
        for p in w.index:
            if p.names & reducing and not is_loaded(p) and not _is_running(b):
                raise VerifyError(
                    f"block {b.name} writes {w.buffer} at an index that it reduces over"
                )
        if any(load.buffer == w.buffer for load in loads_of(w.value)):
            raise VerifyError(f"block {b.name} reads {w.buffer}, which it writes")


def _is_running(b: Block) -> bool:
    """Whether all partial results are kept in one buffer, and the last one in another."""
    return b.combiner is not None and b.keeps_partial == (False, True) and len(b.reducing) == 1


def _write(w: Write, scope: frozenset[str], buffers: dict[str, Buffer], what: str) -> None:
    _access(w.buffer, w.index, buffers, what)
    if w.value.dtype is not buffers[w.buffer].dtype:
        raise VerifyError(f"{what} stores {w.value.dtype} into {w.buffer}")
    for p in w.index:
        _scoped(p, scope, what)
    _expr(w.value, scope, buffers, what)


def _expr(value: Expr, scope: frozenset[str], buffers: dict[str, Buffer], what: str) -> None:
    for e in preorder(value, below):
        if isinstance(e, Load):
            _access(e.buffer, e.index, buffers, what)
            if e.dtype is not buffers[e.buffer].dtype:
                raise VerifyError(f"{what} reads {e.buffer} as {e.dtype}")
        for p in own_ints(e):
            _scoped(p, scope, what)


def _access(name: str, index: tuple[Int, ...], buffers: dict[str, Buffer], what: str) -> None:
    if name not in buffers:
        raise VerifyError(f"{what} uses the buffer {name}, which is not there")
    if len(index) != len(buffers[name].shape):
        raise VerifyError(
            f"{what} uses {name} with {len(index)} indices; it has {len(buffers[name].shape)}"
        )


def _scoped(p: Int, scope: frozenset[str], what: str) -> None:
    for n in p.names:
        if n not in scope and not is_size(n):
            raise VerifyError(f"{what} uses {n}, which is not in scope")


Array = np.ndarray[Any, Any]

_KINDS = ("parallel", "vectorize")
_MOST_TRIED = 1 << 16  # points of a loop nest, which take some milliseconds


@dataclass(frozen=True, slots=True)
class _Access:
    """Of one block, over the loops inside of a concurrent one; `inner` has these and its tile."""

    block: str
    buffer: str
    index: tuple[Int, ...]
    write: bool
    inner: Mapping[str, Int]
    guards: tuple[Int, ...]


def check_races(func: Function) -> None:
    """Takes a Function whose computations are blocks. One with open sizes is checked once it has
    numbers: until then, the schedule checks each step for all sizes.
    """
    loops = list(_concurrent(func.body, ()))
    if not loops or any(f.extent.const is None for f in all_loops(func.body)):
        return
    users = users_of(func)
    for path, loop in loops:
        why = f"run loop {loop.name} as {running_kind(loop)}"
        try:
            check_not_in_lanes(path, loop, why)
            if loop.kind != "vectorize" or not is_vector_sum(loop, why):
                _check_loop(func, path, loop, why, users)
        except ScheduleError as e:
            raise VerifyError(f"{func.name}: {e}") from None


def _concurrent(body: tuple[Stmt, ...], path: Path) -> Iterator[tuple[Path, For]]:
    for s in body:
        if isinstance(s, For):
            if _is_concurrent(s):
                yield path, s
            yield from _concurrent(s.body, (*path, s))


def _is_concurrent(s: Stmt) -> bool:
    return isinstance(s, For) and running_kind(s) in _KINDS


def _check_loop(
    func: Function, path: Path, loop: For, why: str, users: dict[str, set[str]]
) -> None:
    blocks = list(walk(loop.body))
    inside = {b.name for _, b in blocks}
    outputs = {p.name for p in func.outputs}
    for _, b in blocks:
        if loop.name in b.reducing_loops:
            raise ScheduleError(f"cannot {why}: {b.name} reduces over it")
    for name in sorted({w.buffer for _, b in blocks for w in b.writes}):
        private = name not in outputs and users[name] <= inside
        if private and len(loop.body) == 1 and _is_concurrent(loop.body[0]):
            continue  # that loop has its own buffer, too
        using = [(below, b) for below, b in blocks if b.name in users[name]]
        if len(using) == 1 and (private or _is_own(loop, *using[0], name)):
            continue
        accesses = [a for below, b in using for a in _accesses(below, b, name)]
        if private:
            _check_private(accesses, name, loop, why)
            continue
        own = {b.name for below, b in using if _is_own(loop, below, b, name)}
        for x, y in combinations_with_replacement(accesses, 2):
            if not (x.write or y.write) or (x is y and x.block in own):
                continue
            if _is_apart(x, y, loop.name):
                continue
            if x is y and any(
                b.name == x.block
                and is_disjoint(b, (loop, *below), func)
                and _is_one_to_one(b, name)
                for below, b in using
            ):
                continue
            if not _tried(path, loop, accesses):
                raise ScheduleError(
                    f"cannot {why}: {x.block} {_verb(x)} elements of {name} in one iteration that "
                    f"{y.block} {_verb(y)} in another"
                )


def _verb(a: _Access) -> str:
    return "may write" if a.write else "may read"


def _is_own(loop: For, below: Path, b: Block, name: str) -> bool:
    """Whether different iterations are different points of the block, which write different
    elements of the buffer.
    """
    return are_own_points(b, (loop, *below)) and _is_one_to_one(b, name)


def _accesses(below: Path, b: Block, name: str) -> Iterator[_Access]:
    inner = {f.name: f.extent for f in below} | dict(b.tile)
    env = b.binding
    guards = (*b.where, *(p.substitute(env) for p in b.domain))
    for w in b.writes:
        if w.buffer == name:
            yield _Access(b.name, name, _put(w.index, env), True, inner, guards)
    for x in b.loads:
        if x.buffer == name:
            yield _Access(b.name, name, _put(x.index, env), False, inner, guards)


def _put(index: tuple[Int, ...], env: Mapping[str, Int]) -> tuple[Int, ...]:
    return tuple(p.substitute(env) for p in index)


def _is_one_to_one(b: Block, name: str) -> bool:
    """Whether different points of the block write different elements of the buffer."""
    iters = b.iters if b.is_running else b.spatial
    extents = tuple((i.name, i.extent) for i in iters if i.extent.const != 1)
    if b.is_running:
        spatial = tuple((i.name, i.extent) for i in b.spatial if i.extent.const != 1)
        kept = zip(b.writes, b.keeps_partial, strict=True)
        return all(
            _is_injective(w.index, extents if keeps else spatial)
            for w, keeps in kept
            if w.buffer == name
        )
    return all(_is_injective(w.index, extents) for w in b.writes if w.buffer == name)


@lru_cache(maxsize=1024)
def _is_injective(index: tuple[Int, ...], extents: tuple[tuple[str, Int], ...]) -> bool:
    names = {p.name for p in index}
    if all(n in names for n, _ in extents):
        return True
    return all(map(_is_known, index)) and is_injective(index, dict(extents))


def _is_apart(a: _Access, b: _Access, loop: str) -> bool:
    """Whether two accesses meet different elements in different iterations of the loop: it moves
    both by the same step along a dimension, and the step is longer than both are apart.
    """
    if a is not b and a.index == b.index:
        return True  # in each iteration the same elements, and the one that writes has its own
    other = {n: var(f"{n}'") for n in b.inner}
    ranges = {**a.inner, **{f"{n}'": e for n, e in b.inner.items()}}
    guards = (*a.guards, *(p.substitute(other) for p in b.guards))
    for p, q in zip(a.index, b.index, strict=True):
        step = p.coefficient(loop).const
        if not step or q.coefficient(loop) != p.coefficient(loop):
            continue
        p, q = p - var(loop) * step, q - var(loop) * step
        if loop in p.names | q.names:  # it also moves them in steps of another length
            continue
        apart = p - q.substitute(other)
        if all(_is_below(d, abs(step), ranges, guards) for d in (apart, -apart)):
            return True
    return False


def _is_below(p: Int, limit: int, ranges: Mapping[str, Int], guards: tuple[Int, ...]) -> bool:
    """Whether p < limit where all guards are >= 0. Each of two accesses may have one that helps."""
    near = [g for g in guards if g.names & p.names]
    return any(
        _highest(p + sum(some, ZERO), ranges) < limit
        for count in range(3)
        for some in combinations(near, count)
    )


def _highest(p: Int, ranges: Mapping[str, Int]) -> float:
    try:
        high = bounds(p, ranges)[1].const
    except Unknown:
        return inf
    return inf if high is None else high


def _check_private(accesses: list[_Access], name: str, loop: For, why: str) -> None:
    """Each iteration has a buffer of its own: what it reads, it must have written itself."""
    writes = [a for a in accesses if a.write]
    for a in accesses:
        if not a.write and all(_is_beside(a, w, loop.name) for w in writes):
            raise ScheduleError(
                f"cannot {why}: {a.block} reads elements of {name} that only other iterations write"
            )


def _is_beside(read: _Access, write: _Access, loop: str) -> bool:
    """Whether no element that is read is written in the same iteration."""
    for p, q in zip(read.index, write.index, strict=True):
        if p == q or loop not in p.names or loop not in q.names:
            continue
        try:
            (first, last), (low, high) = bounds(p, read.inner), bounds(q, write.inner)
        except Unknown:
            continue
        if _is_positive(low - last) or _is_positive(first - high):
            return True
    return False


def _is_positive(p: Int) -> bool:
    n = p.const
    return n is not None and n > 0


def _tried(path: Path, loop: For, accesses: list[_Access]) -> bool:
    """Whether all iterations, tried one by one, have elements of their own. False if there are too
    many, or if an index is not known before the program runs.
    """
    outer = {f.name: f.extent for f in (*path, loop)}
    rows: list[Array] = []
    for a in accesses:
        ranges = {n: e.number for n, e in (outer | dict(a.inner)).items()}
        if prod(ranges.values()) > _MOST_TRIED or not all(map(_is_known, (*a.index, *a.guards))):
            return False
        grid = np.indices(tuple(ranges.values())).reshape(len(ranges), -1)
        env: dict[str, Any] = dict(zip(ranges, grid, strict=True))
        alive = np.ones(grid.shape[1], bool)
        for p in a.guards:
            alive &= np.asarray(integer(p, env)) >= 0
        columns = [env[f.name] for f in path] + [integer(p, env) for p in a.index]
        columns += [env[loop.name], int(a.write)]
        rows.append(np.stack([np.broadcast_to(c, grid.shape[1]) for c in columns], 1)[alive])
    every = np.concatenate(rows)
    if not len(every):
        return True
    turns, wrote = every[:, -2], every[:, -1]
    elements, number = np.unique(every[:, :-2], axis=0, return_inverse=True)
    first, last, written = (np.full(len(elements), v) for v in (turns.max(), 0, 0))
    np.minimum.at(first, number.ravel(), turns)
    np.maximum.at(last, number.ravel(), turns)
    np.maximum.at(written, number.ravel(), wrote)
    return not ((first < last) & (written > 0)).any()


def _is_known(p: Int) -> bool:
    return all(isinstance(a, FloorDiv) for a in opaque_atoms(p))
