"""If, Loop and Scan, as nodes and as loops, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import model_of, run

from tilesmith.base.errors import GraphError
from tilesmith.frontends.onnx import control
from tilesmith.frontends.open import load_onnx
from tilesmith.graph.graph import Graph
from tilesmith.graph.program import first_stage

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
node = helper.make_node
info = helper.make_tensor_value_info
F, I, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


@pytest.fixture(params=["unrolled", "kept"])
def form(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Loops become nodes, or stay."""
    if request.param == "kept":
        monkeypatch.setattr(control, "UNROLLED_NODES", 0)
    return str(request.param)


def graph(
    nodes: list[Any], inputs: list[Any], outputs: list[Any], **constants: Any
) -> onnx.GraphProto:
    held = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    return helper.make_graph(nodes, "body", inputs, outputs, held)


def counting() -> onnx.GraphProto:
    """s = s + x (from outside) * 2; gives s and the count."""
    return graph(
        [node("Mul", ["x", "two"], ["t"]), node("Add", ["s", "t"], ["s2"]),
         node("Identity", ["c"], ["c2"]), node("Identity", ["i"], ["count"]),
         node("Identity", ["s2"], ["one"])],
        [info("i", I, []), info("c", B, []), info("s", F, [3, 4])],
        [info("c2", B, []), info("s2", F, [3, 4]), info("one", F, [3, 4]), info("count", I, [])],
        two=np.array(2, np.float32),
    )  # fmt: skip


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("is_constant", [True, False])
def test_a_loop_that_counts(form: str, count: int, is_constant: bool) -> None:
    m = {"m": np.array(count)}
    feeds = {"x": X, "s0": X * 0} if is_constant else {"x": X, "s0": X * 0, **m}
    made = node("Loop", ["m", "", "s0"], ["s", "all", "counts"], body=counting())
    got = run(made, feeds, ["s", "all", "counts"], constants=m if is_constant else None)
    np.testing.assert_allclose(got[0], X * 2 * count, rtol=1e-6)
    assert got[1].shape == (count, 3, 4)
    np.testing.assert_array_equal(got[2], np.arange(count))


def test_a_short_loop_of_known_length_is_one_graph() -> None:
    made = node("Loop", ["m", "", "s0"], ["s", "all", "counts"], body=counting())
    model = load_onnx(model_of([made], {"x": X, "s0": X}, ["s", "all"],
                               constants={"m": np.array(3)}))  # fmt: skip
    assert isinstance(model, Graph)


def test_a_loop_stays_where_it_is_long() -> None:
    made = node("Loop", ["m", "", "s0"], ["s", "all", "counts"], body=counting())
    model = load_onnx(model_of([made], {"x": X, "s0": X}, ["s", "all"],
                               constants={"m": np.array(1000)}))  # fmt: skip
    assert not isinstance(model, Graph)
    stage = first_stage(model)
    assert stage is not None
    assert stage.host is not None
    assert stage.host.op == "Loop"
    assert [s.name for s in stage.host.bodies[0].inputs] == ["i", "c", "s", "x"]


@pytest.mark.parametrize("with_count", [True, False])
def test_a_loop_that_ends_by_its_condition(with_count: bool) -> None:
    body = graph(
        [node("Add", ["s", "s"], ["s2"]), node("Less", ["s2", "limit"], ["c2"]),
         node("Identity", ["s2"], ["one"])],
        [info("i", I, []), info("c", B, []), info("s", F, [])],
        [info("c2", B, []), info("s2", F, []), info("one", F, [])],
    )  # fmt: skip
    feeds = {"s0": np.array(1, np.float32), "limit": np.array(100, np.float32)}
    made = node("Loop", ["m" if with_count else "", "c0", "s0"], ["s", "all"], body=body)
    got = run(made, feeds, ["s", "all"], constants={"m": np.array(3), "c0": np.array(True)})
    want = [2.0, 4.0, 8.0] if with_count else [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]
    np.testing.assert_array_equal(got[1], want)
    assert got[0] == want[-1]


def test_a_loop_whose_condition_is_false_at_once() -> None:
    body = counting()
    made = node("Loop", ["m", "c0", "s0"], ["s", "all", "counts"], body=body)
    got = run(made, {"x": X, "s0": X, "c0": np.array(False)}, ["s", "all", "counts"],
              constants={"m": np.array(4)})  # fmt: skip
    np.testing.assert_array_equal(got[0], X)
    assert got[1].shape == (0, 3, 4)


def test_a_value_that_grows() -> None:
    body = graph(
        [node("Concat", ["s", "x"], ["s2"], axis=0), node("Identity", ["c"], ["c2"])],
        [info("i", I, []), info("c", B, []), info("s", F, None)],
        [info("c2", B, []), info("s2", F, None)],
    )  # fmt: skip
    made = node("Loop", ["m", "", "x"], ["y"], body=body)
    got = run(made, {"x": X, "m": np.array(2)})
    np.testing.assert_array_equal(got, np.concatenate([X] * 3))


def running() -> onnx.GraphProto:
    """A running sum; gives the sum and twice the element."""
    return graph(
        [node("Add", ["s", "e"], ["s2"]), node("Add", ["e", "e"], ["d"]),
         node("Identity", ["s2"], ["one"])],
        [info("s", F, None), info("e", F, None)], [info("s2", F, None), info("one", F, None),
                                                   info("d", F, None)],
    )  # fmt: skip


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("directions", [(0, 0, 0), (1, 0, 1), (0, 1, 0), (1, 1, 1)])
def test_scan(form: str, axis: int, directions: tuple[int, int, int]) -> None:
    made = node(
        "Scan", ["s0", "x"], ["s", "sums", "twice"], body=running(), num_scan_inputs=1,
        scan_input_axes=[axis], scan_input_directions=directions[:1],
        scan_output_axes=[1, -1], scan_output_directions=directions[1:],
    )  # fmt: skip
    first = np.zeros(np.delete(X.shape, axis), np.float32)
    s, sums, twice = run(made, {"s0": first, "x": X}, ["s", "sums", "twice"])
    rows = np.moveaxis(X, axis, 0)[:: -1 if directions[0] else 1]
    np.testing.assert_allclose(s, rows.sum(0), atol=1e-6)
    want = np.cumsum(rows, 0)[:: -1 if directions[1] else 1]
    np.testing.assert_allclose(sums, np.moveaxis(want, 0, 1), atol=1e-6)
    want = np.moveaxis(rows * 2, 0, -1)[..., :: -1 if directions[2] else 1]
    np.testing.assert_array_equal(twice, want)


def test_scan_of_nothing() -> None:
    made = node("Scan", ["s0", "x"], ["s", "sums", "twice"], body=running(), num_scan_inputs=1,
                scan_output_axes=[0, 1])  # fmt: skip
    s, sums, twice = run(made, {"s0": X[0], "x": X[:0]}, ["s", "sums", "twice"])
    np.testing.assert_array_equal(s, X[0])
    assert sums.shape == (0, 4)
    assert twice.shape == (4, 0)


def choice(op: str, inner: Any = None) -> onnx.GraphProto:
    nodes = [node(op, ["x", "k"], ["r"])] if inner is None else [inner]
    return graph(nodes, [], [info("r", F, None)], k=np.array(3, np.float32))


def test_if_within_if_within_a_loop(form: str) -> None:
    inner = node("If", ["b"], ["r"], then_branch=choice("Add"), else_branch=choice("Mul"))
    # The names inside of the inner branches are those of the outer ones, which ONNX forbids and
    # exporters do.
    body = graph(
        [node("If", ["a"], ["t"], then_branch=choice("", inner), else_branch=choice("Sub")),
         node("Add", ["s", "t"], ["s2"]), node("Identity", ["c"], ["c2"])],
        [info("i", I, []), info("c", B, []), info("s", F, None)],
        [info("c2", B, []), info("s2", F, None)],
    )  # fmt: skip
    made = node("Loop", ["m", "", "x"], ["y"], body=body)
    for a in (True, False):
        for b in (True, False):
            feeds = {"x": X, "a": np.array(a), "b": np.array([b])}
            got = run(made, feeds, constants={"m": np.array(2)})
            step = (X + 3 if b else X * 3) if a else X - 3
            np.testing.assert_allclose(got, X + 2 * step, rtol=1e-6)


def test_if_by_a_shape_leaves_one_graph() -> None:
    nodes = [
        node("Size", ["x"], ["n"]),
        node("Cast", ["n"], ["c"], to=TensorProto.BOOL),
        node("If", ["c"], ["y"], then_branch=choice("Add"), else_branch=choice("Mul")),
    ]
    np.testing.assert_array_equal(run(nodes, {"x": X}, is_open=True), X + 3)


def test_loop_in_a_function_of_the_model(form: str) -> None:
    one = node("Loop", ["m", "", "s0"], ["s", "all", "counts"], body=counting())
    held = node("Constant", [], ["m"], value_int=4)
    f = helper.make_function("own", "Summed", ["x", "s0"], ["s"], [held, one],
                             [helper.make_opsetid("", 18)])  # fmt: skip
    got = run(node("Summed", ["a", "b"], ["y"], domain="own"), {"a": X, "b": X}, functions=[f])
    np.testing.assert_allclose(got, X * 9, rtol=1e-6)


@pytest.mark.parametrize(
    ("made", "opset", "message"),
    [
        (node("Scan", ["", "x", "x"], ["s", "a", "b"], name="n", body=running(),
              num_scan_inputs=1), 8, "is of opset 8, where Scan has a batch"),
        (node("Scan", ["x", "x"], ["s", "a", "b"], name="n", body=running(), num_scan_inputs=3),
         18, "num_scan_inputs is 3"),
        (node("Scan", ["x", "x"], ["s", "a", "b"], name="n", body=running(), num_scan_inputs=1,
              scan_input_axes=[2]), 18, "axis 2 does not exist"),
        (node("Scan", ["x", "x"], ["s", "a", "b", "e"], name="n", body=running(),
              num_scan_inputs=1), 18, "has 4 outputs, but its body gives 3"),
        (node("Loop", ["", "", "x", "x"], ["s"], name="n", body=counting()), 18,
         "carries 2 values, but its body has 3 inputs"),
        (node("Loop", ["", "", "x"], ["s"], name="n"), 18, "has no graph 'body'"),
        (node("If", ["x"], ["s"], name="n", then_branch=choice("Add"),
              else_branch=choice("Mul")), 18, "its condition has shape"),
    ],
)  # fmt: skip
def test_errors_name_the_node(made: Any, opset: int, message: str) -> None:
    with pytest.raises(GraphError, match=f"{made.op_type} 'n'.*{message}"):
        run(made, {"x": X}, ["s"], opset=opset)
