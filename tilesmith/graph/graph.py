"""Graph: a model whose shapes are all known. A node applies a function of the DSL, tensors in and
tensors out, so shapes, the oracle, constant folding and code all come from that one definition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import DType
from tilesmith.base.errors import GraphError
from tilesmith.base.given import checks_given
from tilesmith.expr.dsl import Tensor
from tilesmith.graph.checks import Check
from tilesmith.graph.layer_notes import WHOLE, LayerNote, PrecisionReport

Array = np.ndarray[Any, Any]
Operator = Callable[..., Any]  # tensors and settings in, one Tensor or a tuple of them out


class Settings(tuple[tuple[str, Any], ...]):
    """Pairs of names and values that are equal only if they mean the same: Python's 1, 1.0 and True
    are equal, and so are 0.0 and -0.0. NaN is equal to itself.
    """

    @staticmethod
    def of(settings: Mapping[str, Any]) -> Settings:
        return Settings((k, _hashable(v)) for k, v in settings.items())

    @cached_property
    def _exactly(self) -> tuple[Any, ...]:
        """What is compared. Passes look up every node by its settings, many times."""
        return tuple(map(_exact, self))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Settings) and self._exactly == other._exactly

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._exactly)

    def __reduce__(self) -> tuple[object, ...]:
        return Settings, (tuple(self),)  # without cached properties


def _hashable(v: Any) -> Any:
    return tuple(map(_hashable, v)) if isinstance(v, list | tuple) else v


def _exact(v: Any) -> Any:
    if isinstance(v, tuple):
        return tuple(map(_exact, v))
    return type(v), v.hex() if isinstance(v, float) else v


@dataclass(frozen=True, slots=True)
class Value:
    """What flows along an edge: an input, a constant, or one result of a node."""

    name: str
    shape: tuple[int, ...]
    dtype: DType

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.nbytes

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


def defined(operator: Operator, settings: Settings, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The results of an operator as stages of the DSL."""
    result = operator(*tensors, **dict(settings))
    return tuple(result) if isinstance(result, tuple | list) else (result,)


@dataclass(frozen=True, slots=True)
class Node:
    """`function(*inputs, **settings)`, as in ops.conv2d(x, w, stride=2). `origin` names the node
    of the model file that it comes from, as "op name".
    """

    name: str
    function: Operator
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    settings: Settings
    origin: str = ""

    @property
    def op(self) -> str:
        return self.function.__name__

    def setting(self, name: str, default: Any = None) -> Any:
        return dict(self.settings).get(name, default)

    def define(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Its results as stages of the DSL."""
        return defined(self.function, self.settings, *tensors)

    def __str__(self) -> str:
        given = [*self.inputs, *(f"{k}={v!r}" for k, v in self.settings)]
        return f"{', '.join(self.outputs)} = {self.op}({', '.join(given)})"


@dataclass(frozen=True)
class Graph:
    """`nodes` in an order in which producers come first. `outputs` pairs the name that a caller
    sees with the value that is returned under it.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[tuple[str, str], ...]
    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    constants: Mapping[str, Array] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    precision: PrecisionReport = WHOLE  # of a model in narrow numbers

    @cached_property
    def producer(self) -> Mapping[str, Node]:
        """The node that computes each value, by the name of the value."""
        return {out: n for n in self.nodes for out in n.outputs}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        """The nodes that read a value; a graph output is not among them."""
        found: dict[str, dict[str, Node]] = {}
        for n in self.nodes:
            for x in n.inputs:
                found.setdefault(x, {})[n.name] = n
        return {x: tuple(nodes.values()) for x, nodes in found.items()}

    @cached_property
    def returned(self) -> frozenset[str]:
        """The values that are outputs."""
        return frozenset(value for _, value in self.outputs)

    @property
    def layers(self) -> tuple[LayerNote, ...]:
        """What is known of the layers of a model in narrow numbers: their types and errors."""
        return self.precision.layers

    @property
    def shown_outputs(self) -> tuple[str, ...]:
        """Those that a caller gets, by the names that it sees."""
        hidden = {c.name for c in self.checks if c.hidden}
        return tuple(name for name, _ in self.outputs if name not in hidden)

    @checks_given
    def is_constant(self, value: str) -> bool:
        """Whether a value is known, as weights are."""
        return value in self.constants

    def __str__(self) -> str:
        lines = [f"graph {self.name}"]
        lines += [f"  input  {self.values[x]}" for x in self.inputs]
        for n in self.nodes:
            shapes = ", ".join(str(self.values[x]) for x in n.outputs)
            given = [*n.inputs, *(f"{k}={v!r}" for k, v in n.settings)]
            lines.append(f"  {shapes} = {n.op}({', '.join(given)})")
        lines += [f"  output {name} = {self.values[value]}" for name, value in self.outputs]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return (
            f"<Graph {self.name}: {len(self.inputs)} inputs, {len(self.nodes)} nodes, "
            f"{len(self.outputs)} outputs>"
        )


def verify(graph: Graph) -> None:
    """Raises where a value is read before it is made, made twice, or has no type."""
    known = {*graph.inputs, *graph.constants}
    for node in graph.nodes:
        for x in node.inputs:
            if x not in known:
                raise GraphError(f"{node.name!r} ({node.op}) reads {x!r} before anything makes it")
        for x in node.outputs:
            if x in known:
                raise GraphError(f"{node.name!r} ({node.op}) makes {x!r}, which exists already")
            if x not in graph.values:
                raise GraphError(f"{node.name!r} ({node.op}): {x!r} has no shape")
            known.add(x)
    for name, value in graph.outputs:
        if value not in known:
            raise GraphError(f"nothing makes the output {name!r} (value {value!r})")


def rebuilt(graph: Graph, nodes: Sequence[Node], **changes: Any) -> Graph:
    """The graph with other nodes: sorted so that producers come first, without nodes and constants
    that no output needs.
    """
    new = replace(graph, nodes=tuple(nodes), **changes)
    ordered = tuple(_needed_in_order(new))
    used = {x for n in ordered for x in n.inputs} | new.returned
    kept = {x: a for x, a in new.constants.items() if x in used}
    made = {x for n in ordered for x in n.outputs}
    names = {*new.inputs, *kept, *made}
    values = {x: v for x, v in new.values.items() if x in names}
    out = replace(new, nodes=ordered, constants=kept, values=values)
    verify(out)
    return out


def _needed_in_order(graph: Graph) -> Iterator[Node]:
    done: set[str] = set()
    for output in graph.returned:
        stack = [(graph.producer.get(output), False)]
        while stack:  # models may be deeper than the Python stack
            node, finished = stack.pop()
            if node is None or node.name in done:
                continue
            if finished:
                done.add(node.name)
                yield node
                continue
            stack.append((node, True))
            stack += [(graph.producer.get(x), False) for x in reversed(node.inputs)]
