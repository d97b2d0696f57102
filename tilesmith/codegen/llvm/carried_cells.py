"""Which buffers a loop can keep in registers: those whose accesses inside the loop are all to
fixed, non-overlapping cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product

from tilesmith.base.target import Target
from tilesmith.codegen.llvm.builder import V
from tilesmith.codegen.llvm.frames import Cell, in_other_rows
from tilesmith.codegen.llvm.instructions import operand_size
from tilesmith.codegen.llvm.partial_registers import fills_parts
from tilesmith.codegen.llvm.position import Lane, Position
from tilesmith.codegen.llvm.run_time_sizes import RunTimeSizes
from tilesmith.codegen.passes.strip_vectors import lanes_at_once, lanes_of
from tilesmith.expr.dynamic import loads_of
from tilesmith.expr.intervals import linear
from tilesmith.expr.ints import Int, Monomial, is_size
from tilesmith.expr.nodes import Expr, Load, Select, children
from tilesmith.expr.walk import preorder
from tilesmith.ir.nodes import Alloc, For, If, Stmt, Store, statements


# Divides vectorized loops into vectors: the (start, lanes) of each.
class VectorPieces:
    def __init__(self, target: Target) -> None:
        self.target = target
        self._pieces: dict[int, tuple[For, list[tuple[int, int]]]] = {}

    def of(self, s: For) -> list[tuple[int, int]]:
        """Whole registers first, or groups of them, then smaller powers of two, or a part."""
        if (pieces := self._pieces.get(id(s))) is not None:
            return pieces[1]
        n, width, at = s.trips, lanes_at_once(s.body, self.target), 0
        out: list[tuple[int, int]] = []
        self._pieces[id(s)] = s, out  # the loop is kept alive, because its id is the key
        rest = n % lanes_of(s.body, self.target)
        part = rest if rest.bit_count() > 1 and fills_parts(s, self.target) else 0
        while at < n:
            if n - at == part:
                width = part
            while width > n - at:
                width //= 2
            out.append((at, width))
            at += width
        return out


_MOST_CELLS = 96  # three register files; more would be spilled, and compile slowly

Span = list[tuple[int, int]]  # the values of a loop that is unrolled: (start, lanes)


def carried_cells(
    position: Position, pieces: VectorPieces, body: tuple[Stmt, ...], moving: frozenset[str]
) -> dict[int, set[Cell]]:
    """For each memory that can be carried, the cells of it that the body accesses."""
    dirty = {c.memory for f in position.frames for c, h in f.cells.items() if h.dirty}
    written = {w.buffer for s in statements(body) if isinstance(s, Store) for w in s.writes}
    inside = {s.buffer.name for s in statements(body) if isinstance(s, Alloc)}
    wanted = {
        n for n, m in position.memories.items()
        if n not in inside and (n in written or m.serial in dirty)
    }  # fmt: skip
    by_buffer: dict[str, set[Cell]] = {n: set() for n in wanted}
    for name, index, local, plain in _accesses(pieces, body, {}):
        if name not in by_buffer:
            continue
        cells = _cells(position, name, index, local, moving) if plain else None
        if cells is None or len(by_buffer[name]) + len(cells) > 4 * _MOST_CELLS:
            del by_buffer[name]
        else:
            by_buffer[name] |= cells
    return {
        position.memories[n].serial: cells
        for n, cells in by_buffer.items()
        if cells and len(cells) <= _MOST_CELLS and _apart(cells)
    }


def _apart(cells: set[Cell]) -> bool:
    order = sorted(cells)
    first = order[0].terms
    if any(c.terms != first and not in_other_rows(c.terms, first) for c in order):
        return False
    return all(a.terms != b.terms or a.offset + a.lanes <= b.offset for a, b in pairwise(order))


Local = dict[str, Span | None]
Found = tuple[str, tuple[Int, ...], Local, bool]


def _accesses(pieces: VectorPieces, body: tuple[Stmt, ...], local: Local) -> Iterator[Found]:
    """(buffer, index, loops inside, whether it is executed in every iteration) of each access."""
    for s in body:
        match s:
            case For():
                n = s.extent.const
                span: Span | None = None
                if n is None:
                    pass  # a size is open: it is counted
                elif s.kind == "vectorize" and n > 1:
                    span = pieces.of(s)
                elif s.kind == "unroll" or n == 1:
                    span = [(k, 0) for k in range(n)]
                yield from _accesses(pieces, s.body, {**local, s.name: span})
            case If():
                for name, index, inner, _ in _accesses(pieces, s.body, local):
                    yield name, index, inner, False
            case Store() if s.intrinsic is not None:
                tile = {n: [(0, 0)] for n, _ in s.tile}
                for name, load in s.operands:
                    size = operand_size(s, name)
                    plain = not s.intrinsic.by_address  # those are in memory
                    yield load.buffer, load.index, {**local, **tile, "*": [(0, size)]}, plain
            case Store():
                for w in s.writes:
                    yield w.buffer, w.index, local, True
                    for load, guarded in _loads(w.value):
                        yield load.buffer, load.index, local, not guarded


def _loads(value: Expr) -> Iterator[tuple[Load, bool]]:
    """Every Load, and whether it is executed only under a condition."""
    sure = {id(e) for e in preorder(value, _unguarded)}
    for load in loads_of(value):
        yield load, id(load) not in sure


def _unguarded(e: Expr) -> tuple[Expr, ...]:
    """The operands that are computed whenever e is; loads inside an index count as conditional."""
    return (e.cond,) if isinstance(e, Select) else children(e)


def _cells(
    position: Position, name: str, index: tuple[Int, ...], local: Local, moving: frozenset[str]
) -> set[Cell] | None:
    """None if the address depends on a run-time loop inside, or is not affine."""
    m, sizes = position.memories[name], RunTimeSizes(position)
    offset, stride0, lanes0 = 0, 0, position.lanes
    terms: dict[str, int] = {}
    spans: list[tuple[int, Span]] = []
    rows: dict[str, int] = {}  # see `in_other_rows`
    row_spans: list[tuple[str, int, Span]] = []
    in_rows = not any(is_size(n) for p in index for n in p.names)
    for mono, c in linear(index, m.strides).terms.items():
        if not mono:
            offset += c
            continue
        var = mono[0]
        if len(mono) > 1 or not isinstance(var, str):
            names = Int({mono: c}).names
            if in_rows and (found := _row(position, sizes, mono)) is not None:
                row, loop = found
                if loop in local and (span := local[loop]) is not None:
                    row_spans.append((row, c, span))
                    continue
                if isinstance(v := position.env.get(loop), int):
                    rows[row] = rows.get(row, 0) + c * v
                    continue
            fixed_here = names.isdisjoint(moving) and names.isdisjoint(local)
            product_name = sizes.name_of(mono) if fixed_here else None
            if product_name is None:
                return None
            terms[product_name] = c
            continue
        if var in moving:
            return None
        if var in local:
            span = local[var]
            if span is None:
                return None
            spans.append((c, span))
            continue
        v = position.env[var]
        if isinstance(v, int):
            offset += c * v
        elif isinstance(v, Lane):
            offset += c * v.start
            stride0 += c
        elif isinstance(v, V):
            terms[var] = c
    fixed = local.get("*")
    out: set[Cell] = set()
    count = 1
    every = [*(span for _, span in spans), *(span for _, _, span in row_spans)]
    for span in every:
        count *= len(span)
    if count > 4 * _MOST_CELLS:
        return None
    for point in product(*every):
        at, stride, lanes = offset, stride0, lanes0 if stride0 else 1
        for (c, _), (start, width) in zip(spans, point, strict=False):
            at += c * start
            if width > 1:
                stride += c
                lanes = width
        if fixed is not None:
            stride, lanes = 1, fixed[0][1]
        if stride not in (0, 1):
            return None
        here = {**terms, **rows}
        for (row, c, _), (start, width) in zip(row_spans, point[len(spans) :], strict=True):
            if width > 1:
                return None
            here[row] = here.get(row, 0) + c * start
        ordered = [t for t in here.items() if t[1]]
        ordered.sort(key=lambda t: (position.depth[t[0]], t[0]))
        out.add(Cell(m.serial, tuple(ordered), at, lanes if stride else 1))
    return out


def _row(position: Position, sizes: RunTimeSizes, mono: Monomial) -> tuple[str, str] | None:
    """The variable of an open stride, and the loop that moves along it."""
    strides = tuple(a for a in mono if is_size(a))
    loops = [a for a in mono if not is_size(a)]
    if not strides or len(loops) != 1 or not isinstance(loop := loops[0], str):
        return None
    row = sizes.row_of(strides)
    return None if row is None else (row, loop)
