"""GPU: cross-thread reductions, over a loop that is spread across threads (note `reduce_across`).

Each thread reduces its part into a private accumulator; a Join then gives every thread the whole
result. It becomes warp shuffles or an exchange through shared memory (codegen/c/joins.py).

    for i in 10:  # blockIdx.x                     for i in 10:  # blockIdx.x
      for k.0 in 2:                                  for k.0 in 2:
        for k.1 in 32:  # reduce_across       ->       for k.1 in 32:  # threadIdx.x
          S[i] += X[i, 32*k.0 + k.1]                     S.thread[i] += X[i, 32*k.0 + k.1]
                                                     join S.thread[i] over 32 threads
                                                     S[i] = S.thread[i]

All threads of a block reach a Join. So where some have no result to compute, as in a last tile that
is not full, they start from the identity and join in, and only what is stored has a condition.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilesmith.base.errors import BuildError
from tilesmith.base.target import Target
from tilesmith.expr.intervals import bounds
from tilesmith.expr.ints import ONE, ZERO, Int, maximum, var
from tilesmith.expr.nodes import Load
from tilesmith.ir.function import Function
from tilesmith.ir.initial import split_init
from tilesmith.ir.nodes import (
    Block,
    Buffer,
    For,
    If,
    Join,
    Path,
    Stmt,
    Write,
    rewrite,
    walk,
)
from tilesmith.ir.notes import ReduceAcross

_ORDER = {"threadIdx.z": 0, "threadIdx.y": 1, "threadIdx.x": 2}  # x changes fastest


def join_across_threads(func: Function, _: Target) -> Function:
    for path, b in list(walk(func.body)):
        if any(f.note(ReduceAcross) is not None for f in path):
            func = _join(func, path, b)
    return func


def _join(func: Function, path: Path, b: Block) -> Function:
    across = [f for f in path if f.note(ReduceAcross) is not None]
    if b.combiner is None or any(f.name not in b.reducing_loops for f in across):
        loop = across[0].name
        raise BuildError(f"{b.name} is no reduction over {loop}, which is to run across threads")
    if not b.init:
        raise BuildError(f"{b.name} is reduced across threads, but started elsewhere")
    path = tuple(_bound(f) for f in path)
    private = {w.buffer: replace(func.all_buffers[w.buffer], name=f"{w.buffer}.thread",
                                 scope="local") for w in b.writes}  # fmt: skip
    own = replace(b, writes=tuple(replace(w, buffer=private[w.buffer].name) for w in b.writes))
    first = next(k for k, f in enumerate(path) if f.name in b.reducing_loops)
    names = [f.name for f in across]
    after = _finish(b, path, first, private, _group(path, names))
    threads = {f.name for f in path if f.kind in _ORDER}
    everywhere = _everywhere(own, threads)
    if everywhere is not own:
        private = {n: _with_room(p, own, path) for n, p in private.items()}
        func = replace(func, body=split_init(func.body, everywhere, path, path[first].name))
        own = replace(own, init=False)

    scaled = _scaling(b, path[first])

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, Block) and s.name == b.name:
            return (own,)
        if isinstance(s, Block) and s.name in scaled:
            writes = (replace(w, buffer=private[w.buffer].name) for w in s.writes)
            return (replace(s, writes=tuple(writes)),)
        if isinstance(s, For) and s.name in names:
            s = _bound(s)
        if isinstance(s, For) and s.name == path[first].name:
            if first == 0:  # one launch does both
                return (For(f"{b.name}.block", ONE, (s, *after), "blockIdx.x", owner=b.name),)
            return (s, *after)
        return (s,)

    body = rewrite(func.body, go)
    buffers = tuple(_scoped(x, body, private) for x in func.buffers)
    return replace(func, body=body, buffers=(*buffers, *private.values()))


def _scaling(b: Block, loop: For) -> set[str]:
    """The blocks in a loop over the terms of a sum that multiply what was summed before, as repairs
    do (schedule/roll.py): each thread multiplies its own part.
    """
    made = {w.buffer for w in b.writes}
    others = [o for _, o in walk(loop.body) if o.name != b.name]
    scaled = {o.name for o in others if made & {w.buffer for w in o.writes}}
    for o in others:
        multiplies = o.combiner is not None and o.combiner.op == "mul" and len(o.writes) == 1
        if (o.name in scaled and not (multiplies and b.combiner and b.combiner.op == "add")) or (
            made & {x.buffer for x in o.loads}
        ):
            raise BuildError(f"{o.name} uses {b.name} before its threads have joined their parts")
    return scaled


def _everywhere(b: Block, threads: set[str]) -> Block:
    """The block without those conditions on its results that threads decide differently."""
    env, reducing = b.binding, b.reducing_loops

    def alike(p: Int) -> bool:
        return not p.names & threads or bool(p.names & reducing)

    where = frozenset(filter(alike, b.where))
    domain = frozenset(p for p in b.domain if alike(p.substitute(env)))
    return b if (where, domain) == (b.where, b.domain) else replace(b, where=where, domain=domain)


def _with_room(buffer: Buffer, b: Block, path: Path) -> Buffer:
    """The buffer with room for what the block would access without its conditions."""
    ranges = {f.name: f.extent for f in path}
    (w,) = (w for w in b.writes if w.buffer == buffer.name)
    last = (bounds(p.substitute(b.binding), ranges)[1] for p in w.index)
    shape = tuple(maximum(n, p + 1) for n, p in zip(buffer.shape, last, strict=True))
    return replace(buffer, shape=shape)


def _bound(f: For) -> For:
    """The loop with its note carried out."""
    note = f.note(ReduceAcross)
    return f if note is None else replace(f.without(ReduceAcross), kind=note.axis)


def _group(path: Path, names: list[str]) -> tuple[int, int]:
    """Extent and stride of the loops `names` in the flat number of a thread."""
    threads = [f for f in path if f.kind in _ORDER]
    threads.sort(key=lambda f: _ORDER[f.kind])  # stable: the outermost loop of an axis is first
    at = [k for k, f in enumerate(threads) if f.name in names]
    if at != list(range(at[0], at[-1] + 1)):
        raise BuildError(f"the loops {', '.join(names)} are not neighbours among the threads")
    extents = [f.trips for f in threads]
    return prod(extents[at[0] : at[-1] + 1]), prod(extents[at[-1] + 1 :])


def _finish(
    b: Block, path: Path, first: int, private: dict[str, Buffer], group: tuple[int, int]
) -> tuple[Stmt, ...]:
    """The statements behind the loops that are reduced over."""
    assert b.combiner is not None
    reducing = b.reducing_loops
    keep = [f for f in path[first:] if f.name not in reducing and f.kind not in _ORDER]
    if any(f.kind in _ORDER and f.name not in reducing for f in path[first:]):
        raise BuildError(f"{b.name} is reduced outside of the threads that hold its results")
    env: dict[str, Int] = {f.name: var(f"{f.name}.join") for f in keep}
    env |= {f.name: ZERO for f in path[first:] if f.name not in env}
    spatial = tuple(replace(i, bind=i.bind.substitute(env)) for i in b.spatial)
    at = {i.name: i.bind for i in spatial}
    loads = []
    writes = []
    for w in b.writes:
        index = tuple(p.substitute(at) for p in w.index)
        loads.append(Load(private[w.buffer].name, index, w.value.dtype))
        writes.append(
            Write(w.buffer, w.index, Load(private[w.buffer].name, w.index, w.value.dtype))
        )
    where = {p.substitute(env) for p in b.where if not p.names & reducing}
    iters = {i.name for i in b.spatial}
    domain = {p for p in b.domain if {n for n in p.names if n[0] != "#"} <= iters}
    conds = sorted({*where, *(p.substitute(at) for p in domain)}, key=str)
    threads = {f.name for f in path if f.kind in _ORDER}
    own = tuple(p for p in conds if p.names & threads)
    alike = tuple(p for p in conds if p not in own)
    stored: Stmt = Block(f"{b.name}.join", spatial, tuple(writes))
    body: tuple[Stmt, ...] = (
        Join(tuple(loads), b.combiner, *group),
        If(own, (stored,)) if own else stored,
    )
    if alike:
        body = (If(alike, body),)
    for f in reversed(keep):
        body = (For(f"{f.name}.join", f.extent, body, f.kind, owner=b.name),)
    return body


def _scoped(buffer: Buffer, body: tuple[Stmt, ...], private: dict[str, Buffer]) -> Buffer:
    """Every thread holds the result, so a buffer that only one launch uses is private as well."""
    if buffer.name not in private or buffer.scope != "global":
        return buffer
    users = sum(
        any(
            buffer.name in {w.buffer for w in b.writes} | {x.buffer for x in b.loads}
            for _, b in walk((root,))
        )
        for root in body
    )
    return replace(buffer, scope="local") if users == 1 else buffer
