"""Models on a GPU: on PoCL, which runs OpenCL on the processor, and, for what only CUDA has,
on a pretended driver.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_graphs import Numbers, assert_close, feeds_of, graph_of

import tilesmith as ts
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.device_executor import DeviceExecutor
from tilesmith.graph.graph import Graph, Value
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.graph.pipeline import GPU_PASSES, PASSES, passes_for
from tilesmith.ops.conv import conv2d
from tilesmith.ops.elementwise import add, relu
from tilesmith.ops.matmul import matmul
from tilesmith.ops.norm import softmax
from tilesmith.ops.transform import concatenate, reshape, transpose
from tilesmith.ops.views import slice_
from tilesmith.runtime.devices import cuda as cuda_module
from tilesmith.tune.build_request import plain_schedule
from tilesmith.tune.compile_model import compile_model, extract_tasks, plan_of

sys.path.append(str(Path(__file__).parents[1] / "runtime"))


@pytest.fixture
def opencl() -> ts.Target:
    try:
        return ts.opencl()
    except ts.TargetError as error:
        pytest.skip(str(error))


def small_network(b: GraphBuilder, x: Value) -> tuple[Value, ...]:
    """A convolution, views at odd places, a concatenation, a product and a softmax."""
    n = Numbers()
    y = b.add(relu, b.add(conv2d, x, b.constant(n(3, 2, 3, 3)), padding=1))
    part = b.add(slice_, y, starts=(0, 1, 0, 0), stops=(1, 3, 5, 5))  # 100 bytes into y
    both = b.add(concatenate, part, x, axis=1)
    rows = b.add(reshape, b.add(transpose, both, axes=(0, 2, 3, 1)), shape=(25, 4))
    z = b.add(softmax, b.add(matmul, rows, b.constant(n(4, 6))))
    return z, part, x


def test_a_small_network_is_right(opencl: ts.Target) -> None:
    graph = graph_of(small_network, 1, 2, 5, 5)
    model = compile_model(graph, opencl, cache=None)
    assert isinstance(model.executors[0], DeviceExecutor)
    for seed in (1, 2):
        feeds = feeds_of(graph, seed)
        assert_close(model(feeds), evaluate_graph(graph, feeds))
    profile = model.profile(feeds_of(graph), runs=1)
    assert len(profile.kernels) == len(model.executors[0].kernels)
    assert profile.seconds > 0
    assert "arena" in model.summary()


def test_arrays_lie_on_boundaries_of_the_device(opencl: ts.Target) -> None:
    graph = graph_of(small_network, 1, 2, 5, 5)
    made = plan_of(graph, opencl)
    assert all(at % 256 == 0 for at in made.arena.offsets.values())
    assert any(p.offset % 256 for s in made.steps for p in s.places)  # views are copied


def test_passes_are_those_of_the_kind_of_target() -> None:
    h200 = ts.Target.named("nvidia-h200")
    assert len(passes_for(ts.cpu(1))) == len(PASSES)
    assert passes_for(h200)[1:] == GPU_PASSES
    assert passes_for(replace(h200, arch="sm_75", cpu="sm_75")) == GPU_PASSES
    graph = graph_of(small_network, 1, 2, 5, 5)
    layouts = {
        dict(n.settings).get("layout", "NCHW")
        for s in plan_of(graph, h200).steps
        for n in s.group.nodes
        if n.op == "conv2d"
    }
    assert layouts == {"NCHW"}
    assert {t.target for t, _ in extract_tasks(graph, h200)} == {h200}


def test_the_plain_schedule_gives_each_element_a_thread() -> None:
    x, w = ts.placeholder((9, 20), name="x"), ts.placeholder((20, 30), name="w")
    func = ts.function([x, w, ts.ops.softmax(ts.ops.matmul(x, w))])
    assert plain_schedule(func, ts.cpu(1)) is func
    done = plain_schedule(func, ts.Target.named("nvidia-h200"))
    kinds = [line for line in str(done).splitlines() if "threadIdx" in line]
    assert len(kinds) == 5  # the product, and four stages of the softmax
    a, b = Numbers()(9, 20), Numbers(1)(20, 30)
    np.testing.assert_allclose(ts.interpret(done, a, b), ts.evaluate(func, a, b), rtol=1e-5)


def test_tensors_on_the_device_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from fake_cuda import FakeCuda, Tensor, floats

    from tilesmith.codegen.artifact import Artifact, Entry, Launch, parameters_of
    from tilesmith.graph import device_executor
    from tilesmith.runtime import device_kernel
    from tilesmith.tune import build_request

    def plus(x: int, w: int, y: int) -> None:
        floats(y, 6)[:] = floats(x, 6) + floats(w, 6)

    driver = FakeCuda({"plus": plus})
    device = cuda_module.CudaDevice(driver, 0)
    for module in (device_kernel, device_executor):
        monkeypatch.setattr(module, "open_device", lambda target: device)

    def build(task: ts.Task, func: Any) -> Artifact:
        parameters = parameters_of(func)
        launch = Launch("plus", 1, 32, tuple(p.name for p in parameters))
        entry = Entry(func.name, func.name, parameters, launches=(launch,))
        return Artifact(func.name, task.target, (entry,), "", b"code", language="cuda")

    monkeypatch.setattr(build_request, "compile_for", build)
    weights = Numbers()(6)

    def network(b: GraphBuilder, x: Value) -> Value:
        return b.add(add, x, b.constant(weights))

    graph: Graph = graph_of(network, 6)
    model = compile_model(graph, device.target, cache=None)
    data = Numbers(3)(6)
    np.testing.assert_array_equal(model({"x": data})["y"], data + weights)
    assert ("graph", 1) in driver.calls  # one launch
    written = [c for c in driver.calls if c[0] == "write"]
    assert len(written) == 2  # the weights, once, and the input
    x = Tensor(data + 1)
    with pytest.raises(ts.ArgumentError, match="pass one as out="):
        model({"x": x})
    monkeypatch.setattr(device_executor, "new_tensor", lambda like, p, k: Tensor(np.zeros(p.shape)
        .astype(np.float32)))  # fmt: skip
    y = model({"x": x})["y"]
    np.testing.assert_array_equal(y.array, data + 1 + weights)
    assert [c for c in driver.calls if c[0] == "write"] == written
    model({"x": data})
    with pytest.raises(ts.ArgumentError, match="has no input 'z'"):
        model({"z": x})
