"""Rules that derive sketches for GPUs: tiles bound to blocks, virtual threads and threads; operands
in shared memory that all threads fill; reductions across threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.base.given import checks_given
from tilesmith.expr.nodes import Load, Select
from tilesmith.ir.function import Function, find_block
from tilesmith.ir.nodes import Block, walk
from tilesmith.ir.notes import FetchWidth, PipelineStages
from tilesmith.schedule.cache import CacheRead, SetScope, StorageAlign
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.iterators import SplitIterator, open_domain
from tilesmith.schedule.kinds import Annotate, Bind, Unroll
from tilesmith.schedule.layout import Pad, TransformLayout
from tilesmith.schedule.location import ComputeAt
from tilesmith.schedule.loops import Fuse, Reorder, Split
from tilesmith.schedule.sample import SampleChoice
from tilesmith.schedule.step import Step
from tilesmith.space import analysis
from tilesmith.space.derive import Derived, State
from tilesmith.space.rules import cache_written, in_tile, vector_axes
from tilesmith.space.tiling import SubRule, Tiling

BOUND = ("blockIdx.x", "vthread", "threadIdx.x")  # axes of the first three spatial levels


def bind_levels(state: State, block: str) -> State:
    """Binds the loops of the outer levels. Code generation fuses loops bound to the same axis."""
    steps: list[Step] = []
    for axis, level in zip(BOUND, state.levels_of(block), strict=False):
        steps += [Bind(loop, axis) for loop in level]
    return state.then(*steps)


@checks_given(error=ScheduleError)
@dataclass(frozen=True)
class Fetching:
    """How operands are copied to shared memory. None of this is in Ansor.

    - `widths`: how many elements a thread may move at once.
    - `pipeline`: whether the next tile may be fetched while one is used.
    - `turned`: whether operands that are contiguous along a reduced axis are stored transposed, so
      that a thread reads its rows in vectors.
    - `shared`: for each operand in order, whether it is copied. The others are read in global
      memory: a copy of what few threads use again costs more than it saves.
    """

    widths: tuple[int, ...] = ()
    pipeline: bool = False
    turned: bool = False
    shared: tuple[bool, ...] = ()  # operands beyond the last one are copied


def add_cache_reads(state: State, block: str, how: Fetching) -> State:
    """Copies every operand of a tiled block to shared memory in each step of the outer reducing
    level. All threads take part in the copy.
    """
    b = analysis.block(state.func, block)
    levels = state.levels_of(block)
    reducing = [level for level in levels if level and level[0] in b.reducing_loops]
    at = reducing[0][-1] if reducing else levels[2][-1]
    copied = False
    for k, name in enumerate(dict.fromkeys(load.buffer for load in b.loads)):
        if not (how.shared[k] if k < len(how.shared) else True):
            continue
        read = CacheRead(block, name, "shared")
        try:
            state = state.then(read, done=[read.copy]).then(ComputeAt(read.copy, at))
        except ScheduleError:
            continue
        copied = True
        packed = as_packed(state, name, read.copy)
        state = state.then(*packed)
        path, _ = find_block(state.func, read.copy)
        outer = next((f for f in path if f.owner == read.copy), None)
        if outer is not None and how.widths:
            column = f"#{read.copy}.width"
            width = Annotate(outer.name, FetchWidth(column))
            state = state.then(SampleChoice(column, how.widths), width)
        if how.turned and not packed:
            state = state.then(*turned(b, name, read.copy))
    if how.pipeline and reducing and copied:
        column = f"#{block}.pipeline"
        notes = (Annotate(loop, PipelineStages(column)) for loop in reducing[0])
        state = state.then(SampleChoice(column, (1, 2)), *notes)
    return state


def as_packed(state: State, buffer: str, copy: str) -> list[Step]:
    """Copies an operand whose dimensions lie in another order in that order, so that neighbouring
    threads read neighbours.
    """
    layout = state.func.all_buffers[buffer].layout or ()
    dims = [p.name for p in layout]
    if sorted(filter(None, dims)) != [f"d{d}" for d in range(len(dims))]:
        return []
    path, _ = find_block(state.func, copy)
    loops = [f.name for f in path if f.owner == copy]
    if len(loops) != len(dims):
        return []
    order = tuple(str(p) for p in layout)
    return [
        TransformLayout(copy, order), Reorder(tuple(loops[int(d.removeprefix("d"))] for d in order))
    ]  # fmt: skip


def turned(b: Block, buffer: str, copy: str) -> list[Step]:
    """Stores the first dimension of a copy that only spatial axes index as the last one, if the
    last one is indexed by reduced axes only. Rows are padded so that threads which store a column
    do not meet at a bank of shared memory.
    """
    (index, *more) = {x.index for x in b.loads if x.buffer == buffer}
    every = {i.name for i in b.spatial}
    spatial = every - analysis.shared_axes(b)
    if more or len(index) < 2 or index[-1].names & spatial:
        return []
    first = next((d for d, p in enumerate(index) if p.names & spatial and p.names <= every), None)
    if first is None:
        return []
    order = [d for d in range(len(index)) if d != first]
    layout = tuple(f"d{d}" for d in (*order, first))
    return [TransformLayout(copy, layout), StorageAlign(copy, len(order) - 1, 32, 4)]


def add_cache_write(state: State) -> Derived | None:
    """Adds a cache stage, unless an element-wise consumer can take the results from registers, also
    in another order of axes.
    """
    after = cache_written(state, permuted=True)
    return None if after is None else Derived((after,), final=True)


_FEW_USES = 16  # of each element of an operand: a copy in shared memory saves nothing
_LEAST_OF_THREAD = 4  # terms


def has_few_uses(state: State) -> bool:
    b = state.block
    return any(analysis.uses(b, x) <= _FEW_USES for x in b.loads)


@checks_given(error=ScheduleError)
@dataclass(frozen=True)
class TileForGpu:
    """Multi-level tiling with thread binding and operands in shared memory. The consumer (the copy
    of a cache stage, or an element-wise one, also in another order of axes) is computed by each
    thread, which keeps what it reads to itself. (Code generation finds the latter anyway, but
    limits and scores do not.)
    """

    tiling: Tiling
    fetching: tuple[Fetching, ...]  # a sketch for each
    # Numbers of blocks that sum parts of a reduction together, as further sketches, where there are
    # few results for each multiprocessor.
    clusters: tuple[int, ...] = (2, 4)
    results: int = 1 << 13
    least: int = 64  # terms of a part
    # Numbers of threads that sum parts of a reduction together, where results are fewer still.
    teams: tuple[int, ...] = (2, 4, 8)
    # The same, where an operand is used so few times that each thread reads it by itself.
    warps: tuple[int, ...] = (8, 16, 32, 64, 128, 256)
    few: int = 1 << 11

    def __call__(self, state: State) -> Derived | None:
        if not analysis.has_data_reuse(state.func, state.block):
            return None
        with suppress(ScheduleError):
            state = with_plain_operands(state)
        divided = analysis.division(state.block) if self.tiling.groups else None
        if divided is not None:
            padded = with_round_sizes(state, without=divided[0])
            found = [split_groups(x) for x in (padded, state) if x is not None]
            if derived := self._all([x for x in found if x is not None]):
                return derived
        rounded = with_round_sizes(state)
        even = with_round_sizes(state, even=True)
        if rounded is not None and even is not None and even.steps == rounded.steps:
            even = None
        # Tiles of an image may as well be those that divide it: there, both axes are padded.
        windows = rounded is not None and bool(analysis.window_axes(state.block))
        plain = None if rounded is not None and not windows else state
        return self._all([x for x in (rounded, plain, even) if x]) or self._derived(state)

    def _all(self, states: list[State]) -> Derived | None:
        """What is derived of them all, the first one preferred."""
        found = [x for x in map(self._derived, states) if x is not None]
        if not found:
            return None
        return replace(found[0], states=tuple(s for x in found for s in x.states))

    def _derived(self, state: State) -> Derived | None:
        copied = tuple(how for how in self.fetching if not how.shared)
        # What is padded and used often is copied: conditions at each term would cost more.
        thin = has_few_uses(state)
        states = self._tiled(
            state, copied if is_padded(state.block) and not thin else self.fetching
        )
        if not states:
            return None
        clusters = self.clusters if state.task.target.gpu.clusters else ()
        if (cut := self._cut(state, clusters, self.results)) is not None:
            states += self._tiled(state, copied, lambda tiles: tiles.cluster(*cut))
        if (parts := self._cut(state, self.teams, self.few)) is not None:
            states += self._tiled(state, copied, lambda tiles: tiles.team(*parts))
        if thin and (lanes := self._cut(state, self.warps, self.few)) is not None:
            direct = tuple(how for how in self.fetching if how.shared)
            states += self._tiled(state, direct, lambda tiles: tiles.team(*lanes))
        return Derived(tuple(states), final=True)

    def _cut(
        self, state: State, numbers: tuple[int, ...], results: int
    ) -> tuple[str, tuple[int, ...]] | None:
        """The reducing axis that may be cut, and into how many parts."""
        b, target = state.block, state.task.target
        if not numbers or not b.reducing or not b.init or ".rf" in b.name:
            return None
        if b.combiner is None or b.combiner.op is None:
            return None
        space, reduce = analysis.points(b)
        if space > results * target.num_multiprocessors:
            return None
        longest = max(b.reducing, key=analysis.length)
        if not (extent := analysis.length(longest)):
            return None
        least = self.least if numbers is not self.warps else _LEAST_OF_THREAD
        numbers = tuple(n for n in numbers if extent % n == 0 and reduce // n >= least)
        return (longest.name, numbers) if numbers else None

    def _tiled(self, state: State, fetching: tuple[Fetching, ...], *rules: SubRule) -> list[State]:
        """A state for each way of fetching operands; none if the consumer does not fit."""
        func, b = state.func, state.block
        after = self.tiling.apply(state, vector_axes(state)[0], False, *rules)
        consumer = analysis.fusible_consumer(func, b, permuted=True)
        if is_padded(b):  # it crops the result
            (consumer,) = analysis.consumers(func, b)
        try:
            if consumer is not None:
                after = in_tile(after, b.name, consumer.name, len(BOUND))
                buffer = b.writes[0].buffer
                if func.all_buffers[buffer].scope == "global":
                    after = after.then(SetScope(buffer, "local"))
            bound = bind_levels(after, b.name)
        except ScheduleError:
            return []
        return [*{add_cache_reads(bound, b.name, how): None for how in fetching}]


def with_plain_operands(state: State) -> State:
    """The state in which the block reads its operands where they lie, and not through views that
    the function states, such as transposes: tiles are chosen by the order of memory.
    """
    stated = {b.name for _, b in walk(state.task.func.body)}
    while True:
        read = {x.buffer for x in state.block.loads}
        views = [
            b.name
            for _, b in walk(state.func.body)
            if b.name in stated
            and b.combiner is None
            and len(b.writes) == 1
            and b.writes[0].buffer in read
            and isinstance(b.writes[0].value, Load)
        ]
        if not views:
            return state
        state = state.then(*(Inline(name) for name in views))


# Axes are padded so that tiles divide them: to multiples of the first of these that adds at most
# such a share. Sizes that have a divisor in a range, made of small factors, are left alone.
_ROUND = {
    "S": ((64, 16), (32, 16), (16, 12), (8, 8)),
    "R": ((64, 64), (32, 32), (16, 16), (8, 8)),
}
_TILES = {"S": (32, 128), "R": (8, 32)}
# As an alternative: to multiples that add at most such a share, if the first number is no divisor.
_EVEN = {"S": ((32, 64, 12), (32, 96, 8), (16, 32, 10)), "R": ((8, 16, 32),)}


_SHARED = (256, 128, 64, 32, 16)  # of an axis that threads sum together


def _adds_few(n: int, multiple: int) -> bool:
    return (-n % multiple) * 8 <= n


def round_size(n: int, kind: str, even: bool = False) -> int:
    """The multiple that an axis of extent `n` is padded to; 1 if it is left alone. With `even`,
    also where it has divisors, but powers of two are better ones.
    """
    low, high = _TILES[kind]
    if even:
        for divisor, m, share in _EVEN[kind]:
            if n > m and n % divisor and (-n % m) * share <= n:
                return m
    if n <= low or any(n % d == 0 and _is_smooth(d) for d in range(low, high + 1)):
        return 1
    return next((m for m, share in _ROUND[kind] if (-n % m) * share <= n), 1)


def _is_smooth(n: int) -> bool:
    for factor in (2, 3, 5):
        while n % factor == 0:
            n //= factor
    return n == 1


def with_round_sizes(state: State, even: bool = False, without: str = "") -> State | None:
    """The state with the axes of a sum of products padded that tiles would not divide, such as
    those of odd or prime sizes; None if there are none. Operands get zeros on the way to shared
    memory; the consumer crops the result. `even` is that of `round_size`; an axis `without` padding
    may be named.
    """
    func, b = state.func, state.block
    consumer = analysis.fusible_consumer(func, b, permuted=True)
    if consumer is None or is_padded(b) or open_domain(b) or state.levels_of(b.name):
        return None
    alone = {p.name for x in b.loads for p in x.index if p.name}
    joint = {n for x in b.loads for p in x.index if not p.name for n in p.names}
    summed = {i.name for i in b.reducing}
    axes = {i.name: round_size(max(1, analysis.length(i)), i.kind, even) for i in b.iters}
    if has_few_uses(state) and b.reducing:  # threads share the sum
        long = max(b.reducing, key=analysis.length)
        axes[long.name] = next((m for m in _SHARED if _adds_few(analysis.length(long), m)), 1)
    # Behind the last of an axis that moves together with another one lies anything: it is cropped.
    left = {without, *(joint & summed)}
    padding = tuple(
        (n, m) for n, m in axes.items() if m > 1 and n not in left and n in alone | joint
    )
    if not padding:
        return None
    return state.attempt(Pad(b.name, padding), Inline(b.name))


def is_padded(b: Block) -> bool:
    return b.name.endswith(".pad") and bool(b.reducing)


def split_groups(state: State) -> State | None:
    """The state with an iterator split that an operand's index divides, such as a channel into
    group and channel within the group, in a sum whose results its consumer writes. The part of the
    image that a tile needs is then known, so that it can be copied to shared memory.
    """
    func, b = state.func, state.block
    divided = analysis.division(b) if b.reducing and not state.levels_of(b.name) else None
    if divided is None or not _is_written_on(func, b):
        return None
    after = state.attempt(SplitIterator(b.name, *divided))
    if after is None or not _is_written_on(after.func, analysis.block(after.func, b.name)):
        return None
    return after


def _is_written_on(func: Function, b: Block) -> bool:
    """Whether a block follows that can write the results of a tile: the one that crops them, if
    they are padded.
    """
    return is_padded(b) or analysis.fusible_consumer(func, b, permuted=True) is not None


@dataclass(frozen=True)
class KeepPadding:
    """Pads an image in a launch of its own, as an alternative to padding whenever a tile is copied:
    for sums of so many terms that the launch hardly counts. Copies of tiles then need no conditions
    and may move vectors.
    """

    terms: int = 1 << 29
    uses: int = 256  # of each element, at least

    def __call__(self, state: State) -> Derived | None:
        func, b = state.func, state.block
        if b.combiner is not None or analysis.is_output(func, b):
            return None
        if not any(isinstance(w.value, Select) for w in b.writes):
            return None
        work = max(prod(analysis.points(o)) for _, o in walk(func.body))
        if work < self.terms or work < self.uses * analysis.points(b)[0]:
            return None
        inlined = state.attempt(Inline(b.name))
        if inlined is None:
            return None
        return Derived((inlined, state.then(done=[b.name])), final=True, preferred=1)


_AXES = ("blockIdx.x", "threadIdx.x")


def one_loop(loops: Sequence[str]) -> tuple[list[Step], str]:
    """The steps that make one loop of several, and its name."""
    if len(loops) == 1:
        return [], loops[0]
    fuse = Fuse(tuple(loops))
    return [fuse], fuse.fused


def over_threads(
    state: State, name: str, outer: Sequence[str], inner: Sequence[str], threads: Sequence[int]
) -> State:
    """Spreads the outer loops of a block over threads, each of which has the inner ones written
    out. How many of `threads` make a block of them is a decision.
    """
    column = f"#{name}.threads"
    counts = tuple(n for n in threads if n <= state.task.target.max_threads)
    fused, loop = one_loop(outer)
    split = Split(loop, (None, column))
    bound = [Bind(x, axis) for x, axis in zip(split.parts, _AXES, strict=True)]
    steps: list[Step] = [*fused, SampleChoice(column, counts), split, *bound]
    return state.then(*steps, *map(Unroll, inner), done=[name])


def in_consumer(state: State, name: str, permuted: bool = False) -> tuple[State, str, list[str]]:
    """The state with a block inlined into its element-wise consumer, if it has one; the name of the
    block that computes the result, and its loops. With `permuted`, the consumer may have another
    order of axes.
    """
    after = analysis.fusible_consumer(state.func, analysis.block(state.func, name), permuted)
    if after is not None and not after.reducing and not state.levels_of(after.name):
        state, name = state.then(Inline(name)), after.name
    path, b = find_block(state.func, name)
    if len(path) != len(b.iters):
        raise ScheduleError(f"{name} shares its loops")
    return state, name, [f.name for f in path]


def with_inlined(state: State, name: str) -> State:
    """The state with element-wise blocks between the node and the reductions it uses inlined."""
    left, seen = [name], {name}
    while left:
        b = analysis.block(state.func, left.pop())
        for p in analysis.producers(state.func, b):
            if p.name in seen:
                continue
            seen.add(p.name)
            if p.combiner is not None or analysis.is_output(state.func, p):
                left.append(p.name)
                continue
            if (inlined := state.attempt(Inline(p.name))) is not None:
                state = inlined
                left.append(b.name)  # it now reads what the inlined block read
    return state
