"""Einsum of ONNX models, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from one_node import model_of, ran

from tilesmith.base.errors import GraphError
from tilesmith.frontends.open import load_onnx
from tilesmith.graph.graph import Graph

RNG = np.random.default_rng(3)


def given(*shapes: tuple[int, ...], dtype: Any = np.float32) -> dict[str, Any]:
    return {f"x{k}": np.asarray(RNG.integers(-4, 5, s)).astype(dtype) for k, s in enumerate(shapes)}


CASES = [
    ("ij->ji", ((2, 3),)), ("ij", ((2, 3),)), ("ba", ((2, 3),)), ("ii", ((3, 3),)),
    ("...ii->...i", ((2, 4, 3, 3),)), ("i,i", ((4,), (4,))), ("i,j->ij", ((2,), (3,))),
    ("ij,j", ((2, 3), (3,))), ("ij,jk", ((2, 3), (3, 4))), ("ji,kj->ki", ((3, 2), (4, 3))),
    ("ij,kj->ki", ((2, 3), (4, 3))), ("bhid,bhjd->bhij", ((2, 3, 4, 5), (2, 3, 2, 5))),
    ("bihd,bjhd->bhij", ((2, 4, 3, 5), (2, 2, 3, 5))), ("...ij,...jk", ((2, 1, 3, 4), (5, 4, 2))),
    ("...j,j...", ((2, 3, 4), (4, 3))), ("ijk,kl->i", ((2, 3, 4), (4, 2))),
    ("ij,jk,kl->il", ((2, 3), (3, 4), (4, 2))), ("a,ab,b,c->c", ((2,), (2, 3), (3,), (4,))),
    ("ij,ij->ij", ((1, 3), (2, 3))), ("iij,jk->ik", ((2, 2, 3), (3, 4))), ("->", ((),)),
    ("ab,cd->dbca", ((2, 3), (4, 5))), ("abc,cbd->da", ((2, 3, 4), (4, 3, 5))),
]  # fmt: skip


@pytest.mark.parametrize(("equation", "shapes"), CASES, ids=[c[0] for c in CASES])
def test_einsum_is_that_of_numpy(equation: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    arrays = given(*shapes)
    got = ran(model_of("Einsum", arrays, equation=equation), arrays)
    want = np.einsum(equation, *arrays.values())
    assert got.shape == want.shape
    np.testing.assert_array_equal(got, want)


def test_einsum_of_small_integers_stays_in_their_type() -> None:
    arrays = given((3, 4), (4, 2), dtype=np.int8)
    got = ran(model_of("Einsum", arrays, equation="ij,jk->ik"), arrays)
    assert got.dtype == np.int8
    np.testing.assert_array_equal(got, np.einsum("ij,jk->ik", *arrays.values()))


@pytest.mark.parametrize(
    ("equation", "shapes", "ops"),
    [
        ("ij,jk->ik", ((2, 3), (3, 4)), ["matmul"]),
        ("ij,kj->ik", ((2, 3), (4, 3)), ["matmul"]),
        ("bij,bjk->bik", ((2, 3, 4), (2, 4, 5)), ["batch_matmul"]),
        ("bhid,bhjd->bhij", ((2, 3, 4, 5), (2, 3, 2, 5)),
         ["reshape", "reshape", "batch_matmul", "reshape"]),
        ("bsd,dhk->bshk", ((2, 3, 4), (4, 5, 6)), ["reshape", "reshape", "matmul", "reshape"]),
        ("ij,j->i", ((2, 3), (3,)), ["einsum"]),
    ],
)  # fmt: skip
def test_products_of_matrices_are_recognised(equation: str, shapes: Any, ops: list[str]) -> None:
    graph = load_onnx(model_of("Einsum", given(*shapes), equation=equation))
    assert isinstance(graph, Graph)
    assert [n.op for n in graph.nodes] == ops


@pytest.mark.parametrize(
    ("equation", "shapes", "words"),
    [
        ("ij,jk", ((2, 3),), "2 terms for 1 tensors"),
        ("ijk->i", ((2, 3),), "does not label a tensor of rank 2"),
        ("i...jk->i", ((2, 3),), "does not label"),
        ("ij->ik", ((2, 3),), "'k' in the result"),
        ("ij->ii", ((2, 3),), "'i' in the result"),
        ("i1->i", ((2, 3),), "must have letters"),
        ("i......->i", ((2, 3),), "must have letters"),
        ("ij,jk->ik", ((2, 3), (4, 5)), "'.' in '.*' is 3 and 4"),
    ],
)
def test_errors_name_the_node(equation: str, shapes: Any, words: str) -> None:
    with pytest.raises(GraphError, match=words) as caught:
        load_onnx(model_of("Einsum", given(*shapes), equation=equation))
    assert "Einsum 'n'" in str(caught.value)
