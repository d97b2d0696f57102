"""compile_model follows records of similar tasks where a database has none of the task itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

import tilesmith as ts
from tilesmith.testing.measurers import FakeMeasurer


def dense(rows: int) -> onnx.ModelProto:
    w = np.random.default_rng(0).standard_normal((48, 64)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "dense",
        [helper.make_tensor_value_info("x", 1, [rows, 48])],
        [helper.make_tensor_value_info("y", 1, [rows, 64])],
        [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_draft_follows_the_record_of_another_size(tmp_path: Path) -> None:
    target = ts.cpu(num_cores=1)
    with ts.open_database(tmp_path / "t.db") as db:
        ((task, _),) = ts.extract_tasks(ts.load_onnx(dense(32)), target)
        ts.tune(
            task.func, target, budget=ts.Budget(trials=16), database=db, quiet=True,
            measurer=FakeMeasurer(),
        )  # fmt: skip
        same = ts.compile_model(ts.load_onnx(dense(32)), target, database=db, cache=None)
        assert same.executors[0].kernels[0].origin.kind == "record"
        other = ts.compile_model(ts.load_onnx(dense(40)), target, database=db, cache=None)
    origin = other.executors[0].kernels[0].origin
    assert origin.kind == "draft"
    assert "similar to records of other tasks" in origin.why
    x = np.random.default_rng(1).standard_normal((40, 48)).astype(np.float32)
    w = np.random.default_rng(0).standard_normal((48, 64)).astype(np.float32)
    np.testing.assert_allclose(other({"x": x})["y"], x @ w, rtol=1e-4, atol=1e-4)
    plain = ts.compile_model(ts.load_onnx(dense(40)), target, cache=None)
    assert "similar" not in plain.executors[0].kernels[0].origin.why
