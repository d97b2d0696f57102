"""GraphBuilder: operators applied one by one in, a Graph out. Each result's shape and dtype come
from the operator's definition in the DSL, and what depends on constants alone is computed at once;
a value without elements is as well known as a constant.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Container, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from tilesmith.base.dtype import DType
from tilesmith.base.dtype import dtype as dtype_named
from tilesmith.graph.checks import Check
from tilesmith.graph.graph import Array, Graph, Node, Operator, Settings, Value, rebuilt
from tilesmith.graph.limits import LIMITS
from tilesmith.graph.shapes import applied, result_types
from tilesmith.ir.evaluate import evaluate
from tilesmith.ir.function import Function
from tilesmith.ir.lower import function
from tilesmith.ir.nodes import walk
from tilesmith.ops.elementwise import cast
from tilesmith.ops.transform import reshape, transpose

# Results that take more steps are left to be computed at run time: a model that expands a constant
# would otherwise become as large as what it expands to, and take as long to load.
_MAX_STEPS = 1 << 26
# Elements read, and steps taken, by what is remembered: the arithmetic on shapes that exporters
# write out, which layers repeat, and which a model with open sizes is imported with several times.
_FEW = 256

# NumPy says these without touching an element; the oracle would gather one by one.
_VIEWS: dict[Operator, Callable[..., Any]] = {
    transpose: lambda x, axes=None, name="": np.transpose(x, axes),
    reshape: lambda x, shape, name="": np.reshape(x, shape),
}


# Operators whose result has the elements of what they read.
_SAME = (cast, reshape, transpose)


def node_function(node: Node, arrays: Sequence[Array]) -> Function:
    """A node alone, of arrays like these."""
    made = applied(
        node.function, tuple((a.shape, dtype_named(a.dtype)) for a in arrays), node.settings
    )
    return function([*made.inputs, *made.outputs], name="node")


class Folder:
    """Folds until it has taken `steps` of computing in all; a step is one point of a stage."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def fold(self, node: Node, arrays: Sequence[Array]) -> tuple[Array, ...] | None:
        """The results, or None where they are better computed at run time."""
        if node.function in _VIEWS:
            return (_VIEWS[node.function](*arrays, **dict(node.settings)),)
        if sum(a.size for a in arrays) <= _FEW:
            given = tuple((a.dtype, a.shape, a.tobytes()) for a in arrays)
            steps, known = _small(node.function, node.settings, given)
            if known is not None and steps <= self.steps:
                self.steps -= steps
                return tuple(a.copy() for a in known)
        func = node_function(node, arrays)
        steps = _steps(func)
        if steps > min(_MAX_STEPS, self.steps):
            return None
        self.steps -= steps
        return _evaluated(func, arrays)


def _steps(func: Function) -> int:
    return sum(prod(i.extent.number for i in b.iters) for _, b in walk(func.body))


def _evaluated(func: Function, arrays: Sequence[Array]) -> tuple[Array, ...]:
    result = evaluate(func, *arrays)
    return tuple(result) if isinstance(result, tuple) else (result,)


@lru_cache(maxsize=4096)
def _small(
    function: Operator, settings: Settings,
    given: tuple[tuple[np.dtype[Any], tuple[int, ...], bytes], ...],
) -> tuple[int, tuple[Array, ...] | None]:  # fmt: skip
    """How many steps an operator takes on small arrays, and its results if these are few."""
    arrays = [np.ndarray(shape, kind, data) for kind, shape, data in given]
    names = tuple(f"x{k}" for k in range(len(arrays)))
    func = node_function(Node("node", function, names, (), settings), arrays)
    steps = _steps(func)
    return steps, _evaluated(func, arrays) if steps <= _FEW else None


_NUMBER = re.compile(r"(\.\d+)+$")


class GraphBuilder:
    """Values it returns carry their shape and dtype; `array` tells the contents of a constant."""

    def __init__(self, name: str = "graph", unfolded: Container[Operator] = ()) -> None:
        """Operators in `unfolded` are kept even if their operands are constants."""
        self.name, self._unfolded = name, unfolded
        self._numbers = itertools.count()
        self._inputs: list[str] = []
        self._nodes: list[Node] = []
        self._producers: dict[str, Node] = {}
        self._values: dict[str, Value] = {}
        self._constants: dict[str, Array] = {}
        self._folder = Folder(LIMITS.folded)
        self.last: Node | None = None  # the node that was added last; None if it was folded away

    def input(self, name: str, shape: tuple[int, ...], dtype: str | DType) -> Value:
        value = self._new(name, tuple(shape), dtype_named(dtype))
        self._inputs.append(value.name)
        return value

    def constant(self, array: Any, name: str = "const") -> Value:
        a = np.asarray(array)
        value = self._new(name, a.shape, dtype_named(a.dtype))
        self._constants[value.name] = a
        return value

    def array(self, value: Value) -> Array | None:
        """What a constant holds; None for what is known at run time only."""
        return self._constants.get(value.name)

    def value(self, name: str) -> Value:
        return self._values[name]

    def source(self, value: Value, is_row: bool = False) -> Value:
        """The value that has the same whole numbers, in another shape, order or integer type. With
        `is_row` the last dimension is the same, too.
        """
        while (node := self._producers.get(value.name)) is not None:
            before = self._values[node.inputs[0]]
            kept = before.shape[-1:] == value.shape[-1:] and node.function is not transpose
            if node.function not in _SAME or not before.dtype.is_int or (is_row and not kept):
                break
            value = before
        return value

    def add(
        self, function: Operator, *inputs: Value, name: str = "", origin: str = "", **settings: Any
    ) -> Value:
        """Applies an operator that has one result."""
        (made,) = self.add_several(function, *inputs, name=name, origin=origin, **settings)
        return made

    def add_several(
        self, function: Operator, *inputs: Value, name: str = "", origin: str = "", **settings: Any
    ) -> tuple[Value, ...]:
        """Applies an operator, and gives all its results."""
        held = Settings.of(settings)
        types = result_types(function, tuple((v.shape, v.dtype) for v in inputs), held)
        label = name or function.__name__
        outputs = [self._new(label, shape, dtype) for shape, dtype in types]
        node = Node(
            f"{label}.{next(self._numbers)}", function, tuple(v.name for v in inputs),
            tuple(v.name for v in outputs), held, origin,
        )  # fmt: skip
        folded = self._folded(node, inputs, outputs)
        self.last = node if folded is None else None
        if folded is None:
            self._nodes.append(node)
            self._producers.update(dict.fromkeys(node.outputs, node))
        else:
            for v, a in zip(outputs, folded, strict=True):
                self._constants[v.name] = a
        return tuple(outputs)

    def _folded(
        self, node: Node, inputs: Sequence[Value], outputs: Sequence[Value]
    ) -> tuple[Array, ...] | None:
        if not any(v.size for v in outputs):
            return tuple(_empty(v) for v in outputs)
        known = (_empty(v) if v.size == 0 else self._constants.get(v.name) for v in inputs)
        arrays = [a for a in known if a is not None]
        if len(arrays) < len(inputs) or node.function in self._unfolded:
            return None
        return self._folder.fold(node, arrays)

    def finish(self, outputs: Mapping[str, Value], checks: Sequence[Check] = ()) -> Graph:
        """The graph of these outputs, by the names that a caller sees; what they do not need is
        left out.
        """
        graph = Graph(
            self.name, tuple(self._inputs), tuple((n, v.name) for n, v in outputs.items()), (),
            dict(self._values), dict(self._constants), tuple(checks),
        )  # fmt: skip
        return rebuilt(graph, self._nodes)

    def _new(self, label: str, shape: tuple[int, ...], dtype: DType) -> Value:
        name = label
        while name in self._values:  # passes name new values after old ones
            name = f"{_NUMBER.sub('', label)}.{next(self._numbers)}"
        value = Value(name, shape, dtype)
        LIMITS.check(value)
        self._values[name] = value
        return value


def _empty(v: Value) -> Array:
    return np.empty(v.shape, v.dtype.numpy)
