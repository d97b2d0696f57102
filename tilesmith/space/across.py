"""The rule for products whose results are contiguous along an axis that fills vectors badly."""

from __future__ import annotations

from dataclasses import dataclass

from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import Int, exact_quotient, var
from tilesmith.ir.nodes import Block, Iter
from tilesmith.schedule.cache import CacheWrite
from tilesmith.schedule.layout import TransformLayout
from tilesmith.space import analysis
from tilesmith.space.rules import TileAndFuse
from tilesmith.space.state import Derived, State


@dataclass(frozen=True)
class TileAcross:
    """Tiles a block with data reuse with vectors along another axis than its results are contiguous
    along, such as the channels of a convolution in NCHW with rows of 14 results. The results of a
    tile are kept with that axis innermost, and stored across: by the element-wise consumer, or by a
    copy.

    It pays if rows leave lanes unused: a row takes `waste` times as many lanes as it has elements.
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
        fused = [s for _, s in self.fuse.fused(state, consumer.name, axis)]
        return Derived(tuple(fused)) if fused else None

    def _axis(self, state: State) -> str | None:
        """The axis to vectorise along instead; None if rows fill vectors, or no axis does better.
        Windows do not move along it, and it indexes one operand of two.
        """
        func, b = state.func, state.block
        lanes = state.task.target.lanes(b.writes[0].value.dtype.bits)
        by_name = {i.name: i for i in b.spatial}
        rows = [by_name[a] for a in analysis.contiguous_axes(func, b) if a in by_name]
        if not rows or min(_wasted(i, lanes) for i in rows) < self.waste:
            return None
        if b.writes[0].index[-1].name not in {i.name for i in rows}:
            return None
        alone = {
            n
            for load in b.loads
            for p in load.index
            if (n := _along(b, p)) is not None and n not in analysis.shared_axes(b)
        }
        others = [i for i in b.spatial if i.name in alone and i not in rows]
        # of equals the longest: a batch of four fills vectors, too, but is read in strides
        best = min(others, key=lambda i: (_wasted(i, lanes), -analysis.length(i)), default=None)
        if best is None or analysis.length(best) < lanes:
            return None
        gain = min(_wasted(i, lanes) for i in rows) / _wasted(best, lanes)
        return best.name if gain >= self.waste else None


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


def _wasted(i: Iter, lanes: int) -> float:
    """Lanes that vectors along it take, per element. What does not fill a register is computed in
    pieces of powers of two, each of which takes as long as a whole register: 7 is 4 + 2 + 1.
    """
    n = max(1, analysis.length(i))
    return (n // lanes + (n % lanes).bit_count()) * lanes / n
