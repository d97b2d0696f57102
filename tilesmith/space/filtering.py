"""Rules for sums over sliding windows: minimal filtering, and products with padding left out."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from math import prod
from typing import Any

from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import product
from tilesmith.ir.function import Function
from tilesmith.ir.lookup import find_block
from tilesmith.ir.nodes import Block
from tilesmith.schedule.kinds import Unroll
from tilesmith.schedule.loops import Fuse, Reorder
from tilesmith.schedule.rounding import ACCURACY, filtering_error
from tilesmith.schedule.step import Step
from tilesmith.schedule.winograd import Filtering, Winograd, filtering_of
from tilesmith.schedule.zeros import SkipZeros, edges_of, share_of_zeros
from tilesmith.space.large_tiles import with_large_tiles
from tilesmith.space.state import Derived, State


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
    results at a time, and also `results` at a time where that saves more (see large_tiles.py).
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
        filtering = filtering_of(func, b) if not state.levels_of(b.name) else None
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
