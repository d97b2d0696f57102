"""The networks of the benchmarks: sane activations, both exporters, outputs as PyTorch's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilesmith as ts

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from tilesmith_contest.networks.catalogue import (  # noqa: E402
    NETWORKS,
    in_float64,
    network,
    run,
    use_fused_kernels,
)
from tilesmith_contest.networks.export import export, save_program  # noqa: E402


def outputs_of(path: Path, feeds: dict[str, Any]) -> dict[str, Any]:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def require_close(got: dict[str, Any], want: dict[str, Any]) -> None:
    assert list(got) == list(want)
    for name, a in want.items():
        assert got[name].shape == a.shape
        np.testing.assert_allclose(got[name], a, rtol=0, atol=1e-5 * np.abs(a).max())


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("seed", [0, 1])
def test_activations_stay_in_range_and_depend_on_the_input(name: str, seed: int) -> None:
    net = network(name, small=True)
    module = net.module(seed)
    seen: list[float] = []
    for layer in module.modules():
        if not list(layer.children()):
            layer.register_forward_hook(lambda _m, _i, y: seen.append(float(y.std())))
    one, two = (run(net, module, net.inputs(2, s)) for s in (0, 1))
    assert min(seen) > 0.02
    assert max(seen) < 20
    for key, a in one.items():
        assert np.abs(a - two[key]).max() > 0.05 * np.abs(a).max()
    require_close(one, in_float64(net, module, net.inputs(2, 0)))


def test_weights_depend_on_the_seed_only() -> None:
    net = network("resnet50", small=True)
    a, b, c = (net.module(s).state_dict() for s in (0, 0, 1))
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert not torch.equal(a["classifier.weight"], c["classifier.weight"])
    norms = [k for k in a if k.endswith("running_var")]
    assert norms
    assert all(float(a[k].std()) > 0.05 for k in norms)


# The dynamo exporter takes seconds for each, so it is tried on few.
EXPORTS = [*((name, "torchscript") for name in NETWORKS), ("resnet50", "dynamo")]
OPEN_EXPORTS = [*((name, "torchscript") for name in NETWORKS), ("bert-base", "dynamo")]


@pytest.mark.parametrize(("name", "exporter"), EXPORTS)
def test_exported_files_compute_the_same(name: str, exporter: Any, tmp_path: Path) -> None:
    if exporter == "dynamo":
        pytest.importorskip("onnxscript")
    net = network(name, small=True)
    path = tmp_path / "net.onnx"
    export(name, path, batch=2, small=True, exporter=exporter)
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]
    model = onnx.load(path)
    onnx.checker.check_model(model)
    assert model.opset_import[0].version >= 17
    feeds = net.inputs(2)
    require_close(outputs_of(path, feeds), run(net, net.module(), feeds))


@pytest.mark.parametrize(("name", "exporter"), OPEN_EXPORTS)
def test_open_dimensions_take_other_sizes(name: str, exporter: Any, tmp_path: Path) -> None:
    if exporter == "dynamo":
        pytest.importorskip("onnxscript")
    net = network(name, small=True)
    path = tmp_path / "net.onnx"
    export(name, path, dynamic=net.can_be_open, small=True, exporter=exporter)
    (taken,) = onnx.load(path).graph.input
    dims = [d.dim_param or d.dim_value for d in taken.type.tensor_type.shape.dim]
    wanted = ["batch", *(n if n in net.can_be_open else s for n, s in net.dims.items())]
    assert dims == wanted
    feeds = {k: a[..., : a.shape[-1] - 4 * (a.shape[-1] > 4)] for k, a in net.inputs(3).items()}
    if "width" not in net.can_be_open and name != "bert-base":
        feeds = net.inputs(3)
    require_close(outputs_of(path, feeds), run(net, net.module(), feeds))


def test_pytorch_reads_its_program_back(tmp_path: Path) -> None:
    net = network("bert-base", small=True)
    save_program("bert-base", tmp_path / "net.pt2", small=True)
    feeds = net.inputs()
    again = torch.export.load(tmp_path / "net.pt2").module()
    require_close(run(net, again, feeds), run(net, net.module(), feeds))
    require_close(run(net, use_fused_kernels(net.module()), feeds), run(net, net.module(), feeds))


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ts.ArgumentError, match="unknown network 'vgg'; known are resnet50"):
        export("vgg", tmp_path / "x.onnx")
    with pytest.raises(ts.ArgumentError, match="no open dimension 'sequence'; it can have batch"):
        export("dcgan", tmp_path / "x.onnx", dynamic=["sequence"])


def test_parameters_are_as_published() -> None:
    """Counts of the papers' own implementations; nothing is allocated for it."""
    counts = {}
    for name, net in NETWORKS.items():
        with torch.device("meta"):
            counts[name] = sum(p.numel() for p in net.build().parameters())
    assert counts["resnet50"] == 25_557_032
    assert counts["mobilenet-v2"] == 3_504_872
    assert counts["bert-base"] == 109_482_240
    assert counts["dcgan"] == 12_658_432
