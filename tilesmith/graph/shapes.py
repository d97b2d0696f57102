"""Shape inference: an operator, the types of its inputs and its settings in, the types of its
results out. The operator itself is asked, with placeholders.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import DType
from tilesmith.base.errors import GraphError
from tilesmith.expr.dsl import Tensor, placeholder
from tilesmith.graph.graph import Operator, Settings
from tilesmith.ops.transform import reshape, transpose

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
    if (moved := _moved(function, inputs, settings)) is not None:
        return ((moved, inputs[0][1]),)
    return tuple((_numbers(t), t.dtype) for t in applied(function, inputs, settings).outputs)


def _moved(
    function: Operator, inputs: tuple[Type, ...], settings: Settings
) -> tuple[int, ...] | None:
    """The shape of a transposed or reshaped array, which passes ask for more often than for all
    others. None in all other cases, also if settings are wrong: the operator then says how.
    """
    if function not in (transpose, reshape) or len(inputs) != 1 or len(settings) != 1:
        return None
    shape = inputs[0][0]
    ((name, given),) = settings
    if not isinstance(given, tuple) or not all(type(n) is int for n in given):
        return None
    if function is transpose and name == "axes" and sorted(given) == list(range(len(shape))):
        return tuple(shape[a] for a in given)
    if function is reshape and name == "shape" and all(n > 0 for n in given):
        return given if prod(given) == prod(shape) else None
    return None


def _numbers(t: Tensor) -> tuple[int, ...]:
    return tuple(n for e in t.shape_ints if (n := e.const) is not None)
