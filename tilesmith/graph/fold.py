"""Constant folding: a node whose inputs are all constants in, the arrays it computes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilesmith.base.dtype import dtype as dtype_named
from tilesmith.expr.dsl import placeholder
from tilesmith.graph.graph import Array, Node, Operator
from tilesmith.ir.evaluate import evaluate
from tilesmith.ir.lower import function
from tilesmith.ops.transform import reshape, transpose

# Results with more elements are left to be computed at run time: a model that expands a constant
# would otherwise become as large as what it expands to.
_MAX_ELEMENTS = 1 << 26

# NumPy says these without touching an element; the oracle would gather one by one.
_VIEWS: dict[Operator, Callable[..., Any]] = {
    transpose: lambda x, axes=None, name="": np.transpose(x, axes),
    reshape: lambda x, shape, name="": np.reshape(x, shape),
}


def fold(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...] | None:
    """The results, or None where they are better computed at run time."""
    if node.function in _VIEWS:
        return (_VIEWS[node.function](*arrays, **dict(node.settings)),)
    tensors = [
        placeholder(a.shape, dtype_named(a.dtype), name=f"x{k}") for k, a in enumerate(arrays)
    ]
    outputs = node.define(*tensors)
    for t in outputs:
        size = 1
        for extent in t.shape_ints:
            size *= extent.const or 0
        if size > _MAX_ELEMENTS:
            return None
    result = evaluate(function([*tensors, *outputs], name="fold"), *arrays)
    return tuple(result) if isinstance(result, tuple) else (result,)
