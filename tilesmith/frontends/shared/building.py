"""Building: one node of a model while it becomes nodes of a graph. What front ends share is written
for it; each front end has its own kind, which also knows how its nodes say things. Views of values
follow: another shape, a part, a repetition. What changes nothing adds no node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any, NoReturn

from tilesmith.base.dtype import FLOAT64, DType
from tilesmith.base.dtype import dtype as dtype_named
from tilesmith.base.errors import ExpressionError, GraphError
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Array, Operator, Value
from tilesmith.graph.limits import LIMITS
from tilesmith.ops import elementwise, transform, views


class Building:
    """`origin` names the node for messages and profiles; `label` is what its results are called."""

    def __init__(self, origin: str, label: str, builder: GraphBuilder) -> None:
        self.origin, self.label, self.builder = origin, label, builder

    def add(self, function: Operator, *inputs: Value, **settings: Any) -> Value:
        """Applies an operator of the DSL that has one result."""
        (made,) = self.add_several(function, *inputs, **settings)
        return made

    def add_several(self, function: Operator, *inputs: Value, **settings: Any) -> tuple[Value, ...]:
        """Applies an operator of the DSL, and gives all its results."""
        label = self.label or function.__name__
        try:
            return self.builder.add_several(
                function, *inputs, name=label, origin=self.origin, **settings
            )
        except ExpressionError as error:
            raise GraphError(f"{self.origin}: {error}") from None

    def cast(self, v: Value, to: str | DType) -> Value:
        kind = dtype_named(to)
        return v if v.dtype is kind else self.add(elementwise.cast, v, dtype=kind.name)

    def constant(self, array: Any) -> Value:
        return self.builder.constant(array, name=f"{self.label}.const")

    def contents(self, v: Value) -> Array | None:
        """What a constant holds; None for what is known at run time only."""
        return self.builder.array(v)

    def axis(self, value: int, rank: int, what: str = "axis") -> int:
        """An axis counted from 0."""
        if not -rank <= value < rank:
            self.refuse(f"{what} {value} does not exist in a tensor of rank {rank}")
        return value % rank

    def check_room(self, what: str, *shape: int) -> None:
        """Refuses what no memory holds, before an importer makes an array of that shape."""
        LIMITS.check(Value(what, shape, FLOAT64))

    def refuse(self, why: str) -> NoReturn:
        raise GraphError(f"{self.origin}: {why}")


# A kernel that joins many tensors has to find the right one for each element.
_JOINED_AT_ONCE = 8


def shaped(call: Building, x: Value, shape: Sequence[int]) -> Value:
    """x under another shape; x itself where it has that one."""
    if x.shape == tuple(shape):
        return x
    return call.add(transform.reshape, x, shape=tuple(shape))


def scanned(call: Building, function: Operator, x: Value, axis: int, **settings: Any) -> Value:
    """A running sum or product. The dimensions before and behind the axis are one each, so that
    loops over them are long.
    """
    before, behind = x.shape[:axis], x.shape[axis + 1 :]
    sizes = [prod(before)] if before else []
    rows = shaped(call, x, (*sizes, x.shape[axis], *([prod(behind)] if behind else [])))
    return shaped(call, call.add(function, rows, axis=len(sizes), **settings), x.shape)


def sliced(call: Building, x: Value, parts: Mapping[int, tuple[int, int, int]]) -> Value:
    """x[start:stop:step] in some dimensions, as Python counts; x itself if nothing is left out."""
    whole = []
    for d, n in enumerate(x.shape):
        first, past, step = slice(*parts.get(d, (0, n, 1))).indices(n)
        count = len(range(first, past, step))
        if count > 1:
            # The element before the first cannot be named by its place.
            whole.append((first, past if past >= 0 else -n - 1, step))
        else:
            whole.append((first, first + 1, 1) if count else (0, 0, 1))
    if all(w == (0, n, 1) for w, n in zip(whole, x.shape, strict=True)):
        return x
    starts, stops, steps = zip(*whole, strict=True)
    return call.add(views.slice_, x, starts=starts, stops=stops, steps=steps)


def parts_along(call: Building, x: Value, axis: int, sizes: Sequence[int]) -> tuple[Value, ...]:
    """x cut into pieces of these sizes."""
    ends = pairwise(accumulate(sizes, initial=0))
    return tuple(sliced(call, x, {axis: (first, past, 1)}) for first, past in ends)


def permuted(call: Building, x: Value, order: Sequence[int]) -> Value:
    if tuple(order) == tuple(range(len(x.shape))):
        return x
    return call.add(transform.transpose, x, axes=tuple(order))


def padded(
    call: Building, x: Value, pairs: Sequence[tuple[int, int]], mode: str = "constant",
    value: Value | float = 0,
) -> Value:  # fmt: skip
    """x with a value, or by another mode with its own elements, around it; negative widths crop."""
    cut = {
        d: (-min(before, 0), x.shape[d] + min(after, 0), 1)
        for d, (before, after) in enumerate(pairs)
    }
    x = sliced(call, x, cut)
    widths = tuple((max(before, 0), max(after, 0)) for before, after in pairs)
    if not any(map(any, widths)):
        return x
    if mode != "constant":
        return call.add(views.pad_mirrored, x, widths=widths, mode=mode)
    if isinstance(value, Value):
        return call.add(views.pad_with, x, value, widths=widths)
    return call.add(transform.pad, x, widths=widths, value=value)


def expanded(call: Building, x: Value, shape: tuple[int, ...]) -> Value:
    if shape == x.shape:
        return x
    return call.add(views.expand, x, shape=shape)


def joined(call: Building, values: list[Value], axis: int) -> Value:
    """The results of all steps behind each other."""
    while len(values) > 1:
        parts = [values[k : k + _JOINED_AT_ONCE] for k in range(0, len(values), _JOINED_AT_ONCE)]
        values = [
            p[0] if len(p) == 1 else call.add(transform.concatenate, *p, axis=axis) for p in parts
        ]
    return values[0]
