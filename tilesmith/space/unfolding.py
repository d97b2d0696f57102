"""The rule that makes a product of matrices of a sum over windows, such as a convolution with
channels last, and tiles it around a matrix instruction.

A tile of rows is a box of the image. The copy engine brings it, moved by each place of the window,
with zeros where it reaches beyond the image.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from math import prod

from tilesmith.base.errors import ScheduleError
from tilesmith.ir.nodes import Block
from tilesmith.ir.tensor_cores import ROWS, RUN
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.unfold import MergeTiles, Sizes, Unfold
from tilesmith.space import analysis
from tilesmith.space.merging import merge_axes
from tilesmith.space.rules_rows import SplitSums
from tilesmith.space.state import Derived, State
from tilesmith.space.tensor_cores import TileByTensorCores

_LEAST_WORK = 0.4  # of what is computed, padding counted
_ALIGNED = 8  # elements of 16 bytes: the copy engine knows no other rows


@dataclass(frozen=True)
class TileUnfolded:
    """Sketches for a sum over several axes, or with several axes of rows. The sum may be split over
    blocks, where its results are few.
    """

    tile: TileByTensorCores
    split: SplitSums = field(
        default_factory=lambda: SplitSums((2, 3, 4, 6, 8, 9, 12, 16), results=4096, multiple=RUN)
    )

    def __call__(self, state: State) -> Derived | None:
        if not self.tile.intrinsics or not self._is_wanted(state):
            return None
        while (merged := merge_axes(state)) is not None:
            (state,) = merged.states
        sizes = _sizes(state)
        if sizes is None:
            return None
        try:
            state = _unfolded(state, *sizes)
        except ScheduleError:
            return None
        parts = self.split(state)
        states = [state, *(parts.states if parts is not None else ())]
        derived = [d for s in states if (d := self.tile(s)) is not None]
        found = tuple(s for d in derived for s in d.states)
        return Derived(found) if found else None

    def _is_wanted(self, state: State) -> bool:
        b = state.block
        if b.combiner is None or not b.init or b.tile or state.levels_of(b.name):
            return False
        if b.where or b.domain or len(b.writes) != 1 or b.name.endswith((".rf", ".rows")):
            return False
        return len(b.reducing) > 1 and len(list(b.loads)) == 2


def _sizes(state: State) -> tuple[Sizes, Sizes] | None:
    """The tiles of rows and terms."""
    func, b = state.func, state.block
    column = b.writes[0].index[-1].name if b.writes[0].index else None
    images = [x for x in b.loads if not any(column in p.names for p in x.index)]
    if column is None or len(images) != 1:
        return None
    (image,) = images
    (weights,) = (x for x in b.loads if x is not image)
    for x in b.loads:
        buffer = func.all_buffers[x.buffer]
        if buffer.layout is not None or buffer.dtype.bits != 16:
            return None
        if (buffer.shape[-1].const or 1) % _ALIGNED:
            return None
    depth = image.index[-1].name if image.index else None
    if depth not in {i.name for i in b.reducing}:
        return None
    by_image, by_weights = ({n for p in x.index for n in p.names} for x in (image, weights))
    rows = [i for i in b.spatial if i.name in by_image and i.name not in by_weights]
    if not rows or any(i.extent.const is None for i in b.iters):
        return None
    tile = _tile([i.extent.const or 1 for i in rows])
    terms = [(i.name, RUN if i.name == depth else 1) for i in b.reducing]
    terms.sort(key=lambda t: t[0] == depth)
    picked = tuple((i.name, n) for i, n in zip(rows, tile, strict=True))
    return (picked, tuple(terms)) if _share(b, dict((*picked, *terms))) >= _LEAST_WORK else None


def _tile(extents: list[int]) -> tuple[int, ...]:
    """Powers of two whose product is the instruction's number of rows, with the least padding."""
    powers = [1 << k for k in range(ROWS.bit_length())]
    every = [t for t in product(powers, repeat=len(extents)) if prod(t) == ROWS]
    return min(
        every,
        key=lambda t: (prod(-(-n // s) * s for n, s in zip(extents, t, strict=True)), t),
    )


def _share(b: Block, sizes: dict[str, int]) -> float:
    extents = {i.name: i.extent.const or 1 for i in b.iters if i.name in sizes}
    return prod(n / (-(-n // sizes[name]) * sizes[name]) for name, n in extents.items())


def _unfolded(state: State, rows: Sizes, terms: Sizes) -> State:
    """The state with a product of matrices. What stores its result runs in order of the rows."""
    b = state.block
    consumer = analysis.fusible_consumer(state.func, b)
    state = state.then(Unfold(b.name, rows, terms))
    last, sizes = b.name, rows
    if consumer is not None:
        axes = dict(
            zip([i.name for i in b.spatial], [i.name for i in consumer.spatial], strict=True)
        )
        last, sizes = consumer.name, tuple((axes[n], size) for n, size in rows)
        state = state.then(Inline(b.name))
    # The matrices are left to the copies that read them.
    made = [x for x in state.func.all_buffers if x.endswith(".rows")]
    state = state.then(MergeTiles(last, sizes), done=[last, *made])
    return State(state.task, state.func, state.steps, state.done - {f"{b.name}.rows"}, state.tiled)
