"""Rules that derive sketches for CPUs: multi-level tiling with the epilogue (the element-wise
consumer) fused into the tile, rfactor, inlining. A rule is a callable that takes a State and
returns the states it derives for the current node, or None if it does not apply. Settings are
fields of the rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from math import prod

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import FLOAT32
from tilesmith.base.errors import ScheduleError
from tilesmith.base.given import checks_given
from tilesmith.expr.ints import Int, exact_quotient, product, var
from tilesmith.expr.plain_floats import is_plain_arithmetic
from tilesmith.ir.function import Function, find_block
from tilesmith.ir.nodes import Block, Iter, walk
from tilesmith.schedule.cache import CacheRead, CacheWrite
from tilesmith.schedule.groups import Ungroup
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.iterators import MergeIterators, SplitIterator
from tilesmith.schedule.layout import TransformLayout
from tilesmith.schedule.location import ReverseComputeAt
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.reduction import Rfactor
from tilesmith.schedule.sample import SampleLocation, SampleTile
from tilesmith.space import analysis
from tilesmith.space.derive import Derived, State
from tilesmith.space.tiling import Tiling, copied, gathered, is_across, packing, prepared, spread


def merge_axes(state: State) -> Derived | None:
    """Merges two axes of a reduction with data reuse that index neighbouring dimensions wherever
    they occur. Any tile of whole rows is a tile of the merged axis as well; but this one has more
    tiles, and is long where each of the two may be shorter than a vector.
    """
    func, b = state.func, state.block
    if b.combiner is None or not analysis.has_data_reuse(func, b) or state.levels_of(b.name):
        return None
    for i, j in pairwise(b.iters):
        if min(analysis.length(i), analysis.length(j)) < 2 or i.kind != j.kind:
            continue
        merged = state.attempt(MergeIterators(b.name, (i.name, j.name)))
        if merged is not None:
            return Derived((merged,), final=True)
    return None


def skip(state: State) -> Derived | None:
    """Leaves the node unchanged."""
    return Derived((state.skip(),))


@checks_given(error=ScheduleError)
@dataclass(frozen=True)
class InlineCheap:
    """Inlines cheap element-wise blocks; with `always`, all blocks that are not reductions."""

    always: bool = False

    def __call__(self, state: State) -> Derived | None:
        func, b = state.func, state.block
        if analysis.is_output(func, b) or b.combiner is not None:
            return None
        if not (self.always or analysis.strictly_inlinable(func, b)):
            return None
        inlined = state.attempt(Inline(b.name))
        return None if inlined is None else Derived((inlined,), final=True)


def split_divided(state: State) -> Derived | None:
    """Splits an iterator that an operand's index divides, such as a channel into group and channel
    within the group, and that of a fusible consumer with it. Where the consumer cannot be split,
    it needs the undivided iterator, so the block is also kept as it is. What is computed of
    reductions of groups is split as well: they are then computed in the loop over groups.
    """
    func, b = state.func, state.block
    divided = analysis.division(b) if not state.levels_of(b.name) else None
    if not b.reducing and not (divided and _ends_groups(state)):
        return None
    after = None if divided is None else state.attempt(SplitIterator(b.name, *divided))
    if after is None or divided is None:
        return None
    consumer = analysis.fusible_consumer(func, b)
    if consumer is None:
        return Derived((after,), final=True)
    both = _with_groups(state, consumer, *divided)
    return Derived((after,)) if both is None else Derived((both,), final=True)


def _with_groups(state: State, consumer: Block, axis: str, size: int) -> State | None:
    """The state with the groups of a sum as an axis of its own, also in its element-wise consumer;
    None if that has no such axis.
    """
    b = state.block
    at = [i.name for i in b.spatial].index(axis)
    if b.combiner is None or len(consumer.spatial) != len(b.spatial):
        return None
    ungroup = Ungroup(b.name, axis, size)
    try:
        state = state.then(ungroup)
        for view in analysis.producers(state.func, analysis.block(state.func, ungroup.made)):
            if view.name.endswith(".groups"):
                state = state.then(Inline(view.name))
        split = SplitIterator(consumer.name, consumer.spatial[at].name, size)
        state = state.then(Inline(b.name), split)
    except ScheduleError:
        return None
    sums = analysis.block(state.func, ungroup.made)
    return state if analysis.fusible_consumer(state.func, sums) is not None else None


def _ends_groups(state: State) -> bool:
    """Whether the block is a result of reductions that others than its own elements share."""
    func, b = state.func, state.block
    own = analysis.points(b)[0]
    sums = (x for _, x in walk(func.body) if x.combiner is not None)
    return analysis.is_output(func, b) and any(analysis.points(x)[0] < own for x in sums)


@checks_given(error=ScheduleError)
@dataclass(frozen=True)
class AddRfactor:
    """Factors a reduction with too little spatial parallelism, along its first or its last axis of
    at least `shortest` iterations. From `rows` results per core on, nothing is factored.
    """

    max_innermost: int
    shortest: int
    rows: int = 4

    def __call__(self, state: State) -> Derived | None:
        b, cores = state.block, state.task.target.num_cores
        axes = [i.name for i in factored_axes(state)
                if i.extent.const is None or i.extent.const >= self.shortest]  # fmt: skip
        if not axes or analysis.points(b)[0] >= self.rows * cores:
            return None
        return factored(state, axes, "any", self.max_innermost)


def factored_axes(state: State) -> list[Iter]:
    """The axes of a reduction to factor; none if there is enough spatial parallelism."""
    func, b = state.func, state.block
    cores = state.task.target.num_cores
    if b.combiner is None or not analysis.more_parallel_in_reduction(func, b, cores):
        return []
    if b.name.endswith(".local") or not b.init or f"{b.name}.rf" in state.done:
        return []
    return [i for i in b.reducing if i.extent.const != 1] or list(b.reducing)


def factored(state: State, axes: Sequence[str], policy: str, max_innermost: int) -> Derived | None:
    """The outermost axis is factored for threads, the innermost for vector lanes."""
    b, derived = state.block, []
    for axis, inward in ((axes[0], False), (axes[-1], True)):
        loop = f"{b.name}.{axis}"
        sample = SampleTile(loop, 2, policy, max_innermost)
        split = Split(loop, sample.columns, exact=sample.exact)
        part = split.parts[1 if inward else 0]
        after = state.attempt(sample, split, Rfactor(part))
        if after is None:
            continue
        if inward:  # the partial results become the innermost axis, for vector lanes
            after = _innermost(after, f"{b.name}.rf", part[len(b.name) :])
        derived.append(after.then(done=[b.name, f"{b.name}.rf"]))
    return Derived(tuple(derived)) if derived else None


def _innermost(state: State, block: str, suffix: str) -> State:
    loops = [f.name for f in find_block(state.func, block)[0]]
    lane = f"{block}{suffix}"
    if lane not in loops or loops[-1] == lane:
        return state
    return state.then(Reorder((*(n for n in loops if n != lane), lane)))


def cache_written(state: State, permuted: bool = False) -> State | None:
    """Adds a cache stage to a block with data reuse but without a fusible consumer, so that a tile
    is accumulated in a local buffer and written back at once. With `permuted`, a consumer that
    permutes axes is fusible, too.
    """
    func, b = state.func, state.block
    if not analysis.has_data_reuse(func, b) or b.name.endswith(".local"):
        return None
    if analysis.fusible_consumer(func, b, permuted) is not None:
        return None
    # It does not apply to a block that writes elsewhere than at its own iterators.
    return state.attempt(CacheWrite(b.name, "local"), done=[b.name])


def vector_axes(state: State) -> list[str | None]:
    """Axes to vectorise, the best first: all contiguous ones."""
    b = state.block
    lanes = state.task.target.lanes(b.writes[0].value.dtype.bits)
    axes = analysis.contiguous_axes(state.func, b, lanes) or [i.name for i in b.spatial][-1:]
    return [*axes] or [None]


def orders(state: State, axis: str | None) -> tuple[bool, ...]:
    """Whether the vectorised axis is outermost in the outer tile levels.

    The last loop of a level decides which operand stays in the cache. With the vectorised axis last
    it is the operand not indexed by this axis, with it first the one that is. Other orders change
    neither, so two suffice. Only the block with the most work gets both, because the choices of
    several blocks multiply.
    """
    b = state.block
    others = [i for i in b.spatial if i.name != axis and i.extent.const != 1]
    work = prod(analysis.points(b))
    heaviest = all(prod(analysis.points(o)) <= work for _, o in walk(state.func.body))
    return (False, True) if axis is not None and others and heaviest else (False,)


@dataclass(frozen=True)
class Tiled:
    """A state whose node was tiled, and packed copies that have no location yet."""

    state: State
    axis: str | None
    turned: bool
    copies: tuple[str, ...] = ()
    preferred: bool = False  # over the others of the same state and axis

    def placed(self, state: State, block: str) -> State:
        """Adds the locations of packed copies, a structural decision: between two outer levels, or,
        if `turned`, right inside the vectorised axis, so that the axes inside it share the copy.
        """
        return with_locations(state, block, self.copies, self.axis if self.turned else None, 3)


def with_locations(
    state: State, block: str, copies: Sequence[str], axis: str | None, around: int
) -> State:
    """Adds the locations of packed copies: between two of the outer levels, or right inside of the
    outermost loop of `axis`.
    """
    levels = state.levels_of(block)
    places = [level[-1] for level in levels[:around] if level]
    if axis is not None and levels[0]:
        places.insert(0, f"{block}.{axis}.0")
    unique = tuple(dict.fromkeys(places))
    return state.then(*(SampleLocation(c, unique) for c in copies))


def tiled_states(state: State, tiling: Tiling, axis: str | None, both: bool = True) -> list[Tiled]:
    """The node tiled, in one loop order or `both`, and also with packed operands. Operands that are
    not contiguous along the vector are always packed; constant ones are packed once.
    """
    out: list[Tiled] = []
    name = state.block.name
    constants, operands = prepared(state), copied(state, axis)
    parted, scattered = spread(state, axis), gathered(state, axis)
    needed = tuple(x for x in operands if is_across(state.block, x, axis))
    # A packed copy pays if the operand does not fit L1.
    large = any(_nbytes(state.func, x) > state.task.target.l1_nbytes for x in operands)
    best = tuple(operands) if large else needed
    for turned in orders(state, axis) if both else (False,):
        for chosen in dict.fromkeys((needed, tuple(operands), (*needed, *scattered))):
            reads = [CacheRead(name, operand) for operand in chosen]
            copies = tuple(r.copy for r in reads)
            tiled = tiling.apply(state.then(*parted, *reads, done=copies), axis, turned)
            tiled = packed(tiled, name, tiling, axis, (*constants, *copies))
            out.append(Tiled(tiled, axis, turned, copies, not turned and chosen == best))
    return out


def _nbytes(func: Function, buffer: str) -> int:
    b = func.all_buffers[buffer]
    return product(b.shape).number * b.dtype.nbytes


def packed(
    state: State, block: str, tiling: Tiling, axis: str | None, buffers: Iterable[str]
) -> State:
    """Changes the layouts of these buffers to the order in which the block's tile reads them."""
    b = find_block(state.func, block)[1]
    steps = (step for name in buffers for step in packing(b, name, axis, tiling.innermost(b, axis)))
    return state.then(*steps)


@checks_given(error=ScheduleError)
@dataclass(frozen=True)
class TileAndFuse:
    """Multi-level tiling, with the element-wise consumer fused between two levels."""

    tiling: Tiling
    levels: tuple[int, ...] = (1, 2)

    def __call__(self, state: State) -> Derived | None:
        func, b = state.func, state.block
        consumer = analysis.fusible_consumer(func, b)
        if consumer is None or not _is_tiled(state):
            return None
        every = [
            pair for axis in vector_axes(state) for pair in self.fused(state, consumer.name, axis)
        ]
        if not every:
            return None
        final = b.name.endswith(".local")
        derived = tuple(fused for _, fused in every)
        return Derived(derived, final, _first([tiled.preferred for tiled, _ in every]))

    def fused(
        self, state: State, consumer: str, axis: str | None, both: bool = True
    ) -> Iterator[tuple[Tiled, State]]:
        """The current block tiled with vectors along `axis`, and its consumer in its loops."""
        name = state.block.name
        for level in self.levels:
            if self.tiling.structure[level - 1] != "S":
                continue
            for tiled in tiled_states(state, self.tiling, axis, both):
                try:
                    fused = in_tile(tiled.state, name, consumer, level)
                except ScheduleError:
                    continue
                yield tiled, tiled.placed(fused, name)


def in_tile(state: State, block: str, consumer: str, level: int) -> State:
    """The state with a consumer in the tiles of a block, inside of so many levels."""
    loops = [x for part in state.levels_of(block)[:level] for x in part]
    return state.then(ReverseComputeAt(consumer, loops[-1]), done=[consumer])


@checks_given(error=ScheduleError)
@dataclass(frozen=True)
class Tile:
    """Multi-level tiling of a block with data reuse."""

    tiling: Tiling

    def __call__(self, state: State) -> Derived | None:
        if not _is_tiled(state):
            return None
        axes = vector_axes(state)
        every = [tiled for axis in axes for tiled in tiled_states(state, self.tiling, axis)]
        derived = tuple(tiled.placed(tiled.state, state.block.name) for tiled in every)
        return Derived(derived, final=True, preferred=_first([t.preferred for t in every]))


def _is_tiled(state: State) -> bool:
    """Whether tiling pays: but element-wise blocks that read each element of a result once are
    better computed in the tiles of that result, and those that read an array of their own size
    use no element of it again.
    """
    func, b = state.func, state.block
    if not analysis.has_data_reuse(func, b) or analysis.is_epilogue(func, b):
        return False
    return bool(b.reducing) or all(analysis.uses(b, x) > 1 for x in b.loads)


def _first(preferred: list[bool]) -> int:
    return preferred.index(True) if True in preferred else 0


@dataclass(frozen=True)
class TileAcross:
    """Tiles a block with data reuse with vectors along another axis than its results are contiguous
    along, such as the channels of a convolution in NCHW with rows of 14 results. The results of a
    tile are kept with that axis innermost, and stored across: by the element-wise consumer, or by a
    copy.

    It pays if rows leave lanes unused: a row takes `waste` times as many lanes as it has elements;
    or if no operand lies along them, while one does along the other axis, as in a product of two
    transposed matrices with few rows.
    """

    fuse: TileAndFuse
    waste: float = 1.1

    def __call__(self, state: State) -> Derived | None:
        func, b = state.func, state.block
        if b.combiner is None or state.levels_of(b.name) or len(b.writes) != 1:
            return None
        if not analysis.has_data_reuse(func, b) or b.name.endswith(".local"):
            return None
        axis = self._axis(state)
        if axis is None:
            return None
        try:
            if analysis.is_output(func, b):
                state = state.then(CacheWrite(b.name, "local"), done=[b.name])
            here = state.block
            buffer, index = here.writes[0].buffer, here.writes[0].index
            dims = sorted(range(len(index)), key=lambda d: axis in index[d].names)
            state = state.then(TransformLayout(buffer, tuple(f"d{d}" for d in dims)))
        except ScheduleError:
            return None
        consumer = analysis.fusible_consumer(state.func, state.block)
        if consumer is None:
            return None
        fused = [s for _, s in self.fuse.fused(state, consumer.name, axis, both=False)]
        return Derived(tuple(fused)) if fused else None

    def _axis(self, state: State) -> str | None:
        """The axis to vectorise along instead; None if rows fill vectors, or no axis does better.
        Windows do not move along it, and it indexes one operand of two.
        """
        func, b = state.func, state.block
        target = state.task.target
        lanes = target.lanes(b.writes[0].value.dtype.bits)
        lanes = max(lanes, lanes * self.fuse.tiling.lanes // target.lanes(FLOAT32.bits))
        by_name = {i.name: i for i in b.spatial}
        rows = [by_name[a] for a in analysis.contiguous_axes(func, b) if a in by_name]
        parts = target.masks_vectors and all(is_plain_arithmetic(w.value) for w in b.writes)

        def wasted(i: Iter) -> float:
            return _wasted(i, lanes, parts)

        if not rows or b.writes[0].index[-1].name not in {i.name for i in rows}:
            return None
        # of a part of one vector any lane counts
        least = self.waste if max(map(analysis.length, rows)) > lanes else 1.01
        fills = min(map(wasted, rows)) < least
        if fills and not all(map(partial(_is_read_across, state), rows)):
            return None
        alone = {
            n
            for load in b.loads
            for p in load.index
            if (n := _along(b, p)) is not None and n not in analysis.shared_axes(b)
        }
        others = [i for i in b.spatial if i.name in alone and i not in rows]
        if fills:  # an axis along which an operand lies, if copies are larger than the results
            terms = analysis.points(b)[1]
            others = [i for i in others if _COPIED * analysis.length(i) <= terms]
            others = [i for i in others if not _is_read_across(state, i)]
        # of equals the longest: a batch of four fills vectors, too, but is read in strides
        best = min(others, key=lambda i: (wasted(i), -analysis.length(i)), default=None)
        if best is None or analysis.length(best) < lanes:
            return None
        gain = min(map(wasted, rows)) / wasted(best)
        return best.name if fills or gain >= least else None


_COPIED = 4  # elements of an operand for each result, from which on a copy of it costs more


def _is_read_across(state: State, i: Iter) -> bool:
    """Whether vectors along the axis need a packed copy of an operand, or are in none."""
    operands = copied(state, i.name)
    return not operands or any(is_across(state.block, x, i.name) for x in operands)


def _along(b: Block, p: Int) -> str | None:
    """The axis along which a dimension is contiguous, if no window moves it: the only one, or that
    within the groups which another one counts.
    """
    if p.name is not None:
        return p.name
    extents = {i.name: i.extent for i in b.iters}
    for n in sorted(p.names):
        groups = exact_quotient(p - var(n), extents[n]) if n in extents else None
        if groups is not None and groups.name in analysis.shared_axes(b):
            return n
    return None


def _wasted(i: Iter, lanes: int, parts: bool) -> float:
    """Lanes that vectors along it take, per element. What does not fill a register is computed in
    pieces of powers of two, each of which takes as long as a whole register: 7 is 4 + 2 + 1. With
    `parts` it is one piece.
    """
    n = max(1, analysis.length(i))
    rest = n % lanes
    return (n // lanes + (min(1, rest) if parts else rest.bit_count())) * lanes / n
