"""Shape inference of moved elements, which does not ask the operator, gives what it would say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilesmith import ops
from tilesmith.base.dtype import FLOAT16, FLOAT32, INT8
from tilesmith.base.errors import ExpressionError
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Operator, Settings
from tilesmith.graph.shapes import Type, applied, result_types
from tilesmith.ops.transform import reshape, transpose
from tilesmith.ops.views import slice_

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


def test_small_results_are_remembered_by_all_that_decides_them() -> None:
    """Front ends fold the arithmetic on shapes that exporters spell out."""

    def folded(x: Any, *more: Any, function: Operator = slice_, **settings: Any) -> Any:
        g = GraphBuilder()
        values = [g.constant(np.asarray(a)) for a in (x, *more)]
        return g.array(g.add(function, *values, **settings))

    x = np.array([3, 1, 4], np.int64)
    for _ in range(2):
        first = folded(x, starts=(0,), stops=(2,))
        np.testing.assert_array_equal(first, [3, 1])
        np.testing.assert_array_equal(folded(x, starts=(1,), stops=(2,)), [1])
        np.testing.assert_array_equal(folded(x + 1, starts=(0,), stops=(2,)), [4, 2])
        small = folded(x.astype(np.int32), starts=(0,), stops=(2,))
        assert small.dtype == np.int32
        np.testing.assert_array_equal(folded(x, x, function=ops.add), [6, 2, 8])
        np.testing.assert_array_equal(folded(x[:, None], x, function=ops.add), x[:, None] + x)
        first[:] = 0  # the caller's own
    assert folded(np.zeros((0,), np.int64), starts=(0,), stops=(2,)).shape == (0,)
