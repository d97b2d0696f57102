"""Rules for blocks that keep every partial result of a reduction: a task's state in, one or two
sketches out. The reduction stays in order, so what is parallel is everything else: neighbouring
results in vectors, or several rows at a time, whose chains of additions overlap; on GPUs, tiles of
blocks, each block in order by a thread.
"""

from __future__ import annotations

from math import prod

from tilesmith.base.dataclass import dataclass
from tilesmith.expr.ints import FloorDiv
from tilesmith.ir.function import find_block
from tilesmith.ir.nodes import Block, For, walk
from tilesmith.ir.notes import FetchWidth
from tilesmith.schedule.cache import SetScope, StorageAlign
from tilesmith.schedule.kinds import Annotate, Bind, Unroll, Vectorize
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.sample import SampleChoice, SampleTile
from tilesmith.schedule.sharing import ShareLoop
from tilesmith.schedule.step import Step
from tilesmith.space import analysis
from tilesmith.space.derive import Derived, State


@dataclass(frozen=True)
class RunRows:
    """Vectors along the last loop if it is not the one that is reduced over, or else several rows
    at a time. Where rows are short, steps of the sum are unrolled under the vectors.

    for o in 64:                        for o.0 in 32:
      for k in 100: Y[o, k] ...   ->      for k.0 in 25:
                                            for k.1 in 4:  # unroll
                                              for o.1 in 2:  # unroll
                                                Y[o, k] ...
    """

    lanes: int
    vectors: tuple[int, ...] = (
        1,
        2,
        3,
        4,
        6,
        8,
    )  # of one step, whose partial results are in registers
    steps: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)  # of one row, before the next one is begun
    unrolled: int = 64  # steps of one row at most
    few: int = 18  # pairs of steps and widths, below which short rows are unrolled along the sum
    rows: tuple[int, ...] = (1, 2)  # stores to more rows at a time fill no cache line in a row

    def __call__(self, state: State) -> Derived | None:
        path, b = find_block(state.func, state.block.name)
        (at,) = [k for k, f in enumerate(path) if f.name in b.reducing_loops]
        outer, inner = list(path[:at]), list(path[at + 1 :])
        done = None
        if inner and analysis.length(inner[-1]) >= self.lanes:
            done = self._vectors(state, b.name, outer, path[at], inner)
        else:
            done = self._several(state, b.name, outer, path[at], inner)
        return Derived((done or state.skip(),), final=True)

    def _vectors(
        self, state: State, name: str, outer: list[For], run: For, inner: list[For]
    ) -> State | None:
        last, extent = inner[-1].name, analysis.length(inner[-1])
        widths = [self.lanes * n for n in self.vectors if self.lanes * n <= extent]
        steps = [n for n in self.steps if n * self.lanes <= extent]
        columns = f"#{name}.steps", f"#{name}.width"
        split = Split(last, (None, *columns))
        made: list[Step] = [
            SampleChoice(columns[0], tuple(steps)), SampleChoice(columns[1], tuple(widths)), split,
        ]  # fmt: skip
        along, unrolled = [run.name], list[Step]()
        if len(steps) * len(widths) < self.few:
            tile = SampleTile(run.name, 2, "any", self.unrolled)
            cut = Split(run.name, tile.columns, exact=tile.exact)
            made += [tile, cut]
            along, unrolled = list(cut.parts), [Unroll(cut.parts[1])]
        order = (*(f.name for f in inner[:-1]), split.parts[0], *along, *split.parts[1:])
        made += [Reorder(order), *unrolled, Vectorize(split.parts[2])]
        return state.attempt(*made, done=[name])

    def _several(
        self, state: State, name: str, outer: list[For], run: For, inner: list[For]
    ) -> State | None:
        """The outer loop with the most iterations is that of the rows. Steps along a row are
        unrolled: their additions wait for each other, but not their loads and stores.
        """
        tile = SampleTile(run.name, 2, "any", self.unrolled)
        along = Split(run.name, tile.columns, exact=tile.exact)
        steps: list[Step] = [tile, along]
        before, rows = [f.name for f in outer], list[str]()
        if outer:
            long = max(outer, key=analysis.length)
            column = f"#{name}.rows"
            several = tuple(n for n in self.rows if n <= max(1, analysis.length(long)))
            split = Split(long.name, (None, column))
            steps += [SampleChoice(column, several), split]
            before = [split.parts[0] if f is long else f.name for f in outer]
            rows = [split.parts[1]]
        unrolled = (along.parts[1], *rows, *(f.name for f in inner))
        steps += [Reorder((*before, along.parts[0], *unrolled)), *map(Unroll, unrolled)]
        done = state.attempt(*steps, done=[name])
        return None if done is None else done.with_tile(name, ())  # which has no prefetches


@dataclass(frozen=True)
class RunTiles:
    """For GPUs: a running sum whose axis is cut into tiles and blocks (ops/scan.py). A block of
    threads takes a tile: it copies the tile to shared memory, its threads sum a block each, add up
    what is carried to it, keep partial results, and all of them store these.
    """

    fetched: tuple[int, ...] = (1, 2, 4)  # elements that a thread copies at once
    stored: tuple[int, ...] = (1, 2, 4, 8)

    def __call__(self, state: State) -> Derived | None:
        func, b = state.func, state.block
        found = _tiles_of(state)
        if found is None:
            return None
        kept, tile = found
        *rows, last = (f"{b.name}.{i.name}" for i in b.spatial)
        split = Split(last, (None, tile))
        path = find_block(func, b.name)[0]
        if [f.name for f in path] != [*rows, last]:
            return None
        after = state.attempt(split)
        if after is None:
            return None
        names = [o.name for _, o in walk(func.body)]
        shared: list[str] = []
        for name in reversed(names[: names.index(b.name)]):
            done = after.attempt(ShareLoop(name, split.parts[0]))
            if done is not None:
                after = done
                shared.append(name)
        if kept.name not in shared:
            return None
        threads, target = analysis.length(kept.spatial[-1]), state.task.target
        nbytes = sum(self._nbytes(after, name, len(rows) + 1) for name in shared)
        if threads > target.max_threads or nbytes > target.shared_nbytes:
            return None
        steps: list[Step] = []
        for name in shared:
            steps += self._by_threads(after, name)
        after = after.attempt(*steps, done=[*shared, b.name])
        if after is None:
            return None
        column = f"#{b.name}.width"
        widths = tuple(w for w in self.stored if tile % (threads * w) == 0)
        wide = Split(split.parts[1], (None, threads, column), exact=bool(widths))
        done = after.attempt(
            SampleChoice(column, widths or (1,)), wide, *(Bind(x, "blockIdx.x") for x in rows),
            Bind(split.parts[0], "blockIdx.x"), Bind(wide.parts[1], "threadIdx.x"),
            Vectorize(wide.parts[2]),
        )  # fmt: skip
        return None if done is None else Derived((done,), final=True)

    def _nbytes(self, state: State, name: str, lead: int) -> int:
        """Of the results of a block for one tile, with room for odd lengths."""
        b = analysis.block(state.func, name)
        buffers = (state.func.all_buffers[w.buffer] for w in b.writes)
        sizes = ([n.number for n in x.shape[lead:]] + [x.dtype.nbytes] for x in buffers)
        return sum(prod((size[0], *(n + 1 for n in size[1:-1]), size[-1])) for size in sizes)

    def _by_threads(self, state: State, name: str) -> list[Step]:
        """What a block of the tile does: each thread some of its results, which stay in shared
        memory. Rows of elements have odd lengths there, so that threads read different banks.
        """
        path, b = find_block(state.func, name)
        own = [f for f in path if f.owner == name]
        steps: list[Step] = []
        read = {x.buffer for c in analysis.consumers(state.func, b) for x in c.loads}
        results = [w.buffer for w in b.writes if w.buffer in read]
        steps += [SetScope(buffer, "shared") for buffer in results]
        if b.combiner is None:  # the copy is spread over threads later
            column = f"#{name}.width"
            steps += [
                SampleChoice(column, self.fetched), Annotate(own[0].name, FetchWidth(column))
            ]  # fmt: skip
        else:
            steps += [Bind(own[0].name, "threadIdx.x"), *(Unroll(f.name) for f in own[1:])]
        dims = len(state.func.all_buffers[results[0]].shape) if results else 0
        if len(own) == 2 and dims == len(path) and (b.combiner is None or b.is_running):
            steps += [StorageAlign(buffer, dims - 2, 2, 1) for buffer in results]
        return steps


def _tiles_of(state: State) -> tuple[Block, int] | None:
    """The block whose partial results an element-wise block reads by tiles, and their size."""
    func, b = state.func, state.block
    if b.combiner is not None or b.reducing or state.levels_of(b.name) or not b.spatial:
        return None
    for p in analysis.producers(func, b):
        if not p.is_running or [c.name for c in analysis.consumers(func, p)] != [b.name]:
            continue
        indices = [x.index for x in b.loads if x.buffer in {w.buffer for w in p.writes}]
        if len(indices) != 1 or len(indices[0]) < 3:
            continue
        tile = indices[0][-3]
        if tile.const == 0:  # the only one
            return p, prod(analysis.length(i) for i in p.iters[-2:])
        ((atoms, c),) = tile.terms.items() if len(tile.terms) == 1 else (((), 0),)
        a = atoms[0] if len(atoms) == 1 and c == 1 else None
        if isinstance(a, FloorDiv) and a.a.name == b.spatial[-1].name and a.b.const:
            return p, a.b.const
    return None
