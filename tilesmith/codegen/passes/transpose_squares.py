"""Makes copies that transpose process squares in registers. In a nest whose loads are contiguous
along one loop and whose stores are along another, the innermost two loops are marked `transpose`: a
square is loaded by rows, transposed in registers, and stored by columns.

Without this, one side would be moved element by element. CPU policy: it is about vector registers.
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import BOOL
from tilesmith.base.target import Target
from tilesmith.codegen.passes.accesses import are_distinct, substitute_body
from tilesmith.codegen.passes.strip_vectors import lanes_of
from tilesmith.expr.dynamic import loads_of
from tilesmith.expr.intervals import linear
from tilesmith.expr.ints import Int, of, var
from tilesmith.expr.nodes import Binary, Cast, Const, Load, Unary, children
from tilesmith.expr.walk import preorder
from tilesmith.ir.function import Function
from tilesmith.ir.nests import allocated, perfect_nest, rewrite_outer
from tilesmith.ir.nodes import Buffer, For, Path, Stmt, Store, nested
from tilesmith.ir.notes import TransposeSquare

_SMALLEST = 4
_EASY = (-1, 0, 1, 2)  # strides at which the emitter loads whole vectors without this pass

Buffers = dict[str, Buffer]


def transpose_squares(func: Function, target: Target) -> Function:
    buffers = func.all_buffers | allocated(func.body)

    def go(s: Stmt, _: Path) -> tuple[Stmt, ...] | None:
        copy = _copy(s, buffers)
        if copy is None:
            return None
        registers = target.num_vector_registers // 2  # the rest holds intermediate values
        side = min(registers, lanes_of((s,), target))
        return _in_long_rows(copy, buffers, side).covered(side)

    return replace(func, body=rewrite_outer(func.body, go))


@dataclass(frozen=True, slots=True)
class _Copy:
    """A nest around one store: contiguous loads along the loop `rows`, stores along `columns`."""

    loops: tuple[For, ...]
    rows: str
    columns: str

    def covered(self, side: int) -> tuple[Stmt, ...]:
        """As many squares of this side as fit, then smaller squares, then single elements."""
        sizes = {f.name: f.trips for f in self.loops}
        high, wide = sizes[self.rows], sizes[self.columns]
        while side > min(high, wide):
            side //= 2
        if side < _SMALLEST:
            return nested(self.loops, self.loops[-1].body)
        below, beside = high % side, wide % side
        out = [*self._squares(side)]
        if below:
            out.extend(self._part(self.rows, high - below, below).covered(side))
        if beside:
            whole = self._part(self.rows, 0, high - below)
            out.extend(whole._part(self.columns, wide - beside, beside).covered(side))
        return tuple(out)

    def _squares(self, side: int) -> tuple[Stmt, ...]:
        """Loops over squares in place of loops over elements, with the square innermost."""
        pair = (self.rows, self.columns)
        body = substitute_body(
            self.loops[-1].body, {n: var(f"{n}.square") * side + var(n) for n in pair}
        )
        stored = For(self.columns, of(side), body, "vectorize")
        square = For(self.rows, of(side), (stored,), "unroll", (TransposeSquare(),))
        over = [
            For(f"{f.name}.square", of(f.trips // side), (), "serial", f.notes)
            if f.name in pair
            else f
            for f in self.loops
        ]
        return nested(over, (square,))

    def _part(self, name: str, start: int, count: int) -> _Copy:
        """The copy restricted to some iterations of a loop."""
        body = self.loops[-1].body
        if start:
            body = substitute_body(body, {name: var(name) + start})
        loops = [replace(f, extent=of(count)) if f.name == name else f for f in self.loops]
        loops[-1] = replace(loops[-1], body=body)
        return replace(self, loops=tuple(loops))


def _in_long_rows(copy: _Copy, buffers: Buffers, side: int) -> _Copy:
    """The copy with loops joined that both sides go through as through one, where the rows or the
    columns do not consist of whole squares: such as those over the 3 x 3 elements of a filter and
    over its channels.
    """
    for name in (copy.rows, copy.columns):
        inner = next(f for f in copy.loops if f.name == name)
        if inner.trips % side == 0:
            continue
        for outer in copy.loops:
            if outer is inner or outer.extent.const == 1 or name == outer.name:
                continue
            joined = _joined(copy, outer, inner, buffers)
            if joined is not None:
                return _in_long_rows(joined, buffers, side)
    return copy


def _joined(copy: _Copy, outer: For, inner: For, buffers: Buffers) -> _Copy | None:
    """The copy with both loops as one, if each access moves along the outer one by as much as along
    the whole inner one.
    """
    (store,) = copy.loops[-1].body
    assert isinstance(store, Store)
    (w,) = store.writes
    plain = (Load, Const, Binary, Unary, Cast)
    if not all(isinstance(e, plain) for e in preorder(w.value, children)):
        return None
    count = inner.trips
    reads = [(x.buffer, x.index) for x in loads_of(w.value)]
    for buffer, index in [(w.buffer, w.index), *reads]:
        steps = _steps(buffer, index, copy.loops, buffers)
        if steps is None or steps[outer.name] != count * steps[inner.name]:
            return None
    at = var(inner.name)
    body = substitute_body(
        copy.loops[-1].body, {outer.name: at // count, inner.name: at - at // count * count}
    )
    kind = "vectorize" if "vectorize" in (outer.kind, inner.kind) else inner.kind
    longer = replace(inner, extent=outer.extent * count, kind=kind)
    loops = [longer if f is inner else f for f in copy.loops if f is not outer]
    loops[-1] = replace(loops[-1], body=body)
    keep = [longer.name if n == outer.name else n for n in (copy.rows, copy.columns)]
    return _Copy(tuple(loops), *keep) if keep[0] != keep[1] else None


def _copy(s: Stmt, buffers: Buffers) -> _Copy | None:
    """None if the nest is not a copy with strided vectors, or cannot be reordered: every element
    must be written once, and none may be read that is written.
    """
    loops = _loops(s)
    if not loops or not isinstance(store := loops[-1].body[0], Store):
        return None
    if store.intrinsic is not None or len(store.writes) != 1:
        return None
    if any(f.extent.const is None for f in loops):
        return None
    (w,) = store.writes
    loads = list(loads_of(w.value))
    if w.value.dtype is BOOL or any(load.buffer == w.buffer for load in loads):
        return None
    wrote = _steps(w.buffer, w.index, loops, buffers)
    read = [_steps(x.buffer, x.index, loops, buffers) for x in loads]
    if wrote is None or None in read:
        return None
    if not are_distinct((abs(wrote[f.name]), f.trips) for f in loops if f.trips > 1):
        return None
    reads = [r for r in read if r is not None]
    vector = loops[-1].name
    for other in reversed([f.name for f in loops[:-1]]):
        for rows, columns in ((vector, other), (other, vector)):
            along = {r[rows] for r in reads}
            if wrote[columns] != 1 or 1 not in along or not along <= {0, 1}:
                continue
            easy = wrote[vector] == 1 and all(r[vector] in _EASY for r in reads)
            if not easy:
                return _Copy(loops, rows, columns)
    return None


def _loops(s: Stmt) -> tuple[For, ...]:
    """The loops of a perfect nest whose innermost loop is vectorized; else none."""
    loops, body = perfect_nest((s,), ("serial", "unroll", "vectorize"))
    kinds = [f.kind for f in loops]
    one = kinds[-1:] == ["vectorize"] and kinds.count("vectorize") == 1
    return tuple(loops) if one and len(body) == 1 and isinstance(body[0], Store) else ()


def _steps(
    name: str, index: tuple[Int, ...], loops: tuple[For, ...], buffers: Buffers
) -> dict[str, int] | None:
    """The elements by which each loop moves an access; None if one is not constant."""
    total = linear(index, buffers[name].strides)
    steps = {f.name: 0 for f in loops}
    for factors, c in total.terms.items():
        if len(factors) == 1 and factors[0] in steps:
            steps[str(factors[0])] = c
        elif Int({factors: 1}).names & steps.keys():
            return None
    return steps
