"""Losses and determinants of ONNX models, against PyTorch and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from one_node import model_of, ran, ran_all

from tilesmith.base.errors import GraphError
from tilesmith.frontends.open import load_onnx
from tilesmith.graph.graph import Graph

RNG = np.random.default_rng(2)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("ignore", [None, -100, 7, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_is_that_of_torch(reduction: str, ignore: int | None, weighted: bool) -> None:
    target = RNG.integers(0, 5, (3, 2, 4))
    if ignore is not None:
        target[0, 0, :2] = ignore
    arrays = {"x": normal(3, 5, 2, 4), "t": target}
    if weighted:
        arrays["w"] = RNG.random(5).astype(np.float32)
    settings: dict[str, Any] = {} if ignore is None else {"ignore_index": ignore}
    model = model_of("SoftmaxCrossEntropyLoss", arrays, outputs=("y", "p"), reduction=reduction,
                     **settings)  # fmt: skip
    got = ran_all(model, arrays)
    x, t = torch.from_numpy(arrays["x"]), torch.from_numpy(target)
    weight = torch.from_numpy(arrays["w"]) if weighted else None
    want = torch.nn.functional.cross_entropy(
        x, t, weight=weight, reduction=reduction, ignore_index=-1 if ignore is None else ignore
    )
    np.testing.assert_allclose(got["y"], want.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got["p"], torch.log_softmax(x, 1).numpy(), rtol=1e-5, atol=1e-6)


def test_a_class_that_does_not_exist_reads_nothing_outside() -> None:
    arrays = {"x": normal(2, 3), "t": np.array([1 << 40, -5])}
    got = ran(model_of("NegativeLogLikelihoodLoss", arrays, reduction="none"), arrays)
    np.testing.assert_array_equal(got, [-arrays["x"][0, 2], -arrays["x"][1, 0]])


@pytest.mark.parametrize("order", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("lead", [(), (2, 3)], ids=str)
def test_determinants(order: int, lead: tuple[int, ...]) -> None:
    x = normal(*lead, order, order)
    x[..., 0, 0] = 0  # so that rows have to be exchanged
    arrays = {"x": x}
    graph = load_onnx(model_of("Det", arrays))
    assert isinstance(graph, Graph)
    got = ran(model_of("Det", arrays), arrays)
    assert got.shape == lead
    np.testing.assert_allclose(got, np.linalg.det(x.astype(np.float64)), rtol=1e-4, atol=1e-5)


def test_a_singular_matrix_has_determinant_zero() -> None:
    x = np.zeros((2, 5, 5), np.float32)
    x[1] = np.outer(np.arange(5), np.ones(5))
    np.testing.assert_array_equal(ran(model_of("Det", {"x": x}), {"x": x}), [0, 0])


def test_a_large_matrix_runs_on_the_host() -> None:
    arrays = {"x": np.eye(20, dtype=np.float32)}
    assert not isinstance(load_onnx(model_of("Det", arrays)), Graph)
    assert ran(model_of("Det", arrays), arrays) == 1


@pytest.mark.parametrize(
    ("op", "arrays", "settings", "words"),
    [
        ("Det", {"x": normal(2, 3)}, {}, "square matrices"),
        ("Det", {"x": normal(3)}, {}, "square matrices"),
        ("NegativeLogLikelihoodLoss", {"x": normal(2, 3), "t": np.array([1])}, {}, "must be"),
        ("NegativeLogLikelihoodLoss", {"x": normal(2, 3), "t": np.array([1, 2]), "w": normal(2)},
         {}, "weight is 2"),
        ("SoftmaxCrossEntropyLoss", {"x": normal(3), "t": np.array([1])}, {}, "must be"),
        ("SoftmaxCrossEntropyLoss", {"x": normal(2, 3), "t": np.array([1, 2])},
         {"reduction": "max"}, "none, mean or sum"),
    ],
)  # fmt: skip
def test_errors_name_the_node(op: str, arrays: Any, settings: Any, words: str) -> None:
    with pytest.raises(GraphError, match=words) as caught:
        load_onnx(model_of(op, arrays, **settings))
    assert f"{op} 'n'" in str(caught.value)
