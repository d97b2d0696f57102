"""The rule for minimal filtering on GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from tilesmith.base.errors import ScheduleError
from tilesmith.ir.lookup import find_block
from tilesmith.schedule.cache import CacheRead
from tilesmith.schedule.kinds import Unroll
from tilesmith.schedule.layout import TransformLayout
from tilesmith.schedule.location import ComputeAt
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.rounding import filtering_error
from tilesmith.schedule.winograd import Filtering, Winograd, filtering_of
from tilesmith.space import analysis
from tilesmith.space.filtering import FilterWindows
from tilesmith.space.over_threads import in_consumer, over_threads
from tilesmith.space.state import Derived, State


@dataclass(frozen=True)
class FilterWindowsForGpu:
    """Winograd's minimal filtering for sums over windows of constant weights, as three launches:
    the transform of the image, a product for each element of the transformed windows, and the
    transform of the results with what follows element by element. A thread transforms a whole
    window, so that each element is loaded once. Where so much is summed that the launches hardly
    count: at least `terms` terms.
    """

    windows: FilterWindows
    results: tuple[int, ...] = (2, 4)  # along each window; a sketch for each
    terms: int = 1 << 26
    threads: tuple[int, ...] = (64, 128, 256)

    def __call__(self, state: State) -> Derived | None:
        b = state.block
        if b.name.endswith((".local", ".rf")) or prod(analysis.points(b)) < self.terms:
            return None
        filtering = filtering_of(state.func, b)
        step = None if filtering is None else self.windows.short(b, filtering)
        if filtering is None or step is None:
            return None
        derived = []
        for results in self.results:
            step = replace(step, results=results)
            if not self.windows.pays(b, filtering, step):
                continue
            try:
                made = self._filtered(state, step, filtering)
            except ScheduleError:
                continue
            if filtering_error(state.task.func, made.steps) <= self.windows.accuracy:
                derived.append(made)
        return Derived(tuple(derived)) if derived else None

    def _filtered(self, state: State, step: Winograd, filtering: Filtering) -> State:
        places = [w.place for w in filtering.windows if w.tap in step.taps]
        at = [k for k, i in enumerate(state.block.spatial) if i.name in places]
        image = filtering.image.buffer
        state = self._before(state.then(step), f"{step.block}.tiles", len(step.taps), image)
        state = self._behind(state, step.block, at, step.results)
        return state.then(_by_products(state, f"{step.block}.products", filtering.weights.buffer))

    def _before(self, state: State, name: str, taps: int, image: str) -> State:
        """Each thread computes all elements of a transformed window, from a copy in registers."""
        loops = [f.name for f in find_block(state.func, name)[0]]
        inner, outer = loops[:taps], loops[taps:]
        read = CacheRead(name, image, "local")
        state = state.then(Reorder((*outer, *inner)), read, ComputeAt(read.copy, outer[-1]))
        path, _ = find_block(state.func, read.copy)
        own = [Unroll(f.name) for f in path if f.owner == read.copy]
        state = state.then(*own, done=[read.copy])
        return over_threads(state, name, outer, inner, self.threads)

    def _behind(self, state: State, name: str, at: Sequence[int], results: int) -> State:
        """Each thread computes all results of a window."""
        state, name, loops = in_consumer(state, name)
        splits = {k: Split(loops[k], (None, results)) for k in at}
        outer = [splits[k].parts[0] if k in splits else x for k, x in enumerate(loops)]
        inner = [s.parts[1] for s in splits.values()]
        state = state.then(*splits.values(), Reorder((*outer, *inner)))
        return over_threads(state, name, outer, inner, self.threads)


def _by_products(state: State, products: str, weights: str) -> TransformLayout:
    """Packs the weights of each product as a matrix, whose rows are terms."""
    b = analysis.block(state.func, products)
    (index,) = {load.index for load in b.loads if load.buffer == weights}
    reducing = {i.name for i in b.reducing}
    tapped = {i.name for i in b.spatial} & {
        n for load in b.loads if load.buffer != weights for p in load.index for n in p.names
    }

    def rank(d: int) -> int:
        names = index[d].names
        return 0 if names & tapped else 1 if names & reducing else 2

    order = sorted(range(len(index)), key=rank)
    return TransformLayout(weights, tuple(f"d{d}" for d in order))
