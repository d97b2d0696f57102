"""Building: one node of a model while it becomes nodes of a graph. What front ends share is written
for it; each front end has its own kind, which also knows how its nodes say things.
"""

from __future__ import annotations

from typing import Any, NoReturn

from tilesmith.base.dtype import FLOAT64
from tilesmith.base.errors import ExpressionError, GraphError
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Array, Operator, Value
from tilesmith.graph.limits import LIMITS


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
