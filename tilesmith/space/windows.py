"""The rule for reductions over small windows, such as depthwise convolution and pooling."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilesmith.base.errors import ScheduleError
from tilesmith.ir.lookup import find_block
from tilesmith.ir.nodes import Block
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.kinds import Unroll, Vectorize
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.sample import SampleTile
from tilesmith.schedule.write_out import WriteOut
from tilesmith.space import analysis
from tilesmith.space.state import Derived, State


@dataclass(frozen=True)
class WriteOutWindows:
    """Writes out a reduction over a window whose operands are not shared along the vectorised axis:
    nothing but the overlap of windows is used again. It becomes one pass together with its
    element-wise consumer, with a few neighbouring results in registers: at most `most` along the
    axis inside and `rows` along the one outside (with more, Neoverse-N1 was not faster, and code
    grows). Padding is computed ahead, or inlined for windows of at most `small` terms: code
    generation then splits the loops where it ends, into nine copies of the register tile.
    """

    lanes: int
    terms: int = 25
    small: int = 9
    most: int = 3
    rows: int = 2

    def __call__(self, state: State) -> Derived | None:
        func, b = state.func, state.block
        if b.combiner is None or b.domain or state.levels_of(b.name):
            return None
        terms = prod(analysis.length(i) for i in b.reducing)
        if not 1 < terms <= self.terms:
            return None
        moved = moved_axes(b)
        last = b.spatial[-1] if b.spatial else None
        if last is None or not moved or last.name in moved:
            return None
        shared = analysis.shared_axes(b) & {*analysis.contiguous_axes(func, b)}
        if last.name not in shared or analysis.length(last) < self.lanes:
            return None
        at = [k for k, i in enumerate(b.spatial) if i.name in moved][-2:]
        derived = []
        for inlined in (True, False) if terms <= self.small else (False,):
            try:
                derived.append(self._derived(state, at, inlined))
            except ScheduleError:
                continue
        unique = {s.steps: s for s in derived}
        return Derived(tuple(unique.values())) if unique else None

    def _derived(self, state: State, at: list[int], inlined: bool) -> State:
        b = state.block
        state = state.then(WriteOut(b.name))
        written = analysis.block(state.func, b.name)
        if inlined:
            for p in analysis.producers(state.func, written):
                if p.combiner is None and len(analysis.consumers(state.func, p)) == 1:
                    state = state.then(Inline(p.name))
        name = b.name
        after = analysis.fusible_consumer(state.func, written)
        if after is not None and not after.reducing and not state.levels_of(after.name):
            state, name = state.then(Inline(b.name)), after.name
        path, block = find_block(state.func, name)
        loops = [f.name for f in path]
        if len(loops) != len(block.iters):
            raise ScheduleError(f"{name} shares its loops")
        bounds = dict(zip(reversed(at), (self.most, self.rows), strict=False))
        outer: list[str] = []
        inner: list[str] = []
        for k, loop in enumerate(loops[:-1]):
            if k not in bounds:
                outer.append(loop)
                continue
            sample = SampleTile(loop, 2, "any", bounds[k])
            split = Split(loop, sample.columns, exact=sample.exact)
            state = state.then(sample, split, Unroll(split.parts[1]))
            outer.append(split.parts[0])
            inner.append(split.parts[1])
        sample = SampleTile(loops[-1], 2, "vector", 2 * self.lanes, self.lanes)
        split = Split(loops[-1], sample.columns, exact=sample.exact)
        order = Reorder((*outer, split.parts[0], *inner, split.parts[1]))
        return state.then(sample, split, order, Vectorize(split.parts[1]), done=[name])


def moved_axes(b: Block) -> set[str]:
    """Spatial axes that share a dimension of an operand with a reduced axis: windows move there."""
    spatial, taps = {i.name for i in b.spatial}, {i.name for i in b.reducing}
    return {n for load in b.loads for p in load.index if p.names & taps for n in p.names & spatial}
