"""compile_model: bad inputs, open sizes, strict, tasks with weights, profile and summary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper
from small_graphs import Numbers, assert_close, feeds_of, graph_of

from tilesmith.base.errors import ArgumentError, GraphError, TilesmithError
from tilesmith.base.target import cpu
from tilesmith.codegen.llvm.compiler import host_cpu
from tilesmith.frontends.open import load_onnx
from tilesmith.graph import stages
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Graph, Value
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.graph.partition import Group
from tilesmith.graph.program import Program
from tilesmith.ops.elementwise import add, relu, tanh
from tilesmith.ops.matmul import matmul
from tilesmith.records.open import open_database
from tilesmith.task.task import Budget
from tilesmith.testing.measurers import FakeMeasurer
from tilesmith.tune.compile_model import compile_model, extract_tasks
from tilesmith.tune.tune import tune
from tilesmith.tune.tune_model import tune_model


def two_inputs() -> Graph:
    b = GraphBuilder("two")
    x, y = b.input("x", (2, 3), "float32"), b.input("y", (3,), "float32")
    return b.finish({"z": b.add(add, x, y)})


X, Y = Numbers(1)(2, 3), Numbers(2)(3)


@pytest.mark.parametrize(
    ("feeds", "words"),
    [
        ({"x": X}, ["'y'", "x: float32[2, 3]"]),
        ({"x": X, "y": Y, "z": Y}, ["'z'", "y: float32[3]"]),
        ({"x": X[0], "y": Y}, ["x: float32[2, 3]", "[3]", "rank 2"]),
        ({"x": X.T, "y": Y}, ["x: float32[2, 3]", "[3, 2]", "dimension 0"]),
        ({"x": X.astype("float64"), "y": Y}, ["x: float32[2, 3]", "float64"]),
        ({"x": X, "y": Y.astype("int32")}, ["y: float32[3]", "int32"]),
        ([X, Y], ["by name", "list"]),
        ({"x": None, "y": Y}, ["x: float32[2, 3]"]),
        ({"x": "text", "y": Y}, ["x: float32[2, 3]"]),
        ({"x": [[1.0], [2.0, 3.0]], "y": Y}, ["x: float32[2, 3]"]),
    ],
)
def test_bad_inputs_are_one_clear_error(feeds: Any, words: list[str]) -> None:
    model = compile_model(two_inputs(), cpu(1))
    with pytest.raises(ArgumentError) as caught:
        model(feeds)
    for word in ["two", *words]:
        assert word in str(caught.value)
    np.testing.assert_allclose(model({"x": X, "y": Y})["z"], X + Y, rtol=1e-6)


def test_tensors_of_torch_give_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    model = compile_model(two_inputs(), cpu(1))
    x = torch.from_numpy(X).requires_grad_()
    with torch.no_grad():
        given = {"x": x, "y": Y}
        for got in (model(given)["z"], model.bind(given)()["z"]):
            assert isinstance(got, torch.Tensor)
            torch.testing.assert_close(got, x + torch.from_numpy(Y))
    with pytest.raises(ArgumentError, match=r"requires a gradient, .* pass x.detach"):
        model({"x": x, "y": Y})
    with pytest.raises(ArgumentError, match=r"pass x\.to\(torch\.float32\)"):
        model({"x": x.detach().double(), "y": Y})
    with pytest.raises(ArgumentError, match=r"pass x\.astype\(np\.float32\)"):
        model({"x": X.astype(np.float64), "y": Y})


def test_token_ids_beyond_the_vocabulary_are_an_error() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (int64[batch, 4] ids, float[8, 4] w)
        => (float[batch, 4, 4] y) {p = Gather(w, ids) y = Relu(p)}"""
    proto = onnx.parser.parse_model(text)
    for dims in ({}, {"batch": 2}):
        model = compile_model(load_onnx(proto, dims=dims), cpu(1))
        feeds = {"ids": np.full((2, 4), 7), "w": Numbers(3)(8, 4)}
        want = np.maximum(feeds["w"][feeds["ids"]], 0)
        np.testing.assert_array_equal(model(feeds)["y"], want)
        feeds["ids"][1, 3] = 8
        for call in (lambda: model(feeds), model.bind(feeds), lambda: model.profile(feeds, 1)):  # noqa: B023
            with pytest.raises(IndexError, match=r"Gather .*: index 8 is out of range"):
                call()


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(TilesmithError, match="load_onnx"):
        compile_model("model.onnx")  # type: ignore[arg-type]
    with pytest.raises(TilesmithError, match=r"load it, as ts\.load_onnx\(model\)"):
        compile_model(open_model())


def test_a_module_of_torch_is_refused_with_the_way_to_take_it() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(2, 3)
    for call in (compile_model, extract_tasks, tune_model):
        with pytest.raises(GraphError, match=r"is given a Linear; .*ts\.from_torch\(module"):
            call(module)
    with pytest.raises(TilesmithError, match=r"is given a Linear; .*ts\.from_torch\(module"):
        tune(module)


def test_sizes_are_at_least_1() -> None:
    for size in (0, -1):
        with pytest.raises(GraphError, match=f"'batch' the size {size}; .* from 1 on"):
            load_onnx(open_model(), dims={"batch": size})


# open sizes
def open_model(*extra: onnx.NodeProto, output: str = "y") -> Any:
    """tanh(x @ w) with a batch that is left open, and what follows."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Tanh", ["h"], ["y"], name="curve"),
        *extra,
    ]
    graph = helper.make_graph(
        nodes, "open",
        [helper.make_tensor_value_info("x", 1, ["batch", 4])],
        [helper.make_value_info(output, helper.make_tensor_type_proto(1, None))],
        [numpy_helper.from_array(Numbers()(4, 5), "w")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def curve(x: Any) -> Any:
    return np.tanh(x @ Numbers()(4, 5))


def test_open_sizes_are_specialised_for_each_shape() -> None:
    program = load_onnx(open_model())
    assert isinstance(program, Program)
    model = compile_model(program, cpu(1), sizes="each")
    assert model.executors == ()
    for batch in (2, 3, 2):
        x = Numbers(batch)(batch, 4)
        np.testing.assert_allclose(model({"x": x})["y"], curve(x), rtol=1e-4, atol=1e-5)
    assert len(model.executors) == 2
    with pytest.raises(ArgumentError, match="dimension 1 must be 4"):
        model({"x": Numbers()(2, 5)})


def test_sizes_given_at_load_make_a_graph() -> None:
    graph = load_onnx(open_model(), dims={"batch": 3})
    assert isinstance(graph, Graph)
    x = Numbers(3)(3, 4)
    np.testing.assert_allclose(
        compile_model(graph, cpu(1))({"x": x})["y"], curve(x), rtol=1e-4, atol=1e-5
    )


def test_the_number_of_shapes_that_are_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "MAX_STAGES", 2)
    model = compile_model(load_onnx(open_model()), cpu(1), sizes="each")
    for batch in (1, 2, 3, 1):
        x = Numbers(batch)(batch, 4)
        np.testing.assert_allclose(model({"x": x})["y"], curve(x), rtol=1e-4, atol=1e-5)
        assert len(model.executors) <= 2


# strict, and tasks
def chain(b: GraphBuilder, x: Value) -> Any:
    """Three equal layers and another one."""
    n = Numbers()
    for _ in range(3):
        x = b.add(relu, b.add(matmul, x, b.constant(n(16, 16))))
    return b.add(tanh, b.add(matmul, x, b.constant(n(16, 8))))


def test_equal_groups_are_one_task() -> None:
    tasks = extract_tasks(graph_of(chain, 8, 16), cpu(1))
    assert [weight for _, weight in tasks] == [3, 1]
    assert len({task.key for task, _ in tasks}) == 2
    assert [task.func.flops >= 2 * 8 * 16 * 8 for task, _ in tasks] == [True, True]


def test_an_open_model_has_no_tasks_yet() -> None:
    with pytest.raises(GraphError, match=r"x: float32\[batch, 4\].*dims="):
        extract_tasks(load_onnx(open_model()))


def test_a_model_with_a_host_step_has_no_tasks_yet() -> None:
    node = helper.make_node("NonZero", ["y"], ["z"], name="where")
    with pytest.raises(GraphError, match="stages"):
        extract_tasks(load_onnx(open_model(node, output="z"), dims={"batch": 2}))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Any]:
    with open_database(tmp_path / "t.db") as made:
        yield made


def test_strict_takes_recorded_kernels_only(database: Any) -> None:
    graph = graph_of(chain, 8, 16)
    with pytest.raises(GraphError, match="give a database"):
        compile_model(graph, cpu(1), strict=True)
    with pytest.raises(TilesmithError, match="no record"):
        compile_model(graph, cpu(1), database=database, strict=True)
    for task, _ in extract_tasks(graph, cpu(1)):
        tune(
            task.func, cpu(1), budget=Budget(trials=4), database=database,
            measurer=FakeMeasurer(), quiet=True,
        )  # fmt: skip
    for strict in (True, False):
        model = compile_model(graph, cpu(1), database=database, strict=strict)
        (executor,) = model.executors
        assert {k.origin.kind for k in executor.kernels} == {"record"}
        feeds = feeds_of(graph)
        assert_close(model(feeds), evaluate_graph(graph, feeds), 1e-4)


def test_a_named_processor_takes_records_of_machines_like_it(database: Any) -> None:
    graph = graph_of(chain, 8, 16)
    for task, _ in extract_tasks(graph, cpu(1)):
        tune(
            task.func, cpu(1), budget=Budget(trials=2), database=database,
            measurer=FakeMeasurer(), quiet=True,
        )  # fmt: skip
    named = replace(cpu().with_cores(3), cpu=host_cpu(), model="")
    model = compile_model(graph, named, database=database, strict=True, cache=None)
    (executor,) = model.executors
    assert {k.origin.kind for k in executor.kernels} == {"record"}
    assert all("measured on" in str(k.origin) for k in executor.kernels)
    assert all(k.artifact.target == named for k in executor.kernels)
    feeds = feeds_of(graph)
    assert_close(model(feeds), evaluate_graph(graph, feeds), 1e-4)
    for other in (
        replace(named, features=frozenset()),
        cpu().with_cores(3),
    ):
        with pytest.raises(TilesmithError, match="no record"):
            compile_model(graph, other, database=database, strict=True, cache=None)


def test_other_passes_and_partitions_may_be_given() -> None:
    graph = graph_of(chain, 8, 16)

    def one_by_one(g: Graph) -> tuple[Group, ...]:
        return tuple(Group((n,), n.inputs, n.outputs) for n in g.nodes)

    model = compile_model(graph, cpu(1), passes=(), groups=one_by_one)
    (executor,) = model.executors
    assert len(executor.kernels) == len(graph.nodes)
    feeds = feeds_of(graph)
    assert_close(model(feeds), evaluate_graph(graph, feeds), 1e-4)
