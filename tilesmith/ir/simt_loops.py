"""Which loops of a thread may run all their iterations at once in the SIMT interpreter.

The result is that of running them one after the other: no iteration touches what another one
writes, or it only overwrites it, in program order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.expr.dynamic import is_loaded, loads_of
from tilesmith.expr.ints import Int
from tilesmith.ir.evaluators import axes_over
from tilesmith.ir.nodes import Alloc, For, If, Join, Stmt, Store, Sync

_POINTS = 4096  # of a loop nest whose indices are enumerated to compare them


@dataclass(frozen=True, slots=True)
class Wide:
    """A loop that may run at once: with the loops inside of it that may, how many points and how
    many axes these are.
    """

    points: int
    axes: int


@dataclass(frozen=True, slots=True)
class _Site:
    buffer: str
    index: tuple[Int, ...]
    write: bool
    loops: tuple[For, ...]  # around it, within the loop that is looked at


def wide_loops(body: tuple[Stmt, ...]) -> dict[int, Wide]:
    """The loops below `body` that may run at once, by id."""
    found: dict[int, Wide] = {}
    _visit(body, found)
    return found


def _visit(body: tuple[Stmt, ...], found: dict[int, Wide]) -> tuple[int, int]:
    """Adds the wide loops of `body`; the points and axes of those in it that have the most."""
    points = axes = 1
    axes = 0
    for s in body:
        if isinstance(s, For | If):
            p, a = _visit(s.body, found)
            if isinstance(s, For) and (n := s.extent.const) is not None and _independent(s, found):
                p, a = max(n, 1) * p, a + 1
                found[id(s)] = Wide(p, a)
            points, axes = max(points, p), max(axes, a)
    return points, axes


def _independent(loop: For, wide: Mapping[int, Wide]) -> bool:
    sites: dict[str, list[_Site]] = {}
    try:
        for site in _sites(loop.body, ()):
            sites.setdefault(site.buffer, []).append(site)
    except _Ordered:
        return False
    for of_buffer in sites.values():
        if not any(s.write for s in of_buffer):
            continue
        one = of_buffer[0]
        if len(of_buffer) == 1 and all(id(f) in wide for f in one.loops):
            continue  # overwritten in program order
        if any(s.index != one.index for s in of_buffer):
            return False
        inner = {f.name: f.trips for s in of_buffer for f in s.loops}
        if not _separates(loop.name, loop.trips, one.index, inner):
            return False
    return True


class _Ordered(Exception):
    """A statement that cannot run for several iterations at once."""


def _sites(body: tuple[Stmt, ...], loops: tuple[For, ...]) -> Iterator[_Site]:
    for s in body:
        match s:
            case For():
                yield from _sites(s.body, (*loops, s))
            case If():
                yield from _sites(s.body, loops)
            case Store() if any(is_loaded(p) for w in s.writes for p in w.index):
                raise _Ordered
            case Store() if not s.tile:
                for w in s.writes:
                    yield _Site(w.buffer, w.index, True, loops)
                for load in chain.from_iterable(loads_of(w.value) for w in s.writes):
                    yield _Site(load.buffer, load.index, False, loops)
            case Sync() | Join() | Alloc() | Store():
                raise _Ordered


def _separates(name: str, extent: int, index: tuple[Int, ...], inner: Mapping[str, int]) -> bool:
    """Whether different values of the loop never give the same index, whatever the loops inside of
    it are.
    """
    names = {name: extent, **inner}
    if any(not p.plain for p in index):
        return False
    points = prod(names.values())
    if not 0 < points <= _POINTS:
        return points == 0
    env = axes_over({v: range(n) for v, n in names.items()})
    total: Any = np.zeros([1] * len(names), np.int64)
    for p in index:
        part: Any = 0
        for m, c in p.terms.items():
            moving = [a for a in m if a in names]
            if moving and len(m) > 1:
                return False
            if moving:
                part = part + c * env[str(moving[0])]
        values = np.asarray(part)
        span = int(values.max() - values.min()) + 1
        total = total * span + (values - values.min())
    rows = np.broadcast_to(total, tuple(names.values())).reshape(extent, -1)
    return np.unique(rows).size == sum(np.unique(row).size for row in rows)
