"""What both families of back ends need to know of an expression: the dtype in which its values are
computed, and which of its nodes are computed under which mask of a select.
"""

from __future__ import annotations

from bisect import bisect_left

from tilesmith.base.dtype import BFLOAT16, FLOAT16, FLOAT32, DType
from tilesmith.expr.dynamic import below
from tilesmith.expr.nodes import Expr, Load, Select
from tilesmith.expr.walk import postorder


# The dtype in which values of a stored dtype are computed, for the passes and the emitters.
def compute_dtype(d: DType, features: frozenset[str]) -> DType:
    """float32 for half precision, unless it is float16 and the target has arithmetic for it
    (feature `fp16`). All other dtypes are computed as they are stored.
    """
    if d is BFLOAT16 or (d is FLOAT16 and "fp16" not in features):
        return FLOAT32
    return d


# Scopes of selects: which nodes of an expression are computed under which mask.
#
# A node on one side of a select is computed under that side's mask. A node that is needed on both
# sides, or outside of the select as well, is computed once, under the innermost mask that covers
# all its uses.
class Unconditional:
    """For each node of an expression, the nodes that are computed whenever it is (`within`). Sets
    are bit masks: bit k is node number k.
    """

    def __init__(self, root: Expr) -> None:
        self.order = postorder(root, below)  # kept alive, because ids are keys
        self.number = {id(x): k for k, x in enumerate(self.order)}
        self.within: dict[int, int] = {}
        self.reads: dict[int, int] = {}  # the Loads inside of each node
        for k, x in enumerate(self.order):
            inner = below(x)
            sets = [self.within[id(y)] for y in inner]
            if isinstance(x, Select):
                sets = [sets[0], sets[1] & sets[2]]
            nodes = 1 << k
            for s in sets:
                nodes |= s
            self.within[id(x)] = nodes
            loads = 1 << k if isinstance(x, Load) else 0
            for y in inner:
                loads |= self.reads[id(y)]
            self.reads[id(x)] = loads


class Scopes:
    """The selects being emitted, outermost first: the mask of each, and the nodes that it or one
    around it needs unconditionally.
    """

    def __init__(self, certain: Unconditional, mask: str) -> None:
        self._certain = certain
        self.names = [mask]
        self._covers = [certain.within[id(certain.order[-1])]]
        self._depth = {mask: 0}

    def __len__(self) -> int:
        return len(self.names)

    def needs_mask(self, e: Expr) -> bool:
        """Whether e contains a load that is not executed anyway."""
        return bool(self._certain.reads[id(e)] & ~self._covers[-1])

    def push(self, mask: str, e: Expr) -> None:
        self._covers.append(self._covers[-1] | self._certain.within[id(e)])
        self._depth.setdefault(mask, len(self.names))
        self.names.append(mask)

    def pop(self) -> None:
        mask = self.names.pop()
        self._covers.pop()
        if self._depth[mask] == len(self.names):
            del self._depth[mask]

    def open(self, mask: str) -> bool:
        """Whether a value computed under that mask is valid here."""
        return mask in self._depth

    def outermost(self, e: Expr) -> int:
        """The outermost scope that needs e unconditionally; the present one if none around it
        does.
        """
        bit = self._certain.number[id(e)]
        return bisect_left(self._covers[:-1], True, key=lambda c: bool(c >> bit & 1))

    def up_to(self, k: int) -> Scopes:
        scopes = Scopes(self._certain, self.names[0])
        scopes.names, scopes._covers = self.names[: k + 1], self._covers[: k + 1]
        scopes._depth = {n: d for n, d in self._depth.items() if d <= k}
        return scopes
