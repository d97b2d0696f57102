"""GPU: carries out reductions over a loop that is spread across the blocks of a thread-block
cluster (note `cluster`), which see one another's shared memory (distributed shared memory).

Each block reduces its part into registers and puts the result into shared memory. After a barrier
of the cluster, each block joins the parts of all for its share of the results.

    for i in 10:  # blockIdx.x                     for i in 10:  # blockIdx.x
      for t in 32:  # threadIdx.x                    for p in 2:  # blockIdx.x, cluster
        for p in 2:  # cluster                         S.parts = cluster float32[2, 32, 4]
          for k in 8:                        ->        for t in 32:  # threadIdx.x
            S.local[...] += X[..., 8*p + k]              for k in 8: S.local[...] += X[..., 8*p + k]
        for j in 4:                                      for j in 4: S.parts[p, t, j] = S.local[...]
          S[..., j] = S.local[...]                       sync cluster
                                                         for j in 2:
                                                           S[..., 2*p + j] = S.parts[0, t, 2*p + j]
                                                                           + S.parts[1, t, 2*p + j]
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from tilesmith.base.errors import BuildError
from tilesmith.base.target import Target
from tilesmith.expr.dynamic import map_loads
from tilesmith.expr.ints import ZERO, Int, of, var
from tilesmith.expr.nodes import Expr, Load, substitute
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import (
    Block,
    Buffer,
    For,
    Iter,
    Path,
    Stmt,
    Sync,
    Write,
    nested,
    rewrite,
    walk,
)
from tilesmith.ir.notes import Cluster


def join_across_blocks(func: Function, _: Target) -> Function:
    for path, b in list(walk(func.body)):
        loop = next((f for f in path if f.note(Cluster) is not None), None)
        if loop is not None and loop.kind == "serial" and loop.name in b.reducing_loops:
            func = _joined(func, path, b, loop)
    return func


def _joined(func: Function, path: Path, b: Block, loop: For) -> Function:
    size = loop.extent.const
    if size is None or size == 1:
        return replace(func, body=rewrite(func.body, lambda s: _without_note(s, loop.name)))
    name = b.writes[0].buffer
    users = [(p, c) for p, c in walk(func.body) if c.name != b.name and _reads(c, name)]
    if len(b.writes) != 1 or len(users) != 1 or b.combiner is None or b.combiner.op is None:
        raise BuildError(f"{b.name} is not summed by a cluster: it needs one result and one user")
    around, consumer = users[0]
    held = func.all_buffers[name]
    parts = Buffer(f"{name}.parts", (of(size), *held.shape), held.dtype, "cluster")
    own = tuple(f for f in around if f.owner == consumer.name)
    kept = _put(consumer, own, name, parts.name, loop)
    shared = _taken(consumer, own, b, parts, loop)
    last = next(f.name for f in reversed(path) if f.kind.startswith("blockIdx"))
    first = own[0].name if own else None

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, Block) and s.name == b.name:
            return (_own_part(b, loop),)
        if isinstance(s, For) and s.name == loop.name:
            return s.body
        if (isinstance(s, For) and s.name == first) or (
            first is None and isinstance(s, Block) and s.name == consumer.name
        ):
            return (kept, Sync("cluster"), shared, Sync("cluster"))
        if isinstance(s, For) and s.name == last:
            inner = For(loop.name, loop.extent, s.body, "blockIdx.x", loop.notes, loop.owner)
            return (replace(s, body=(inner,)),)
        return (s,)

    return replace(func, body=rewrite(func.body, go), buffers=(*func.buffers, parts))


def _without_note(s: Stmt, loop: str) -> tuple[Stmt, ...]:
    if isinstance(s, For) and s.name == loop:
        return (s.without(Cluster),)
    return (s,)


def _reads(b: Block, buffer: str) -> bool:
    return any(x.buffer == buffer for x in b.loads)


def _own_part(b: Block, loop: For) -> Block:
    """The block as one part reduces it: the part is no longer reduced over."""
    iters: list[Iter] = []
    moved: dict[str, Int] = {}
    for i in b.iters:
        own = i
        if i.kind == "R" and loop.name in i.bind.names:
            moved[i.name] = var(i.name) + i.bind.coefficient(loop.name) * var(f"{b.name}.part")
            own = replace(i, bind=i.bind.substitute({loop.name: ZERO}))
        iters.append(own)
    part = Iter(f"{b.name}.part", "S", loop.extent, var(loop.name))
    writes = tuple(Write(w.buffer, w.index, substitute(w.value, moved)) for w in b.writes)
    domain = frozenset(p.substitute(moved) for p in b.domain)
    return replace(b, iters=(part, *iters), writes=writes, domain=domain)


def _put(consumer: Block, own: Path, buffer: str, parts: str, loop: For) -> Stmt:
    """Puts a part into shared memory, by loops like those of the consumer."""
    names: dict[str, Int] = {f.name: var(f"{f.name}.put") for f in own}
    iters = tuple(replace(i, bind=i.bind.substitute(names)) for i in consumer.iters)
    x = next(x for x in consumer.loads if x.buffer == buffer)
    part = Iter(f"{consumer.name}.part", "S", loop.extent, var(loop.name))
    write = Write(parts, (var(part.name), *x.index), x)
    where = frozenset(p.substitute(names) for p in consumer.where)
    s: Stmt = Block(
        f"{consumer.name}.put", (part, *iters), (write,), where=where, domain=consumer.domain
    )
    return nested([replace(f, name=f"{f.name}.put") for f in own], (s,))[0]


def _taken(consumer: Block, own: Path, b: Block, parts: Buffer, loop: For) -> Stmt:
    """The consumer's nest for the share of this block, with the parts of all blocks joined."""
    size = loop.trips
    left, number = size, var(loop.name)
    env: dict[str, Int] = {}
    loops = []
    for f in own:
        count = f.trips
        share = gcd(left, count)
        if share > 1:
            left //= share
            digit = number % of(share) if left > 1 else number
            number = number // of(share)
            env[f.name] = digit * (count // share) + var(f.name)
        loops.append(replace(f, extent=of(count // share), kind="unroll"))
    name = b.writes[0].buffer

    def whole(x: Load) -> Expr:
        if x.buffer != name:
            return x
        assert b.combiner is not None
        total: tuple[Expr, ...] = (Load(parts.name, (of(0), *x.index), x.dtype),)
        for r in range(1, size):
            total = b.combiner.join(total, (Load(parts.name, (of(r), *x.index), x.dtype),))
        return total[0]

    iters = tuple(replace(i, bind=i.bind.substitute(env)) for i in consumer.iters)
    where = {p.substitute(env) for p in consumer.where}
    if left > 1:  # blocks without a share of their own
        where.add(-number)
    writes = tuple(replace(w, value=map_loads(w.value, whole)) for w in consumer.writes)
    s: Stmt = replace(consumer, iters=iters, writes=writes, where=frozenset(where))
    return nested(loops, (s,))[0]
