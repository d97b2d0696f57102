"""The networks of the benchmarks, small, as compiled models: PyTorch's outputs in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilesmith as ts

pytest.importorskip("torch")
pytest.importorskip("onnx")

from tilesmith_contest.networks.catalogue import NETWORKS, in_float64, network
from tilesmith_contest.networks.export import export


def require_close(got: dict[str, Any], want: dict[str, Any]) -> None:
    assert list(got) == list(want)
    for name, a in want.items():
        assert got[name].shape == a.shape
        np.testing.assert_allclose(got[name], a, rtol=0, atol=3e-5 * np.abs(a).max())


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_compiled_network_computes_what_pytorch_does(name: str, tmp_path: Path) -> None:
    net = network(name, small=True)
    export(name, tmp_path / "net.onnx", batch=2, small=True)
    graph = ts.load_onnx(tmp_path / "net.onnx")
    assert isinstance(graph, ts.Graph), "all sizes are known, so it is one graph"
    model = ts.compile_model(graph, ts.cpu(1), cache=tmp_path / "cache")
    assert model.host_steps == ()
    (executor,) = model.executors
    built = zip(executor.kernels, executor.plan.steps, strict=True)
    assert not [s.func.name for k, s in built if k.origin.kind == "naive" and s.func.flops > 1e5]
    feeds = net.inputs(2)
    want = in_float64(net, net.module(), feeds)
    require_close(model(feeds), want)
    again = ts.compile_model(graph, ts.cpu(1), cache=tmp_path / "cache")
    require_close(again(feeds), want)


SIZES = {"torchscript": [(1, 16), (2, 5)], "dynamo": [(2, 5)]}  # by exporter


@pytest.mark.turns(2)
@pytest.mark.parametrize("exporter", SIZES)
def test_bert_with_its_sequence_left_open(exporter: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    net = network("bert-base", small=True)
    module = net.module()
    path = tmp_path / "net.onnx"
    export("bert-base", path, dynamic=["batch", "sequence"], small=True, exporter=exporter)
    model = ts.compile_model(ts.load_onnx(path), ts.cpu(1), cache=tmp_path / "cache")
    for sizes in SIZES[exporter]:
        feeds = {"tokens": np.random.default_rng(0).integers(0, 100, sizes)}
        require_close(model(feeds), in_float64(net, module, feeds))
