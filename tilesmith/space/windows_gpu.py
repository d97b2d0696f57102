"""The rule for small windows on GPUs, such as those of depthwise convolution and pooling."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilesmith.base.errors import ScheduleError
from tilesmith.ir.lookup import find_block
from tilesmith.ir.nodes import Block
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.kinds import Bind, Unroll
from tilesmith.schedule.loops import Fuse, Reorder, Split
from tilesmith.schedule.sample import SampleChoice, SampleTile
from tilesmith.schedule.step import Step
from tilesmith.schedule.write_out import WriteOut
from tilesmith.space import analysis
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
        if not 1 < prod(i.extent.const or 0 for i in b.reducing) <= self.terms:
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
        name = b.name
        after = analysis.fusible_consumer(state.func, analysis.block(state.func, name))
        if after is not None and not after.reducing and not state.levels_of(after.name):
            state, name = state.then(Inline(name)), after.name
        path, block = find_block(state.func, name)
        loops = [f.name for f in path]
        if len(loops) != len(block.iters):
            raise ScheduleError(f"{name} shares its loops")
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
        flat = outer[0]
        if len(outer) > 1:
            fuse = Fuse(tuple(outer))
            steps.append(fuse)
            flat = fuse.fused
        column = f"#{name}.threads"
        counts = tuple(n for n in self.threads if n <= state.task.target.max_threads)
        split = Split(flat, (None, column))
        steps += [SampleChoice(column, counts), split]
        steps += [Bind(x, axis) for x, axis in zip(split.parts, _AXES, strict=True)]
        return state.then(*steps, *map(Unroll, inner), done=[name])


_AXES = ("blockIdx.x", "threadIdx.x")


def _has_image(b: Block) -> bool:
    """Whether all axes of the results index an operand, each of its elements by itself: not groups
    of several, which read the same.
    """
    axes = [i.name for i in b.spatial if i.extent.const != 1]
    return any(all(any(p.coefficient(n).terms for p in x.index) for n in axes) for x in b.loads)
