"""Rules for reductions over small windows, such as depthwise convolution and pooling, on CPUs and
on GPUs.
"""

from __future__ import annotations

from contextlib import suppress
from math import prod

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.ir.function import find_loop
from tilesmith.ir.nodes import Block
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.kinds import Unroll, Vectorize
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.reduction import WriteOut
from tilesmith.schedule.sample import SampleChoice, SampleTile
from tilesmith.schedule.step import Step
from tilesmith.space import analysis
from tilesmith.space.derive import Derived, State
from tilesmith.space.rules_gpu import in_consumer, over_threads


@dataclass(frozen=True)
class WriteOutWindows:
    """Writes out a reduction over a window whose operands are not shared along the vectorised axis:
    nothing but the overlap of windows is used again. It becomes one pass together with its
    element-wise consumer, with a few neighbouring results in registers: at most `most` along the
    axis inside and `rows` along the one outside (with more, Neoverse-N1 was not faster, and code
    grows). Padding is computed ahead, or inlined for windows of at most `small` terms: code
    generation then splits the loops where it ends, into nine copies of the register tile.

    Where the rows that windows have in common do not fit into the second cache, a part of the
    channels is taken through the whole image before the next one, of which they do.
    """

    lanes: int
    terms: int = 25
    small: int = 9
    most: int = 3
    rows: int = 2
    shares: tuple[int, ...] = (4, 8)  # of the cache that such rows take, as one of so many

    def __call__(self, state: State) -> Derived | None:
        func, b = state.func, state.block
        if b.combiner is None or b.domain or state.levels_of(b.name):
            return None
        terms = prod(analysis.length(i) for i in b.reducing)
        if not 1 < terms <= self.terms:
            return None
        moved = analysis.window_axes(b)
        last = b.spatial[-1] if b.spatial else None
        if last is None or not moved or last.name in moved:
            return None
        shared = analysis.shared_axes(b) & {*analysis.contiguous_axes(func, b)}
        if last.name not in shared or analysis.length(last) < self.lanes:
            return None
        at = [k for k, i in enumerate(b.spatial) if i.name in moved][-2:]
        derived = []
        parts = self._parts(state, at)
        for inlined in (True, False) if terms <= self.small else (False,):
            try:
                derived.append(self._derived(state, at, inlined, parts))
            except ScheduleError:
                continue
        unique = {s.steps: s for s in derived}
        return Derived(tuple(unique.values())) if unique else None

    def _parts(self, state: State, at: list[int]) -> tuple[int, ...]:
        """Numbers of channels, in vectors, of which common rows fit; none if those of all do."""
        b, cache = state.block, state.task.target.l2_nbytes
        moved = {b.spatial[k].name for k in at}
        row = max(
            (
                analysis.length(b.spatial[at[-1]]) * state.func.all_buffers[x.buffer].dtype.nbytes
                for x in b.loads
                if moved <= {n for p in x.index for n in p.names}
            ),
            default=0,
        )
        each = row * (max(map(analysis.length, b.reducing)) + self.rows - 1)  # of a channel
        if len(at) < 2 or not cache or each * analysis.length(b.spatial[-1]) <= cache:
            return ()
        vector = 2 * self.lanes
        return tuple(dict.fromkeys(max(1, cache // (n * each * vector)) for n in self.shares))

    def _derived(self, state: State, at: list[int], inlined: bool, parts: tuple[int, ...]) -> State:
        state, name, loops = _written_out(state, inlined)
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
        if parts:
            column = f"#{name}.channels"
            choice = SampleChoice(column, parts)
            split = Split(loops[-1], (None, column, 2 * self.lanes))
            part, channels, vector = split.parts
            order = Reorder((*outer[: at[0]], part, *outer[at[0] :], channels, *inner, vector))
            return state.then(choice, split, order, Vectorize(vector), done=[name])
        sample = SampleTile(loops[-1], 2, "vector", 2 * self.lanes, self.lanes)
        split = Split(loops[-1], sample.columns, exact=sample.exact)
        order = Reorder((*outer, split.parts[0], *inner, split.parts[1]))
        return state.then(sample, split, order, Vectorize(split.parts[1]), done=[name])


@dataclass(frozen=True)
class WriteOutRows:
    """Writes out a reduction over a window that moves along the vectorised axis as well, such as
    pooling with channels in front: vectors along rows of an image, whose stride is that of the
    windows, with a few rows of results in registers, so that what their windows have in common is
    read once. Padding is inlined, so that nothing is copied; or computed ahead, image by image.
    """

    lanes: int
    terms: int = 25
    small: int = 9
    rows: int = 4
    shortest: int = 4  # row of results, which may leave lanes unused

    def __call__(self, state: State) -> Derived | None:
        b = state.block
        if b.combiner is None or not b.init or b.domain or state.levels_of(b.name):
            return None
        if b.name.endswith((".local", ".rf")) or len(b.writes) != 1:
            return None
        terms = prod(analysis.length(i) for i in b.reducing)
        moved = analysis.window_axes(b)
        last = b.spatial[-1] if b.spatial else None
        if not 1 < terms <= self.terms or last is None or last.name not in moved:
            return None
        if b.writes[0].index[-1].name != last.name or analysis.length(last) < self.shortest:
            return None
        if not _has_image(b) or not _in_rows(b, last.name):
            return None
        at = [k for k, i in enumerate(b.spatial[:-1]) if i.name in moved][-1:]
        derived: dict[tuple[Step, ...], State] = {}
        for inlined in (True, False):
            with suppress(ScheduleError):
                after = self._derived(state, at, inlined, terms)
                derived.setdefault(after.steps, after)
        return Derived(tuple(derived.values())) if derived else None

    def _derived(self, state: State, at: list[int], inlined: bool, terms: int) -> State:
        state, name, loops = _written_out(state, inlined)
        *before, row = loops
        outer, inner = [x for k, x in enumerate(before) if k not in at], list[str]()
        for loop in (before[k] for k in at):
            sample = SampleTile(loop, 2, "any", self.rows if terms <= self.small else 2)
            split = Split(loop, sample.columns, exact=sample.exact)
            state = state.then(sample, split, Unroll(split.parts[1]))
            outer.append(split.parts[0])
            inner.append(split.parts[1])
        most = (4 if terms <= self.small else 2) * self.lanes
        sample = SampleTile(row, 2, "vector", most, self.lanes)
        split = Split(row, sample.columns, exact=sample.exact)
        order = Reorder((*outer, split.parts[0], *inner, split.parts[1]))
        return state.then(sample, split, order, Vectorize(split.parts[1]), done=[name])


def _written_out(
    state: State, inlined: bool, permuted: bool = False
) -> tuple[State, str, list[str]]:
    """The current block written out, with padding inlined or not, in its element-wise consumer if
    it has one, also in another order of axes; the name of the block that computes the result, and
    its loops.
    """
    name = state.block.name
    state = state.then(WriteOut(name))
    if inlined:
        for p in analysis.producers(state.func, analysis.block(state.func, name)):
            if p.combiner is None and len(analysis.consumers(state.func, p)) == 1:
                state = state.then(Inline(p.name))
    return in_consumer(state, name, permuted)


_EACH = (1, 2, 3, 4, 8)  # results of a thread along an axis that nothing divides


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
    threads: tuple[int, ...] = (64, 96, 128, 192, 256, 384, 512, 768, 1024)

    def __call__(self, state: State) -> Derived | None:
        b = state.block
        if b.combiner is None or not b.init or b.domain or state.levels_of(b.name):
            return None
        if b.name.endswith((".local", ".rf")):
            return None
        if not 1 < prod(analysis.length(i) for i in b.reducing) <= self.terms:
            return None
        moved = analysis.window_axes(b)
        if not moved or not _has_image(b):
            return None
        at = [k for k, i in enumerate(b.spatial) if i.name in moved][-2:]
        consumer = analysis.fusible_consumer(state.func, b, permuted=True)
        if consumer is not None and len(consumer.spatial) == len(b.spatial):
            at = _seen_by(consumer, b, at)
        try:
            return Derived((self._derived(state, at),))
        except ScheduleError:
            return None

    def _derived(self, state: State, at: list[int]) -> State:
        state, name, loops = _written_out(state, inlined=True, permuted=True)
        most = dict(zip(reversed(at), (self.columns, self.rows), strict=False))
        outer: list[str] = []
        inner: list[str] = []
        steps: list[Step] = []
        for k, loop in enumerate(loops):
            if k not in most:
                outer.append(loop)
                continue
            extent = find_loop(state.func, loop)[1].extent.number
            if any(extent % n == 0 for n in range(2, most[k] + 1)):
                sample = SampleTile(loop, 2, "divisors", most[k])
                split = Split(loop, sample.columns, exact=sample.exact)
                steps += [sample, split]
            else:  # a size without divisors
                column = f"#{loop}.each"
                split = Split(loop, (None, column))
                each = tuple(n for n in _EACH if n <= min(most[k], max(1, extent)))
                steps += [SampleChoice(column, each), split]
            outer.append(split.parts[0])
            inner.append(split.parts[1])
        steps.append(Reorder((*outer, *inner)))
        return over_threads(state.then(*steps), name, outer, inner, self.threads)


def _seen_by(consumer: Block, b: Block, at: list[int]) -> list[int]:
    """Positions of a block's axes among those of its element-wise consumer."""
    index = next(x.index for x in consumer.loads if x.buffer == b.writes[0].buffer)
    order = [i.name for i in consumer.spatial]
    if any(p.name not in order for p in index):
        return at
    return [order.index(index[k].name or "") for k in at]


def _in_rows(b: Block, axis: str) -> bool:
    """Whether the axis moves operands within rows."""
    return not any(axis in p.names for x in b.loads for p in x.index[:-1])


def _has_image(b: Block) -> bool:
    """Whether all axes of the results index an operand, each of its elements by itself: not groups
    of several, which read the same.
    """
    axes = [i.name for i in b.spatial if i.extent.const != 1]
    return any(all(any(p.coefficient(n).terms for p in x.index) for n in axes) for x in b.loads)
