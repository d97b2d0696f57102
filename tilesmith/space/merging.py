"""The rule for axes that a computation does not tell apart, such as the rows and columns of an
image in a 1x1 convolution.
"""

from __future__ import annotations

from itertools import pairwise

from tilesmith.base.errors import ScheduleError
from tilesmith.schedule.merge import MergeIterators
from tilesmith.space import analysis
from tilesmith.space.state import Derived, State


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
        try:
            merged = state.then(MergeIterators(b.name, (i.name, j.name)))
        except ScheduleError:
            continue
        return Derived((merged,), final=True)
    return None
