"""A block and the loops around it, as terms over a variant's columns: its operations by kind,
extent and kind of each loop, and for each buffer the elements accessed below each loop and the
strides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import takewhile
from threading import Lock

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import BOOL
from tilesmith.expr.dynamic import Dynamic
from tilesmith.expr.intervals import Unknown, bounds, reduce_modulo, row_major
from tilesmith.expr.ints import ONE, FloorDiv, Int, Size, opaque_atoms, product
from tilesmith.expr.nodes import (
    COMPARISONS,
    FLOAT_FUNCTIONS,
    Binary,
    Expr,
    Load,
    Select,
    Unary,
    children,
)
from tilesmith.expr.walk import preorder
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import COPY_LANES, Block, Buffer, For, If, Path, Stmt, joined, walk
from tilesmith.ir.notes import FetchAhead, ParallelDepth, UnrollDepth
from tilesmith.ir.regions import terms_over
from tilesmith.search.features.graph import Graph, Term
from tilesmith.space.variant import Variant

ARITHMETIC = ("mad", "addsub", "mul", "divmod", "compare", "math", "other")
OPERATIONS = (
    *(f"float {kind}" for kind in ARITHMETIC), *(f"int {kind}" for kind in ARITHMETIC),
    "bool", "select",
)  # fmt: skip

_KIND = {
    "add": "addsub", "sub": "addsub", "neg": "addsub", "mul": "mul", "div": "divmod",
    "floordiv": "divmod", "mod": "divmod", "truncdiv": "divmod", "fmod": "divmod",
    "max": "compare", "min": "compare", "pow": "math",
    **dict.fromkeys(COMPARISONS, "compare"), **dict.fromkeys(FLOAT_FUNCTIONS, "math"),
}  # fmt: skip


def operations(b: Block) -> dict[str, int]:
    """How often each of OPERATIONS occurs, including the step that accumulates a reduction."""
    counts = dict.fromkeys(OPERATIONS, 0)
    for w in b.writes if b.combiner is None else joined(b.writes, b.combiner):
        for e in preorder(w.value, apart):
            if (kind := operation_of(e)) is not None:
                counts[kind] += 1
            elif isinstance(e, Load):
                counts["int divmod"] += sum(1 for _ in divisions_of(e))
    return counts


def operation_of(e: Expr) -> str | None:
    """Which of OPERATIONS it is, without its operands."""
    if isinstance(e, Select):
        return "select"
    if not isinstance(e, Unary | Binary):
        return None
    operand = children(e)[0].dtype
    family = "float" if operand.is_float else "int"
    if e.op in ("and", "or", "not") or operand is BOOL:
        return "bool"
    if _product(e) is not None:
        return f"{family} mad"  # one instruction
    return f"{family} {_KIND.get(e.op, 'other')}"


def divisions_of(e: Load) -> Iterator[FloorDiv]:
    """The divisions in the index of a load."""
    return (a for p in e.index for a in opaque_atoms(p) if isinstance(a, FloorDiv))


def apart(e: Expr) -> tuple[Expr, ...]:
    """The operands computed separately from e; the product in a multiply-add is not."""
    product = _product(e)
    if product is None:
        return children(e)
    return (*children(product), *(x for x in children(e) if x is not product))


def _product(e: Expr) -> Binary | None:
    if not isinstance(e, Binary) or e.op != "add":
        return None
    for x in (e.b, e.a):
        if isinstance(x, Binary) and x.op == "mul":
            return x
    return None


_TOO_MANY = 1e9


class LoopRuns:
    """The same rules as `codegen/passes/lower_blocks.py`, as closed forms. On GPUs, loops that
    index private buffers are unrolled as well (`codegen/passes/steps_outside.py`).
    """

    def __init__(self, graph: Graph, func: Function) -> None:
        self.graph, self.func = graph, func
        self._rules = func.rules
        self._lengths: dict[Int, Term | None] = {}

    def length(self, p: Int) -> Term | None:
        """A length, given what is known of sizes; None if it depends on a loop."""
        if p not in self._lengths:
            size = reduce_modulo(p, self._rules)
            is_open = any(n[0] != "#" for n in size.names)
            self._lengths[p] = None if is_open else self.graph.integer(size)
        return self._lengths[p]

    @cached_property
    def written_out(self) -> dict[str, Term]:
        """1 in the rows where code generation unrolls a loop, by the loop's name."""
        out: dict[str, Term] = {}
        for s in self.func.body:
            self._copies(s, self.graph.of(0), out, ())
        return out

    @cached_property
    def _registers(self) -> frozenset[str]:
        """The loops that index private buffers of GPU threads."""
        paths = list(walk(self.func.body))
        if not any("Idx" in f.kind for path, _ in paths for f in path):
            return frozenset()
        local = {b.name for b in self.func.buffers if b.scope == "local"}
        names: set[str] = set()
        for _, b in paths:
            accessed = [(w.buffer, w.index) for w in b.writes]
            accessed += [(x.buffer, x.index) for x in b.loads]
            iters = {n for name, ix in accessed if name in local for p in ix for n in p.names}
            names |= {n for i in b.iters if i.name in iters for n in i.bind.names}
        return frozenset(names)

    def _copies(self, s: Stmt, depth: Term, out: dict[str, Term], virtual: tuple[For, ...]) -> Term:
        """The number of copies of what is inside `s`. Loops are unrolled from the innermost
        outwards while that makes at most `depth` copies; a loop that is kept makes the count exceed
        it. Virtual threads around a statement stand next to it when loops are unrolled
        (codegen/passes/sink_virtual_threads.py).
        """
        g = self.graph
        if isinstance(s, For | If):
            if isinstance(s, For) and s.kind == "vthread":
                virtual = (*virtual, s)
            note = s.note(UnrollDepth) if isinstance(s, For) else None
            here = depth if note is None else self.size(note.count)
            inside = g.of(0)
            for t in s.body:
                inside = inside + self._copies(t, here, out, virtual)
            return self._around(s, inside, here, out) if isinstance(s, For) else inside
        used = {n for i in s.iters for n in i.bind.names} if isinstance(s, Block) else set()
        return g.product([g.integer(f.extent) for f in virtual if f.name in used])

    def _around(self, f: For, inside: Term, depth: Term, out: dict[str, Term]) -> Term:
        g = self.graph
        if f.kind == "vectorize":
            return inside * g.integer(f.extent).maximum(COPY_LANES) / COPY_LANES
        if f.kind == "vthread":  # counted already
            out[f.name] = g.of(1)
            return inside
        copies = inside * g.integer(f.extent)
        if f.kind == "unroll" or (f.kind == "serial" and f.name in self._registers):
            out[f.name] = g.of(1)
            return copies
        if f.kind == "serial":
            fits = (1 - self.parallel(f)) * (1 - (copies > depth))
            out[f.name] = fits
            return copies + (1 - fits) * _TOO_MANY
        return g.of(_TOO_MANY)

    def parallel(self, f: For) -> Term:
        """1 in the rows where the loop runs in parallel."""
        if f.kind == "serial" and (note := f.note(ParallelDepth)) is not None:
            return self.size(note.depth) > float(note.position)
        return self.graph.of(float(f.kind == "parallel"))

    def size(self, size: Size) -> Term:
        """A number, or the column that decides it."""
        return self.graph.column(size) if isinstance(size, str) else self.graph.of(float(size))


KINDS = ("vectorize", "unroll", "parallel")
LINE = 64  # bytes of a cache line
_LOCK = Lock()


@dataclass(frozen=True, eq=False)
class Loop:
    name: str
    extent: Term
    size: Int
    reducing: bool
    kind: str
    is_kind: dict[str, Term]  # 1 in the rows where the loop is of that kind

    @cached_property
    def moves(self) -> Term:
        """1 in the rows where it has more than one iteration."""
        return self.extent > 1


@dataclass(frozen=True, eq=False)
class Access:
    """All accesses of a block to one buffer. `touched[k]` counts the elements accessed by loops k,
    k+1, ...; `touched[-1]` those of one instance.
    """

    nest: Nest
    buffer: Buffer
    reads: bool
    writes: bool
    touched: tuple[Term, ...]
    moved: tuple[bool, ...]  # whether each loop occurs in an index
    spans: tuple[
        tuple[Term, ...], ...
    ]  # elements touched by the loops from each one on, by dimension
    index: tuple[Int, ...]  # of the first access, over loops
    home: int  # number of loops around all uses of an intermediate buffer
    places: int  # elements that one instance accesses at most

    @property
    def nbytes(self) -> int:
        return self.buffer.dtype.nbytes

    @cached_property
    def runs(self) -> tuple[Term, Term]:
        """Number and length of the contiguous pieces that all accessed elements form."""
        return self.nest.runs_of(self.buffer, self.spans[0])

    @cached_property
    def strides(self) -> tuple[Term, ...]:
        """Elements by which one step of each loop moves."""
        return tuple(map(self.stride, range(len(self.nest.loops))))

    def stride(self, k: int) -> Term:
        """That of loop k in a row-major buffer, except along vectors: a layout is chosen such that
        these are contiguous.
        """
        g, loop = self.nest.graph, self.nest.loops[k]
        if self.buffer.layout is not None and loop.kind == "vectorize":
            last = {int(n[1:]) for n in self.buffer.layout[-1].names if n[0] == "d"}
            if any(loop.name in self.index[d].names for d in last):
                return g.of(1)
        step = g.of(0)
        for p, width in zip(self.index, self._widths, strict=True):
            if loop.name in p.names:
                step = step + g.integer(_step(p, loop.name, width))
        return step

    @cached_property
    def _widths(self) -> tuple[Int, ...]:
        return row_major(self.buffer.shape)


class Nest:
    siblings: tuple[Nest, ...]  # the nests of the program in order, with this one

    def __init__(self, runs: LoopRuns, variant: Variant, path: Path, block: Block) -> None:
        self.graph, self.runs = runs.graph, runs
        self.variant, self.path, self.block = variant, path, block

    @cached_property
    def func(self) -> Function:
        return self.variant.func

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        g = self.graph
        reducing = self.block.reducing_loops
        tile = tuple(For(n, e, (), "unroll") for n, e in self.block.tile)
        loops = []
        for f in (*self.path, *tile):
            is_kind = {
                "vectorize": g.of(float(f.kind == "vectorize")),
                "unroll": self.runs.written_out.get(f.name, g.of(float(f.kind == "unroll"))),
                "parallel": self.runs.parallel(f),
            }
            loops.append(
                Loop(f.name, g.integer(f.extent), f.extent, f.name in reducing, f.kind, is_kind)
            )
        return tuple(loops)

    @cached_property
    def unroll_depth(self) -> Term:
        """The value of the innermost `unroll_depth` note."""
        for f in reversed(self.path):
            if (note := f.note(UnrollDepth)) is not None:
                return self.runs.size(note.count)
        return self.graph.of(0)

    @cached_property
    def fetched_ahead(self) -> Term:
        """The prefetch distance of a loop around the block, in iterations; 0 without one."""
        for f in self.path:
            if (note := f.note(FetchAhead)) is not None:
                return self.runs.size(note.count)
        return self.graph.of(0)

    @cached_property
    def inside(self) -> tuple[Term, ...]:
        """Iterations of loops k, k+1, ...; the last is 1."""
        out = [self.graph.of(1)]
        for loop in reversed(self.loops):
            out.append(out[-1] * loop.extent)
        return tuple(reversed(out))

    @cached_property
    def innermost(self) -> tuple[Term, ...]:
        """For each loop, 1 where it is the innermost one with more than one iteration."""
        still = self.graph.of(1)
        out = []
        for loop in reversed(self.loops):
            out.append(still * loop.moves)
            still = still - out[-1]
        return tuple(reversed(out))

    @property
    def iterations(self) -> Term:
        return self.inside[0]

    @cached_property
    def points(self) -> int:
        """Instances that are executed, without those that the guard of a partial tile skips. The
        parts of a split count as the iterator that was split.
        """
        facts = tuple(replace(f, exact=True) for f in self.func.facts)
        whole = product(i.extent for i in self.block.iters)
        # the parts of a split whose facts are gone count as 1
        return reduce_modulo(whole, replace(self.func, facts=facts).rules).const or 1

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """Written buffers, then read ones, larger buffers first. The order does not depend on the
        row, so that a feature always describes the same operand.
        """
        b = self.block
        indices: dict[str, list[tuple[Int, ...]]] = {}
        for w in b.writes:
            indices.setdefault(w.buffer, []).append(w.index)
        loads = list(b.loads)
        for x in loads:
            indices.setdefault(x.buffer, []).append(x.index)
        written = {w.buffer for w in b.writes}
        read = {x.buffer for x in loads} | (written if b.combiner is not None else set())
        buffers = self.func.all_buffers

        def order(name: str) -> tuple[bool, int, str]:
            return name not in written, -(self._whole(buffers[name])), name

        return tuple(
            self._access(buffers[n], indices[n], n in read, n in written)
            for n in sorted(indices, key=order)
        )

    def _whole(self, buffer: Buffer) -> int:
        n = product(buffer.shape).const
        return 0 if n is None else n  # what a sketch leaves open is a tile, smaller than the rest

    def _access(
        self, buffer: Buffer, indices: list[tuple[Int, ...]], reads: bool, writes: bool
    ) -> Access:
        bound = [tuple(p.substitute(self.block.binding) for p in ix) for ix in indices]
        spans = [list(self._spans(buffer, d, bound)) for d in range(len(buffer.shape))]
        g, depth = self.graph, len(self.loops)
        touched = [g.product([s[k] for s in spans]) for k in range(depth + 1)]
        names = {n for ix in bound for p in ix for n in p.names}
        moved = tuple(loop.name in names for loop in self.loops)
        by_level = tuple(tuple(s[k] for s in spans) for k in range(depth + 1))
        home = self._home(buffer.name)
        return Access(
            self, buffer, reads, writes, tuple(touched), moved, by_level, bound[0], home,
            places=len(set(bound)),
        )  # fmt: skip

    def _home(self, buffer: str) -> int:
        """The number of loops around all uses of an intermediate buffer; 0 for a parameter."""
        if all(b.name != buffer for b in self.func.buffers):
            return 0
        shared = len(self.path)
        for path, b in walk(self.func.body):
            if any(w.buffer == buffer for w in b.writes) or any(
                x.buffer == buffer for x in b.loads
            ):
                same = (f.name == g.name for f, g in zip(path, self.path, strict=False))
                shared = min(shared, sum(takewhile(bool, same)))
        return shared

    def _spans(self, buffer: Buffer, d: int, bound: list[tuple[Int, ...]]) -> Iterator[Term]:
        """The extent of dimension d that is accessed below each loop, from all loops to none."""
        whole = self.graph.integer(buffer.shape[d])
        positions = tuple(dict.fromkeys(ix[d] for ix in bound))
        names = frozenset().union(*(p.names for p in positions))
        inner: list[tuple[str, Int]] = []
        last = self._span(_lengths(positions, ()), whole)
        spans = [last]
        for loop in reversed(self.loops):
            if loop.name in names:
                inner.append((loop.name, loop.size))
                last = self._span(_lengths(positions, tuple(inner)), whole)
            spans.append(last)
        return reversed(spans)

    def _span(self, lengths: tuple[Int, ...], whole: Term) -> Term:
        """The extent of one dimension from the first to the last accessed element."""
        best: Term | None = None
        for length in lengths:
            term = self.runs.length(length)
            if term is not None:
                best = term if best is None else best.maximum(term)
        if best is None:
            return whole
        return best.minimum(whole)

    def runs_of(self, buffer: Buffer, spans: Sequence[Term]) -> tuple[Term, Term]:
        """Number and length of the contiguous runs of a box in a row-major buffer."""
        g = self.graph
        if not spans:
            return g.of(1), g.of(1)
        length, joined = spans[-1], g.of(1)
        for d in range(len(spans) - 2, -1, -1):
            whole = g.integer(buffer.shape[d + 1])
            joined = joined * (1 - (whole > spans[d + 1]))
            length = length * joined.where(spans[d], 1)
        return g.product(spans) / length, length


@lru_cache(maxsize=1 << 15)
def _step(p: Int, loop: str, width: Int) -> Int:
    """Elements by which one step of a loop moves along a dimension of that stride."""
    terms = terms_over(p, {loop: ONE})
    return terms[0][0] * width if terms else width  # inside a division, or loaded from a tensor


# Sizes are names here, so that variants of a sketch and tasks that differ in sizes share these.
@lru_cache(maxsize=1 << 15)
def _lengths(positions: tuple[Int, ...], inner: tuple[tuple[str, Int], ...]) -> tuple[Int, ...]:
    """What a dimension's extent may be, from the first to the last of these positions while the
    inner loops run; none if it has no closed form.
    """
    ranges = dict(inner)
    lows: dict[Int, None] = {}
    highs: dict[Int, None] = {}
    for p in positions:
        if any(isinstance(a, Dynamic) for a in opaque_atoms(p)):
            return ()
        try:
            low, high = bounds(p, ranges)
        except Unknown:
            return ()
        lows[low] = highs[high] = None
    return tuple(high - low + ONE for low in lows for high in highs)


def nests_of(graph: Graph, variant: Variant) -> tuple[Nest, ...]:
    """One per block, in program order."""
    runs = LoopRuns(graph, variant.func)
    nests = tuple(Nest(runs, variant, path, b) for path, b in walk(variant.func.body))
    for n in nests:
        n.siblings = nests
    return nests


def shared_nests(variant: Variant) -> tuple[Graph, tuple[Nest, ...]]:
    """The nests from which both the analytic score and the features are computed. This cache may
    forget a variant and make another graph for it later, so what is computed from the nests must be
    cached by them, never by the variant alone: terms of two graphs do not mix.
    """
    with _LOCK:  # two threads must not make two graphs
        return _nests(variant)


# A graph takes about a megabyte; what is compiled from it takes a tenth and is kept longer.
@lru_cache(maxsize=256)  # a variant is compared by identity
def _nests(variant: Variant) -> tuple[Graph, tuple[Nest, ...]]:
    graph = Graph(variant.columns, variant.fixed)
    return graph, nests_of(graph, variant)
