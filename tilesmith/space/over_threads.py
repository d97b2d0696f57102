"""What rules for GPUs share: loops spread over blocks and threads, and a block inlined into what
uses it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilesmith.base.errors import ScheduleError
from tilesmith.ir.lookup import find_block
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.kinds import Bind, Unroll
from tilesmith.schedule.loops import Fuse, Split
from tilesmith.schedule.sample import SampleChoice
from tilesmith.schedule.step import Step
from tilesmith.space import analysis
from tilesmith.space.state import State

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


def in_consumer(state: State, name: str) -> tuple[State, str, list[str]]:
    """The state with a block inlined into its element-wise consumer, if it has one; the name of the
    block that computes the result, and its loops.
    """
    after = analysis.fusible_consumer(state.func, analysis.block(state.func, name))
    if after is not None and not after.reducing and not state.levels_of(after.name):
        state, name = state.then(Inline(name)), after.name
    path, b = find_block(state.func, name)
    if len(path) != len(b.iters):
        raise ScheduleError(f"{name} shares its loops")
    return state, name, [f.name for f in path]
