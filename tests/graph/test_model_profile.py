"""Model.profile and Model.summary: of graphs, of open models, of models with steps on the host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from small_graphs import Numbers, feeds_of, graph_of
from test_compile_model import chain, open_model

from tilesmith.base.target import cpu
from tilesmith.frontends.open import load_onnx
from tilesmith.graph.graph import Graph
from tilesmith.graph.profile import HostTime, KernelTime, Profile, Span
from tilesmith.tune.compile_model import compile_model


def test_a_graph() -> None:
    graph = graph_of(chain, 8, 16)
    model = compile_model(graph, cpu(1))
    found = model.profile(feeds_of(graph), runs=3)
    assert len(found.kernels) == 4
    assert found.host == ()
    assert all(k.seconds > 0 for k in found.kernels)
    assert found.kernels[0].flops >= 2 * 8 * 16 * 16
    assert "total of 4 kernels" in str(found)
    processor = model.profile(feeds_of(graph), runs=3, processor_time=True)
    assert [k.name for k in processor.kernels] == [k.name for k in found.kernels]
    assert all(k.seconds > 0 for k in processor.kernels)
    text = model.summary()
    assert "x: float32[8, 16]" in text
    assert "4 kernels" in text
    assert text.count("matmul_relu 8x16, 16x16 -> 8x16 float32: matmul, relu") == 3
    (executor,) = model.executors
    assert text.count(f"  {executor.kernels[0].origin.kind} ") >= 3
    assert f"{executor.plan.arena.nbytes} bytes" in text
    assert str(executor.plan.arena.lower_bound) in text


def test_nodes_are_named_as_in_the_file() -> None:
    graph = load_onnx(open_model(), dims={"batch": 2})
    assert isinstance(graph, Graph)
    model = compile_model(graph, cpu(1))
    assert "matmul_tanh 2x4, 4x5 -> 2x5 float32: MatMul product, Tanh curve" in model.summary()
    found = model.profile({"x": Numbers()(2, 4)})
    (kernel,) = found.kernels
    assert kernel.nodes == ("MatMul 'product'", "Tanh 'curve'")
    assert "matmul_tanh 2x4, 4x5 -> 2x5 float32  MatMul product, Tanh curve" in str(found)


def test_kernels_are_filtered_by_operator_shape_and_node() -> None:
    model = compile_model(load_onnx(open_model(), dims={"batch": 2}), cpu(1))
    found = model.profile({"x": Numbers()(2, 4)})
    for text in ("matmul", "4X5 tanh", "product", "float32 curve"):
        assert len(found.matching(text).kernels) == 1
        assert "matmul_tanh" in model.summary(text)
    for text in ("conv", "product 4x6"):
        assert found.matching(text).kernels == ()
        assert "matmul_tanh" not in model.summary(text)


def test_an_open_model() -> None:
    model = compile_model(load_onnx(open_model()), cpu(1), sizes="each")
    assert "nothing is compiled yet" in model.summary()
    found = model.profile({"x": Numbers()(3, 4)}, runs=2)
    assert len(found.kernels) == 1
    assert found.seconds > 0
    model({"x": Numbers()(2, 4)})
    assert "graph 2 of 2" in model.summary()


def staged() -> Any:
    return open_model(
        helper.make_node("NonZero", ["y"], ["places"], name="where"),
        helper.make_node("Cast", ["places"], ["z0"], to=1),
        helper.make_node("Neg", ["z0"], ["z"], name="last"),
        output="z",
    )


def test_a_model_with_a_step_on_the_host() -> None:
    model = compile_model(load_onnx(staged(), dims={"batch": 2}), cpu(1))
    x = Numbers()(2, 4)
    found = model.profile({"x": x}, runs=2)
    assert [(h.op, h.name) for h in found.host] == [("NonZero", "where")]
    assert len(found.kernels) == 2
    assert "and 1 on the host" in str(found)
    text = model.summary()
    assert "NonZero 'where': " in text
    assert "graph 2 of 2" in text
    np.testing.assert_array_equal(model({"x": x})["z"].shape, (2, 10))


def events_of(found: Profile, folder: Path) -> list[dict[str, Any]]:
    """As a viewer reads them: whatever two slices of a thread share lies within one of them."""
    found.save_trace(folder / "trace.json")
    events: list[dict[str, Any]] = json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert {(e["ph"], e["pid"], e["tid"]) for e in events} == {("X", 1, 1)}
    for a in events:
        for b in events:
            start, end = b["ts"], b["ts"] + b["dur"]
            if a["ts"] < start < a["ts"] + a["dur"] - 1e-6:
                assert end <= a["ts"] + a["dur"] + 1e-6
    return events


def test_a_trace_has_every_step_of_a_run(tmp_path: Path) -> None:
    model = compile_model(load_onnx(staged(), dims={"batch": 2}), cpu(1))
    found = model.profile({"x": Numbers()(2, 4)}, runs=2)
    events = events_of(found, tmp_path)
    assert [e["cat"] for e in events] == ["kernel", "host", "kernel"]
    assert [e["ts"] for e in events] == sorted(e["ts"] for e in events)
    assert events[0]["args"]["shapes"] == "2x4, 4x5 -> 2x5 float32"
    assert events[1]["args"] == {"node": "where"}
    spent = [s.seconds * 1e6 for s in found.spans]
    assert [e["dur"] for e in events] == pytest.approx(spent, abs=2e-3)
    assert [s.step for s in found.matching("NonZero").spans] == list(found.host)


def test_kernels_of_a_trace_lie_in_their_modules(tmp_path: Path) -> None:
    def kernel(*nodes: str) -> KernelTime:
        return KernelTime("k", nodes, 1e-6, 10, 10)

    first = kernel("Conv '/stem/conv/Conv'", "Relu '/stem/act/Relu'")
    second, third = kernel("Conv '/stem/pool/Conv'"), kernel("Gemm '/head/fc/Gemm'")
    loop = HostTime("Loop", "steps", 1e-6)
    spans = (
        Span(first, 0.0, 1e-6), Span(second, 1e-6, 2e-6), Span(loop, 3e-6, 4e-6),
        Span(third, 3e-6, 1e-6), Span(third, 4e-6, 1e-6),
    )  # fmt: skip
    events = events_of(Profile((first, second, third), (loop,), spans), tmp_path)
    assert [(e["name"], e["ts"], e["dur"]) for e in events] == [
        ("stem", 0.0, 3.0), ("k", 0.0, 1.0), ("pool", 1.0, 2.0), ("k", 1.0, 2.0),
        ("Loop", 3.0, 4.0), ("head", 3.0, 2.0), ("fc", 3.0, 2.0), ("k", 3.0, 1.0), ("k", 4.0, 1.0),
    ]  # fmt: skip
