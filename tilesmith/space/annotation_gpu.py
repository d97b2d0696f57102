"""The rule that finishes sketches for GPUs: loops that no other rule has bound are bound
to blocks and threads. Numbers of threads and unroll depths are open decisions.
"""

from __future__ import annotations

from math import prod

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.base.given import checks_given
from tilesmith.ir.dependence import has_atomic_updates
from tilesmith.ir.function import find_block
from tilesmith.ir.nodes import Block, walk
from tilesmith.ir.notes import ReduceAcross
from tilesmith.schedule.kinds import AutoUnroll, Bind
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.sample import SampleChoice
from tilesmith.schedule.step import Step
from tilesmith.space import analysis
from tilesmith.space.derive import Derived, State
from tilesmith.space.elements_gpu import SpreadElements, TileElementsForGpu
from tilesmith.space.rules_gpu import one_loop

_ELEMENTS, _TILES = SpreadElements(), TileElementsForGpu()


@checks_given(error=ScheduleError)
@dataclass(frozen=True)
class AnnotateForGpu:
    """Binds the loops that no rule has bound: all spatial loops of a block are numbered together,
    and how many of them make a block of threads is a decision. So is the unroll depth. Threads of
    element-wise blocks have several vectors each.
    """

    unroll: tuple[int, ...] = (0, 16, 64, 512, 1024, 2048)
    threads: tuple[int, ...] = (64, 128, 256, 512)
    elements: SpreadElements = _ELEMENTS
    tiles: TileElementsForGpu = _TILES
    many: int = 1 << 16  # elements, from which on a block may pass them through shared memory

    def __call__(self, state: State) -> Derived | None:
        return None

    def finish(self, state: State) -> State:
        for path, b in list(walk(state.func.body)):
            if any(f.kind != "serial" or f.owner != b.name for f in path):
                continue
            across = any(f.note(ReduceAcross) is not None for f in path)
            spatial = [f.name for f in path if f.name not in b.reducing_loops]
            if has_atomic_updates(b):
                spatial = [f.name for f in path]
            elif (b.scatters or b.is_running) and spatial and len(spatial) < len(path):
                # in order, by one thread
                rest = (f.name for f in path if f.name not in spatial)
                state = state.then(Reorder((*spatial, *rest)))
            if spatial and not across:
                turned = self._turned(state, b)
                state = turned or state.then(*self._bind(state, b, spatial))
        for path, b in list(walk(state.func.body)):
            at = [k for k, f in enumerate(path) if f.note(ReduceAcross) is not None]
            if at and not any(f.kind == "serial" for f in path[at[-1] + 1 :]):
                continue  # what a thread has at once is decided
            held = state.func.all_buffers[b.writes[0].buffer].scope == "fragment"
            if b.reducing and b.intrinsic is None and not held:
                column = f"#{b.name}.unroll"
                state = state.then(SampleChoice(column, self.unroll), AutoUnroll(b.name, column))
        return state

    def _turned(self, state: State, b: Block) -> State | None:
        """The state with an element-wise block tiled that reads in another order than it writes."""
        if b.reducing or b.intrinsic is not None or not all(map(analysis.length, b.spatial)):
            return None
        return self.tiles.turned(state, b.name) if analysis.points(b)[0] >= self.many else None

    def _bind(self, state: State, b: Block, loops: list[str]) -> list[Step]:
        path = [f.name for f in find_block(state.func, b.name)[0]]
        steps: list[Step] = []
        own = [i.bind.name for i in b.spatial]
        if path == loops == own and b.intrinsic is None and all(map(analysis.length, b.spatial)):
            return self.elements.steps(state, b, loops)
        if path[: len(loops)] == loops:
            steps, loop = one_loop(loops)
            loops = [loop]
        loop = loops[-1]
        points = prod(analysis.points(b)[: 2 if has_atomic_updates(b) else 1])
        widths = tuple(n for n in self.threads if n <= max(self.threads[0], points))
        column = f"#{b.name}.threads"
        split = Split(loop, (None, column))
        outer = [Bind(x, "blockIdx.x") for x in (*loops[:-1], split.parts[0])]
        sample = SampleChoice(column, widths)
        return [*steps, sample, split, *outer, Bind(split.parts[1], "threadIdx.x")]
