"""Shape inference: an operator, the types of its inputs and its settings in, the types of its
results out. The operator itself is asked, with placeholders.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tilesmith.base.dtype import DType
from tilesmith.base.errors import GraphError
from tilesmith.expr.dsl import Tensor, placeholder
from tilesmith.graph.graph import Operator, Settings

Type = tuple[tuple[int, ...], DType]


@dataclass(frozen=True, slots=True)
class Applied:
    """An operator on placeholders: what it reads and the stages that it states."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@lru_cache(maxsize=4096)
def applied(function: Operator, inputs: tuple[Type, ...], settings: Settings) -> Applied:
    tensors = tuple(placeholder(s, d, name=f"x{k}") for k, (s, d) in enumerate(inputs))
    result = function(*tensors, **dict(settings))
    outputs = tuple(result) if isinstance(result, tuple | list) else (result,)
    for t in outputs:
        if not isinstance(t, Tensor) or t.stage is None:
            raise GraphError(
                f"{function.__name__} returned {t!r}; an operator of a graph returns tensors that "
                "it computes"
            )
    return Applied(tensors, outputs)


def result_types(
    function: Operator, inputs: tuple[Type, ...], settings: Settings
) -> tuple[Type, ...]:
    return tuple((_numbers(t), t.dtype) for t in applied(function, inputs, settings).outputs)


def _numbers(t: Tensor) -> tuple[int, ...]:
    return tuple(n for e in t.shape_ints if (n := e.const) is not None)
