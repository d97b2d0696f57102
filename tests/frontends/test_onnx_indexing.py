"""Gathers, scatters and TopK: what ONNX's own cases leave out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from small_models import model_of, run

from tilesmith.base.errors import GraphError, RangeError
from tilesmith.frontends.onnx import indexing
from tilesmith.frontends.open import load_onnx
from tilesmith.graph.graph import Graph
from tilesmith.graph.program import first_stage

RNG = np.random.default_rng(3)
X = RNG.integers(-50, 50, (3, 4, 5)).astype(np.float32)
node = helper.make_node


def made(nodes: Any, feeds: Any, constants: Any, **settings: Any) -> list[str]:
    """The operators of a model of one graph."""
    model = load_onnx(model_of([nodes], feeds, ["y"], constants=constants, **settings))
    assert isinstance(model, Graph)
    return [n.op for n in model.nodes]


@pytest.mark.parametrize(
    ("ids", "ops"),
    [
        (np.array(-1), ["slice_", "reshape"]),
        (np.array([1, 2]), ["slice_"]),
        (np.array([[3, 1]]), ["slice_", "reshape"]),
        (np.array([3, 2, 1, 0]), ["slice_"]),
        (np.array([0, 1, 1]), ["take"]),
        (np.array([], np.int64), []),  # nothing to compute
    ],
)
def test_known_indices_are_views_where_they_can(ids: Any, ops: list[str]) -> None:
    one, constants = node("Gather", ["x", "i"], ["y"], axis=1), {"i": ids}
    assert made(one, {"x": X}, constants) == ops
    np.testing.assert_array_equal(run(one, {"x": X}, constants=constants), np.take(X, ids, 1))


@pytest.fixture(params=["constant", "kernel"])
def way(request: Any) -> str:
    """Indices that are known, and indices in a kernel."""
    return str(request.param)


def scattered(op: str, x: Any, ids: Any, updates: Any, way: str, **attributes: Any) -> Any:
    one = node(op, ["x", "i", "u"], ["y"], **attributes)
    feeds = {"x": x, "u": updates}
    constants = {"i": ids} if way == "constant" else None
    if way != "constant":
        feeds["i"] = ids
    model = load_onnx(model_of([one], feeds, ["y"], constants=constants))
    assert isinstance(model, Graph)
    assert len([n for n in model.nodes if n.op != "reshape"]) == 1
    return run(one, feeds, constants=constants, opset=18)


AT = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def wanted(x: Any, places: Any, updates: Any, reduction: str) -> Any:
    out = x.copy()
    if reduction == "none":
        out[places] = updates
    else:
        AT[reduction].at(out, places, updates)
    return out


@pytest.mark.parametrize("reduction", ["none", *AT])
def test_scatter_elements(way: str, reduction: str) -> None:
    x, ids = X[:, :, 0], RNG.integers(-4, 4, (2, 6))
    updates = RNG.integers(-3, 4, ids.shape).astype(np.float32)
    got = scattered("ScatterElements", x, ids, updates, way, axis=1, reduction=reduction)
    rows = np.broadcast_to(np.arange(2)[:, None], ids.shape)
    np.testing.assert_array_equal(got, wanted(x, (rows, ids), updates, reduction))


@pytest.mark.parametrize("reduction", ["none", *AT])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_scatter_nd(way: str, reduction: str, depth: int) -> None:
    ids = RNG.integers(-3, 3, (2, 4, depth))
    updates = RNG.integers(-3, 4, (2, 4, *X.shape[depth:])).astype(np.float32)
    got = scattered("ScatterND", X, ids, updates, way, reduction=reduction)
    want = wanted(X, tuple(np.moveaxis(ids, -1, 0)), updates, reduction)
    np.testing.assert_array_equal(got, want)


def test_updates_outside_that_a_model_computes_are_dropped() -> None:
    ids, updates = np.array([[98], [-98]]), np.ones((2, 4, 5), np.float32)
    nodes = [node("Add", ["i", "i"], ["s"]), node("ScatterND", ["x", "s", "u"], ["y"])]
    got = run(nodes, {"x": X, "i": ids, "u": updates}, opset=18)
    np.testing.assert_array_equal(got, X)


def indexed(op: str, given: str, ids: Any) -> Any:
    """One node, whose indices are known, or given in every call: as they are, or behind views."""
    before = {
        "cast": [node("Cast", ["i"], ["j"], to=7)],
        "view": [node("Unsqueeze", ["i", "z"], ["k"]), node("Squeeze", ["k", "z"], ["j"])],
    }.get(given, [])
    feeds = {"x": X, "i": ids.astype(np.int32) if given == "cast" else ids}
    reads = ["x", "j" if before else "i"]
    if op.startswith("Scatter"):
        is_rows = op == "ScatterND"
        shape = (*ids.shape[:-1], *X.shape[ids.shape[-1] :]) if is_rows else ids.shape
        feeds["u"] = np.ones(shape, np.float32)
        reads.append("u")
    constants = {"z": np.array([0])} if given == "view" else {}
    if given == "constant":
        constants = {"i": feeds.pop("i")}
    attributes = {"axis": 1} if op in ("Gather", "GatherElements") else {}
    nodes = [*before, node(op, reads, ["y"], name="n", **attributes)]
    return run(nodes, feeds, constants=constants, opset=18)


# Shapes of ids, and the extent of the dimension that the last of them names.
INDEXED = {
    "Gather": ((2, 2), 4), "GatherElements": ((3, 2, 5), 4), "GatherND": ((2, 2), 4),
    "ScatterElements": ((2, 4, 5), 3), "ScatterND": ((2, 2), 4),
}  # fmt: skip


@pytest.mark.parametrize("given", ["constant", "input", "cast", "view"])
@pytest.mark.parametrize("op", INDEXED)
def test_indices_outside_are_an_error(op: str, given: str) -> None:
    shape, extent = INDEXED[op]
    ids = np.zeros(shape, np.int64)
    for right in (extent - 1, -extent):
        ids.flat[-1] = right
        indexed(op, given, ids)
    for wrong in (extent, -extent - 1):
        ids.flat[-1] = wrong
        with pytest.raises(RangeError if given != "constant" else GraphError,
                           match=f"{op} 'n': index {wrong} is out of range"):  # fmt: skip
            indexed(op, given, ids)


@pytest.mark.parametrize("op", ["GatherND", "ScatterND"])
def test_each_column_of_rows_has_its_own_extent(op: str) -> None:
    indexed(op, "input", np.array([[2, 3]]))
    with pytest.raises(RangeError, match=r"index 3 is out of range; .* less than 3"):
        indexed(op, "input", np.array([[3, 2]]))


@pytest.mark.parametrize("dtype", ["bool", "int8", "float64", "float16"])
def test_scatters_of_other_types(way: str, dtype: str) -> None:
    x, ids = X[0].astype(dtype), np.array([[0, 1, 0, 2, 3]])
    updates = np.ones((1, 5), dtype)
    got = scattered("ScatterElements", x, ids, updates, way)
    want = x.copy()
    want[ids[0], np.arange(5)] = 1
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("is_long", [False, True])
def test_top_k(monkeypatch: pytest.MonkeyPatch, largest: int, is_long: bool) -> None:
    if is_long:
        monkeypatch.setattr(indexing, "MAX_TOP_K", 1)
    x = RNG.integers(0, 4, (3, 9)).astype(np.float32)
    x[0, 3] = x[0, 5] = np.nan
    one = node("TopK", ["x", "k"], ["v", "i"], largest=largest)
    v, i = run(one, {"x": x}, ["v", "i"], constants={"k": np.array([6])})
    key = np.where(np.isnan(x), 99, x)
    want = np.argsort(-key if largest else key, 1, kind="stable")[:, :6]
    np.testing.assert_array_equal(i, want)
    np.testing.assert_array_equal(v, np.take_along_axis(x, want, 1))


def test_top_k_of_old_models() -> None:
    v, i = run(node("TopK", ["x"], ["v", "i"], k=2, axis=0), {"x": X}, ["v", "i"], opset=9)
    want = np.argsort(-X, 0, kind="stable")[:2]
    np.testing.assert_array_equal(i, want)
    np.testing.assert_array_equal(v, np.take_along_axis(X, want, 0))


def test_what_is_known_is_computed_on_the_host_ahead() -> None:
    nodes = [node("NonZero", ["c"], ["n"]), node("Transpose", ["n"], ["t"]),
             node("GatherND", ["x", "t"], ["y"])]  # fmt: skip
    constants = {"c": np.array([[0, 1, 1], [0, 0, 1]])}
    model = load_onnx(model_of(nodes, {"x": X}, ["y"], constants=constants))
    assert isinstance(model, Graph)
    np.testing.assert_array_equal(
        run(nodes, {"x": X}, constants=constants), X[[0, 0, 1], [1, 2, 2]]
    )


def test_a_condition_at_run_time_goes_to_the_host() -> None:
    one = node("Compress", ["x", "c"], ["y"], axis=1)
    condition = np.array([False, True, False, True])
    model = load_onnx(model_of([one], {"x": X, "c": condition}, ["y"]))
    assert not isinstance(model, Graph)
    stage = first_stage(model)
    assert stage is not None
    assert stage.host is not None
    assert stage.host.reason == "the size of its result depends on its condition"
    np.testing.assert_array_equal(run(one, {"x": X, "c": condition}), X[:, condition])
    assert made(one, {"x": X}, {"c": condition}) == ["take"]


@pytest.mark.parametrize(
    ("one", "constants", "message"),
    [
        (node("Gather", ["x", "c"], ["y"], name="n"), {"c": [3]}, "index 3 is out of range"),
        (node("Gather", ["x", "x"], ["y"], name="n"), {}, "must be integers"),
        (node("GatherElements", ["x", "c"], ["y"], name="n"), {"c": [3]}, "ids has rank 1"),
        (node("GatherND", ["x", "c"], ["y"], name="n", batch_dims=4), {"c": [3]},
         "batch_dims is 4"),
        (node("ScatterElements", ["x", "c", "x"], ["y"], name="n"), {"c": [3]}, "one shape"),
        (node("ScatterND", ["x", "c", "x"], ["y"], name="n"), {"c": [[0, 0, 0, 0]]}, "1 to 3"),
        (node("ScatterND", ["x", "c", "x"], ["y"], name="n"), {"c": [[0]]}, "shape of the places"),
        (node("ScatterND", ["x", "c", "x"], ["y"], name="n", reduction="or"), {"c": [[0]]},
         "'reduction' is 'or'; it must be none, add"),
        (node("TopK", ["x", "c"], ["y"], name="n"), {"c": [6]}, "has 5 elements"),
        (node("OneHot", ["x", "c", "x"], ["y"], name="n"), {"c": [6]}, "one and two elements"),
        (node("Compress", ["x", "c"], ["y"], name="n", axis=0), {"c": [0, 0, 0, 1]}, "longer"),
    ],
)  # fmt: skip
def test_errors_name_the_node(one: Any, constants: Any, message: str) -> None:
    held = {k: np.array(v) for k, v in constants.items()}
    if one.op_type == "Compress":
        held = {k: a.astype(bool) for k, a in held.items()}
    with pytest.raises(GraphError, match=f"{one.op_type} 'n': .*{message}"):
        run(one, {"x": X}, constants=held)
