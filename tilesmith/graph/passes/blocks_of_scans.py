"""GPU: running sums and products are cut into blocks where there are too few rows for all threads,
or where neighbouring threads would read from different cache lines.
"""

from __future__ import annotations

from math import prod

from tilesmith.graph.edit import Editor, edited
from tilesmith.graph.graph import Graph, Node, Value
from tilesmith.ops.scan import cumprod, cumsum

_BLOCK = 32  # what a thread sums one by one: a cache line of float32
# Rows that need no blocks, of which some are next to each other in memory.
_ROWS, _NEIGHBOURS = 1 << 14, 32
_LONG = (
    4096  # an axis that is longer would be summed in float64, which few GPUs have many units for
)


def blocks_of_scans(graph: Graph) -> Graph:
    if not any(n.function in (cumsum, cumprod) for n in graph.nodes):
        return graph
    return edited(graph, _in_blocks)


def _in_blocks(e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
    if node.function not in (cumsum, cumprod) or node.setting("block"):
        return None
    shape, axis = inputs[0].shape, node.setting("axis")
    at = (-1 if axis is None else axis) % len(shape)
    after = prod(shape[at + 1 :])
    if shape[at] <= _LONG and after >= _NEIGHBOURS and after * prod(shape[:at]) >= _ROWS:
        return None
    return e.add(node.function, *inputs, **{**dict(node.settings), "block": _BLOCK})
