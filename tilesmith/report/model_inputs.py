"""The inputs of a model: what it declares, and random arrays that fit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tilesmith.base.errors import ArgumentError
from tilesmith.graph.graph import Graph
from tilesmith.graph.program import OpenGraph, Signature

Array = np.ndarray[Any, Any]


def signatures_of(model: OpenGraph) -> tuple[Signature, ...]:
    if not isinstance(model, Graph):
        return model.inputs
    values = (model.values[x] for x in model.inputs)
    return tuple(Signature(v.name, v.dtype, v.shape) for v in values)


def outputs_of(model: OpenGraph) -> tuple[str, ...]:
    if not isinstance(model, Graph):
        return tuple(model.outputs)
    return tuple(name for name, _ in model.outputs)


def random_inputs(signatures: Iterable[Signature], seed: int = 0) -> dict[str, Array]:
    """Normal real numbers. Integers are 0 or 1, which are valid as tokens, indices and masks of
    nearly every model.
    """
    rng = np.random.default_rng(seed)
    return {s.name: _random(s, rng) for s in signatures}


def _random(s: Signature, rng: np.random.Generator) -> Array:
    shape = _shape(s)
    if s.dtype.is_float:
        return rng.standard_normal(shape, dtype=np.float32).astype(s.dtype.numpy)
    return rng.integers(0, 2, shape).astype(s.dtype.numpy)


def _shape(s: Signature) -> tuple[int, ...]:
    if s.dims is None:
        raise ArgumentError(f"input {s} has any rank; give it as an array")
    for d in s.dims:
        if isinstance(d, str):
            raise ArgumentError(
                f"input {s} has an open dimension; give the size of {d!r}, as --dim {d}=1"
            )
    return tuple(d for d in s.dims if isinstance(d, int))
