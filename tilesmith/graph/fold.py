"""Constant folding: a node whose inputs are all constants in, the arrays it computes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from tilesmith.base.dtype import dtype as dtype_named
from tilesmith.expr.dsl import placeholder
from tilesmith.graph.graph import Array, Node, Operator
from tilesmith.ir.evaluate import evaluate
from tilesmith.ir.lower import function
from tilesmith.ir.nodes import walk
from tilesmith.ops.transform import reshape, transpose

# Results that take more steps are left to be computed at run time: a model that expands a constant
# would otherwise become as large as what it expands to, and take as long to load.
_MAX_STEPS = 1 << 26

# NumPy says these without touching an element; the oracle would gather one by one.
_VIEWS: dict[Operator, Callable[..., Any]] = {
    transpose: lambda x, axes=None, name="": np.transpose(x, axes),
    reshape: lambda x, shape, name="": np.reshape(x, shape),
}


class Folder:
    """Folds until it has taken `steps` of computing in all; a step is one point of a stage."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def fold(self, node: Node, arrays: Sequence[Array]) -> tuple[Array, ...] | None:
        """The results, or None where they are better computed at run time."""
        if node.function in _VIEWS:
            return (_VIEWS[node.function](*arrays, **dict(node.settings)),)
        tensors = [
            placeholder(a.shape, dtype_named(a.dtype), name=f"x{k}") for k, a in enumerate(arrays)
        ]
        func = function([*tensors, *node.define(*tensors)], name="fold")
        steps = sum(prod(i.extent.number for i in b.iters) for _, b in walk(func.body))
        if steps > min(_MAX_STEPS, self.steps):
            return None
        self.steps -= steps
        result = evaluate(func, *arrays)
        return tuple(result) if isinstance(result, tuple) else (result,)
