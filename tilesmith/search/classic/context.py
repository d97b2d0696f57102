"""AutoTVM's context features of loops: extent, depth and kind, and for each buffer the elements
accessed, their reuse and the stride. They come per loop, as samples of AutoTVM's curves ("relation
features"), whose width is the same for all programs, or for the nodes of the program's loop tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, lru_cache

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TuneError
from tilesmith.base.given import checks_given
from tilesmith.ir.nodes import Block, For, If, Stmt, statements
from tilesmith.search.features.graph import Array, Graph, Term
from tilesmith.search.features.machine import Compiled, Values
from tilesmith.search.features.nest import OPERATIONS, Access, LoopRuns, Nest, nests_of, operations
from tilesmith.space.domains import Matrix
from tilesmith.space.variant import Variant

KINDS = ("serial", "parallel", "vectorize", "unroll", "block", "thread", "vthread")
TOUCHES = 4  # (statement, buffer) pairs described for a loop, those of the most work first
LOOP_WIDTH = 4 + len(KINDS) + 1 + 3 * TOUCHES

CURVES = 5  # (statement, buffer) pairs whose relations are sampled
SAMPLES = 20
STEP = 1.5  # distance of samples, in log2: the last one is at 2**28.5
STATEMENTS = 2  # statements described individually in the relation features
_CHUNK = 512  # rows sampled at a time, so that their levels stay in the cache
_OF_STATEMENT = len(OPERATIONS) + 8
_OF_PROGRAM = 10
RELATION_WIDTH = CURVES * 4 * SAMPLES + STATEMENTS * _OF_STATEMENT + _OF_PROGRAM


@dataclass(frozen=True, eq=False)
class Touch:
    """The accesses of one statement to one buffer. Level k is the k-th loop with everything inside;
    the last level is a single instance.
    """

    nest: Nest
    access: Access

    @cached_property
    def counts(self) -> tuple[Term, ...]:
        """Distinct elements accessed at each level: a box may have holes, so at most one per
        access.
        """
        each = self.access.touched[-1]
        return tuple(
            t.minimum(n * each) for t, n in zip(self.access.touched, self.nest.inside, strict=True)
        )

    @cached_property
    def reuses(self) -> tuple[Term, ...]:
        """Accesses per distinct element at each level."""
        each = self.access.touched[-1]
        return tuple(n * each / c for c, n in zip(self.counts, self.nest.inside, strict=True))

    @cached_property
    def visits(self) -> tuple[Term, ...]:
        """How often each level is entered."""
        out = [self.nest.graph.of(1)]
        for loop in self.nest.loops:
            out.append(out[-1] * loop.extent)
        return tuple(out)


class Program:
    """All nests of a variant over one graph; a loop may be in several of them."""

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        self.graph = Graph(variant.columns)
        self.runs = LoopRuns(self.graph, variant.func)
        self.nests = nests_of(self.graph, variant)
        self.loops = [s for s in statements(variant.func.body) if isinstance(s, For)]

    @cached_property
    def ranked(self) -> list[Nest]:
        """The nests with the most work first; equal ones in program order."""
        return sorted(self.nests, key=lambda n: -n.points)

    @cached_property
    def touches(self) -> list[Touch]:
        return [Touch(n, a) for n in self.ranked for a in n.accesses]

    def kinds(self, f: For) -> dict[str, Term]:
        """For each of KINDS, 1 in the rows where the loop is of that kind, else 0."""
        g = self.graph
        parallel = self.runs.parallel(f)
        unroll = self.runs.written_out.get(f.name, g.of(0))
        fixed = {"blockIdx": "block", "threadIdx": "thread"}.get(f.kind.split(".")[0], f.kind)
        out = {k: g.of(float(fixed == k)) for k in KINDS}
        out |= {"parallel": parallel, "unroll": unroll}
        if f.kind == "serial":
            out["serial"] = 1 - parallel - unroll
        return out

    @cached_property
    def places(self) -> dict[str, list[tuple[Nest, int]]]:
        """By name of a loop, the nests that contain it and its level in each."""
        out: dict[str, list[tuple[Nest, int]]] = {}
        for n in self.ranked:
            for k, f in enumerate(n.path):
                out.setdefault(f.name, []).append((n, k))
        return out

    def loop(self, f: For) -> list[Term]:
        """The LOOP_WIDTH features of a loop."""
        g = self.graph
        places = self.places[f.name]
        first, level = places[0]
        entered = g.product([loop.extent for loop in first.loops[: level + 1]])
        work = g.of(0)
        for n, k in places:
            work = work.maximum(n.inside[k])
        reducing = any(n.loops[k].reducing for n, k in places)
        out = [g.integer(f.extent).log(), g.of(level), entered.log(), work.log()]
        out += [*self.kinds(f).values(), g.of(float(reducing))]
        nests = dict(places)
        for t in [t for t in self.touches if t.nest in nests][:TOUCHES]:
            k = nests[t.nest]
            stride = t.access.strides[k]
            out += [t.counts[k].log(), t.reuses[k].log(), stride.maximum(-1 * stride).log()]
        return out + [g.of(0)] * (LOOP_WIDTH - len(out))


@lru_cache(maxsize=1024)
def _loops(variant: Variant) -> tuple[int, Compiled]:
    program = Program(variant)
    terms = [t for f in program.loops for t in program.loop(f)]
    return len(program.loops), program.graph.compile(terms)


def loop_features(variant: Variant, rows: Matrix) -> Values:
    """(rows, loops, LOOP_WIDTH), outer loops before inner ones. Sizes as log2(1 + x)."""
    loops, compiled = _loops(variant)
    return compiled(rows).reshape(len(rows), loops, LOOP_WIDTH)


class Relations:
    """The closed forms of one variant: levels of the curves, and the features without sampling."""

    def __init__(self, variant: Variant) -> None:
        program = Program(variant)
        touches = program.touches[:CURVES]
        self.depths = [len(t.counts) for t in touches]
        levels = [x for t in touches for x in (*t.counts, *t.reuses, *t.visits)]
        self.curves = program.graph.compile([x.log2() for x in levels])
        self.plain = program.graph.compile(_plain(program))

    def __call__(self, rows: Matrix) -> Values:
        out = np.zeros((len(rows), RELATION_WIDTH), np.float32)
        out[:, CURVES * 4 * SAMPLES :] = self.plain(rows)
        for start in range(0, len(rows), _CHUNK):
            self._sample(rows[start : start + _CHUNK], out[start : start + _CHUNK])
        return out

    def _sample(self, rows: Matrix, out: Values) -> None:
        levels = np.ascontiguousarray(self.curves(rows).T)
        lines = np.zeros((CURVES * 4, SAMPLES, len(rows)), np.float32)
        used = 0
        for t, depth in enumerate(self.depths):
            counts, reuses, visits = levels[used : used + 3 * depth].reshape(3, depth, -1)
            used += 3 * depth
            inward = within(visits)
            by_count, by_reuse = (depth - 1 - within(x[::-1]) for x in (counts, reuses))
            for c, (y, at) in enumerate(
                ((reuses, by_count), (counts, by_reuse), (visits, by_count), (counts, inward))
            ):
                y.take(at * len(rows) + np.arange(len(rows)), out=lines[4 * t + c], mode="clip")
        out[:, : CURVES * 4 * SAMPLES] = lines.reshape(-1, len(rows)).T


def within(x: Array) -> Array:
    """For each row, the last level (levels are lines of x) up to which x is at most 0, STEP,
    2 * STEP, ...; the first level if there is none.
    """
    # with a small tolerance for inexact logarithms
    steps = np.ceil(np.maximum.accumulate(x, axis=0) / STEP - 1e-4).astype(np.int8)
    at = np.empty((SAMPLES, x.shape[1]), np.int8)
    for k in range(SAMPLES):
        np.add.reduce((steps <= k).view(np.int8), axis=0, out=at[k])
    return np.asarray(np.maximum(at - 1, 0), np.intp)


def _plain(program: Program) -> list[Term]:
    g, variant = program.graph, program.variant
    target = variant.task.target
    func = variant.task.func
    flops, nbytes = float(func.flops), float(func.nbytes)
    visits = g.of(0)
    for n in program.nests:
        visits = visits + n.iterations
    out = [
        g.of(flops).log(), g.of(nbytes).log(), g.of(flops / max(nbytes, 1)).log(),
        g.of(len(program.nests)), (visits / sum(n.points for n in program.nests)).log(),
        g.of(target.num_cores).log(), g.of(target.vector_bits).log(),
        g.of(target.l1_nbytes).log(), g.of(target.l2_nbytes).log(), g.of(target.l3_nbytes).log(),
    ]  # fmt: skip
    for n in program.ranked[:STATEMENTS]:
        out += _statement(program, n)
    return out + [g.of(0)] * (_OF_PROGRAM + STATEMENTS * _OF_STATEMENT - len(out))


def _statement(program: Program, n: Nest) -> list[Term]:
    g = program.graph
    kinds = [program.kinds(f) for f in n.path]

    def length(kind: str) -> Term:
        return g.product(
            [k[kind].where(loop.extent, 1) for k, loop in zip(kinds, n.loops, strict=False)]
        )

    steps = g.product([loop.extent for loop in n.loops if loop.reducing])
    nbytes = sum((a.touched[0] * a.nbytes for a in n.accesses), g.of(0))
    counts = operations(n.block)
    flops = float(n.points * sum(counts.values()))
    out = [g.of(n.points), n.iterations / n.points, flops / nbytes, steps]
    out += [length(k) for k in ("parallel", "vectorize", "unroll", "thread")]
    return [x.log() for x in (*out, *(g.of(float(c)) for c in counts.values()))]


@lru_cache(maxsize=1024)
def _relations(variant: Variant) -> Relations:
    return Relations(variant)


def relation_features(variant: Variant, rows: Matrix) -> Values:
    """(rows, RELATION_WIDTH), a width that is the same for all programs.

    For each of the first CURVES touches: reuse by count, count by reuse, visits by count and count
    by visits, in log2, each sampled where the latter is a power of 2**STEP. Then come features of
    the program, and of the STATEMENTS with the most work.
    """
    return _relations(variant)(rows)


@checks_given(error=TuneError)
@dataclass(frozen=True)
class RelationFeatures:
    """The feature extractor of relations: one line for a whole program, comparable between shapes
    and operators.
    """

    def extract(self, variant: Variant, rows: Matrix) -> Values:
        return relation_features(variant, rows)[:, None]


_OF_LEAF = len(OPERATIONS) + 3 + 3 * TOUCHES
# Features of a node: whether it is a statement, then those of a loop or of a statement. Both start
# at the same column to save memory, because most nodes are loops.
NODE_WIDTH = 1 + max(LOOP_WIDTH, _OF_LEAF)


class Tree:
    """`parents` has one entry per node, -1 for the root, which comes first. A node comes after its
    parent.
    """

    def __init__(self, variant: Variant) -> None:
        self._program = Program(variant)
        self._nests = {n.block.name: n for n in self._program.nests}
        g = self._program.graph
        self._terms: list[Term] = [g.of(0)] * NODE_WIDTH
        parents = [-1]
        for parent, terms in self._below(variant.func.body, 0, parents):
            parents.append(parent)
            self._terms += [*terms, *[g.of(0)] * (NODE_WIDTH - len(terms))]
        self.parents = tuple(parents)
        self._compiled = g.compile(self._terms)

    def _below(
        self, body: tuple[Stmt, ...], at: int, parents: list[int]
    ) -> Iterator[tuple[int, list[Term]]]:
        g = self._program.graph
        for s in body:
            if isinstance(s, For):
                yield at, [g.of(0), *self._program.loop(s)]
                yield from self._below(s.body, len(parents) - 1, parents)
            elif isinstance(s, If):
                yield from self._below(s.body, at, parents)
            elif isinstance(s, Block):
                yield at, [g.of(1), *_leaf(self._nests[s.name])]

    def of(self, rows: Matrix) -> Values:
        """(rows, nodes, NODE_WIDTH)."""
        return self._compiled(rows).reshape(len(rows), len(self.parents), NODE_WIDTH)


def _leaf(n: Nest) -> list[Term]:
    g = n.graph
    out = [g.of(float(c)).log() for c in operations(n.block).values()]
    out += [g.of(float(n.points)).log(), float(n.points) / n.iterations, n.unroll_depth.log()]
    for a in n.accesses[:TOUCHES]:
        out += [g.of(float(a.reads)), g.of(float(a.writes)), (a.touched[0] * a.nbytes).log()]
    return out + [g.of(0)] * (_OF_LEAF - len(out))


@lru_cache(maxsize=1024)  # a variant is compared by identity
def tree_of(variant: Variant) -> Tree:
    return Tree(variant)
