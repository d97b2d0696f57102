"""GPU: spreads a nest that fills shared or global memory over the threads of a block.

The iterations are numbered; each thread takes every n-th one, so that neighbouring threads access
neighbouring elements (coalesced accesses). Where elements of the source are contiguous, each thread
takes several at once, also across the ends of short rows that follow one another in memory.

    for i in 16:                             for turn in 2:
      for j in 32:                     ->      for lane in 4:  # vectorize
        A.shared[i, j] = A[i, j]                 A.shared[(64*turn + t) // 8, ... + lane] = A[...]
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, prod

from tilesmith.codegen.passes.accesses import is_uniform, substitute_body
from tilesmith.codegen.passes.simplify import simplify_body
from tilesmith.expr.dynamic import condition_parts, loads_of
from tilesmith.expr.intervals import linear
from tilesmith.expr.ints import ZERO, Int, of, var
from tilesmith.expr.nodes import Const, Load, Select
from tilesmith.ir.nests import only_store, perfect_nest
from tilesmith.ir.nodes import Buffer, For, If, Stmt, Store
from tilesmith.ir.notes import FetchWidth
from tilesmith.ir.regions import separate

_VECTOR_NBYTES = 16


def spread(
    s: Stmt, tid: Int, num: int, ranges: dict[str, Int], buffers: Mapping[str, Buffer]
) -> Stmt | None:
    """The statement as one of `num` threads does it, number `tid`; None if its iterations depend on
    one another. `ranges` are the loops around it.
    """
    loops, inner = perfect_nest((s,))
    if any(f.extent.const is None for f in loops):  # one thread does it
        return None
    # Guards that always hold are dropped here, where no divisions obscure them.
    inner = simplify_body(inner, {**ranges, **{f.name: f.extent for f in loops}}, {})
    if not inner:
        return For(f"{loops[0].name}.turn", of(0), ()) if loops else None
    only = only_store(inner[0]) if len(inner) == 1 else None
    if only is None or only[1].intrinsic is not None or any(isinstance(f, For) for f in only[0]):
        return None
    store = only[1]
    if not all(_independent(f, loops, store) for f in loops if f.extent.const != 1):
        return None
    width, short = _width(loops, store, buffers)
    rows, loops = loops[len(loops) - short :], loops[: len(loops) - short]
    if rows:  # they count as one loop
        loops.append(For(f"{rows[0].name}.run", of(prod(f.trips for f in rows)), ()))
    extents = [f.trips for f in loops]
    idle: tuple[Int, ...] = ()  # holds for the lanes that have an element
    if width > 1:
        extents[-1] //= width
    elif len(loops) > 1 and not isinstance(store.writes[0].value, Load):
        row, extents[-1] = extents[-1], _row(extents[-1], num)
        idle = (of(row - 1) - var(loops[-1].name),) if row < extents[-1] else ()
    total = prod(extents)
    turns = -(-total // num)
    name = loops[0].name if loops else store.writes[0].buffer
    turn, lane = f"{name}.turn", f"{name}.lane"
    number = var(turn) * num + tid
    env: dict[str, Int] = {}
    stride = total
    for f, n in zip(loops, extents, strict=True):
        whole = stride
        stride //= n
        digit = (number % whole if whole < total else number) // stride
        env[f.name] = digit if n > 1 else ZERO
    if width > 1:
        env[loops[-1].name] = env[loops[-1].name] * width + var(lane)
    if rows:
        at, stride = env[loops[-1].name], loops[-1].trips
        for k, f in enumerate(rows):
            whole, stride = stride, stride // f.trips
            env[f.name] = (at % whole if k else at) // stride
    (done,) = substitute_body(inner, env)
    if width > 1:
        done = For(lane, of(width), (done,), "vectorize")
    guards = tuple(p.substitute(env) for p in idle)
    if total < turns * num:
        guards = (of(total - 1) - number, *guards)
    if guards:
        done = If(guards, (done,))
    return For(turn, of(turns), (done,))


def _row(n: int, num: int) -> int:
    """The lanes for a row of n elements of a padded image. If they are a power of two that divides
    the number of threads, a thread's column is the same in all turns, and no turn divides to find
    it. That is worth a quarter of idle lanes.
    """
    lanes = 1 << max(0, n - 1).bit_length()
    return lanes if num % lanes == 0 and 4 * n >= 3 * lanes else n


def _independent(f: For, loops: list[For], store: Store) -> bool:
    ranges = {g.name: g.extent for g in loops}
    return all(
        any(f.name in p.names and separate(p, f.name, ranges, {}) for p in w.index)
        for w in store.writes
    )


def _width(loops: list[For], store: Store, buffers: Mapping[str, Buffer]) -> tuple[int, int]:
    """The elements that a thread moves at once: those of a plain copy that are contiguous in its
    source, as far as 16 bytes. And how many of the innermost loops count them together; 0 is the
    last one by itself.
    """
    if not loops or len(store.writes) != 1:
        return 1, 0
    (write,) = store.writes
    loads = loads_of(write.value)
    note = next((n for f in loops if (n := f.count(FetchWidth)) is not None), None)
    value, conditions = write.value, tuple[Int, ...]()
    while isinstance(value, Select) and isinstance(value.b, Const):  # of padding
        ints, others = condition_parts(value.cond)
        if others:
            break
        conditions, value = (*conditions, *ints), value.a
    if len(loads) != 1 or loads[0] is not value or not loads[0].index:
        return 1, 0
    width = _VECTOR_NBYTES // max(1, write.value.dtype.bits // 8)
    width = width if note is None else min(width, note)
    last = loops[-1].name
    address = loads[0].index[-1]
    if loads[0].buffer in buffers:
        address = linear(loads[0].index, buffers[loads[0].buffer].strides)
    elif any(last in p.names for p in loads[0].index[:-1]):
        return 1, 0
    if _stride(address, last) != 1:
        return 1, 0
    if write.buffer in buffers and buffers[write.buffer].scope == "global":
        width = min(width, _stored_width(linear(write.index, buffers[write.buffer].strides), last))
    # Of rows that begin anywhere, single elements are moved: neighbours by neighbouring threads.
    across = [c for m, c in address.terms.items() if m and m != (last,)]
    best, short, run = _fitting(width, gcd(loops[-1].trips, *across)), 0, 1
    if conditions:
        while best > 1 and not all(is_uniform(p, last, best) for p in conditions):
            best //= 2
        return best, 0
    for k, f in enumerate(reversed(loops), 1):
        if best == width or (f.trips > 1 and _stride(address, f.name) != run):
            break
        run *= f.trips
        if _fitting(width, run) > best:
            best, short = _fitting(width, run), k
    return best, short


def _stored_width(address: Int, last: str) -> int:
    """The elements that a thread may store at once where its vectors begin."""
    if _stride(address, last) != 1:
        return 1
    return _fitting(_VECTOR_NBYTES, gcd(*(c for m, c in address.terms.items() if m != (last,))))


def _stride(address: Int, loop: str) -> int | None:
    """How far a loop moves; None if that is no single number."""
    step = address.coefficient(loop)
    return step.const if loop not in (address - step * var(loop)).names else None


def _fitting(width: int, count: int) -> int:
    """The largest width that divides so many elements."""
    while width > 1 and count % width:
        width //= 2
    return width
