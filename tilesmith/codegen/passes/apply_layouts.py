"""Buffers as they are in memory. `apply_layouts` converts logical to physical indices: it applies
each buffer's layout to all its accesses, and gives the buffer the shape that it has there. The
other passes give private buffers lanes, pad rows, and shrink buffers to what is used at a time.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import Access, common_loops, map_access, uses_of
from tilesmith.expr.ints import ZERO, Int, is_size, of, var
from tilesmith.ir.function import Function
from tilesmith.ir.nests import allocated
from tilesmith.ir.nodes import Alloc, Buffer, For, If, Join, Path, Stmt, Store, rewrite, statements
from tilesmith.ir.notes import Cluster
from tilesmith.ir.prepare import Merge
from tilesmith.ir.regions import THREAD_LOOPS, Box, box_of, extent, union


def apply_layouts(func: Function, _: Target) -> Function:
    """Gives each buffer the shape that it has in memory, and each access the index there.

    B = float32[256, 512] as [d1 // 16, d0, d1 % 16]         B = float32[32, 256, 16]
    C[i, j] += A[i, k] * B[k, j]                        ->   C[i, j] += A[i, k] * B[j // 16, k, ...]
    """
    buffers = func.all_buffers | allocated(func.body)
    if all(b.is_as_given for b in buffers.values()):
        return func

    def move(name: str, index: tuple[Int, ...]) -> tuple[Int, ...]:
        layout = buffers[name].layout
        if layout is None:
            return index
        env = {f"d{k}": p for k, p in enumerate(index)}
        return tuple(p.substitute(env) for p in layout)

    def flat(b: Buffer) -> Buffer:
        merged = tuple(s for s in b.prepared if isinstance(s, Merge))
        return replace(b, shape=b.physical_shape, layout=None, prepared=merged)

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, Store | Join | If):
            return (map_access(s, move),)
        return (Alloc(flat(s.buffer)),) if isinstance(s, Alloc) else (s,)

    return replace(func, params=tuple(map(flat, func.params)), body=rewrite(func.body, go))


def widen_private_buffers(func: Function, _: Target) -> Function:
    """Gives a buffer that is allocated inside a vectorized loop, and so is private to each lane, a
    dimension for the lanes, and moves its allocation out of the loop.

    CPU policy: a vectorized loop is one instruction stream over all lanes.
    """

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if not (isinstance(s, For) and s.kind == "vectorize"):
            return (s,)
        inside = allocated(s.body)
        if not inside:
            return (s,)
        lane = var(s.name)

        def move(name: str, index: tuple[Int, ...]) -> tuple[Int, ...]:
            return (*index, lane) if name in inside else index

        def widen(t: Stmt) -> tuple[Stmt, ...]:
            if isinstance(t, Alloc):
                return ()
            return (map_access(t, move),) if isinstance(t, Store | If) else (t,)

        wide = (Alloc(_with_lanes(b, s.extent)) for b in inside.values())
        return (*wide, replace(s, body=rewrite(s.body, widen)))

    return replace(func, body=rewrite(func.body, go))


def _with_lanes(b: Buffer, lanes: Int) -> Buffer:
    """The buffer with a last dimension for the lanes, which are next to each other in memory."""
    layout = None if b.layout is None else (*b.layout, var(f"d{len(b.shape)}"))
    return replace(b, shape=(*b.shape, lanes), layout=layout, align=None)


_LINE = 64
# Rows a multiple of this many bytes apart share four sets of an L1 cache with 4 KiB per way. One
# more cache line per row adds at most 1/16 to the buffer.
_MEET = 1024


def stagger_rows(func: Function, _: Target) -> Function:
    """Pads the rows of intermediate buffers whose pitch is a multiple of a large power of two. Such
    rows map to the same few cache sets and evict each other. Runs after layouts have been applied:
    shapes are those in memory.

    CPU policy: it is about set-associative caches.
    """
    whole = {
        load.buffer
        for s in statements(func.body)
        if isinstance(s, Store) and s.intrinsic is not None and s.intrinsic.by_address
        for name, load in s.operands
        if name not in s.intrinsic.by_address  # its rows are next to each other
    }

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, Alloc) and s.buffer.name not in whole:
            return (Alloc(_staggered(s.buffer)),)
        return (s,)

    return replace(func, body=rewrite(func.body, go))


def _staggered(b: Buffer) -> Buffer:
    shape = [n.const for n in b.shape]
    row = b.dtype.nbytes
    for d in range(len(shape) - 1, 0, -1):
        n = shape[d]
        if not n:  # not known, or an array without elements
            return b
        step, row = row, row * n
        if row % _MEET == 0 and n > 1 and any(m != 1 for m in shape[:d]):
            longer = list(b.shape)
            longer[d] = of(n + max(1, _LINE // step))
            return replace(b, shape=tuple(longer))
    return b


def compact(func: Function, _: Target) -> Function:
    """Shrinks intermediate buffers to what one iteration of the innermost loop around all their
    uses needs, and allocates them there.
    """
    body, uses = func.body, uses_of(func)
    shift: dict[str, tuple[Int, ...]] = {}
    homes: dict[str | None, list[Buffer]] = {}
    for b in func.buffers:
        if not uses[b.name]:
            continue
        depth = len(common_loops(uses[b.name]))
        small, low = _shrink(b, uses[b.name], depth, func)
        shift[b.name] = low
        homes.setdefault(_home(b, uses[b.name][0].path[:depth]), []).append(small)

    def move(name: str, index: tuple[Int, ...]) -> tuple[Int, ...]:
        if name not in shift:
            return index
        return tuple(p - lo for p, lo in zip(index, shift[name], strict=True))

    def go(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, Store | Join | If):
            return (map_access(s, move),)
        if isinstance(s, For) and s.name in homes:
            return (replace(s, body=(*map(Alloc, homes[s.name]), *s.body)),)
        return (s,)

    body = (*map(Alloc, homes.get(None, ())), *rewrite(body, go))
    return replace(func, body=body, buffers=())


def _home(b: Buffer, around: Path) -> str | None:
    """The loop where the buffer is allocated, the innermost one of `around`. Shared memory is
    allocated outside of the loops over the threads of a block.
    """
    threads = THREAD_LOOPS.get(b.scope, ())
    outer = list(takewhile(lambda f: f.kind not in threads, around))
    return outer[-1].name if outer else None


def _shrink(
    b: Buffer, uses: list[Access], depth: int, func: Function
) -> tuple[Buffer, tuple[Int, ...]]:
    zero = tuple(ZERO for _ in b.shape)
    if depth == 0 or (b.scope == "global" and _launched(uses[0].path[:depth])):
        return b, zero
    threads = THREAD_LOOPS.get(b.scope, ())
    box: Box | None = None
    for a in uses:
        inner = {
            f.name: f.extent
            for k, f in enumerate(a.path)
            if k >= depth or f.kind in threads or _is_shared_by(f, b)
        }
        inner |= dict(a.tile)
        box = union(box, box_of(a.index, b.shape, inner, func.rules))
    assert box is not None
    low, shape = [], []
    for span, whole in zip(box, b.shape, strict=True):
        e = extent(span, func.rules)
        n, m = e.const, whole.const
        fits = all(map(is_size, e.names)) and not (n is not None and m is not None and n >= m)
        low.append(span[0] if fits else ZERO)
        shape.append(e if fits else whole)
    return replace(b, shape=tuple(shape)), tuple(low)


def _is_shared_by(f: For, b: Buffer) -> bool:
    """Whether the blocks that a loop counts have the buffer together."""
    return b.scope == "cluster" and f.note(Cluster) is not None


def _launched(around: Path) -> bool:
    """Whether the loops are part of a GPU launch, whose threads share global memory."""
    return any("Idx" in f.kind for f in around)
