"""Features of every statement of a program. Ansor's groups: arithmetic, loop annotations, buffer
accesses and reuse, arithmetic intensity, allocation, outer loops. Added to these: the register
tile, the cycles estimated by the analytic score, and that score for the whole program. Sizes are on
the scale of log2(1 + x).

Features are closed forms over a variant's columns, evaluated for a whole population at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from functools import lru_cache

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TuneError
from tilesmith.base.given import checks_given
from tilesmith.base.target import GpuConstants
from tilesmith.ir.notes import ReduceAcross
from tilesmith.search.features.graph import Term
from tilesmith.search.features.machine import Compiled, Values
from tilesmith.search.features.nest import (
    KINDS,
    LINE,
    OPERATIONS,
    Access,
    Loop,
    Nest,
    operations,
    shared_nests,
)
from tilesmith.search.gpu_score import launches_of, occupancy
from tilesmith.search.protocol import AnalyticScore, Scores
from tilesmith.search.score_by_target import ScoreByTarget
from tilesmith.space.domains import Matrix
from tilesmith.space.variant import Variant

BUFFERS = 5  # buffers of a statement that are described
SAMPLES = 10  # samples of the intensity curve
POSITIONS = (
    "none", "inner spatial", "middle spatial", "outer spatial", "inner reduce", "middle reduce",
    "outer reduce", "mixed",
)  # fmt: skip
AXES = (
    "blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z", "vthread"
)  # fmt: skip
ACCESS = (
    "read", "write", "read and write", "bytes", "unique bytes", "lines", "unique lines",
    "used again by a loop", "used again by a statement", "not used again", "distance in iterations",
    "distance in bytes", "uses", "bytes a use", "unique bytes a use", "lines a use",
    "unique lines a use", "stride",
)  # fmt: skip
TILE = (
    "accumulators", "vectors", "vector fill", "loads a step", "steps", "useful", "copies", "parts",
)  # fmt: skip
GPU = ("shared bytes", "registers", "blocks at once", "rounds")  # of the whole launch
ESTIMATES = ("computing", "second cache", "third cache", "memory")
NAMES = (
    *OPERATIONS,
    *(f"{kind}: {what}" for kind in KINDS for what in ("number", "product", "length", *POSITIONS)),
    "is gpu", *AXES,
    *(f"buffer {k}: {what}" for k in range(BUFFERS) for what in ACCESS),
    *(f"intensity at {k + 1} of {SAMPLES}" for k in range(SAMPLES)),
    "allocated", "allocations", "allocations outside", "allocations inside",
    "iterations", "loops", "unroll depth", "fetched ahead",
    *(f"tile: {what}" for what in TILE),
    *(f"launch: {what}" for what in GPU),
    *(f"estimate: {what}" for what in ESTIMATES),
    "analytic score",
)  # fmt: skip

_SCORE = ScoreByTarget()


class Statements:
    """The features of a variant: `of(rows)` has the shape (rows, statements, features). Those of
    these `names` are computed, and the analytic score.
    """

    def __init__(
        self, variant: Variant, score: AnalyticScore, names: tuple[str, ...] = NAMES[:-1]
    ) -> None:
        graph, nests = shared_nests(variant)
        outputs: list[Term] = []
        whole = score.term(variant)
        places = [NAMES.index(name) for name in names]
        for n in nests:
            own = [*_statement(score, n, nests), whole]
            outputs += [*(own[k] for k in places), whole]
        self.count, self.width = len(nests), len(names) + 1
        self._compiled: Compiled = graph.compile(outputs)

    def of(self, rows: Matrix) -> Values:
        return self.with_score(rows)[0]

    def with_score(self, rows: Matrix) -> tuple[Values, Scores]:
        """Features, and the analytic score, which is the last of them."""
        x = self._compiled(rows).reshape(len(rows), self.count, self.width)
        return x, x[:, 0, -1].astype(np.float64)


@lru_cache(maxsize=4096)  # a variant is compared by identity
def statements_of(
    variant: Variant, score: AnalyticScore = _SCORE, names: tuple[str, ...] = NAMES[:-1]
) -> Statements:
    return Statements(variant, score, names)


@checks_given(error=TuneError)
@dataclass(frozen=True)
class StatementFeatures:
    """The feature extractor of this file: Ansor's groups, register tiles and analytic `score`."""

    score: AnalyticScore = field(default_factory=ScoreByTarget)

    def extract(self, variant: Variant, rows: Matrix) -> Values:
        return statements_of(variant, self.score).of(rows)

    def with_score(
        self, variant: Variant, rows: Matrix, score: AnalyticScore
    ) -> tuple[Values, Scores]:
        return statements_of(variant, score).with_score(rows)


def _statement(score: AnalyticScore, n: Nest, nests: tuple[Nest, ...]) -> list[Term]:
    g = n.graph
    counts = operations(n.block)
    out = [(n.iterations * counts[name]).log() for name in OPERATIONS]
    for kind in KINDS:
        out += _annotation(n, kind)
    out += _bindings(n)
    buffers = [list(_access(n, a, nests)) for a in n.accesses[:BUFFERS]]
    empty = [[g.of(0)] * len(ACCESS)] * (BUFFERS - len(buffers))
    for features in (*buffers, *empty):
        out += features
    out += _intensity(n, sum(counts.values()))
    out += _allocation(n, nests)
    loops = [loop.moves for loop in n.loops]
    out += [n.iterations.log(), sum(loops, g.of(0)), n.unroll_depth.log(), n.fetched_ahead]
    out += _tile(n)
    out += _launch(n, nests)
    return out + [cycles.log() for cycles in score.estimates(n)]


def _annotation(n: Nest, kind: str) -> Iterator[Term]:
    """Number, product and innermost length of the loops of a kind, and their position."""
    g = n.graph
    number, product, length = g.of(0), g.of(1), g.of(0)
    place = dict.fromkeys(POSITIONS, g.of(0))
    kinds = {True: g.of(0), False: g.of(0)}
    first = g.of(1)  # 1 while no loop inside is of this kind
    for loop in reversed(n.loops):
        active = loop.is_kind[kind] * loop.moves
        number = number + active
        product = product * loop.is_kind[kind].where(loop.extent, 1)
        kinds[loop.reducing] = kinds[loop.reducing].maximum(active)
        here = _position(n, loop)
        place[here] = place[here] + first * active
        length = length + first * active * loop.extent
        first = first * (1 - active)
    mixed = kinds[True] * kinds[False]
    yield from (number, product.log(), length.log(), first)
    for p in POSITIONS[1:-1]:
        yield place[p] * (1 - mixed)
    yield mixed


def _position(n: Nest, loop: Loop) -> str:
    same = [x for x in n.loops if x.reducing == loop.reducing]
    where = "inner" if loop is same[-1] else "outer" if loop is same[0] else "middle"
    return f"{where} {'reduce' if loop.reducing else 'spatial'}"


def _bindings(n: Nest) -> list[Term]:
    g = n.graph
    lengths = []
    for axis in AXES:
        bound = [loop.extent for loop in n.loops if _axis(n, loop) == axis]
        lengths.append(g.product(bound).log() if bound else g.of(0))
    return [g.of(float(any(_axis(n, loop) in AXES for loop in n.loops))), *lengths]


def _axis(n: Nest, loop: Loop) -> str:
    """The kind of a loop; one that is reduced across threads counts as theirs."""
    note = next((f.note(ReduceAcross) for f in n.path if f.name == loop.name), None)
    return loop.kind if note is None else note.axis


def _launch(n: Nest, nests: tuple[Nest, ...]) -> list[Term]:
    """What the GPU launch around the statement takes of a multiprocessor."""
    target = n.variant.task.target
    if target.kind == "cpu":
        return [n.graph.of(0)] * len(GPU)
    launch = next(x for x in launches_of(nests) if n in x)
    room = occupancy(GpuConstants.of(target), launch)
    rounds = (room.share / room.resident).ceil()
    return [room.shared.log(), room.registers.log(), room.resident.log(), rounds.log()]


def _access(n: Nest, a: Access, nests: tuple[Nest, ...]) -> Iterator[Term]:
    g = n.graph
    touches = n.iterations * a.places
    nbytes = touches * a.nbytes
    # a box may have holes, so it has at most one element per access
    unique = a.touched[0].minimum(touches) * a.nbytes
    number, length = a.runs
    unique_lines = (number * (length * (a.nbytes / LINE)).ceil()).minimum(touches)
    lines = _lines(n, a).maximum(unique_lines)
    stride = g.of(0)  # of the innermost loop
    for first, step in zip(n.innermost, a.strides, strict=True):
        stride = stride + first * _size(step)
    by_loop, by_statement, distance, distance_bytes, uses = _reuse(n, a, nests)
    yield g.of(float(a.reads and not a.writes))
    yield g.of(float(a.writes and not a.reads))
    yield g.of(float(a.reads and a.writes))
    yield from (nbytes.log(), unique.log(), lines.log(), unique_lines.log())
    yield from (by_loop, by_statement, 1 - by_loop - by_statement)
    yield from (distance.log(), distance_bytes.log(), uses.log())
    share = (by_loop + by_statement).where(uses, 0.5)  # as in Ansor: no reuse counts as half a use
    for total in (nbytes, unique, lines, unique_lines):
        yield (total / share).log()
    yield stride.log()


def _lines(n: Nest, a: Access) -> Term:
    """Cache lines accessed, repetitions included. An access with a stride shorter than a line
    counts as a fraction of one.
    """
    g = n.graph
    steps, stride, still = g.of(a.places), g.of(0), g.of(1)
    for loop, moved, step in reversed(list(zip(n.loops, a.moved, a.strides, strict=True))):
        if moved:
            steps = steps * loop.extent
            stride = stride + still * loop.moves * _size(step)
            still = still * (1 - loop.moves)
    return steps * (stride * (a.nbytes / LINE)).minimum(1)


def _size(step: Term) -> Term:
    """The absolute value of a stride."""
    return step.maximum(-1 * step)


def _reuse(n: Nest, a: Access, nests: tuple[Nest, ...]) -> tuple[Term, Term, Term, Term, Term]:
    """The innermost loop that runs over the same elements again; if there is none, another
    statement that touches the buffer.
    """
    g = n.graph
    by_statement = distance = distance_bytes = uses = g.of(0)
    still = g.of(1)  # 1 while no inner loop reuses the elements
    for k in range(len(n.loops) - 1, -1, -1):
        if not a.moved[k]:
            first = still * n.loops[k].moves
            still = still - first
            distance = distance + first * n.inside[k + 1]
            distance_bytes = distance_bytes + first * _touched_bytes(n, k + 1)
            uses = uses + first * n.loops[k].extent
    other = _shared_loop(n, a.buffer.name, nests)
    if other is not None:
        by_statement = still
        distance = distance + still * n.inside[other]
        distance_bytes = distance_bytes + still * _touched_bytes(n, other)
        uses = uses + still
    return 1 - still, by_statement, distance, distance_bytes, uses


def _shared_loop(n: Nest, buffer: str, nests: tuple[Nest, ...]) -> int | None:
    """The number of loops shared with another statement that accesses the buffer."""
    most: int | None = None
    own = [f.name for f in n.path]
    for m in nests:
        if m is n or not any(a.buffer.name == buffer for a in m.accesses):
            continue
        common = 0
        for x, f in zip(own, m.path, strict=False):
            if x != f.name:
                break
            common += 1
        most = common if most is None else max(most, common)
    return most


def _touched_bytes(n: Nest, level: int) -> Term:
    total = n.graph.of(0)
    for a in n.accesses:
        total = total + a.touched[level] * a.nbytes
    return total


def _intensity(n: Nest, each: int) -> list[Term]:
    """Operations per byte touched, sampled from the innermost loop outwards."""
    if not n.loops:
        bytes_once = _touched_bytes(n, 0)
        return [(each / bytes_once).log()] * SAMPLES
    xs, ys = [], []
    for k in range(len(n.loops), -1, -1):
        work = n.inside[k] * float(each)
        xs.append(work.log())
        ys.append((work / _touched_bytes(n, k)).log())
    return n.graph.curve(xs, ys, SAMPLES)


def _allocation(n: Nest, nests: tuple[Nest, ...]) -> list[Term]:
    """Of the intermediate buffer that the statement fills: its size below the loops that it shares
    with its readers, and the iterations of those loops.
    """
    g = n.graph
    filled = n.accesses[0] if n.accesses else None
    intermediate = {b.name for b in n.func.buffers}
    level = _shared_loop(n, filled.buffer.name, nests) if filled is not None else None
    if filled is None or filled.buffer.name not in intermediate or level is None:
        return [g.of(0)] * 4
    outside = g.product([loop.extent for loop in n.loops[:level]])
    size = filled.touched[level] * filled.nbytes
    return [size.log(), (size * outside).log(), outside.log(), n.inside[level].log()]


def _tile(n: Nest) -> list[Term]:
    """The register tile: the unrolled and vectorised loops around the statement."""
    g = n.graph
    target = n.variant.task.target
    lanes = target.lanes(max(32, n.block.writes[0].value.dtype.bits))
    held, wide, copies, steps, going = g.of(1), g.of(1), g.of(1), g.of(1), g.of(1)
    for loop in reversed(n.loops):
        unroll, vector = loop.is_kind["unroll"], loop.is_kind["vectorize"]
        copies = copies * unroll.where(loop.extent, 1)
        wide = wide * vector.where(loop.extent, 1)
        if loop.reducing:
            steps = steps * going.where(loop.extent, 1)
        else:
            held = held * unroll.where(loop.extent, 1)
            going = going * (unroll + vector).minimum(1).where(1, 1 - loop.moves)
    vectors = (wide / lanes).ceil()
    loads = g.of(0)
    for a in n.accesses:
        if a.reads and not a.writes:
            each = g.of(1)
            for loop, moved in zip(n.loops, a.moved, strict=True):
                if moved and not loop.reducing:
                    each = each * loop.is_kind["unroll"].where(loop.extent, 1)
                    if loop.kind == "vectorize":
                        each = each * vectors
            loads = loads + each
    parts = g.of(1)
    for loop in n.loops:
        whole = loop.kind.startswith("blockIdx")
        parts = parts * (loop.extent if whole else loop.is_kind["parallel"].where(loop.extent, 1))
    useful = g.product([g.integer(i.extent) for i in n.block.iters]) / n.iterations
    cores = float(target.num_multiprocessors or target.num_cores)
    balance = parts / ((parts / cores).ceil() * cores)
    return [
        (held * vectors).log(), vectors.log(), wide / (vectors * lanes), loads.log(), steps.log(),
        useful, copies.log(), balance,
    ]  # fmt: skip
