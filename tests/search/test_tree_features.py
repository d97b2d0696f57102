"""The loop tree has the shape of the program and the features of its loops."""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.ir.nodes import Block, For, Stmt
from tilesmith.search.classic.context import LOOP_WIDTH, NODE_WIDTH, loop_features, tree_of
from tilesmith.search.population import Catalogue


def softmax_of_matmul() -> ts.Task:
    a, b = ts.placeholder((16, 24), name="A"), ts.placeholder((24, 32), name="B")
    func = ts.function([a, b, ts.ops.softmax(ts.ops.matmul(a, b, name="C"))], name="chain")
    return ts.Task(func, ts.cpu(2))


def padded_conv() -> ts.Task:
    x, w = ts.placeholder((1, 4, 9, 9), name="X"), ts.placeholder((8, 4, 3, 3), name="W")
    return ts.Task(ts.function([x, w, ts.ops.conv2d(x, w, padding=1)], name="conv"), ts.cpu(2))


def nested(body: tuple[Stmt, ...]) -> list[object]:
    """The program as lists: a loop is a list, a statement its name."""
    return [s.name if isinstance(s, Block) else nested(s.body) for s in body if hasattr(s, "name")]  # type: ignore[union-attr]


def nested_tree(parents: tuple[int, ...], leaves: dict[int, str], node: int = 0) -> object:
    if node in leaves:
        return leaves[node]
    return [nested_tree(parents, leaves, k) for k, p in enumerate(parents) if p == node]


@pytest.mark.parametrize("task", [softmax_of_matmul(), padded_conv()], ids=lambda t: t.func.name)
def test_shape_and_features_are_the_programs(task: ts.Task) -> None:
    rng = np.random.default_rng(0)
    catalogue = Catalogue(task, ts.SketchSpace().sketches(task))
    for k in catalogue.some(rng, 5):
        variant = catalogue.variant(k)
        assert variant is not None
        rows = variant.sample(rng, 7)
        tree = tree_of(variant)
        x = tree.of(rows)
        assert x.shape == (7, len(tree.parents), NODE_WIDTH)
        order = _in_order(variant.func.body)
        is_statement = [isinstance(s, Block) for s in order]
        leaves = {at: s.name for at, s in enumerate(order, 1) if isinstance(s, Block)}
        assert nested_tree(tree.parents, leaves) == nested(variant.func.body)
        assert (x[:, 1:, 0] == np.array(is_statement, float)).all()
        assert not x[:, 0].any()
        loops = [at for at, s in enumerate(order, 1) if isinstance(s, For)]
        np.testing.assert_array_equal(
            x[:, loops, 1 : 1 + LOOP_WIDTH], loop_features(variant, rows)
        )  # fmt: skip


def _in_order(body: tuple[Stmt, ...]) -> list[For | Block]:
    out: list[For | Block] = []
    for s in body:
        if isinstance(s, For):
            out += [s, *_in_order(s.body)]
        elif isinstance(s, Block):
            out.append(s)
    return out
