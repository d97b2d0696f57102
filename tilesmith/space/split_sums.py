"""Rules for GPUs about sums in parts: reductions split over blocks (split-K), and results that an
element-wise block interleaves.
"""

from __future__ import annotations

from contextlib import suppress

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.ir.function import find_block
from tilesmith.ir.intrinsics import MMA_SIZE, RUN
from tilesmith.schedule.cache import CacheWrite, SetScope
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.iterators import SplitIterator
from tilesmith.schedule.kinds import Bind, Unroll
from tilesmith.schedule.layout import Pad
from tilesmith.schedule.location import ComputeAt
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.reduction import Rfactor
from tilesmith.schedule.sample import SampleChoice
from tilesmith.schedule.step import Step
from tilesmith.space import analysis
from tilesmith.space.derive import Derived, State
from tilesmith.space.rules_gpu import one_loop, with_plain_operands

_FEW_ZEROS = 8  # one of so many terms
_STEP = 16  # terms of a tile in shared memory; parts that are multiples have such tiles


def split_interleaved(state: State) -> Derived | None:
    """Splits the iterators by which an element-wise block interleaves the parts of a sum, such as
    the phases of a transposed convolution. It then permutes axes, so that the threads which sum can
    write the result themselves.
    """
    name = state.block.name
    if state.block.combiner is not None or analysis.division(state.block) is None:
        return None
    b, parts = state.block, analysis.producers(state.func, state.block)
    while len(parts) == 1 and parts[0].combiner is None:  # sums of 16 bits are rounded first
        inlined = state.attempt(Inline(parts[0].name))
        if inlined is None:
            return None
        state, b = inlined, analysis.block(inlined.func, name)
        parts = analysis.producers(state.func, b)
    divided = analysis.division(b)
    if divided is None or len(parts) != 1 or not analysis.has_data_reuse(state.func, parts[0]):
        return None
    split = state.attempt(SplitIterator(name, *divided))
    return None if split is None else Derived((split,), final=True)


def with_parts(state: State, axis: str, multiple: int) -> State | None:
    """The state in which a summed axis is a multiple, by zeros; None if that takes too many, or
    they would change the sum, or windows move along it.
    """
    func, b = state.func, state.block
    if any(axis in p.names and p.name != axis for x in b.loads for p in x.index):
        return None
    extent = next(i.extent.number for i in b.iters if i.name == axis)
    zeros = -extent % multiple
    if not zeros:
        return state
    if zeros * _FEW_ZEROS > extent:
        return None
    crop = [Inline(b.name)] if analysis.consumers(func, b) else []
    return state.attempt(Pad(b.name, ((axis, multiple),)), *crop)


@dataclass(frozen=True)
class SplitSums:
    """Splits the reduction of a block with data reuse over blocks, if its results alone are too few
    to keep the GPU busy. A second launch adds the parts up, and does what follows element by
    element. Each number of parts is a sketch. Zeros are appended where parts would not divide, or
    leave matrix instructions without whole steps.
    """

    parts: tuple[int, ...] = (2, 4, 8, 16)
    results: int = 4096  # per multiprocessor; with more, nothing is split
    most: int = 16384  # of all parts
    least: int = 64  # terms per part
    multiple: int = 1  # of which each part is
    # Of the launch that adds the parts up: neighbouring results of a thread, threads of a block.
    widths: tuple[int, ...] = (1, 2, 4)
    threads: tuple[int, ...] = (64, 128, 256, 512)

    def __call__(self, state: State) -> Derived | None:
        func, b = state.func, state.block
        if b.combiner is None or not b.init or b.name.endswith((".rf", ".local")):
            return None
        if not analysis.has_data_reuse(func, b) or not b.reducing:
            return None
        space, reduce = analysis.points(b)
        if space > self.results * state.task.target.num_multiprocessors:
            return None
        long = max(b.reducing, key=analysis.length)
        if not (extent := analysis.length(long)):
            return None
        with suppress(ScheduleError):
            state = with_plain_operands(state)
        b, derived = state.block, []
        for n in self.parts:
            if reduce // n < self.least:
                continue
            if n > 2 and space * n > self.most * state.task.target.num_multiprocessors:
                continue
            room = state if extent % (n * self.multiple) == 0 else None
            if self.multiple == 1:
                halves = all(func.all_buffers[x.buffer].dtype.bits == 16 for x in b.loads)
                # Steps of wgmma, or else of mma, which takes thin products anyway.
                steps = (RUN, 2 * MMA_SIZE, MMA_SIZE) if halves else (_STEP, 1)
                sizes = [n * size for size in steps]
                padded = (with_parts(state, long.name, m) for m in sizes)
                room = next((p for p in padded if p is not None), room)
            if room is None:
                continue
            name = b.name if room is state else f"{b.name}.pad"
            split = Split(f"{name}.{long.name}", (n, None), exact=True)
            if (after := room.attempt(split, Rfactor(split.parts[0]))) is not None:
                derived.append(self._finished(after, name))
        return Derived(tuple(derived)) if derived else None

    def _finished(self, state: State, name: str) -> State:
        """The sum of the parts, in registers: computed where its element-wise consumer uses it, or
        else a copy of it.
        """
        b = analysis.block(state.func, name)
        consumer = analysis.fusible_consumer(state.func, b, permuted=True)
        try:
            if consumer is None:
                kept = CacheWrite(name, "local")
                return self._joined(state.then(kept), kept.copy, name)
            local = SetScope(b.writes[0].buffer, "local")
            return self._joined(state, name, consumer.name, local)
        except ScheduleError:
            return state.then(done=[name])

    def _joined(self, state: State, name: str, user: str, *kept: Step) -> State:
        """Threads that add up the parts of a few neighbouring results each and use them."""
        path, b = find_block(state.func, user)
        *outer, last = (f.name for f in path)
        extent = max(1, analysis.length(b.iters[-1]))
        threads, column = f"#{user}.threads", f"#{user}.width"
        wide = Split(last, (None, column), exact=True)
        widths = tuple(w for w in self.widths if extent % w == 0)
        fused, loop = one_loop([*outer, wide.parts[0]])
        counts = tuple(n for n in self.threads if n <= state.task.target.max_threads)
        split = Split(loop, (None, threads))
        state = state.then(
            SampleChoice(column, widths), wide, *fused, SampleChoice(threads, counts), split,
            ComputeAt(name, split.parts[1]), *kept, Unroll(wide.parts[1]),
            Bind(split.parts[0], "blockIdx.x"), Bind(split.parts[1], "threadIdx.x"),
        )  # fmt: skip
        path, b = find_block(state.func, name)
        own = [f.name for f in path if f.owner == name]
        terms = [x for x in own if x in b.reducing_loops]
        results = [x for x in own if x not in b.reducing_loops]
        return state.then(Reorder((*terms, *results)), Unroll(results[-1]), done=[name, user])
