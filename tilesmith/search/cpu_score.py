"""The analytic score of CPUs: estimates the cycles of a variant's rows without measurements, as
closed forms over its decision variables.

A statement's cycles are the instructions of its register tile divided by the machine's ports, plus
the time to move bytes between the caches, which depends on the loops whose data fits each cache.
The program's cycles also depend on how evenly the cores share the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import gcd, inf, prod

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TuneError
from tilesmith.base.given import checks_given
from tilesmith.base.target import Cache, CpuConstants, Target
from tilesmith.expr.dynamic import condition_parts, settled
from tilesmith.expr.ints import FloorDiv, opaque_atoms, product
from tilesmith.expr.nodes import Binary, Expr, Select, rewrite
from tilesmith.expr.plain_floats import is_plain_arithmetic
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, Buffer, Path, walk
from tilesmith.ir.notes import FetchStream
from tilesmith.search.features.graph import ClosedForm, Graph, Term
from tilesmith.search.features.nest import Access, Loop, Nest, operations, shared_nests
from tilesmith.space.analysis import adds_chunks, computed_bits, written_out
from tilesmith.space.variant import Variant
from tilesmith.task.task import Task

# Instructions per operation, by kind; mathematical functions are polynomials.
_COST = {"divmod": 6.0, "math": 12.0}


@checks_given(error=TuneError)
@dataclass(frozen=True)
class CpuScore(ClosedForm):
    """`constants` describe the machine; None takes `CpuConstants.of` the task's target."""

    constants: CpuConstants | None = None

    def term(self, variant: Variant) -> Term:
        return _doublings(self, variant, *shared_nests(variant))

    def estimates(self, nest: Nest) -> tuple[Term, ...]:
        """Cycles of a statement on one core: arithmetic, and bytes from L2, L3 and memory."""
        return _estimates(self, nest)

    def least_cycles(self, task: Task) -> float:
        """Cycles of a program that reaches the machine's peak."""
        cpu = self.constants_of(task.target)
        return _work(task) / (cpu.lanes(32) * cpu.ports * cpu.num_cores)

    def constants_of(self, target: Target) -> CpuConstants:
        return CpuConstants.of(target) if self.constants is None else self.constants


@lru_cache(maxsize=256)
def _doublings(score: CpuScore, variant: Variant, graph: Graph, nests: tuple[Nest, ...]) -> Term:
    task = variant.task
    cpu = score.constants_of(task.target)
    cycles = graph.of(0)
    for n in nests:
        cycles = cycles + _cycles(cpu, score.estimates(n), n)
    share = score.least_cycles(task) / cycles.maximum(1e-9) * _tails(cpu, variant, graph)
    return share.maximum(1e-9).log2()


@lru_cache(maxsize=256)
def _work(task: Task) -> float:
    """Instructions of all instances of all blocks."""
    return sum(
        prod(i.extent.number for i in b.iters) * _instructions(b) for _, b in walk(task.func.body)
    )


def _instructions(b: Block, path: Path = ()) -> float:
    """Instructions of one instance of a block; a plain copy counts as one."""
    if settles := written_out(path, b):
        writes = (replace(w, value=settled(w.value, settles)) for w in b.writes)
        b = replace(b, writes=tuple(writes))
    if not b.reducing and sum(1 for _ in b.loads) >= _WINDOW:
        b = replace(b, writes=tuple(replace(w, value=_inside(w.value)) for w in b.writes))
    counts = operations(b)
    counts["int divmod"] -= _divided_for_rows(b)
    total = sum(c * _COST.get(name.split()[-1], 1.0) for name, c in counts.items())
    return max(1.0, total)


# Instructions of an unrolled body from which on more of them cost time: registers are spilled, and
# the overhead of the loop was hidden before.
_LONG_BODY = 256.0
_WINDOW = 4  # loads of a block that is a sum over a window, written out


def _inside(value: Expr) -> Expr:
    """The value where conditions on places hold: code generation splits the loops where they end,
    those over vectors, too.
    """

    def inside(e: Expr) -> Expr:
        if isinstance(e, Select) and isinstance(e.cond, Binary):
            ints, rest = condition_parts(e.cond)
            if ints and not rest:
                return e.a
        return e

    return rewrite(value, inside)


def _divided_for_rows(b: Block) -> int:
    """Divisions in load addresses that do not depend on the vector lane: computed once per row."""
    last = b.writes[0].index[-1:]
    lanes = {n for p in last for n in p.names}
    atoms = (a for load in b.loads for p in load.index for a in opaque_atoms(p))
    return sum(isinstance(a, FloorDiv) and not a.names() & lanes for a in atoms)


@lru_cache(maxsize=1024)  # the score and the features both ask for them
def _estimates(score: CpuScore, n: Nest) -> tuple[Term, ...]:
    cpu = score.constants_of(n.variant.task.target)
    streamed, waited = transfers(cpu, n)
    return (_compute(cpu, n) + waited, *streamed)


def _cycles(cpu: CpuConstants, estimates: tuple[Term, ...], n: Nest) -> Term:
    compute, *caches = estimates
    longest, total = compute, compute
    for t in caches:
        longest, total = longest.maximum(t), total + t
    parts = n.graph.of(1)
    for loop in n.loops:
        parts = parts * loop.is_kind["parallel"].where(loop.extent, 1)
    rounds = (parts / float(cpu.num_cores)).ceil()
    # arithmetic and loads overlap in part; prefetching increases the overlap, the nearer the better
    ahead = n.fetched_ahead
    alone = 0.25 - 0.15 * ahead.minimum(1) + 0.01 * (ahead > 1)
    if any(f.note(FetchStream) for f in n.path):
        alone = alone.minimum(0.2)
    turns = (parts > 1).where(rounds * cpu.parallel_turn, 0)
    return (longest + (total - longest) * alone) * (rounds / parts) + turns


def _compute(cpu: CpuConstants, n: Nest) -> Term:
    """Cycles of all steps of the register tile: arithmetic, loads, and the loop around them."""
    g = n.graph
    lanes = float(cpu.lanes(computed_bits(n.variant.task.target, n.block)))
    held, wide, written = g.of(1), g.of(1), g.of(1)
    steps, going = g.of(1), g.of(1)
    loops = _around(n)
    for loop in reversed(loops):
        unroll, vector = loop.is_kind["unroll"], loop.is_kind["vectorize"]
        wide = wide * vector.where(loop.extent, 1)
        if loop.reducing:
            written = written * unroll.where(loop.extent, 1)
            steps = steps * going.where(loop.extent, 1)
        else:
            held = held * unroll.where(loop.extent, 1)
            going = going * (unroll + vector).minimum(1).where(1, 1 - loop.moves)
    vectors = (wide / lanes).ceil()
    tile = held * vectors * _result_registers(cpu, n)
    # a partial tile takes less time than a full one, but more than its share of the work
    at_once = 3 * held * wide * n.inside[len(loops)]
    turns = (n.iterations + 2 * (n.iterations * 0.7).maximum(n.points)) / at_once
    loads, kept = g.of(0), g.of(0)  # load instructions; registers of reused operands
    for a in n.accesses:
        if a.reads and not a.writes:
            each = _loads(cpu, n, a, wide, vectors, tile) * _registers(cpu, n, a)
            share = _new_share(n, a)
            loads = loads + each * share
            # an element that several steps read stays in a register
            again = (g.of(1) > share).where(each * share * (written - 1), 0)
            kept = kept + again.maximum(_operands(n, a, vectors)).maximum(_lanes_kept(cpu, n, a))
    issued = tile * _instructions(n.block, n.path)
    work = issued if n.block.intrinsic is None else held * float(n.block.intrinsic.cost)
    turn = (work.maximum(loads) + work.minimum(loads) * cpu.overlap_loss) / cpu.ports
    across = _stores_across(n)
    if adds_chunks(n.block):
        return turns * held * vectors * cpu.chunk_sum
    if not n.block.reducing:
        stores = held * wide if across else tile
        long = (held > 1) * (issued > _LONG_BODY)
        return turns * (turn.maximum(stores) * (1 + 0.1 * long) + 1.5 / held)
    # besides the accumulators, registers hold operands: one row of vectors and a few more
    operands = kept.maximum(vectors + float(cpu.scratch_registers))
    rest = rest_of_rows(n, loops, int(lanes), vectors)
    registers = float(cpu.num_vector_registers)
    spilled = tile + operands > registers
    spilled = spilled.maximum((held * rest.vectors + operands > registers) * rest.share)
    if n.block.intrinsic is not None and n.block.intrinsic.held:  # it has registers of its own
        spilled = held > 1
    turn = turn.maximum(cpu.fma_latency) * (1 + spilled)
    if across:
        turn = turn + (wide > 1).where(held * wide * cpu.scattered_sum, 0)
    else:
        turn = turn * rest.slowdown
    overhead = 0.7 / written  # once per unrolled group
    if n.block.is_running:
        # a chain of additions hides it, and that of a second row; more rows only store in more
        # places at a time
        turn = turn.maximum((wide > 1).where(0, cpu.fma_latency / 2 * held))
        overhead = 0.02 * (written + held)
    # accumulators are loaded and stored once per tile
    return turns * (turn + overhead + 1.5 * tile / steps)


def _around(n: Nest) -> tuple[Loop, ...]:
    """The loops, without those that a hardware instruction carries out."""
    return n.loops[: len(n.path)] if n.block.intrinsic is not None else n.loops


def _result_registers(cpu: CpuConstants, n: Nest) -> int:
    """Registers that the result of one hardware instruction takes; 1 without one."""
    unit = n.block.intrinsic
    return 1 if unit is None else unit.registers(unit.output, cpu.vector_bits)


def _registers(cpu: CpuConstants, n: Nest, a: Access) -> Term:
    """Load instructions for one operand of a hardware instruction; 1 without one. A short operand
    is repeated over a register, which costs an instruction more, unless the operands of several
    unrolled steps are loaded together.
    """
    unit = n.block.intrinsic
    name = next((o for o, x in n.block.operands if x.buffer == a.buffer.name), None)
    if unit is None or name is None:
        return n.graph.of(1)
    nbits = unit.nbits(name)
    if nbits >= cpu.vector_bits:
        return n.graph.of(unit.registers(name, cpu.vector_bits))
    together = _together(cpu, n, a, nbits)
    return (together > 1).where(1 / together, 2)


def _together(cpu: CpuConstants, n: Nest, a: Access, nbits: int) -> Term:
    """How many short operands of unrolled steps one register holds."""
    together, size = n.graph.of(1), nbits // a.buffer.dtype.bits
    for k, loop in enumerate(_around(n)):
        if a.stride(k).value == size:
            together = together * loop.is_kind["unroll"].where(loop.extent, 1)
    return together.minimum(cpu.vector_bits // nbits)


def _lanes_kept(cpu: CpuConstants, n: Nest, a: Access) -> Term:
    """Registers of short operands that are loaded for several unrolled steps of the sum."""
    unit, rows = n.block.intrinsic, n.graph.of(1)
    name = next((o for o, x in n.block.operands if x.buffer == a.buffer.name), None)
    if unit is None or name is None or unit.nbits(name) >= cpu.vector_bits:
        return n.graph.of(0)
    for loop, moved in zip(_around(n), a.moved, strict=False):
        if moved and not loop.reducing:
            rows = rows * loop.is_kind["unroll"].where(loop.extent, 1)
    return (_together(cpu, n, a, unit.nbits(name)) > 1).where(rows, 0)


def _stores_across(n: Nest) -> bool:
    """Whether the lanes of a stored vector are not contiguous, so that each is stored alone."""
    return any(
        a.writes
        and a.moved[k]
        and loop.kind == "vectorize"
        and (a.stride(k).value != 1 or _turned(a, loop))
        for a in n.accesses
        for k, loop in enumerate(n.loops)
    )


def _turned(a: Access, loop: Loop) -> bool:
    """Whether the buffer's layout ends in a dimension that the loop does not move along."""
    if a.buffer.layout is None:
        return False
    last = {int(name[1:]) for name in a.buffer.layout[-1].names if name[0] == "d"}
    return not any(loop.name in a.index[d].names for d in last)


def _loads(cpu: CpuConstants, n: Nest, a: Access, wide: Term, vectors: Term, tile: Term) -> Term:
    """Load instructions in one step of the tile: one per vector for contiguous elements, two and a
    shuffle for a stride of two, one per element for longer strides. Where a product takes a lane of
    a register, packed factors of unrolled rows are loaded together, if the tile leaves registers.
    """
    g = n.graph
    count, single = g.of(1), True
    for k, loop in enumerate(_around(n)):
        if a.moved[k] and not loop.reducing:
            count = count * loop.is_kind["unroll"].where(loop.extent, 1)
        if a.moved[k] and loop.kind == "vectorize":
            by_stride: dict[float | None, Term] = {1: vectors, -1: 2 * vectors, 2: 3 * vectors}
            stride = None if n.block.reducing and _divides(a, loop) else a.stride(k).value
            count = count * by_stride.get(stride, 2 * wide)
            single = False
    if single and cpu.lane_factors and a.buffer.layout is not None:
        lanes = cpu.lanes(a.buffer.dtype.bits)
        together = count // lanes
        full = tile > float(cpu.num_vector_registers - cpu.lane_operands - 1)
        count = full.where(count, together + (count - together * lanes))
    return count


def _divides(a: Access, loop: Loop) -> bool:
    """Whether an index divides the loop variable, as that of a channel by the size of a group."""
    return any(loop.name in x.names() for p in a.index for x in opaque_atoms(p))


def _operands(n: Nest, a: Access, vectors: Term) -> Term:
    """Registers that an operand takes besides the accumulators: one if each element is used once,
    else all elements that an unrolled loop around them uses again.
    """
    g = n.graph
    count, again = g.of(1), g.of(0)
    for loop, moved in zip(_around(n), a.moved, strict=False):
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
    """The share of elements read by unrolled steps that no earlier step has read: below 1 where
    windows overlap, above it where a step reads several elements.
    """
    first = register_tile(n)
    read, touched = n.graph.of(1), n.graph.of(1)
    for loop, moved in zip(n.loops[first:], a.moved[first:], strict=True):
        if moved:
            read = read * loop.extent
    for p, span in zip(a.index, a.spans[first], strict=True):
        # in strides, fewer elements than are passed over
        steps = n.graph.of(a.places)
        for loop in n.loops[first:]:
            if loop.name in p.names:
                steps = steps * loop.extent
        touched = touched * span.minimum(steps.maximum(1))
    return (touched / read).minimum(a.places)


def _tails(cpu: CpuConstants, variant: Variant, graph: Graph) -> Term:
    """The speed factor of tiles that do not divide their loop."""
    out = graph.of(1)
    for d in variant.domains:
        if d.tile and d.extent:
            inner = graph.product([graph.column(c) for c in d.columns[1:]]).maximum(1)
            left = d.extent - d.extent // inner * inner
            out = out * (left > 0).where(cpu.tail_speed, 1)
    return out


@dataclass(frozen=True)
class RestOfRows:
    """The last tile of each row, of fewer lanes than the others."""

    slowdown: Term  # of all tiles, compared to what their lanes fill evenly
    vectors: Term  # pieces of the last tile
    share: Term  # of the last tile in all pieces of a row


def rest_of_rows(n: Nest, loops: Sequence[Loop], lanes: int, vectors: Term) -> RestOfRows:
    """`vectors` are the registers of a whole tile, if its lanes fill them. The ends of sums along a
    vector are joined once for all, and cost nothing here.
    """
    g = n.graph
    loop = next((f for f in loops if f.kind == "vectorize" and not f.reducing), None)
    if loop is None:
        return RestOfRows(g.of(1), g.of(0), g.of(0))
    own = (d for d in n.variant.domains if d.tile and d.columns[-1] == f"#{loop.name}")
    domain = next((d for d in own if d.extent), None)
    tile = loop.extent.maximum(1)
    row = padded = tile
    if domain is not None:
        row = g.of(float(domain.extent))
        padded = g.product([g.column(c) for c in domain.columns])
    whole = row // tile
    by_parts = n.variant.task.target.masks_vectors and all(
        is_plain_arithmetic(w.value) for w in n.block.writes
    )
    last = _pieces(row - whole * tile, lanes, by_parts)
    pieces = whole * _pieces(tile, lanes, by_parts) + last
    # the mean of tiles that count whole and of their share, as for loops that are not vectorized
    charged = (padded + 2 * (padded * 0.7).maximum(row)) / (3 * tile) * vectors
    return RestOfRows((pieces / charged).maximum(1), last, last / pieces)


def _pieces(count: Term, lanes: int, by_parts: bool) -> Term:
    """Whole registers and powers of two that so many lanes are computed in; or a part of a register
    for what is left.
    """
    if by_parts:
        return (count / float(lanes)).ceil()
    whole = count // float(lanes)
    left, pieces = count - whole * float(lanes), whole
    while (lanes := lanes // 2) >= 1:
        bit = left // float(lanes)
        left, pieces = left - bit * float(lanes), pieces + bit
    return pieces


def transfers(cpu: CpuConstants, n: Nest) -> tuple[list[Term], Term]:
    """Cycles to transfer data from L2, from L3 and from memory; and cycles spent waiting.

    The arguments may still be in a cache from the previous call, and an intermediate buffer from
    when it was written. They are transferred only if more than the cache holds is accessed in
    between.

    Loads of operands overlap with arithmetic. Reloaded accumulators do not: the second result
    counts these.
    """
    g = n.graph
    whole = g.of(_footprint(n.func))
    touched = [whole]
    for k in range(1, len(n.loops) + 1):
        nbytes = g.of(0)
        for a in n.accesses:
            nbytes = nbytes + a.touched[k] * a.nbytes
        touched.append(nbytes)
    streamed, waited = [], g.of(0)
    runs = [_row_runs(cpu, n, a) for a in n.accesses]
    most = sum(a.nbytes * _elements(a.buffer) for a in n.accesses)
    for cache in cpu.caches:
        usable = cache.nbytes * cpu.usable_share
        # What never fills the cache needs no closed form, which is a third of all of them.
        filling = [t > usable for t in touched[1:]] if most > usable else [g.of(0)] * len(n.loops)
        evicted = [whole > usable, *filling]
        moved = g.of(0)
        for a, run in zip(n.accesses, runs, strict=True):
            nbytes = a.touched[0] * (a.nbytes * (2 if a.reads and a.writes else 1))
            nbytes = nbytes * _slowed(cpu, n, a, run, cache.miss_nbytes)
            once = times = evicted[a.home]
            for k, loop in enumerate(n.loops):
                # accesses the same elements again: free if still cached
                if not a.moved[k] and loop.extent.value != 1:
                    away = evicted[k + 1].maximum(_crowded(cpu, n, a, k + 1, cache))
                    times = times * away.where(loop.extent, 1)
            if a.reads and a.writes:  # stored once, reloaded and stored again every other time
                waited = waited + (times - once) * nbytes / cache.bandwidth_below
                times = once
            moved = moved + times * nbytes
        streamed.append(moved / cache.bandwidth_below)
    return streamed, waited


def _footprint(func: Function) -> float:
    """Bytes of all arguments."""
    return float(sum(b.dtype.nbytes * product(b.shape).number for b in func.params))


def _elements(buffer: Buffer) -> float:
    """How many it has; of one whose sizes are open, any number."""
    size = product(buffer.shape).const
    return inf if size is None else size


def _in_rows(a: Access) -> bool:
    """Whether the rows are apart in memory: neither a packed copy nor a layout of its own."""
    return not a.home and a.buffer.layout is None and len(a.buffer.shape) > 1


def _row_dims(cpu: CpuConstants, a: Access) -> int:
    """How many of the last dimensions form contiguous pieces of at least one cache line."""
    nbytes, count = a.nbytes, 0
    for extent in reversed(a.buffer.shape):
        # a dimension that the sketch leaves open is taken for a long one
        nbytes, count = nbytes * (extent.const or cpu.line_nbytes), count + 1
        if nbytes >= cpu.line_nbytes:
            break
    return count


def _row_runs(cpu: CpuConstants, n: Nest, a: Access) -> tuple[Term, Term] | None:
    """The contiguous elements that are accessed before other rows are than the hardware follows at
    once, and 1 where lines are evicted before all of them is used; None where rows are not apart in
    memory.
    """
    g = n.graph
    if not _in_rows(a):
        return None
    inner = _row_dims(cpu, a)
    rows = [g.product(spans[:-inner]) for spans in a.spans]
    runs = [g.product(spans[-inner:]) for spans in a.spans]
    run, still = g.of(0), g.of(1)  # `still` is 1 while inner loops stay in these rows
    for k in range(len(n.loops) - 1, -1, -1):
        if n.loops[k].kind not in ("unroll", "vectorize"):
            first = still * (rows[k] > rows[k + 1].maximum(cpu.streams))
            run, still = run + first * runs[k + 1], still - first
    run = run + still * runs[0]
    if a.writes:
        return run, g.of(0)
    return run, _crowded(cpu, n, a, register_tile(n), cpu.caches[0])


def _slowed(
    cpu: CpuConstants, n: Nest, a: Access, runs: tuple[Term, Term] | None, miss_nbytes: float
) -> Term:
    """The slowdown of loading pieces of rows compared to one contiguous stream, which the hardware
    prefetches. It grows for short pieces, and for lines evicted before all of them is used.
    """
    if runs is None:
        return n.graph.of(1)
    run, again = runs
    slowed = 1 + miss_nbytes / (run * a.nbytes).maximum(1)
    return slowed * again.where(cpu.line_nbytes / a.nbytes / 2, 1)


def register_tile(n: Nest) -> int:
    """The position of the outermost loop of the register tile: all loops from it on are unrolled or
    vectorized.
    """
    k = len(n.loops)
    while k and n.loops[k - 1].kind in ("unroll", "vectorize"):
        k -= 1
    return k


def _crowded(cpu: CpuConstants, n: Nest, a: Access, level: int, cache: Cache) -> Term:
    """1 where the rows conflict in the cache: if they are a multiple of a large power of two apart,
    they map to the same few sets.
    """
    g = n.graph
    if not _in_rows(a):
        return g.of(0)
    if all(p.name != a.buffer.name for p in n.func.params):  # codegen pads other buffers
        return g.of(0)
    usable, most, stride = cache.nbytes * cpu.usable_share, a.nbytes, a.nbytes
    for extent in reversed(a.buffer.shape):
        most = extent.number * max(most, gcd(stride, cache.way_nbytes))
        stride *= extent.number
    if most <= usable:
        return g.of(0)
    taken, stride = g.of(a.nbytes), a.nbytes
    for span, extent in zip(reversed(a.spans[level]), reversed(a.buffer.shape), strict=True):
        apart = gcd(stride, cache.way_nbytes)
        taken = span * (span > 1).where(taken.maximum(apart), taken)
        stride *= extent.number
    crowded = taken > usable
    if a.writes:  # the register tile itself does not use the cache
        crowded = crowded * (a.touched[level] > a.touched[register_tile(n)])
    return crowded
