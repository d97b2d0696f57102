"""The rule for blocks that keep every partial result of a reduction: a task's state in, one or two
sketches out. The reduction stays in order, so what is parallel is everything else: neighbouring
results in vectors, or several rows at a time, whose chains of additions overlap.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilesmith.ir.function import find_block
from tilesmith.ir.nodes import For
from tilesmith.schedule.kinds import Unroll, Vectorize
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.sample import SampleChoice, SampleTile
from tilesmith.schedule.step import Step
from tilesmith.space import analysis
from tilesmith.space.derive import Derived, State


@dataclass(frozen=True)
class RunRows:
    """Vectors along the last loop if it is not the one that is reduced over, or else several rows
    at a time.

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
        order = (*(f.name for f in inner[:-1]), split.parts[0], run.name, *split.parts[1:])
        return state.attempt(
            SampleChoice(columns[0], tuple(steps)), SampleChoice(columns[1], tuple(widths)), split,
            Reorder(tuple(order)), Vectorize(split.parts[2]), done=[name],
        )  # fmt: skip

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
