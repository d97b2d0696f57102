"""Checks the invariants of a Function; tests run it between passes. Raises a VerifyError that names
the violation.
"""

from __future__ import annotations

from tilesmith.base.errors import VerifyError
from tilesmith.expr.dynamic import below, loads_of
from tilesmith.expr.intervals import proves
from tilesmith.expr.ints import Int, is_size
from tilesmith.expr.nodes import Expr, Load, own_ints
from tilesmith.expr.walk import preorder
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import (
    Alloc,
    Block,
    Buffer,
    For,
    If,
    Join,
    Stmt,
    Store,
    Sync,
    Write,
    statements,
    walk,
)
from tilesmith.ir.notes import PassNote
from tilesmith.ir.printer import show_statement
from tilesmith.ir.races import check_races

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
    reducing = {i.name for i in b.reducing}
    for w in b.writes:
        _write(w, iters, buffers, f"block {b.name}")
        for p in w.index:
            if p.names & reducing:
                raise VerifyError(
                    f"block {b.name} writes {w.buffer} at an index that it reduces over"
                )
        if any(load.buffer == w.buffer for load in loads_of(w.value)):
            raise VerifyError(f"block {b.name} reads {w.buffer}, which it writes")


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
