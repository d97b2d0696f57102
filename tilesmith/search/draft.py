"""An analytic score that needs no measurements: the cycles that the rows of a variant should take,
from closed forms over its decision variables. It drafts the first candidates, and filters later.

For each statement: instructions of its register tile against the ports of the machine, bytes that
move between the caches, given which of its loops touch no more than each of them holds; and how
evenly the cores share the work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd, prod

import numpy as np

from tilesmith.expr.ints import FloorDiv, opaque_atoms, product
from tilesmith.expr.nodes import settled
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, Path, walk
from tilesmith.search.features.graph import Graph, Term
from tilesmith.search.features.machine import Compiled
from tilesmith.search.features.nest import LINE, Access, Nest, shared_nests
from tilesmith.search.features.operations import operations
from tilesmith.search.protocol import Scores
from tilesmith.space.analysis import written_out
from tilesmith.space.domains import Matrix
from tilesmith.space.variant import Variant

# Instructions for an operation, by its kind; functions are polynomials.
_COST = {"divmod": 6.0, "math": 12.0}
_WAY = 4096  # bytes of one way of the first cache: what an address says without translation
_WAYS = 16  # of the other caches
_RUNS = (64.0, 256.0, 256.0)  # bytes that each could send while a piece of memory is waited for
_LATENCY = 5.0  # cycles until a sum can be added to: four, and what is lost on the way
_TAIL = 0.98  # of its speed is left for every tile that does not divide: its code grows
_SHARED = 0.35  # of the shorter of computing and loading comes on top: they wait for each other
# Cycles for an element of a sum whose vectors lie across the rows of the output: no register holds
# them, so that each step loads, inserts, extracts and stores every element on its own, and the next
# step waits for that store (4.5 measured on Neoverse-N1).
_ACROSS = 4.0


@dataclass(frozen=True)
class Draft:
    """`ports` vector instructions and as many loads go out in a cycle; `bandwidth` is bytes a cycle
    from the second and the third cache and from memory; `room` is the share of a cache that a tile
    can count on.
    """

    ports: int = 2
    bandwidth: tuple[float, float, float] = (32.0, 10.0, 4.0)
    room: float = 0.75

    def score(self, variant: Variant, rows: Matrix) -> Scores:
        """Higher is better: the share of the machine's peak, over all statements."""
        return np.exp2(self.predict(variant, rows))

    def predict(self, variant: Variant, rows: Matrix) -> Scores:
        """The score as doublings of speed, which is what learned models predict too."""
        return _compiled(self, variant)(rows)[:, 0].astype(np.float64)


@lru_cache(maxsize=1024)
def _compiled(draft: Draft, variant: Variant) -> Compiled:
    said = doublings(draft, variant)
    return said.graph.compile([said])


@lru_cache(maxsize=1024)
def doublings(draft: Draft, variant: Variant) -> Term:
    """What is predicted, as a term."""
    graph, nests = shared_nests(variant)
    cycles = graph.of(0)
    for n in nests:
        cycles = cycles + _cycles(draft, n)
    task = variant.task
    work = sum(
        prod(i.extent.const or 1 for i in b.iters) * _instructions(b)
        for _, b in walk(task.func.body)
    )
    ideal = work / (task.target.lanes(32) * draft.ports * task.target.num_cores)
    share = ideal / cycles.maximum(1e-9) * _tails(variant, graph)
    return share.maximum(1e-9).log2()


def _instructions(b: Block, path: Path = ()) -> float:
    """Of one instance; a copy is one."""
    if settles := written_out(path, b):
        writes = (replace(w, value=settled(w.value, settles)) for w in b.writes)
        b = replace(b, writes=tuple(writes))
    counts = operations(b)
    counts["int divmod"] -= _divided_for_rows(b)
    total = sum(c * _COST.get(name.split()[-1], 1.0) for name, c in counts.items())
    return max(1.0, total)


def _divided_for_rows(b: Block) -> int:
    """Divisions in the places of what is read that the lanes do not move: done once for a row."""
    last = b.writes[0].index[-1:]
    lanes = {n for p in last for n in p.names}
    atoms = (a for load in b.loads for p in load.index for a in opaque_atoms(p))
    return sum(isinstance(a, FloorDiv) and not a.names() & lanes for a in atoms)


@lru_cache(maxsize=1024)  # the draft and the features both ask for them
def estimates(draft: Draft, n: Nest) -> tuple[Term, ...]:
    """Cycles of a statement on one core: to compute, and for what comes from each cache."""
    streamed, waited = _transfers(draft, n)
    return (_compute(draft, n) + waited, *streamed)


def _cycles(draft: Draft, n: Nest) -> Term:
    compute, *caches = estimates(draft, n)
    longest, total = compute, compute
    for t in caches:
        longest, total = longest.maximum(t), total + t
    cores = float(n.variant.task.target.num_cores)
    parts = n.graph.of(1)
    for loop in n.loops:
        parts = parts * loop.is_kind["parallel"].where(loop.extent, 1)
    rounds = (parts / cores).ceil()
    # what waits for each other overlaps in part, more of it where memory is asked in time
    alone = 0.25 - 0.15 * n.fetched_ahead.minimum(1)
    return (longest + (total - longest) * alone) * (rounds / parts)


def _compute(draft: Draft, n: Nest) -> Term:
    """Steps of the register tile, each with its instructions, loads and loop."""
    g = n.graph
    target = n.variant.task.target
    lanes = float(target.lanes(max(32, n.block.writes[0].value.dtype.bits)))
    held, wide, written = g.of(1), g.of(1), g.of(1)
    steps, going = g.of(1), g.of(1)
    for loop in reversed(n.loops):
        unroll, vector = loop.is_kind["unroll"], loop.is_kind["vectorize"]
        wide = wide * vector.where(loop.extent, 1)
        if loop.reducing:
            written = written * unroll.where(loop.extent, 1)
            steps = steps * going.where(loop.extent, 1)
        else:
            held = held * unroll.where(loop.extent, 1)
            going = going * (unroll + vector).minimum(1).where(1, 1 - loop.moves)
    vectors = (wide / lanes).ceil()
    tile = held * vectors
    # a tail is a smaller tile: it takes less than a full one, if more than its share
    turns = (n.iterations + 2 * (n.iterations * 0.7).maximum(n.points)) / (3 * held * wide)
    loads, kept = g.of(0), g.of(0)  # instructions, and the registers of what is used again
    for a in n.accesses:
        if a.reads and not a.writes:
            each = _loads(n, a, wide, vectors)
            share = _new_share(n, a)
            loads = loads + each * share
            # what several steps read is kept from one to the next
            again = (g.of(1) > share).where(each * share * (written - 1), 0)
            kept = kept + again.maximum(_operands(n, a, vectors))
    work = tile * _instructions(n.block, n.path)
    turn = (work.maximum(loads) + work.minimum(loads) * _SHARED) / draft.ports
    across = _stores_across(n)
    if not n.block.reducing:
        stores = held * wide if across else tile
        return turns * (turn.maximum(stores) + 1.5 / held)
    # beside the sums stand their operands: the vectors that they share, and one more, at least
    spilled = tile + kept.maximum(vectors + 1) > float(target.num_vector_registers)
    turn = turn.maximum(_LATENCY) * (1 + spilled)
    if across:
        turn = turn + (wide > 1).where(held * wide * _ACROSS, 0)
    # a loop turns once for the steps that are written out; sums come from memory and go back
    return turns * (turn + 0.7 / written + 1.5 * tile / steps)


def _stores_across(n: Nest) -> bool:
    """Whether the lanes of a vector go to places that are no neighbours: one store for each."""
    return any(
        a.writes and moved and loop.kind == "vectorize" and stride.value != 1
        for a in n.accesses
        for loop, moved, stride in zip(n.loops, a.moved, a.strides, strict=True)
    )


def _loads(n: Nest, a: Access, wide: Term, vectors: Term) -> Term:
    """Load instructions in one step of the tile: a vector at once where its elements are
    neighbours, two and a shuffle where it is every second one, one by one where they are further
    apart.
    """
    g = n.graph
    count = g.of(1)
    for loop, moved, stride in zip(n.loops, a.moved, a.strides, strict=True):
        if moved and not loop.reducing:
            count = count * loop.is_kind["unroll"].where(loop.extent, 1)
        if moved and loop.kind == "vectorize":
            by_stride: dict[float | None, Term] = {1: vectors, -1: 2 * vectors, 2: 3 * vectors}
            count = count * by_stride.get(stride.value, 2 * wide)
    return count


def _operands(n: Nest, a: Access, vectors: Term) -> Term:
    """Registers that an operand takes beside the sums: one where each of its elements is used and
    done with, else all that a written-out loop around them goes over again and again.
    """
    g = n.graph
    count, again = g.of(1), g.of(0)
    for loop, moved in zip(n.loops, a.moved, strict=True):
        if loop.reducing:
            continue
        written_out = loop.is_kind["unroll"]
        if not moved:
            again = again.maximum(written_out * loop.moves)
        elif loop.kind == "vectorize":
            count = count * again.where(vectors, 1)
        else:
            count = count * (again * written_out).where(loop.extent, 1)
    return count


def _new_share(n: Nest, a: Access) -> Term:
    """Of the elements that the written-out steps read, those that no earlier one did: fewer than
    all where windows overlap.
    """
    first = _tile(n)
    read = n.graph.of(1)
    for loop, moved in zip(n.loops[first:], a.moved[first:], strict=True):
        if moved:
            read = read * loop.extent
    return (a.touched[first] / read).minimum(1)


def _transfers(draft: Draft, n: Nest) -> tuple[list[Term], Term]:
    """Cycles for what comes from the second cache, the third, and memory. What all of the program
    touches may be in a cache from the call before, and what an intermediate buffer holds is there
    from when it was computed: it only comes from further away if it does not stay meanwhile.

    Operands come while others are computed with; sums that come back to be added to are waited for,
    and these cycles are the second result.
    """
    g = n.graph
    target = n.variant.task.target
    sizes = (target.l1_nbytes, target.l2_nbytes, target.l3_nbytes)
    whole = g.of(_footprint(n.func))
    touched = [whole]
    for k in range(1, len(n.loops) + 1):
        nbytes = g.of(0)
        for a in n.accesses:
            nbytes = nbytes + a.touched[k] * a.nbytes
        touched.append(nbytes)
    streamed, waited = [], g.of(0)
    for size, speed, run in zip(sizes, draft.bandwidth, _RUNS, strict=True):
        gone = [t > size * draft.room for t in touched]
        moved = g.of(0)
        for a in n.accesses:
            nbytes = a.touched[0] * (a.nbytes * (2 if a.reads and a.writes else 1))
            nbytes = nbytes * _slowed(draft, n, a, run)
            times = gone[a.home]
            for k, loop in enumerate(n.loops):
                if not a.moved[k]:  # the same elements again, if they stay meanwhile
                    away = gone[k + 1].maximum(_crowded(draft, n, a, k + 1, size))
                    times = times * away.where(loop.extent, 1)
            if a.reads and a.writes:
                waited = waited + times * nbytes / speed
            else:
                moved = moved + times * nbytes
        streamed.append(moved / speed)
    return streamed, waited


def _footprint(func: Function) -> float:
    """Bytes of all arguments."""
    return float(sum(b.dtype.nbytes * (product(b.shape).const or 0) for b in func.params))


def _in_rows(a: Access) -> bool:
    """Whether it lies row by row, and not close together: a copy, or a layout made for its use."""
    return not a.home and a.buffer.layout is None and len(a.buffer.shape) > 1


def _row_dims(a: Access) -> int:
    """How many of the last dimensions are a row: one that is shorter than a line is no piece of
    its own.
    """
    nbytes, count = a.nbytes, 0
    for extent in reversed(a.buffer.shape):
        nbytes, count = nbytes * (extent.const or LINE), count + 1
        if nbytes >= LINE:
            break
    return count


def _slowed(draft: Draft, n: Nest, a: Access, wait: float) -> Term:
    """How many times as long pieces of rows take as one long piece, which comes before it is asked
    for: short ones, and those whose lines are gone before they are used up.
    """
    g = n.graph
    if not _in_rows(a):
        return g.of(1)
    inner = _row_dims(a)
    rows = [g.product(spans[:-inner]) for spans in a.spans]
    runs = [g.product(spans[-inner:]) for spans in a.spans]
    run, still = g.of(0), g.of(1)  # still: no loop so far goes to another row
    for k in range(len(n.loops) - 1, -1, -1):
        if n.loops[k].kind not in ("unroll", "vectorize"):
            first = still * (rows[k] > rows[k + 1])
            run, still = run + first * runs[k + 1], still - first
    run = run + still * runs[0]
    slowed = 1 + wait / (run * a.nbytes).maximum(1)
    if a.writes:
        return slowed
    again = _crowded(draft, n, a, _tile(n), n.variant.task.target.l1_nbytes)
    return slowed * again.where(LINE / a.nbytes / 2, 1)


def _tile(n: Nest) -> int:
    """The first of the loops that are written out around the statement, for registers to hold."""
    k = len(n.loops)
    while k and n.loops[k - 1].kind in ("unroll", "vectorize"):
        k -= 1
    return k


def _crowded(draft: Draft, n: Nest, a: Access, level: int, size: int) -> Term:
    """1 where rows push each other out: a multiple of a power of two apart, they share the same few
    places of each way of the cache.
    """
    g = n.graph
    if not _in_rows(a):
        return g.of(0)
    if all(p.name != a.buffer.name for p in n.func.params):  # rows of ours are moved apart
        return g.of(0)
    way = max(_WAY, size // _WAYS)
    taken, stride = g.of(a.nbytes), a.nbytes
    for span, extent in zip(reversed(a.spans[level]), reversed(a.buffer.shape), strict=True):
        apart = gcd(stride, way)
        taken = span * (span > 1).where(taken.maximum(apart), taken)
        stride *= extent.const or 1
    crowded = taken > size * draft.room
    if a.writes:  # what is no more than the register tile is in no cache
        crowded = crowded * (a.touched[level] > a.touched[_tile(n)])
    return crowded


def _tails(variant: Variant, graph: Graph) -> Term:
    """Every tile that does not divide its loop costs code, and the time to compile it."""
    out = graph.of(1)
    for d in variant.domains:
        if d.tile and d.extent:
            inner = graph.product([graph.column(c) for c in d.columns[1:]]).maximum(1)
            left = d.extent - d.extent // inner * inner
            out = out * (left > 0).where(_TAIL, 1)
    return out
