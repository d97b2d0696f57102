"""The rule that finishes sketches for CPUs: locations of the remaining blocks, vectorisation,
unrolling, prefetching and parallel loops, each an open decision.
"""

from __future__ import annotations

from itertools import takewhile

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.base.given import checks_given
from tilesmith.ir.function import find_block
from tilesmith.ir.nodes import Block, For, walk
from tilesmith.schedule.kinds import (
    AutoParallel,
    AutoPrefetch,
    AutoUnroll,
    AutoVectorize,
    PrefetchStreams,
)
from tilesmith.schedule.loops import Split
from tilesmith.schedule.sample import SampleChoice, SampleLocation, SampleTile
from tilesmith.space import analysis
from tilesmith.space.derive import Derived, State

_UNROLL = (0, 16, 64, 512)  # depths
_MOST_PARALLEL = 4  # loops


@checks_given(error=ScheduleError)
@dataclass(frozen=True)
class CpuAnnotation:
    """Locations that recompute nothing; unrolling of blocks that are not tiled; prefetching."""

    # The most rows of the last block in a group, if each row depends on reductions of its own. The
    # horizontal sum of one row then overlaps with the loads of the others.
    rows: int = 8
    stream: int = 0  # bytes ahead that tiled blocks prefetch packed operands (0: not at all)

    def __call__(self, state: State) -> Derived | None:
        return None

    def finish(self, state: State) -> State:
        """The state with the annotations added."""
        if not any(walk(state.func.body)):  # of an empty array
            return state
        state, group = self._group_rows(state)
        state = vectorised(located(state, group, repeat=False))
        tiled = {name for name, _ in state.tiled}
        blocks = [b for _, b in walk(state.func.body)]
        state = unrolled(state, [b for b in blocks if b.name not in tiled and not b.is_running])
        if not tiled:  # memory-bound
            state = state.then(SampleChoice("#prefetch", (0, 1, 2)), AutoPrefetch("#prefetch"))
        if self.stream:
            reduced = [b.name for b in blocks if b.name in tiled and b.reducing]
            state = state.then(*(PrefetchStreams(name, self.stream) for name in reduced))
        return parallelised(state)

    def _group_rows(self, state: State) -> tuple[State, tuple[str, ...]]:
        """Splits the outermost loop into groups of rows, if it pays. Returns the state, and the
        names of both loops or ().
        """
        path, b = list(walk(state.func.body))[-1]
        waits = any(
            p.combiner is not None and 0 < len(p.spatial) < len(b.spatial)
            for _, p in walk(state.func.body)
        )
        if state.tiled or not waits or b.reducing or len(path) < 2:
            return state, ()
        if any(f.kind != "serial" for f in path):
            return state, ()
        sample = SampleTile(path[0].name, 2, max_innermost=self.rows)
        split = Split(path[0].name, sample.columns, exact=sample.exact)
        return state.then(sample, split), split.parts


def vectorised(state: State) -> State:
    """All blocks with vectors where their loops allow it."""
    return state.then(*(AutoVectorize(b.name) for _, b in walk(state.func.body)))


def unrolled(state: State, blocks: list[Block]) -> State:
    """Reductions among the blocks, with a depth of unrolling to choose. One whose loops are all
    vectorised has nothing to unroll.
    """
    counted = {b.name for path, b in walk(state.func.body) if any(map(_counts, path))}
    summed = {
        b.name for path, b in walk(state.func.body)
        if any(f.name in b.reducing_loops and f.extent.const != 1 for f in path)
    }  # fmt: skip
    for b in blocks:
        if b.name in counted & summed:
            column = f"#{b.name}.unroll"
            state = state.then(SampleChoice(column, _UNROLL), AutoUnroll(b.name, column))
    return state


def parallelised(state: State) -> State:
    """How many outer loops run in parallel is a decision, if there are several cores."""
    if state.task.target.num_cores == 1:
        return state
    numbers = tuple(range(1, _MOST_PARALLEL + 1))
    return state.then(SampleChoice("#parallel", numbers), AutoParallel("#parallel", _MOST_PARALLEL))


def located(state: State, group: tuple[str, ...] = (), repeat: bool = True) -> State:
    """Samples locations of blocks that no rule has placed, consumers before producers; with
    `repeat`, also those that recompute elements. `group` are the loops over groups of rows.
    """
    placed = {s.block for s in state.steps if isinstance(s, SampleLocation)}
    tiled = {name for name, _ in state.tiled}
    for path, b in reversed(list(walk(state.func.body))):
        own = {b.name, *analysis.cache_stages(state.func, b)}
        at_root = all(f.owner in own for f in path)  # not inside loops of another block
        if b.name in tiled or b.name in placed or not at_root:
            continue
        if any(f.kind != "serial" for f in path):  # a rule has set its loops
            continue
        if analysis.is_output(state.func, b):
            continue
        places = _places(state, b, group, repeat)
        if len(places) > 1:
            state = state.then(SampleLocation(b.name, places))
    return state


def _places(state: State, b: Block, group: tuple[str, ...], repeat: bool) -> tuple[str, ...]:
    after = analysis.consumers(state.func, b)
    if not after:
        return ("root",)
    last = after[-1]
    levels = state.levels_of(last.name)
    path, _ = find_block(state.func, last.name)
    outside = list(takewhile(lambda f: f.kind == "serial", path))
    if levels:  # between tile levels only: within a level, other factors give the same
        loops = [level[-1] for level in levels[:-1] if level]
    else:
        # the loop within a group is left out: groups of one row give the same
        loops = [f.name for f in outside if f.name not in {*last.reducing_loops, *group[1:]}]
        if not repeat:
            moving = analysis.moved_by(last, b)
            loops = loops[: max((k + 1 for k, n in enumerate(loops) if n in moving), default=0)]
        if b.combiner is not None:  # in the group, if its consumer may be computed there
            loops += [n for n in group[:1] if n not in loops]
    # inlining would duplicate the computation
    apart = b.combiner is not None or len(after) > 1 or (not levels and len(outside) < len(path))
    return ("root", *(() if apart else ("inline",)), *loops)


def _counts(f: For) -> bool:
    return f.kind != "vectorize"
