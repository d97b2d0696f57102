"""The race finder for CPU programs: raises a VerifyError if an iteration of a parallel or
vectorized loop may write what another one reads or writes, whatever made the loop run that way.

`dependence.py` decides which blocks may run at the same time. Here, what it takes for granted is
proven as well: that the points of a block write different elements, and that blocks inside of one
loop stay out of the way of each other. What cannot be proven is tried, if it is small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, combinations_with_replacement
from math import inf, prod
from typing import Any

import numpy as np

from tilesmith.base.errors import ScheduleError, VerifyError
from tilesmith.expr.intervals import Unknown, bounds, is_injective
from tilesmith.expr.ints import ZERO, FloorDiv, Int, Opaque, evaluate_int, opaque_atoms, var
from tilesmith.ir.dependence import (
    are_own_points,
    check_not_in_lanes,
    is_disjoint,
    is_vector_sum,
    running_kind,
    users_of,
)
from tilesmith.ir.function import Function
from tilesmith.ir.lookup import all_loops
from tilesmith.ir.nodes import Block, For, Path, Stmt, walk

Array = np.ndarray[Any, Any]

_KINDS = ("parallel", "vectorize")
_MOST_TRIED = 1 << 16  # points of a loop nest, which take some milliseconds


@dataclass(frozen=True, slots=True)
class _Access:
    """Of one block, over the loops inside of a concurrent one; `inner` has these and its tile."""

    block: str
    buffer: str
    index: tuple[Int, ...]
    write: bool
    inner: Mapping[str, Int]
    guards: tuple[Int, ...]


def check_races(func: Function) -> None:
    """Takes a Function whose computations are blocks. One with open sizes is checked once it has
    numbers: until then, the schedule checks each step for all sizes.
    """
    loops = list(_concurrent(func.body, ()))
    if not loops or any(f.extent.const is None for f in all_loops(func.body)):
        return
    users = users_of(func)
    for path, loop in loops:
        why = f"run loop {loop.name} as {running_kind(loop)}"
        try:
            check_not_in_lanes(path, loop, why)
            if loop.kind != "vectorize" or not is_vector_sum(loop, why):
                _check_loop(func, path, loop, why, users)
        except ScheduleError as e:
            raise VerifyError(f"{func.name}: {e}") from None


def _concurrent(body: tuple[Stmt, ...], path: Path) -> Iterator[tuple[Path, For]]:
    for s in body:
        if isinstance(s, For):
            if _is_concurrent(s):
                yield path, s
            yield from _concurrent(s.body, (*path, s))


def _is_concurrent(s: Stmt) -> bool:
    return isinstance(s, For) and running_kind(s) in _KINDS


def _check_loop(
    func: Function, path: Path, loop: For, why: str, users: dict[str, set[str]]
) -> None:
    blocks = list(walk(loop.body))
    inside = {b.name for _, b in blocks}
    outputs = {p.name for p in func.outputs}
    for _, b in blocks:
        if loop.name in b.reducing_loops:
            raise ScheduleError(f"cannot {why}: {b.name} reduces over it")
    for name in sorted({w.buffer for _, b in blocks for w in b.writes}):
        private = name not in outputs and users[name] <= inside
        if private and len(loop.body) == 1 and _is_concurrent(loop.body[0]):
            continue  # that loop has its own buffer, too
        using = [(below, b) for below, b in blocks if b.name in users[name]]
        if len(using) == 1 and (private or _is_own(loop, *using[0], name)):
            continue
        accesses = [a for below, b in using for a in _accesses(below, b, name)]
        if private:
            _check_private(accesses, name, loop, why)
            continue
        own = {b.name for below, b in using if _is_own(loop, below, b, name)}
        for x, y in combinations_with_replacement(accesses, 2):
            if not (x.write or y.write) or (x is y and x.block in own):
                continue
            if _is_apart(x, y, loop.name):
                continue
            if x is y and any(
                b.name == x.block
                and is_disjoint(b, (loop, *below), func)
                and _is_one_to_one(b, name)
                for below, b in using
            ):
                continue
            if not _tried(path, loop, accesses):
                raise ScheduleError(
                    f"cannot {why}: {x.block} {_verb(x)} elements of {name} in one iteration that "
                    f"{y.block} {_verb(y)} in another"
                )


def _verb(a: _Access) -> str:
    return "may write" if a.write else "may read"


def _is_own(loop: For, below: Path, b: Block, name: str) -> bool:
    """Whether different iterations are different points of the block, which write different
    elements of the buffer.
    """
    return are_own_points(b, (loop, *below)) and _is_one_to_one(b, name)


def _accesses(below: Path, b: Block, name: str) -> Iterator[_Access]:
    inner = {f.name: f.extent for f in below} | dict(b.tile)
    env = b.binding
    guards = (*b.where, *(p.substitute(env) for p in b.domain))
    for w in b.writes:
        if w.buffer == name:
            yield _Access(b.name, name, _put(w.index, env), True, inner, guards)
    for x in b.loads:
        if x.buffer == name:
            yield _Access(b.name, name, _put(x.index, env), False, inner, guards)


def _put(index: tuple[Int, ...], env: Mapping[str, Int]) -> tuple[Int, ...]:
    return tuple(p.substitute(env) for p in index)


def _is_one_to_one(b: Block, name: str) -> bool:
    """Whether different points of the block write different elements of the buffer."""
    extents = tuple((i.name, i.extent) for i in b.spatial if i.extent.const != 1)
    return all(_is_injective(w.index, extents) for w in b.writes if w.buffer == name)


@lru_cache(maxsize=1024)
def _is_injective(index: tuple[Int, ...], extents: tuple[tuple[str, Int], ...]) -> bool:
    names = {p.name for p in index}
    if all(n in names for n, _ in extents):
        return True
    return all(map(_is_known, index)) and is_injective(index, dict(extents))


def _is_apart(a: _Access, b: _Access, loop: str) -> bool:
    """Whether two accesses meet different elements in different iterations of the loop: it moves
    both by the same step along a dimension, and the step is longer than both are apart.
    """
    if a is not b and a.index == b.index:
        return True  # in each iteration the same elements, and the one that writes has its own
    other = {n: var(f"{n}'") for n in b.inner}
    ranges = {**a.inner, **{f"{n}'": e for n, e in b.inner.items()}}
    guards = (*a.guards, *(p.substitute(other) for p in b.guards))
    for p, q in zip(a.index, b.index, strict=True):
        step = p.coefficient(loop).const
        if not step or q.coefficient(loop) != p.coefficient(loop):
            continue
        p, q = p - var(loop) * step, q - var(loop) * step
        if loop in p.names | q.names:  # it also moves them in steps of another length
            continue
        apart = p - q.substitute(other)
        if all(_is_below(d, abs(step), ranges, guards) for d in (apart, -apart)):
            return True
    return False


def _is_below(p: Int, limit: int, ranges: Mapping[str, Int], guards: tuple[Int, ...]) -> bool:
    """Whether p < limit where all guards are >= 0. Each of two accesses may have one that helps."""
    near = [g for g in guards if g.names & p.names]
    return any(
        _highest(p + sum(some, ZERO), ranges) < limit
        for count in range(3)
        for some in combinations(near, count)
    )


def _highest(p: Int, ranges: Mapping[str, Int]) -> float:
    try:
        high = bounds(p, ranges)[1].const
    except Unknown:
        return inf
    return inf if high is None else high


def _check_private(accesses: list[_Access], name: str, loop: For, why: str) -> None:
    """Each iteration has a buffer of its own: what it reads, it must have written itself."""
    writes = [a for a in accesses if a.write]
    for a in accesses:
        if not a.write and all(_is_beside(a, w, loop.name) for w in writes):
            raise ScheduleError(
                f"cannot {why}: {a.block} reads elements of {name} that only other iterations write"
            )


def _is_beside(read: _Access, write: _Access, loop: str) -> bool:
    """Whether no element that is read is written in the same iteration."""
    for p, q in zip(read.index, write.index, strict=True):
        if p == q or loop not in p.names or loop not in q.names:
            continue
        try:
            (first, last), (low, high) = bounds(p, read.inner), bounds(q, write.inner)
        except Unknown:
            continue
        if _is_positive(low - last) or _is_positive(first - high):
            return True
    return False


def _is_positive(p: Int) -> bool:
    n = p.const
    return n is not None and n > 0


def _tried(path: Path, loop: For, accesses: list[_Access]) -> bool:
    """Whether all iterations, tried one by one, have elements of their own. False if there are too
    many, or if an index is not known before the program runs.
    """
    outer = {f.name: f.extent for f in (*path, loop)}
    rows: list[Array] = []
    for a in accesses:
        ranges = {n: e.number for n, e in (outer | dict(a.inner)).items()}
        if prod(ranges.values()) > _MOST_TRIED or not all(map(_is_known, (*a.index, *a.guards))):
            return False
        grid = np.indices(tuple(ranges.values())).reshape(len(ranges), -1)
        env: dict[str, Any] = dict(zip(ranges, grid, strict=True))
        alive = np.ones(grid.shape[1], bool)
        for p in a.guards:
            alive &= np.asarray(_numbers(p, env)) >= 0
        columns = [env[f.name] for f in path] + [_numbers(p, env) for p in a.index]
        columns += [env[loop.name], int(a.write)]
        rows.append(np.stack([np.broadcast_to(c, grid.shape[1]) for c in columns], 1)[alive])
    every = np.concatenate(rows)
    if not len(every):
        return True
    turns, wrote = every[:, -2], every[:, -1]
    elements, number = np.unique(every[:, :-2], axis=0, return_inverse=True)
    first, last, written = (np.full(len(elements), v) for v in (turns.max(), 0, 0))
    np.minimum.at(first, number.ravel(), turns)
    np.maximum.at(last, number.ravel(), turns)
    np.maximum.at(written, number.ravel(), wrote)
    return not ((first < last) & (written > 0)).any()


def _is_known(p: Int) -> bool:
    return all(isinstance(a, FloorDiv) for a in opaque_atoms(p))


def _numbers(p: Int, env: dict[str, Any]) -> Any:
    """The values of p, which `_is_known`."""
    return evaluate_int(p, env, _never)


def _never(a: Opaque) -> int:
    raise AssertionError(f"{a} is not known")
