"""Operators that say where results lie. They mean what concatenate and a copy mean, so the oracle
and shape inference need nothing else; the plan gives them no kernel, or one that only copies.
"""

from __future__ import annotations

from tilesmith.expr.dsl import compute
from tilesmith.expr.tensors import Tensor
from tilesmith.ops.transform import concatenate


def join(*parts: Tensor, axis: int = 0, name: str = "join") -> Tensor:
    """concatenate, where whatever makes the parts writes them into their places."""
    return concatenate(*parts, axis=axis, name=name)


def copy(X: Tensor, into: str = "", name: str = "copy") -> Tensor:
    """X once more. `into` tells copies of one value apart."""
    out: Tensor = compute(X.shape_ints, lambda *i: X[i], name=name)
    return out
