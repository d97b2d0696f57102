"""GPU: makes a copy to a tile that a matrix instruction (wgmma) reads one statement, which one
thread hands to the copy engine, NVIDIA's Tensor Memory Accelerator (TMA). A copy of several boxes
becomes a statement for each.

    for i in 128:                          A.shared[i, k] = A[...]  # cuda.bulk_copy over i:128 k:64
      for k in 64:                   ->
        A.shared[i, k] = A[...]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from tilesmith.base.target import Target
from tilesmith.codegen.passes.simplify import simplify_body
from tilesmith.expr.dynamic import condition_parts
from tilesmith.expr.intervals import proves, simple_quotients, turns
from tilesmith.expr.ints import ZERO, Int, of, opaque_atoms, var
from tilesmith.expr.nodes import Const, Expr, Load, Select, map_ints
from tilesmith.ir.function import Function
from tilesmith.ir.intrinsics import BULK_COPY, WARPGROUP
from tilesmith.ir.nests import allocated, perfect_nest, rewrite_outer
from tilesmith.ir.nodes import Buffer, For, Path, Stmt, Store, Write, statements


def bulk_copies(func: Function, _: Target) -> Function:
    """Takes lowered statements with physical indices."""
    wanted = tiles_of(func.body)
    if not wanted:
        return func
    buffers = func.all_buffers | allocated(func.body)
    held = {n for n, b in allocated(func.body).items() if b.scope != "global"}

    def go(s: Stmt, path: Path) -> tuple[Stmt, ...] | None:
        if not isinstance(s, For):
            return None
        return _copies(s, {f.name: f.extent for f in path}, wanted, held, buffers) or None

    return replace(func, body=rewrite_outer(func.body, go))


def tiles_of(body: tuple[Stmt, ...]) -> frozenset[str]:
    """The buffers that matrix instructions of several warps read, in tiles of their own kind."""
    return frozenset(
        x.buffer
        for s in statements(body)
        if isinstance(s, Store) and s.intrinsic is not None and s.intrinsic.fragment is not None
        for name, x in s.operands
        if name != s.intrinsic.output and s.intrinsic.fragment.threads == WARPGROUP
    )


def source_of(value: Expr) -> Load | None:
    """What is copied, also where zeros take the place of what lies outside of the tensor."""
    while isinstance(value, Select):
        value = value.a
    return value if isinstance(value, Load) else None


def _fills_zeros(value: Expr, load: Load, shape: tuple[Int, ...], ranges: dict[str, Int]) -> bool:
    """Whether the value is the element wherever the index lies inside of the tensor, and 0
    elsewhere: so the copy engine does it.
    """
    while isinstance(value, Select):
        conds, others = condition_parts(value.cond)
        if others or not (isinstance(value.b, Const) and value.b.value == 0):
            return False
        inside = [q for p, n in zip(load.index, shape, strict=True) for q in (p, n - 1 - p)]
        for p in (simple_quotients(p, ranges) for p in conds):
            differences = ((p - q).const for q in inside)
            if not any(d is not None and d >= 0 for d in differences) and not proves(p, ranges, {}):
                return False
        value = value.a
    return True


def _copies(
    s: For, ranges: dict[str, Int], wanted: frozenset[str], held: set[str],
    buffers: dict[str, Buffer],
) -> tuple[Store, ...]:  # fmt: skip
    """The nest as a statement for each box, if it is a copy from global memory."""
    loops, inner = perfect_nest((s,))
    around = {**ranges, **{f.name: f.extent for f in loops}}
    single: dict[str, Int] = {f.name: ZERO for f in loops if f.extent.const == 1}
    inner = simplify_body(inner, around, single)
    if len(inner) != 1 or not isinstance(store := inner[0], Store) or len(store.writes) != 1:
        return ()
    (write,) = store.writes
    load = source_of(write.value)
    if write.buffer not in wanted or load is None or load.buffer in held:
        return ()
    extents = {f.name: f.trips for f in loops if f.name not in single}
    copies = []
    for w, tile in _boxes(write, extents, ranges):
        load = source_of(w.value)
        assert load is not None
        inside = {**ranges, **{n: of(e) for n, e in tile.items()}}
        if not _fills_zeros(w.value, load, buffers[load.buffer].shape, inside):
            return ()
        copies.append(Store((w,), tuple((n, of(e)) for n, e in tile.items()), BULK_COPY))
    return tuple(copies)


def _boxes(
    w: Write, extents: dict[str, int], ranges: dict[str, Int]
) -> Iterator[tuple[Write, dict[str, int]]]:
    """What is written, box by box, with the loops over each box. A loop is split where a division
    in an index needs it. Those that do not move along a dimension of their own count boxes.
    """

    def put(w: Write, env: dict[str, Int]) -> Write:
        around = {**ranges, **{n: of(e) for n, e in extents.items()}}

        def go(p: Int) -> Int:
            return simple_quotients(p.substitute(env), around)

        return Write(w.buffer, tuple(map(go, w.index)), map_ints(w.value, go))

    w = put(w, {})
    while (found := _division(w, extents)) is not None:
        name, size = found
        split: dict[str, int] = {}
        for n, e in extents.items():
            split |= {f"{n}.tile": e // size, f"{n}.at": size} if n == name else {n: e}
        extents = split
        w = put(w, {name: var(f"{name}.tile") * size + var(f"{name}.at")})
    apart = _apart(w, extents)
    box = {n: e for n, e in extents.items() if n not in apart}
    for at in product(*(range(extents[n]) for n in apart)):
        yield put(w, {n: of(k) for n, k in zip(apart, at, strict=True)}), box


def _division(w: Write, extents: dict[str, int]) -> tuple[str, int] | None:
    load = source_of(w.value)
    assert load is not None
    for p in load.index:
        for name, n in extents.items():
            if name in p.names and (size := turns(p, name, n)) is not None:
                return name, size
    return None


def _apart(w: Write, extents: dict[str, int]) -> list[str]:
    """The loops that are not one of the sides of a box."""
    load = source_of(w.value)
    assert load is not None
    sides: set[str] = set()
    for p in load.index:
        divided = {n for a in opaque_atoms(p) for n in a.names()}
        steps = {n: p.coefficient(n).const for n in extents if n in p.names - divided}
        moving = {n: step for n, step in steps.items() if step is not None and step > 0}
        sides |= {min(moving, key=lambda n: moving[n])} if moving else set()
        sides -= divided
    return [n for n in extents if n not in sides]
