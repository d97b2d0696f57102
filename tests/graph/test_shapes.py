"""Shape inference of moved elements, which does not ask the operator, gives what it would say."""

from __future__ import annotations

from typing import Any

import pytest

from tilesmith.base.dtype import FLOAT16, FLOAT32, INT8
from tilesmith.base.errors import ExpressionError
from tilesmith.graph.graph import Operator, Settings
from tilesmith.graph.shapes import Type, applied, result_types
from tilesmith.ops.transform import reshape, transpose

CASES: list[tuple[Operator, Type, dict[str, Any]]] = [
    (transpose, ((2, 3, 5), FLOAT32), {"axes": (2, 0, 1)}),
    (transpose, ((2, 3, 5), FLOAT16), {"axes": (-1, 0, 1)}),
    (transpose, ((2, 3, 5), FLOAT32), {"axes": None}),
    (transpose, ((2, 3), INT8), {}),
    (transpose, ((0, 3), FLOAT32), {"axes": (1, 0)}),
    (transpose, ((), FLOAT32), {"axes": ()}),
    (reshape, ((6, 35), FLOAT32), {"shape": (2, 3, 7, 5)}),
    (reshape, ((6, 35), INT8), {"shape": (-1, 5)}),
    (reshape, ((1, 1), FLOAT32), {"shape": ()}),
    (reshape, ((0, 3), FLOAT32), {"shape": (3, 0)}),
]


@pytest.mark.parametrize(("function", "given", "settings"), CASES)
def test_types_are_those_of_the_operator(
    function: Operator, given: Type, settings: dict[str, Any]
) -> None:
    held = Settings.of(settings)
    asked = applied(function, (given,), held).outputs
    assert result_types(function, (given,), held) == tuple(
        (tuple(e.number for e in t.shape_ints), t.dtype) for t in asked
    )


@pytest.mark.parametrize(
    ("function", "settings"),
    [
        (transpose, {"axes": (0, 0, 1)}),
        (transpose, {"axes": (0, 1)}),
        (transpose, {"axes": (0, 1, 3)}),
        (reshape, {"shape": (2, 3, 4)}),
        (reshape, {"shape": (-1, 7)}),
    ],
)
def test_wrong_settings_are_errors_of_the_operator(
    function: Operator, settings: dict[str, Any]
) -> None:
    with pytest.raises(ExpressionError, match=function.__name__):
        result_types(function, (((2, 3, 5), FLOAT32),), Settings.of(settings))
