"""Counts the operations of a block whose inner loops are written out. What does not depend on such
a loop is then computed once for all of its iterations, and what depends on nothing else is known
when the code is compiled: such as the factors of a transform, and the sums that its results share.
"""

from __future__ import annotations

from math import prod

from tilesmith.expr.nodes import Expr, Load, children, ints_of, map_ints
from tilesmith.expr.quotients import simple_quotients
from tilesmith.expr.walk import preorder
from tilesmith.ir.nodes import Block, Path
from tilesmith.search.features.operations import OPERATIONS, apart, divisions_of, operation_of


def operations_written_out(b: Block, path: Path) -> dict[str, float]:
    """How often each of OPERATIONS occurs for one instance, on average."""
    loops = {f.name: f.extent for f in path if f.kind == "unroll" and f.extent.const}
    bound = {i.name: i.bind for i in b.iters}
    every = prod(n.number for n in loops.values())
    counts = dict.fromkeys(OPERATIONS, 0.0)

    def share(names: frozenset[str]) -> float:
        return prod(n.number for f, n in loops.items() if f in names) / every

    for a in {a.key: a for x in b.loads for a in divisions_of(x)}.values():
        names = frozenset(f for n in a.names() for f in bound[n].names)
        counts["int divmod"] += share(names) if names - loops.keys() else 0
    for w in b.writes:
        value = map_ints(w.value, lambda p: simple_quotients(p.substitute(bound), loops))
        for e in preorder(value, apart):
            if (kind := operation_of(e)) is not None:
                names, loads = _depends(e)
                counts[kind] += share(names) if loads or names - loops.keys() else 0
    return counts


def _depends(e: Expr) -> tuple[frozenset[str], bool]:
    """The names in an expression, and whether it loads anything."""
    names = frozenset(n for p in ints_of(e) for n in p.names)
    return names, any(isinstance(x, Load) for x in preorder(e, children))
