"""Instructions of the SIMT interpreter that several threads carry out together, or that move many
elements: the tile's loops run at once, as axes of their own.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from tilesmith.base.errors import VerifyError
from tilesmith.expr.dynamic import loads_of
from tilesmith.expr.nodes import Binary, Expr
from tilesmith.ir.nodes import Fragment, Store
from tilesmith.ir.simt_lanes import Lanes
from tilesmith.ir.simt_memory import Array


def run_copy(lanes: Lanes, s: Store, mask: Array | None) -> None:
    """A copy of a box by each active thread."""
    which: Any = slice(None)
    if mask is not None:
        mask = np.broadcast_to(mask, (lanes.at.blocks, lanes.at.threads))
        which = np.flatnonzero(mask.any(axis=0))
        mask = None if mask[:, which].all() else mask[:, which]
    some = _threads(lanes, s, which)
    (w,) = s.writes
    some.put(w, some.value(w.value, mask), mask)


def run_group(lanes: Lanes, s: Store, fragment: Fragment, blocks: Array | None) -> None:
    """A matrix instruction over a tile of rows, columns and depth: C = C + a * b. Each thread of a
    group holds its part of C. `blocks` are those that reach the statement; None: all.
    """
    threads, group = lanes.at.threads, fragment.threads
    if threads % group:
        raise VerifyError(f"{threads} threads do not form groups of {group}")
    # The last thread of a group stands for all, so that a copy by thread 0 is another thread's.
    one = _threads(lanes, s, slice(group - 1, None, group))
    (w,) = s.writes
    sums = w.value
    assert isinstance(sums, Binary)
    assert isinstance(sums.b, Binary)
    _require_same(one, _threads(lanes, s, slice(0, None, group)), sums.b)
    on = None if blocks is None else blocks[:, None]
    rows, columns, depth = (e.number for _, e in s.tile)
    count = (lanes.at.blocks, threads // group)
    (m, _), (n, _), _ = s.tile
    left, right = sums.b.a, sums.b.b
    if not any(m in p.names for x in loads_of(left) for p in x.index):
        left, right = right, left
    a = np.broadcast_to(one.value(left, on), (rows, 1, depth, *count))
    b = np.broadcast_to(one.value(right, on), (1, columns, depth, *count))
    total = np.einsum("mkbg,nkbg->mnbg", a[:, 0], b[0])[:, :, None]
    one.env |= {"d0": one.env[m], "d1": one.env[n]}
    memory = lanes.find(w.buffer)
    if not memory.local or memory.known is None:
        raise VerifyError(f"{w.buffer} holds the result of an instruction but is not local")
    place = one.place(memory, w.index)
    one.check_inside(memory, w.index, place, on, "written")
    first = (np.arange(count[0])[:, None] * count[1] + np.arange(count[1])) * group
    cells = place.offset * memory.step + first + one.integer(fragment.lane)
    cells, total = np.broadcast_arrays(cells, total)
    if on is not None:
        keep = np.broadcast_to(on, cells.shape)
        cells, total = cells[keep], total[keep]
    if np.unique(cells).size != cells.size:
        raise VerifyError(f"two elements of {w.buffer} are in one register")
    if not memory.known[cells].all():
        raise VerifyError(f"{w.buffer} is added to, but nobody wrote it")
    memory.data[cells] += total


def _threads(lanes: Lanes, s: Store, which: Any) -> Lanes:
    """Some threads, with the tile's loops."""
    out = copy(lanes)
    out.env = {n: _taken(v, which) for n, v in lanes.env.items()}
    out.lanes, out.tags = lanes.lanes[:, which], lanes.tags[:, which]
    out.loops, out.kept, out.names, out.orders = {}, {}, {}, {}
    for d, (name, extent) in enumerate(s.tile):
        out.env[name] = out.axis(extent.number, d, len(s.tile))
    return out


def _taken(v: Any, which: Any) -> Any:
    return v[..., which] if type(v) is not int and v.shape[-1] > 1 else v


def _require_same(one: Lanes, other: Lanes, e: Expr) -> None:
    for x in loads_of(e):
        m = one.find(x.buffer)
        if not np.array_equal(one.place(m, x.index).offset, other.place(m, x.index).offset):
            raise VerifyError(f"threads of a group give different addresses of {x.buffer}")
