"""The rule for small windows on GPUs, such as those of depthwise convolution and pooling."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilesmith.base.errors import ScheduleError
from tilesmith.ir.nodes import Block
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.sample import SampleTile
from tilesmith.schedule.step import Step
from tilesmith.schedule.write_out import WriteOut
from tilesmith.space import analysis
from tilesmith.space.over_threads import in_consumer, over_threads
from tilesmith.space.state import Derived, State
from tilesmith.space.windows import moved_axes


@dataclass(frozen=True)
class WriteOutWindowsForGpu:
    """Writes out a reduction over a window of an image that has an element for each result, of
    which nothing but the overlap of windows is used again. It becomes one pass together with its
    padding and its element-wise consumer. Each thread computes a few rows of a few neighbouring
    results, so that what their windows have in common is read once.
    """

    terms: int = 25
    rows: int = 8
    columns: int = 4
    threads: tuple[int, ...] = (64, 128, 256, 512)

    def __call__(self, state: State) -> Derived | None:
        b = state.block
        if b.combiner is None or not b.init or b.domain or state.levels_of(b.name):
            return None
        if b.name.endswith((".local", ".rf")):
            return None
        if not 1 < prod(analysis.length(i) for i in b.reducing) <= self.terms:
            return None
        moved = moved_axes(b)
        if not moved or not _has_image(b):
            return None
        at = [k for k, i in enumerate(b.spatial) if i.name in moved][-2:]
        try:
            return Derived((self._derived(state, at),))
        except ScheduleError:
            return None

    def _derived(self, state: State, at: list[int]) -> State:
        b = state.block
        state = state.then(WriteOut(b.name))
        for p in analysis.producers(state.func, analysis.block(state.func, b.name)):
            if p.combiner is None and len(analysis.consumers(state.func, p)) == 1:
                state = state.then(Inline(p.name))
        state, name, loops = in_consumer(state, b.name)
        most = dict(zip(reversed(at), (self.columns, self.rows), strict=False))
        outer: list[str] = []
        inner: list[str] = []
        steps: list[Step] = []
        for k, loop in enumerate(loops):
            if k not in most:
                outer.append(loop)
                continue
            sample = SampleTile(loop, 2, "divisors", most[k])
            split = Split(loop, sample.columns, exact=sample.exact)
            steps += [sample, split]
            outer.append(split.parts[0])
            inner.append(split.parts[1])
        steps.append(Reorder((*outer, *inner)))
        return over_threads(state.then(*steps), name, outer, inner, self.threads)


def _has_image(b: Block) -> bool:
    """Whether all axes of the results index an operand, each of its elements by itself: not groups
    of several, which read the same.
    """
    axes = [i.name for i in b.spatial if i.extent.const != 1]
    return any(all(any(p.coefficient(n).terms for p in x.index) for n in axes) for x in b.loads)
