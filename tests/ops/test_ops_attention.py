"""Attention with scores of one's own, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilesmith as ts

NOTHING = float("-inf")


def reference(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, score: Callable[..., Any], scale: float
) -> np.ndarray:
    shared = q.shape[1] // k.shape[1]
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, shared, axis=1) for x in (k, v))
    s = np.einsum("bhic,bhjc->bhij", q, k) * scale
    s = score(s, *np.indices(s.shape))
    with np.errstate(invalid="ignore"):
        e = np.exp(s - np.where(np.isinf(top := s.max(-1, keepdims=True)), 0, top))
    total = e.sum(-1, keepdims=True)
    return np.asarray((e / np.where(total == 0, 1, total)) @ v)


def function_of(
    arrays: list[np.ndarray], score: Callable[..., Any] | None = None, scale: float | None = None
) -> ts.Function:
    given = [
        ts.placeholder(a.shape, str(a.dtype), name=n) for a, n in zip(arrays, "QKV", strict=True)
    ]
    return ts.function([*given, ts.ops.attention(*given, score=score, scale=scale)])


def arrays_of(*shapes: tuple[int, ...], dtype: str = "float32") -> list[np.ndarray]:
    rng = np.random.default_rng(2)
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4)),
        ((1, 6, 5, 4), (1, 2, 7, 4), (1, 2, 7, 3)),  # heads share keys; values of another size
        ((1, 4, 1, 8), (1, 1, 33, 8), (1, 1, 33, 8)),
        ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1)),
    ],
)
def test_plain(shapes: tuple[tuple[int, ...], ...]) -> None:
    arrays = arrays_of(*shapes)
    want = reference(*arrays, lambda s, *_: s, shapes[0][3] ** -0.5)
    func = function_of(arrays)
    assert np.allclose(ts.evaluate(func, *arrays), want, rtol=1e-4, atol=1e-5)
    assert np.allclose(ts.build(func, ts.cpu(1))(*arrays), want, rtol=1e-4, atol=1e-5)


def test_half_precision_is_computed_in_float32() -> None:
    arrays = arrays_of((1, 2, 6, 16), (1, 2, 9, 16), (1, 2, 9, 16), dtype="float16")
    arrays[0] *= 40  # scores that float16 does not hold exactly
    got = ts.evaluate(function_of(arrays), *arrays)
    assert got.dtype == np.float16
    want = reference(*arrays, lambda s, *_: s, 0.25)
    assert np.allclose(got, want, rtol=2e-3, atol=2e-3)


def test_a_query_that_sees_nothing_gives_zero() -> None:
    arrays = arrays_of((1, 2, 5, 4), (1, 2, 6, 4), (1, 2, 6, 4))
    func = function_of(arrays, lambda s, b, h, i, j: ts.where(j + 1 < i, s, NOTHING))
    want = reference(*arrays, lambda s, b, h, i, j: np.where(j + 1 < i, s, NOTHING), 0.5)
    assert not want[:, :, :2].any()
    for got in (ts.evaluate(func, *arrays), ts.build(func, ts.cpu(1))(*arrays)):
        assert not got[:, :, :2].any()
        assert np.allclose(got, want, rtol=1e-4, atol=1e-5)


def test_the_scale_and_the_place_of_a_score() -> None:
    arrays = arrays_of((2, 2, 3, 4), (2, 2, 4, 4), (2, 2, 4, 4))

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + 0.5 * b - 0.25 * h + 0.125 * i * j

    got = ts.evaluate(function_of(arrays, score, 0.1), *arrays)
    assert np.allclose(got, reference(*arrays, score, 0.1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shapes", "why"),
    [
        (((1, 3, 2, 4), (1, 2, 5, 4), (1, 2, 5, 4)), "a multiple of the groups"),
        (((1, 2, 2, 4), (1, 2, 5, 3), (1, 2, 5, 4)), "dimension 3 of K"),
        (((1, 2, 2, 4), (1, 2, 5, 4), (1, 2, 6, 4)), "dimension 2 of V"),
        (((2, 2, 4), (1, 2, 5, 4), (1, 2, 6, 4)), "rank 4"),
    ],
)
def test_what_does_not_fit(shapes: tuple[tuple[int, ...], ...], why: str) -> None:
    with pytest.raises(ts.ExpressionError, match=why):
        function_of(arrays_of(*shapes))
