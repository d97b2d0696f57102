"""Skips products with the zeros of a padded operand: an image, or weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import ClassVar

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.dynamic import condition_parts
from tilesmith.expr.ints import Int, of
from tilesmith.expr.nodes import Binary, Cast, Const, Expr, Load, Select
from tilesmith.ir.function import Function, find_block, readers, writers
from tilesmith.ir.nodes import Block, rewrite_blocks
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.step import Step


@dataclass(frozen=True, slots=True)
class Edge:
    """At `places` and `tap`, the sum reads inside the padding only if all of `inside` are >= 0. A
    transposed convolution has two places along a dimension: a phase and a pixel.
    """

    places: tuple[str, ...]
    tap: str
    inside: tuple[Int, ...]


def edges_of(func: Function, b: Block) -> tuple[Edge, ...]:
    """The dimensions in which a sum of products reads zeros of a padded operand."""
    kinds = {i.name: i.kind for i in b.iters}
    conditions: dict[tuple[tuple[str, ...], str], tuple[Int, ...]] = {}
    for p in (p for factor in _factors(b) for p in _inside(func, factor)):
        taps = [n for n in p.names if kinds.get(n) == "R"]
        places = tuple(i.name for i in b.spatial if i.name in p.names)
        if len(taps) == 1 and places and len(p.names) == 1 + len(places):
            key = places, taps[0]
            conditions[key] = (*conditions.get(key, ()), p)
    return tuple(Edge(*names, inside) for names, inside in conditions.items())


def _factors(b: Block) -> tuple[Expr, ...]:
    """The two factors of a sum of products; none of other blocks."""
    if b.combiner is None or b.combiner.op != "add" or not b.init:
        return ()
    value = b.writes[0].value
    return (value.a, value.b) if isinstance(value, Binary) and value.op == "mul" else ()


def share_of_zeros(e: Edge, extents: Mapping[str, int]) -> float:
    """The share of zeros among the products along this dimension."""
    names = (*e.places, e.tap)
    points = [dict(zip(names, map(of, at), strict=True))
              for at in product(*(range(extents[n]) for n in names))]  # fmt: skip
    alive = sum(all(p.substitute(env).number >= 0 for p in e.inside) for env in points)
    return 1 - alive / max(len(points), 1)


def _inside(func: Function, factor: Expr) -> tuple[Int, ...]:
    """The expressions that are >= 0 where a padded operand is read outside of its padding."""
    load = factor.x if isinstance(factor, Cast) else factor
    producers = writers(func, load.buffer) if isinstance(load, Load) else []
    if not isinstance(load, Load) or len(producers) != 1 or len(producers[0].writes) != 1:
        return ()
    value, index = producers[0].writes[0].value, producers[0].writes[0].index
    if producers[0].combiner is not None or not isinstance(value, Select):
        return ()
    if not (isinstance(value.b, Const) and value.b.value == 0) or any(
        p.name is None for p in index
    ):
        return ()
    env = {p.name: at for p, at in zip(index, load.index, strict=True) if p.name is not None}
    return tuple(p.substitute(env) for p in condition_parts(value.cond)[0])


@dataclass(frozen=True, slots=True)
class SkipZeros(Step):
    """Leaves out the taps of a sum over windows that fall on zeros around an image. A weight that
    is infinite or NaN then no longer turns such results into NaN.

    Y[i] += P[i + r] * W[r]    ->    Y[i] += P[i + r] * W[r] if 0 <= i + r - 1 < n
    """

    name: ClassVar[str] = "skip_zeros"
    block: str
    taps: tuple[str, ...]

    def apply(self, func: Function) -> Function:
        _, b = find_block(func, self.block)
        edges = {e.tap: e for e in edges_of(func, b)}
        if not self.taps or {*self.taps} - edges.keys():
            raise ScheduleError(
                f"cannot skip zeros of {self.block}: {list(self.taps)} are no taps that meet the "
                f"zeros of a padded operand; it has {[*edges]}"
            )
        inside = {p for t in self.taps for p in edges[t].inside}
        body = rewrite_blocks(
            func.body, lambda o: replace(o, domain=o.domain | inside) if o.name == b.name else o
        )
        return replace(func, body=body)


@dataclass(frozen=True, slots=True)
class InlinePadding(Step):
    """Reads what a padded operand is padded from, and leaves out the products with its zeros. What
    is infinite or NaN in the other operand there then no longer turns results into NaN.

    P[k] = where(k < 3, W[k], 0)
    Y[2*i + p] += X[i - t] * P[p + 2*t]    ->    Y[2*i + p] += X[i - t] * W[p + 2*t] if p + 2*t < 3
    """

    name: ClassVar[str] = "inline_padding"
    block: str
    buffer: str

    def apply(self, func: Function) -> Function:
        _, b = find_block(func, self.block)
        why = f"cannot inline the padding {self.buffer} of {self.block}"
        padded = [f for f in _factors(b) if _read(f) == self.buffer and _inside(func, f)]
        if len(padded) != 1 or [r.name for r in readers(func, self.buffer)] != [b.name]:
            raise ScheduleError(f"{why}: it is no padded operand of this sum of products alone")
        (made,) = writers(func, self.buffer)
        (write,) = made.writes
        assert isinstance(write.value, Select)
        bare = replace(made, writes=(replace(write, value=write.value.a),))
        sums = replace(b, domain=b.domain | {*_inside(func, padded[0])})
        new = {made.name: bare, b.name: sums}
        body = rewrite_blocks(func.body, lambda o: new.get(o.name, o))
        return Inline(made.name).apply(replace(func, body=body))


def _read(factor: Expr) -> str:
    load = factor.x if isinstance(factor, Cast) else factor
    return load.buffer if isinstance(load, Load) else ""
