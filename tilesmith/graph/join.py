"""Operators that say where results are stored. They compute what concatenate and a copy compute, so
the oracle and shape inference need no special case. The plan gives them no kernel, or a copy.
"""

from __future__ import annotations

from tilesmith.expr.dsl import Tensor, compute
from tilesmith.ops.transform import concatenate


def join(*parts: Tensor, axis: int = 0, name: str = "join") -> Tensor:
    """concatenate, where whatever makes the parts writes them into their places."""
    return concatenate(*parts, axis=axis, name=name)


def copy(X: Tensor, into: str = "", name: str = "copy") -> Tensor:
    """X once more. `into` tells copies of one value apart."""
    return compute(X.shape_ints, lambda *i: X[i], name=name)
