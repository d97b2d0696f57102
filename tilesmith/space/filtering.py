"""Rules for sums over sliding windows: minimal filtering (Winograd) on CPUs and on GPUs, and
products with padding left out.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import product
from tilesmith.ir.function import Function, find_block, find_loop
from tilesmith.ir.nodes import Block
from tilesmith.schedule.cache import CacheRead
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.kinds import Unroll, Vectorize
from tilesmith.schedule.layout import TransformLayout
from tilesmith.schedule.location import ComputeAt
from tilesmith.schedule.loops import Fuse, Reorder, Split
from tilesmith.schedule.step import Step
from tilesmith.schedule.winograd import (
    Filtering,
    Window,
    Winograd,
    filtering_error,
    filtering_of,
)
from tilesmith.schedule.zeros import InlinePadding, SkipZeros, edges_of, share_of_zeros
from tilesmith.space import analysis
from tilesmith.space.derive import Derived, State
from tilesmith.space.rules_gpu import in_consumer, over_threads
from tilesmith.task.task import ACCURACY


def with_large_tiles(state: State, windows: Sequence[Window], results: int) -> State:
    """The current block by F(`results`, ...) along one window or two. Raises a ScheduleError if the
    rows behind a window are shorter than a vector.
    """
    b = state.block
    names = [b.name, f"{b.name}.products"][: len(windows)]
    for name, w in zip(names, windows, strict=True):
        state = state.then(Winograd(name, (w.tap,), results))
    at = [i.name for i in b.spatial].index(windows[0].place)
    return _behind(_before(state, names, windows), names, at, results)


def _before(state: State, names: Sequence[str], windows: Sequence[Window]) -> State:
    """Schedules the input transforms."""
    first, *others = windows
    rows = f"{names[0]}.tiles"
    for name, w in zip(names[1:], others, strict=True):
        block = f"{name}.tiles"
        each, earlier, *axes = _loops(state, block)
        around = f"{block}.ax{first.image_dim + 1}"  # behind the numbers of the earlier products
        cut = axes.index(f"{block}.{w.place}") + 1
        inside = axes.index(around) + 1
        outer = [*axes[:inside], earlier, *axes[inside:cut]]
        state = _written_out(state, outer, each, axes[cut:])
        state = state.then(ComputeAt(rows, around))
    each, *axes = _loops(state, rows)
    cut = axes.index(f"{rows}.{first.place}") + 1
    return _written_out(state, axes[:cut], each, axes[cut:])


def _behind(state: State, names: Sequence[str], at: int, results: int) -> State:
    """Schedules the output transforms. What an element-wise consumer does is done in the last one;
    its iterator number `at` is the place along the first window.
    """
    last = names[0]
    after = analysis.fusible_consumer(state.func, analysis.block(state.func, last))
    if after is not None and not state.levels_of(after.name):
        state, last = state.then(Inline(last)), after.name
    loops = _loops(state, last)
    split = Split(loops[at], (None, results))
    state = _written_out(
        state.then(split), [*loops[:at], split.parts[0]], split.parts[1], loops[at + 1 :]
    )
    for name in names[1:]:
        state = state.then(ComputeAt(name, split.parts[0]))
        earlier, *axes, place, row = _loops(state, name)
        inner = Split(place, (None, results))
        outer = [*axes, earlier, inner.parts[0]]
        state = _written_out(state.then(inner), outer, inner.parts[1], [row])
    return state


def _loops(state: State, block: str) -> list[str]:
    path, b = find_block(state.func, block)
    return [f.name for f in path if f.owner == b.name]


def _written_out(state: State, outer: Sequence[str], each: str, row: Sequence[str]) -> State:
    """Unrolls the loop `each` around one vector of the last loop of the row."""
    lanes = state.task.target.lanes(32)
    last = find_loop(state.func, row[-1])[1] if row else None
    if last is None or analysis.length(last) < lanes:
        raise ScheduleError(f"the rows behind {each} do not fill a vector")
    split = Split(last.name, (None, lanes))
    order = Reorder((*outer, *row[:-1], split.parts[0], each, split.parts[1]))
    return state.then(split, order, Unroll(each), Vectorize(split.parts[1]))


def leave_out_padding(state: State) -> Derived | None:
    """Skips the products with zeros around a constant operand, such as the weights of those phases
    of a transposed convolution that have a tap less than others.
    """
    func, b = state.func, state.block
    constants = {p.name for p in func.inputs if p.scope == "constant"}
    for p in analysis.producers(func, b):
        if {x.buffer for x in p.loads} <= constants and p.combiner is None:
            after = state.attempt(InlinePadding(b.name, p.writes[0].buffer))
            if after is not None:
                return Derived((after,), final=True)
    return None


@dataclass(frozen=True)
class LeaveOutZeros:
    """Skips the products with padding in sums over windows, along dimensions where they are at
    least a share `least` of all. The guard stands outside of the register tile, so these dimensions
    are not part of it. The last dimension stays in it, and must have at least `room` elements;
    only where products with padding are a share `most` of all is it better to guard it, too.
    """

    least: float = 0.03
    most: float = 0.5
    room: int = 8

    def __call__(self, state: State) -> Derived | None:
        b = state.block
        if b.domain or state.levels_of(b.name):
            return None
        taps = self.taps(state.func, b)
        return Derived((state.then(SkipZeros(b.name, taps)),), final=True) if taps else None

    def taps(self, func: Function, b: Block, without: Container[str] = ()) -> tuple[str, ...]:
        """The window iterators along which it pays."""
        inputs = {p.name for p in func.inputs}
        if all(x.buffer in inputs for x in b.loads):  # zeros are those of a padded copy
            return ()
        edges = edges_of(func, b)
        extents = {i.name: i.extent.number for i in b.iters}
        shares = {e.tap: share_of_zeros(e, extents) for e in edges if e.tap not in without}
        has_room = bool(edges) and prod(extents[n] for n in edges[-1].places) >= self.room
        few = {e.tap for e in edges[:-1]} if has_room else set()
        return tuple(
            tap for tap, share in shares.items()
            if share >= self.most or (tap in few and share >= self.least)
        )  # fmt: skip


@dataclass(frozen=True)
class FilterWindows:
    """Winograd's minimal filtering for sums over windows of constant weights. It pays if the
    transforms are cheap relative to the products: an element must be used in at least `least` sums,
    of at least `least` terms.

    Windows of three taps and stride 1 are filtered along the `most` dimensions that save most, two
    results at a time, and also `results` at a time where that saves more (see `with_large_tiles`).
    Longer or strided windows need larger transforms, which pass through memory: they are filtered
    along one dimension, `results` at a time or as many as `products` allow, and only for sums of at
    least `longer` terms. Rows of the image along the inner dimensions must hold a vector.
    """

    most: int = 2
    least: int = 16
    gain: float = 1.4  # the least ratio of products saved: plain / filtered
    results: int = 4
    larger: float = 1.1  # the least ratio of products that larger tiles save
    products: int = 8  # more have larger rounding errors
    longer: int = 64
    accuracy: float = ACCURACY  # the largest relative error that is allowed
    zeros: LeaveOutZeros = LeaveOutZeros()  # applied to the other windows, if only one is filtered

    def __call__(self, state: State) -> Derived | None:
        func, b = state.func, state.block
        if state.levels_of(b.name) or not any(p.scope == "constant" for p in func.inputs):
            return None  # weights are transformed ahead of time
        filtering = filtering_of(func, b)
        if filtering is None:
            return None
        short = self.short(b, filtering)
        lanes = state.task.target.lanes(32)
        step = short or self._long(func, b, filtering, lanes)
        if step is None or not self.pays(b, filtering, step):
            return None
        derived = [
            made
            for make in ((self._plain, self._large) if short else (self._rows,))
            if (made := self._made(make, state, step, filtering)) is not None
        ]
        return Derived(tuple(derived)) if derived else None

    def _made(
        self, make: Callable[[State, Winograd, Filtering], State | None], *of: Any
    ) -> State | None:
        """The state that `make` returns; None if a step does not apply, or if the rounding error
        exceeds `accuracy`.
        """
        try:
            made = make(*of)
        except ScheduleError:
            return None
        if made is None or filtering_error(made.task.func, made.steps) > self.accuracy:
            return None
        return made

    def _plain(self, state: State, step: Winograd, filtering: Filtering) -> State:
        return state.then(step)

    def _rows(self, state: State, step: Winograd, filtering: Filtering) -> State:
        taps = self.zeros.taps(state.func, state.block, step.taps)
        before = [SkipZeros(step.block, taps)] if taps else []
        (place,) = (w.place for w in filtering.windows if w.tap in step.taps)
        derived = state.then(*before, step)
        return _in_rows(derived, f"{step.block}.tiles", place, *step.taps)

    def short(self, b: Block, filtering: Filtering) -> Winograd | None:
        """For windows of three taps and stride 1, if there are any."""
        windows = [w for w in filtering.windows if (w.count, w.stride) == (3, 1)]
        if not windows:
            return None
        places = {i.name: max(1, i.extent.number) for i in b.spatial}
        best = sorted(windows, key=lambda w: w.filter(2).gain(places[w.place]))[-self.most :]
        return Winograd(b.name, tuple(w.tap for w in windows if w in best))

    def _large(self, state: State, step: Winograd, filtering: Filtering) -> State | None:
        """The same windows with larger tiles, if these take fewer products."""
        windows = [w for w in filtering.windows if w.tap in step.taps]
        places = {i.name: max(1, i.extent.number) for i in state.block.spatial}
        gains = [
            prod(w.filter(results).gain(places[w.place]) for w in windows)
            for results in (step.results, self.results)
        ]
        if gains[1] < self.larger * gains[0]:
            return None
        return with_large_tiles(state, windows, self.results)

    def _long(self, func: Function, b: Block, filtering: Filtering, lanes: int) -> Winograd | None:
        places = {i.name: max(1, i.extent.number) for i in b.spatial}
        shape = func.all_buffers[filtering.image.buffer].shape
        best: tuple[float, Winograd | None] = 0.0, None
        for w in filtering.windows:
            results = min(self.results, self.products + 1 - -(-w.count // w.stride))
            row = product(shape[w.image_dim + 1 :]).number
            if results < 2 or row < lanes:
                continue
            gain = w.filter(results).gain(places[w.place])
            if gain >= best[0]:  # among equal gains the last dimension, with the shortest rows
                best = gain, Winograd(b.name, (w.tap,), results)
        return best[1]

    def pays(self, b: Block, filtering: Filtering, step: Winograd) -> bool:
        """Whether enough products are saved, relative to the transforms."""
        extents = {i.name: max(1, i.extent.number) for i in b.iters}
        seen = {n for p in filtering.image.index for n in p.names}
        windows = [w for w in filtering.windows if w.tap in step.taps]
        uses = prod(extents[i.name] for i in b.spatial if i.name not in seen)
        terms = prod(extents[i.name] for i in b.reducing if i.name not in step.taps)
        gain = prod(w.filter(step.results).gain(extents[w.place]) for w in windows)
        least = self.least if all((w.count, w.stride) == (3, 1) for w in windows) else self.longer
        return uses >= self.least and terms >= least and gain >= self.gain


def _in_rows(state: State, block: str, place: str, tap: str) -> State:
    """Unrolls the loop over products and vectorises each over a row of the image."""
    names = [i.name for i in find_block(state.func, block)[1].iters]
    behind = names.index(place) + 1
    outer = [f"{block}.{n}" for n in names[:behind] if n != tap]
    row = tuple(f"{block}.{n}" for n in names[behind:])
    each = f"{block}.{tap}"
    steps: list[Step] = [Reorder((*outer, each, *row)), Unroll(each)]
    return state.then(*steps, *([Fuse(row)] if len(row) > 1 else []))


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
