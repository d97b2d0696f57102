"""A statement of a GPU program as terms over a variant's columns: the loops over blocks, threads
and within a thread, and how the lanes of a warp meet in memory.

The Function is not lowered yet: a copy to shared memory stands inside of the loops over threads,
which carry it out together, and shared buffers have the shape of the whole tensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from math import gcd, prod

from tilesmith.expr.dynamic import condition_parts
from tilesmith.expr.intervals import linear, row_major, simple_quotients
from tilesmith.expr.ints import ONE, ZERO, FloorDiv, Int, atom, is_size, opaque_atoms, var
from tilesmith.expr.nodes import Expr, Load, Select, children, ints_of, map_ints
from tilesmith.expr.walk import preorder
from tilesmith.ir.nodes import Block, Buffer, For, Path, joined, walk
from tilesmith.ir.notes import Cluster, FetchWidth, PipelineStages, ReduceAcross, VectorTerms
from tilesmith.ir.regions import terms_over
from tilesmith.search.features.graph import Graph, Term
from tilesmith.search.features.nest import (
    OPERATIONS,
    Access,
    Nest,
    apart,
    divisions_of,
    operation_of,
)

_MOST_WIDTH = 8  # elements that a thread copies at once
_VECTOR_NBYTES = 16  # that a thread moves at once at most
_FEW_TURNS = 8.0  # by which a loop over turns is unrolled


def operations_written_out(b: Block, path: Path) -> dict[str, float]:
    """How often each of OPERATIONS occurs for one instance, on average."""
    loops = {f.name: f.extent for f in path if f.kind == "unroll" and f.extent.const}
    bound = {i.name: i.bind for i in b.iters}
    every = prod(n.number for n in loops.values())
    counts = dict.fromkeys(OPERATIONS, 0.0)

    def share(names: frozenset[str]) -> float:
        return prod(n.number for f, n in loops.items() if f in names) / every

    for a in {a.key: a for x in b.loads for a in divisions_of(x)}.values():
        names = frozenset(f for n in a.names() for f in bound[n].names)
        counts["int divmod"] += share(names) if names - loops.keys() else 0
    for w in b.writes:
        value = map_ints(w.value, lambda p: simple_quotients(p.substitute(bound), loops))
        for e in preorder(value, apart):
            if (kind := operation_of(e)) is not None:
                names, loads = _depends(e)
                counts[kind] += share(names) if loads or names - loops.keys() else 0
    return counts


def operations_in_loops(b: Block, path: Path) -> dict[str, float]:
    """The same of what changes while a thread's loops run. What does not, such as the mean of a
    row, is computed before them.
    """
    inside = {f.name for f in path if axis_of(f) in ("serial", "vthread")}
    bound = {i.name: i.bind.names for i in b.iters}
    counts = dict.fromkeys(OPERATIONS, 0.0)

    def moves(names: Iterable[str]) -> bool:
        return not inside or any(bound.get(n, frozenset((n,))) & inside for n in names)

    for w in b.writes if b.combiner is None else joined(b.writes, b.combiner):
        for e in preorder(w.value, apart):
            if (kind := operation_of(e)) is not None:
                counts[kind] += moves(_depends(e)[0])
            elif isinstance(e, Load):
                counts["int divmod"] += sum(moves(a.names()) for a in divisions_of(e))
    return counts


def _depends(e: Expr) -> tuple[frozenset[str], bool]:
    """The names in an expression, and whether it loads anything."""
    names = frozenset(n for p in ints_of(e) for n in p.names)
    return names, any(isinstance(x, Load) for x in preorder(e, children))


def axis_of(f: For) -> str:
    """ "block", "thread", "vthread" or "serial"."""
    if f.note(ReduceAcross) is not None or f.kind.startswith("threadIdx"):
        return "thread"
    if f.kind.startswith("blockIdx") or f.note(Cluster) is not None:
        return "block"
    return "vthread" if f.kind == "vthread" else "serial"


class GpuNest:
    def __init__(self, nest: Nest) -> None:
        self.nest, self.graph = nest, nest.graph
        self.axes = tuple(axis_of(f) for f in nest.path)
        self.target = nest.func.all_buffers[nest.block.writes[0].buffer]

    def _product(self, *axes: str) -> Term:
        loops = zip(self.nest.loops, self.axes, strict=False)
        return self.graph.product([x.extent for x, a in loops if a in axes])

    @cached_property
    def blocks(self) -> Term:
        return self._product("block")

    @cached_property
    def threads(self) -> Term:
        """Threads that the loops around the statement name."""
        return self._product("thread")

    @cached_property
    def first(self) -> int:
        """The number of loops over blocks, which stand outermost."""
        return next((k for k, a in enumerate(self.axes) if a != "block"), len(self.axes))

    @cached_property
    def across(self) -> bool:
        """Whether the threads reduce together."""
        return any(f.note(ReduceAcross) is not None for f in self.nest.path)

    @cached_property
    def team(self) -> Term:
        """Threads that reduce together."""
        loops = zip(self.nest.loops, self.nest.path, strict=False)
        return self.graph.product([x.extent for x, f in loops if f.note(ReduceAcross) is not None])

    @cached_property
    def parts(self) -> Term:
        """Blocks that compute parts of the same results."""
        loops = zip(self.nest.loops, self.nest.path, strict=False)
        return self.graph.product([x.extent for x, f in loops if f.note(Cluster) is not None])

    @cached_property
    def lanes_of_group(self) -> int:
        """The threads that each of those threads stands for: a matrix instruction of the same
        launch is carried out by groups.
        """
        for path, b in walk(self.nest.func.body):
            here = bool(path) and path[0].name == self.nest.path[0].name
            if here and b.intrinsic is not None and b.intrinsic.fragment is not None:
                return b.intrinsic.fragment.threads
        return 1

    # copies to shared memory
    @cached_property
    def held(self) -> bool:
        """Whether threads have its results in registers, for other statements of the launch."""
        return self.target.scope == "fragment" and self.lanes_of_group == 1

    @cached_property
    def own(self) -> int:
        """The position of the first loop that belongs to the statement itself."""
        name = self.nest.block.name
        return next((k for k, f in enumerate(self.nest.path) if f.owner == name), len(self.axes))

    @cached_property
    def copies(self) -> bool:
        """Whether all threads of a block carry it out together."""
        inside = 0 < self.own < len(self.axes) and "thread" not in self.axes[self.own :]
        return self.target.scope == "shared" and inside and not self.unloads

    @cached_property
    def unloads(self) -> bool:
        """Whether threads put what they hold of a matrix instruction's result into shared memory,
        for all of them to store.
        """
        reads = self.target.scope == "shared" and "fragment" in self._read_scopes
        return reads and "thread" not in self.axes[self.own :]

    @cached_property
    def stores(self) -> bool:
        """Whether all threads of a block store together what is in shared memory."""
        outside = "thread" not in self.axes and 0 < self.own == self.first < len(self.axes)
        return outside and self.target.scope == "global" and self._read_scopes == {"shared"}

    @cached_property
    def _read_scopes(self) -> set[str]:
        return {self.nest.func.all_buffers[x.buffer].scope for x in self.nest.block.loads}

    @cached_property
    def steps(self) -> Term:
        """How often a block carries out a copy."""
        loops = list(zip(self.nest.loops, self.axes, strict=False))[: self.own]
        return self.graph.product([x.extent for x, a in loops if a == "serial"])

    @cached_property
    def tile(self) -> Term:
        """Elements of one copy."""
        return self.nest.inside[self.own]

    @cached_property
    def width(self) -> Term:
        """Elements that a thread copies at once: of rows that it divides. Rows that are copied as
        a whole follow one another. Padding is the same for all of them.
        """
        for f in self.nest.path:
            if (note := f.note(FetchWidth)) is not None:
                run = self._contiguous
                fits = largest_power(run, _MOST_WIDTH)
                alone = run < self.nest.loops[-1].extent + 1
                fits = alone.where(fits.minimum(self._aligned), fits.minimum(self._uniform))
                return self.nest.runs.size(note.count).minimum(fits)
        return self.graph.of(1)

    @cached_property
    def _uniform(self) -> int:
        """The most elements that the conditions of padding hold for together."""
        value, most = self.nest.block.writes[0].value, _MOST_WIDTH
        last = self.nest.block.iters[-1].name
        while isinstance(value, Select):
            conditions, others = condition_parts(value.cond)
            if others:
                return 1
            for p in conditions:
                if last in p.names:
                    number = p.terms.get((), 0) + (p.coefficient(last).const == -1)
                    most = gcd(most, number)
            value = value.a
        return most if isinstance(value, Load) else 1

    @cached_property
    def _aligned(self) -> int:
        """The same, of rows that begin at multiples of as many elements."""
        load = self.nest.block.writes[0].value
        while isinstance(load, Select):
            load = load.a
        if not isinstance(load, Load) or len(load.index) < 2:
            return self._uniform
        return gcd(self._uniform, self.nest.func.all_buffers[load.buffer].shape[-1].number)

    @cached_property
    def _contiguous(self) -> Term:
        """Elements of a copy that are contiguous in its source."""
        loops = self.nest.loops[self.own :]
        shape = self.target.shape  # that of the source
        run, whole = loops[-1].extent, self.graph.of(1)
        if len(loops) != len(shape):
            return run
        for inner, n, outer in zip(loops[:0:-1], shape[:0:-1], loops[-2::-1], strict=True):
            whole = whole * (1 - (self.graph.integer(n) > inner.extent))
            run = run * whole.where(outer.extent, 1)
        return run

    def stored_width(self, a: Access) -> int:
        """Elements that a thread stores at once: of rows that begin at multiples of as many."""
        most = max(1, _VECTOR_NBYTES // a.buffer.dtype.nbytes)
        return gcd(a.buffer.shape[-1].number, most)

    @cached_property
    def sharers(self) -> Term:
        """Blocks that copy the same."""
        a = next(a for a in self.nest.accesses if a.buffer.scope != "shared")
        pairs = zip(self.nest.loops, self.axes, a.moved, strict=False)
        return self.graph.product(
            [x.extent for x, axis, moved in pairs if axis == "block" and not moved]
        )

    @cached_property
    def padded(self) -> bool:
        """Whether it does not only copy, but computes: conditions of padding, as a rule."""
        return not isinstance(self.nest.block.writes[0].value, Load)

    @cached_property
    def versions(self) -> Term:
        """Tiles that a pipelined loop around it holds at once."""
        for f in self.nest.path:
            if (note := f.note(PipelineStages)) is not None:
                return self.nest.runs.size(note.count)
        return self.graph.of(1)

    # within a thread
    @cached_property
    def each(self) -> Term:
        """Instances that one thread computes."""
        return self._product("vthread", "serial")

    @cached_property
    def results(self) -> Term:
        """Elements that one thread computes."""
        loops = zip(self.nest.loops, self.axes, strict=False)
        return self.graph.product(
            [x.extent for x, a in loops if a in ("vthread", "serial") and not x.reducing]
        )

    @cached_property
    def written_out(self) -> Term:
        """Reducing steps that are unrolled. A loop over turns around the threads that reduce what
        they read themselves is unrolled by a few (codegen/c/statements.py), whatever a note says.
        """
        out, turns = self.graph.of(1), self.graph.of(1)
        for k, (loop, axis) in enumerate(zip(self.nest.loops, self.axes, strict=False)):
            if loop.reducing and axis == "serial":
                if loop.kind == "serial" and k < self._num_outside:
                    turns = turns * loop.extent
                else:
                    out = out * loop.is_kind["unroll"].where(loop.extent, 1)
        return out * turns.minimum((_FEW_TURNS / out).maximum(1))

    @cached_property
    def _num_outside(self) -> int:
        """The number of loops around the threads that reduce together; 0 if they copy first."""
        buffers = self.nest.func.all_buffers
        if any(buffers[x.buffer].scope == "shared" for x in self.nest.block.loads):
            return 0
        return next((k for k, f in enumerate(self.nest.path) if f.note(ReduceAcross)), 0)

    def turns_around(self, a: Access) -> Term:
        """Turns of the loops around a sum that move an access, unless they are written out."""
        out = self.graph.of(1)
        for loop, axis, moved in zip(self.nest.loops, self.axes, a.moved, strict=False):
            if loop.reducing:
                return out
            if moved and axis == "serial" and loop.kind == "serial":
                out = out * loop.extent
        return self.graph.of(1)

    def loaded(self, a: Access) -> Term:
        """Elements that one thread loads in one reducing step: each once, if the loops that do not
        move it are unrolled.
        """
        out = self.graph.of(1)
        for loop, axis, moved in zip(self.nest.loops, self.axes, a.moved, strict=False):
            if moved and not loop.reducing and axis in ("vthread", "serial"):
                out = out * loop.extent
        return out

    def vector(self, a: Access, strides: tuple[Term, ...]) -> Term:
        """Contiguous elements that a thread loads at once, at most 4."""
        g = self.graph
        out = g.of(1)
        for loop, axis, step in zip(self.nest.loops, self.axes, strides, strict=False):
            terms = loop.reducing and loop.name in self._vector_terms
            if axis == "serial" and (terms or not loop.reducing) and step.value == 1:
                two, four = (_divides(loop.extent, n) for n in (2, 4))
                out = out.maximum(1 + two + 2 * four)
        return out

    @cached_property
    def _vector_terms(self) -> frozenset[str]:
        return frozenset(f.name for f in self.nest.path if f.note(VectorTerms) is not None)

    def wide(self, a: Access, strides: tuple[Term, ...]) -> Term:
        """Contiguous elements that a thread moves at once in global memory, at most 16 bytes: those
        of a loop that is there for it, the innermost.
        """
        innermost = self.nest.path[-1].kind if self.nest.path else ""
        if innermost not in ("unroll", "vectorize") or strides[-1].value != 1:
            return self.graph.of(1)
        most = gcd(self._known_multiple(a), max(1, _VECTOR_NBYTES // a.buffer.dtype.nbytes))
        return largest_power(self.nest.loops[-1].extent, most)

    def _known_multiple(self, a: Access) -> int:
        """A number of elements that all parts of an address divide by that are known; 0: any."""
        if a.buffer.layout is not None or a.buffer.align is not None:
            return 0
        address = linear(a.index, row_major(a.buffer.shape))
        last = self.nest.loops[-1].name
        return gcd(*(
            c for m, c in address.terms.items()
            if m != (last,) and all(isinstance(x, str) and not is_size(x) for x in m)
        ))  # fmt: skip

    def lanes(self, strides: tuple[Term, ...], warp: int) -> list[tuple[Term, Term]]:
        """(lanes of a warp, elements from one lane to the next) for each loop over threads, the
        fastest first.
        """
        out = []
        left = self.graph.of(float(warp))
        pairs = list(zip(self.nest.loops, self.axes, strides, strict=False))
        for loop, axis, step in reversed(pairs):
            if axis == "thread":
                here = loop.extent.minimum(left)
                out.append((here, step.maximum(-1 * step)))
                left = (left / here).maximum(1)
        return out

    def sectors(self, a: Access, level: int, nbytes: int) -> Term:
        """Pieces of `nbytes` bytes that hold what the loops from `level` on touch."""
        number, length = self.nest.runs_of(a.buffer, a.spans[level])
        return number * (length * (a.nbytes / nbytes)).ceil()

    def global_strides(self, a: Access) -> tuple[Term, ...]:
        """Elements by which each loop moves in a buffer as it is in memory. Divisions that number
        the elements of fused loops cancel in the address.
        """
        if a.buffer.layout is not None or a.buffer.align is not None:
            return a.strides
        address = linear(a.index, row_major(a.buffer.shape))
        opaque = {n for x in opaque_atoms(address) for n in x.names()}
        return tuple(
            step if loop.name in opaque or not a.moved[k]
            else self.graph.integer(address.coefficient(loop.name))
            for k, (loop, step) in enumerate(zip(self.nest.loops, a.strides, strict=True))
        )  # fmt: skip

    def shared_strides(self, a: Access, tile: tuple[Term, ...]) -> tuple[Term, ...]:
        """Elements by which each loop moves in a shared buffer of the shape `tile`."""
        strides = _physical_strides(self.graph, a.buffer, tile)
        return tuple(self._step(a, loop.name, strides) for loop in self.nest.loops)

    def _step(self, a: Access, loop: str, strides: tuple[Term, ...]) -> Term:
        step = self.graph.of(0)
        for p, width in zip(
            a.buffer.layout or map(_dim, range(len(a.index))), strides, strict=True
        ):
            moved = [d for d, q in enumerate(a.index) if f"d{d}" in p.names and loop in q.names]
            for d in moved:
                terms = terms_over(a.index[d], {loop: ONE})
                if not terms:
                    step = step + width
                elif p.name is not None:
                    step = step + self.graph.integer(terms[0][0]) * width
                else:  # the loop's first step
                    moves = p.substitute({**_at_zero(a.index), f"d{d}": terms[0][0]}).const
                    step = step + (1.0 if moves is None else float(moves)) * width
        return step


def _dim(d: int) -> Int:
    return var(f"d{d}")


def _at_zero(index: Iterable[Int]) -> dict[str, Int]:
    return {f"d{k}": ZERO for k, _ in enumerate(index)}


def _divides(x: Term, n: int) -> Term:
    """1 where x is a multiple of n."""
    return 1 - (x - x // n * n).minimum(1)


def largest_power(x: Term, most: int) -> Term:
    """The largest power of two up to `most` that divides x."""
    out, n = x.graph.of(1), 2
    while n <= most:
        out = out + _divides(x, n) * (n // 2)
        n *= 2
    return out


def _physical_strides(g: Graph, b: Buffer, tile: tuple[Term, ...]) -> tuple[Term, ...]:
    """The stride of each dimension of a tile as it is in memory, in elements: row-major, and padded
    as `align` says.
    """
    order = b.layout or tuple(_dim(d) for d in range(len(tile)))
    out, step = [], g.of(1)
    for position in range(len(order) - 1, -1, -1):
        if b.align is not None and b.align[0] == position:
            _, multiple, offset = b.align
            step = ((step - offset) / multiple).ceil() * multiple + offset
        out.append(step)
        step = step * _extent(g, order[position], tile)
    return tuple(reversed(out))


def _extent(g: Graph, p: Int, tile: tuple[Term, ...]) -> Term:
    """The extent of a dimension of a layout: one of the tile, or its quotient or remainder by a
    number.
    """
    parts = [x for x in opaque_atoms(p) if isinstance(x, FloorDiv)]
    whole = g.product([tile[int(n[1:])] for n in sorted(p.names) if n[1:].isdigit()])
    if len(parts) != 1 or (by := parts[0].b.const) is None:
        return whole
    return (whole / by).ceil() if p == atom(parts[0]) else whole.minimum(by)
