"""Ansor's own rules, for comparison: tiles that divide, by SSRSRS on CPUs and by SSSRRSRS on GPUs.
What goes beyond them is in sets.py; what differs from them is said at `ansor_rules`.
"""

from __future__ import annotations

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.base.given import checks_given
from tilesmith.base.target import Target
from tilesmith.ir.nodes import walk
from tilesmith.ir.notes import ReduceAcross
from tilesmith.schedule.kinds import Annotate, AutoUnroll, Bind
from tilesmith.schedule.loops import Split
from tilesmith.schedule.sample import SampleChoice, SampleTile
from tilesmith.schedule.step import Step
from tilesmith.space import analysis
from tilesmith.space.annotation import located, parallelised, unrolled, vectorised
from tilesmith.space.derive import Derived, Rule, State
from tilesmith.space.rules import (
    InlineCheap,
    cache_written,
    factored,
    factored_axes,
    in_tile,
    skip,
    vector_axes,
)
from tilesmith.space.rules_gpu import BOUND, Fetching, add_cache_reads, bind_levels, one_loop
from tilesmith.space.tiling import Tiling

_CPU, _GPU = Tiling("SSRSRS"), Tiling("SSSRRSRS")
_MOST_FACTOR = 64  # innermost, of a factored reduction


@checks_given(error=ScheduleError)
def ansor_rules(target: Target) -> tuple[Rule, ...]:
    """Ansor's rules, with its conditions, orders and tile structures: tiles that divide, by SSRSRS
    on CPUs and by SSSRRSRS on GPUs. What differs:

    - Vectors. Ansor fuses and vectorizes as many innermost loops as make at most 16 elements, a
      random number of them where a block is not tiled, and leaves longer ones to LLVM's
      auto-vectorizer. Nothing is vectorized behind the scenes here, so the innermost loop of every
      block is, whatever its length; code generation cuts it into registers. It is no decision.
    - A reduction that is split over threads is split along its longest axis by a sampled divisor;
      Ansor fuses all reduced axes and splits them by the size of a warp, and may compute a consumer
      in the same threads.
    - Copies in shared memory are fetched by all threads of the block together; how many elements a
      thread moves at once is no decision.
    - Parallel loops on CPUs are a sampled number of outer loops; Ansor fuses them until there are
      16 for each core.
    - There are no rules for operators that are marked by hand, as for constant indices of
      Winograd's method.
    """
    if target.kind != "cpu":
        return (
            InlineCheap(always=True), CrossThreadReduction(), AddCacheWrite(final=True),
            tile_for_gpu, skip, GpuAnnotation(),
        )  # fmt: skip
    return (
        InlineCheap(), add_rfactor, AddCacheWrite(final=False), tile_and_fuse, tile, skip,
        CpuAnnotation(),
    )  # fmt: skip


def add_rfactor(state: State) -> Derived | None:
    """Factors a reduction with too little spatial parallelism, along its first or last axis."""
    axes = [i.name for i in factored_axes(state)]
    return factored(state, axes, "divisors", _MOST_FACTOR) if axes else None


@dataclass(frozen=True)
class AddCacheWrite:
    """Adds a cache stage to a block without a fusible consumer; on GPUs always."""

    final: bool

    def __call__(self, state: State) -> Derived | None:
        after = cache_written(state)
        return None if after is None else Derived((after,), self.final)


def tile_and_fuse(state: State) -> Derived | None:
    """Multi-level tiling, with the element-wise consumer fused behind the first or second level."""
    func, b = state.func, state.block
    consumer = analysis.fusible_consumer(func, b)
    if consumer is None or not analysis.has_data_reuse(func, b):
        return None
    tiled = _CPU.apply(state, vector_axes(state)[0])
    derived = []
    for level in (1, 2):
        try:
            derived.append(in_tile(tiled, b.name, consumer.name, level))
        except ScheduleError:
            continue
    return Derived(tuple(derived), final=b.name.endswith(".local")) if derived else None


def tile(state: State) -> Derived | None:
    """Multi-level tiling of a block with data reuse."""
    if not analysis.has_data_reuse(state.func, state.block):
        return None
    return Derived((_CPU.apply(state, vector_axes(state)[0]),), final=True)


@dataclass(frozen=True)
class CpuAnnotation:
    """Locations of the remaining blocks, vectors, depths of unrolling and parallel loops."""

    def __call__(self, state: State) -> Derived | None:
        return None

    def finish(self, state: State) -> State:
        state = vectorised(located(state))
        return parallelised(unrolled(state, [b for _, b in walk(state.func.body)]))


def tile_for_gpu(state: State) -> Derived | None:
    """Multi-level tiling bound to blocks, virtual threads and threads, with operands in shared
    memory. Each thread computes what its consumer does with its results.
    """
    func, b = state.func, state.block
    if not analysis.has_data_reuse(func, b):
        return None
    after = _GPU.apply(state, vector_axes(state)[0])
    consumer = analysis.fusible_consumer(func, b)
    try:
        if consumer is not None:
            after = in_tile(after, b.name, consumer.name, len(BOUND))
        bound = bind_levels(after, b.name)
    except ScheduleError:
        return None
    return Derived((add_cache_reads(bound, b.name, Fetching()),), final=True)


@dataclass(frozen=True)
class CrossThreadReduction:
    """Splits a reduction with little spatial parallelism over the threads of a block."""

    def __call__(self, state: State) -> Derived | None:
        func, b = state.func, state.block
        target = state.task.target
        space, reduce = analysis.points(b)
        if b.combiner is None or b.name.endswith(".local"):
            return None
        if analysis.has_data_reuse(func, b):
            wanted = space <= target.max_threads and space < reduce
        else:
            wanted = reduce > 1 and reduce > target.warp_size
        if not wanted:
            return None
        axis = max(b.reducing, key=analysis.length)
        loop = f"{b.name}.{axis.name}"
        sample = SampleTile(loop, 2, "divisors", target.max_threads)
        split = Split(loop, sample.columns, exact=True)
        note = Annotate(split.parts[1], ReduceAcross("threadIdx.x"))
        return Derived((state.then(sample, split, note, done=[b.name]),))


@dataclass(frozen=True)
class GpuAnnotation:
    """Binds the remaining loops to blocks and threads; the unroll depth is a decision."""

    unroll: tuple[int, ...] = (0, 16, 64, 512, 1024)

    def __call__(self, state: State) -> Derived | None:
        return None

    def finish(self, state: State) -> State:
        for path, b in list(walk(state.func.body)):
            spatial = [f for f in path if f.name not in b.reducing_loops]
            elsewhere = any(f.owner != b.name for f in path)
            if elsewhere or not spatial or any(f.kind != "serial" for f in path):
                continue
            across = any(f.note(ReduceAcross) is not None for f in path)
            names = [f.name for f in spatial]
            whole = [f.name for f in path[: len(names)]] == names
            state = state.then(*self._bind(names, across, whole, state.task.target.warp_size))
        for _, b in list(walk(state.func.body)):
            if b.reducing:
                column = f"#{b.name}.unroll"
                state = state.then(SampleChoice(column, self.unroll), AutoUnroll(b.name, column))
        return state

    def _bind(self, loops: list[str], across: bool, whole: bool, threads: int) -> list[Step]:
        """Binds spatial loops: all of them together, which Ansor fuses, split by the size of a
        warp. With a reduction across threads, each result gets a whole block.
        """
        if across:
            return [Bind(loop, "blockIdx.x") for loop in loops]
        steps: list[Step] = []
        if whole:  # with nothing between them
            steps, loop = one_loop(loops)
            loops = [loop]
        split = Split(loops[-1], (None, threads))
        outer = [Bind(loop, "blockIdx.x") for loop in (*loops[:-1], split.parts[0])]
        return [*steps, split, *outer, Bind(split.parts[1], "threadIdx.x")]
