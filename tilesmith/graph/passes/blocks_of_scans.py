"""GPU: running sums and products are cut into blocks where there are too few rows for all threads,
or where neighbouring threads would read from different cache lines. Along the last axis, tiles of
blocks stay in shared memory; of short rows, several are in one tile.
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
# Along the last axis: rows from which on there are tiles, elements of a block (of short rows and of
# others), bytes of a tile, its least elements, and the number of tiles that keeps a GPU busy.
_ROW, _SIZES, _NBYTES, _LEAST, _TILES = 512, (8, 16), 20480, 1280, 256
_WARP = 32
# Of short rows: elements of a block (of rows up to so many elements, and of longer), the threads
# that have a tile, and tiles that keep a GPU busy.
_SHORT, _OF_SHORT, _THREADS, _MANY = 128, (8, 16), 128, 264


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
    if after == 1 and shape[at] >= _ROW:
        size, tile = _sizes(shape[at], prod(shape[:at]), inputs[0].dtype.nbytes)
        settings = {**dict(node.settings), "axis": at, "block": size, "tile": tile}
        if at == len(shape) - 1:
            return e.add(node.function, *inputs, **settings)
        rows = e.reshape(inputs[0], shape[: at + 1])  # the rest are axes of one element
        return e.reshape(e.add(node.function, rows, **settings), shape)
    if after == 1 and 1 < shape[at] < prod(shape):
        size, count = _of_rows(shape[at], prod(shape[:at]), inputs[0].dtype.nbytes)
        settings = {**dict(node.settings), "axis": 0, "block": size, "row": shape[at]}
        flat = e.reshape(inputs[0], (prod(shape),))
        return e.reshape(e.add(node.function, flat, **settings, tile=count * shape[at]), shape)
    if shape[at] <= _LONG and after >= _NEIGHBOURS and after * prod(shape[:at]) >= _ROWS:
        return None
    return e.add(node.function, *inputs, **{**dict(node.settings), "block": _BLOCK})


def _sizes(extent: int, rows: int, nbytes: int) -> tuple[int, int]:
    """Elements of a block and of a tile: tiles of a row are about equally long."""
    most = _NBYTES // max(4, nbytes)  # short types are summed in wider ones
    size = _SIZES[extent >= most // 2]
    tile = most
    while extent > most and tile > _LEAST and rows * extent < tile * _TILES:
        tile //= 2
    count, whole = -(-extent // tile), size * _WARP
    return size, -(-extent // (count * whole)) * whole


def _of_rows(extent: int, rows: int, nbytes: int) -> tuple[int, int]:
    """Elements of a block, and rows of a tile: enough for a warp, and few enough that there are
    tiles for all of a GPU.
    """
    size = min(extent, _OF_SHORT[extent > _SHORT])
    size = next((n for n in range(size, size // 2, -1) if extent % n == 0), size)
    each = -(-extent // size)
    room = max(1, _NBYTES // (max(4, nbytes) * each * size))
    most = min(_THREADS // each, room, max(rows // _MANY, -(-_WARP // each)))
    return size, max(1, min(most, rows))
