"""Matrix products of ONNX models, against NumPy and ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from one_node import model_of, ran

from tilesmith.base.errors import GraphError
from tilesmith.frontends.open import load_onnx
from tilesmith.graph.graph import Graph

RNG = np.random.default_rng(7)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


SHAPES = [
    ((3,), (3,)), ((3,), (3, 2)), ((4, 3), (3,)), ((2, 4, 3), (3,)), ((3,), (2, 3, 4)),
    ((2, 5, 4, 3), (3, 2)), ((4, 3), (5, 3, 2)), ((2, 4, 3), (2, 3, 5)), ((1, 2, 4, 3), (2, 3, 5)),
    ((2, 1, 4, 3), (1, 5, 3, 2)), ((2, 4, 3), (1, 3, 5)), ((2, 4, 3), (1, 1, 3, 5)),
    ((5, 1, 4, 3), (2, 3, 2)), ((0, 3), (3, 2)),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), SHAPES, ids=str)
def test_matmul_of_any_ranks(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    arrays = {"a": normal(*a), "b": normal(*b)}
    got = ran(model_of("MatMul", arrays), arrays)
    want = np.matmul(arrays["a"], arrays["b"])
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_rows_of_any_rank_are_one_plain_product() -> None:
    arrays = {"a": normal(2, 5, 4), "b": normal(4, 3)}
    graph = load_onnx(model_of("MatMul", arrays, ("b",)))
    assert isinstance(graph, Graph)
    assert [n.op for n in graph.nodes] == ["reshape", "matmul", "reshape"]


@pytest.mark.parametrize("fixed", [(), ("b", "c")], ids=["given", "constant"])
@pytest.mark.parametrize("c", [(), (1,), (5,), (1, 5), (4, 1), (4, 5)], ids=str)
@pytest.mark.parametrize("turned", [(0, 0), (1, 0), (0, 1), (1, 1)], ids=str)
def test_gemm_is_that_of_onnxruntime(
    fixed: tuple[str, ...], c: tuple[int, ...], turned: tuple[int, int]
) -> None:
    a, b = ((3, 4) if turned[0] else (4, 3)), ((5, 3) if turned[1] else (3, 5))
    arrays = {"a": normal(*a), "b": normal(*b), "c": np.asarray(normal(*c), np.float32)}
    model = model_of("Gemm", arrays, fixed, transA=turned[0], transB=turned[1], alpha=0.5, beta=2.0)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    feeds = {n: a for n, a in arrays.items() if n not in fixed}
    np.testing.assert_allclose(
        ran(model, arrays), session.run(None, feeds)[0], rtol=1e-5, atol=1e-6
    )


def test_a_linear_layer_is_a_product_and_a_bias() -> None:
    arrays = {"a": normal(4, 3), "b": normal(5, 3), "c": normal(5)}
    graph = load_onnx(model_of("Gemm", arrays, ("b", "c"), transB=1))
    assert isinstance(graph, Graph)
    assert [n.op for n in graph.nodes] == ["matmul", "bias_add"]
    assert not any(n.setting("transpose_b") for n in graph.nodes)


def test_gemm_of_integers() -> None:
    arrays = {
        "a": RNG.integers(-9, 9, (4, 3)).astype(np.int32),
        "b": RNG.integers(-9, 9, (3, 5)).astype(np.int32),
        "c": RNG.integers(-9, 9, (5,)).astype(np.int32),
    }
    got = ran(model_of("Gemm", arrays, alpha=2.0), arrays)
    np.testing.assert_array_equal(got, 2 * (arrays["a"] @ arrays["b"]) + arrays["c"])


@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "words"),
    [
        ("MatMul", ((3, 4), (5, 2)), {}, "inner dimensions are 4 and 5"),
        ("MatMul", ((3, 4), ()), {}, "at least one dimension"),
        ("MatMul", ((2, 3, 4), (3, 4, 5)), {}, "do not broadcast"),
        ("Gemm", ((2, 3, 4), (4, 5)), {}, "must be a matrix"),
        ("Gemm", ((3, 4), (4, 5), (2, 3, 5)), {}, "does not broadcast to the product"),
        ("Gemm", ((3, 4), (4, 5)), {"alpha": "two"}, "is .two.; it must be a number"),
    ],
)
def test_errors_name_the_node(op: str, shapes: Any, attributes: dict[str, Any], words: str) -> None:
    arrays = {"abc"[k]: np.asarray(normal(*s)) for k, s in enumerate(shapes)}
    with pytest.raises(GraphError, match=words) as caught:
        load_onnx(model_of(op, arrays, **attributes))
    assert f"{op} 'n'" in str(caught.value)
