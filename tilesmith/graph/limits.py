"""Limits on the sizes of a model. The sizes that a file states are checked before memory is
allocated for them.
"""

from __future__ import annotations

import os
import resource
from math import prod

from tilesmith.base.errors import GraphError
from tilesmith.graph.graph import Value

MAX_RANK = 32  # of NumPy 1


class Limits:
    """`nbytes` is the most that one value may take, `folded` the steps that constant folding may
    compute in all for one graph, `turns` the iterations of a loop whose condition never ends it.
    """

    def __init__(self, nbytes: int, folded: int = 1 << 28, turns: int = 1 << 31) -> None:
        self.nbytes, self.folded, self.turns = nbytes, folded, turns

    def check(self, value: Value) -> None:
        # An empty value still has strides: its other extents must be numbers that fit.
        if prod(max(n, 1) for n in value.shape) * value.dtype.nbytes > self.nbytes:
            raise GraphError(
                f"{value} takes {value.nbytes} bytes, and the memory here is {self.nbytes}"
            )
        if len(value.shape) > MAX_RANK:
            raise GraphError(f"{value} has {len(value.shape)} dimensions; at most {MAX_RANK} work")


def memory_nbytes() -> int:
    """What this process can have: the machine's memory, or less where the process is limited."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for what in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft, _ = resource.getrlimit(what)
        if soft != resource.RLIM_INFINITY:
            most = min(most, soft)
    return most


LIMITS = Limits(memory_nbytes())
