"""Which loops code generation will unroll or run in parallel, for each row of a variant, although
the decisions in their notes are still open.
"""

from __future__ import annotations

from functools import cached_property

from tilesmith.ir.function import Function
from tilesmith.ir.nodes import COPY_LANES, Block, For, If, Stmt, walk
from tilesmith.ir.notes import ParallelDepth, UnrollDepth
from tilesmith.ir.parse import Size
from tilesmith.search.features.graph import Graph, Term

_TOO_MANY = 1e9


class LoopRuns:
    """The same rules as `codegen/passes/resolve_notes.py`, as closed forms. On GPUs, loops that
    index private buffers are unrolled as well (`codegen/passes/steps_outside.py`).
    """

    def __init__(self, graph: Graph, func: Function) -> None:
        self.graph, self.func = graph, func

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
