"""Building: one node of a model while it becomes nodes of a graph. What front ends share is written
for it; each front end has its own kind, which also knows how its nodes say things. Views of values
follow: another shape, a part, a repetition. What changes nothing adds no node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from tilesmith.base.dtype import FLOAT64
from tilesmith.base.errors import ExpressionError, GraphError
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Array, Operator, Value
from tilesmith.graph.limits import LIMITS
from tilesmith.ops import transform, views


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
            made: Value | tuple[Value, ...] = self.builder.add(
                function, *inputs, name=label, origin=self.origin, **settings
            )
        except ExpressionError as error:
            raise GraphError(f"{self.origin}: {error}") from None
        return made if isinstance(made, tuple) else (made,)

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
