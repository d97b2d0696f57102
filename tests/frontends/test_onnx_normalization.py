"""Normalisations of ONNX models, against PyTorch, ONNX Runtime and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from one_node import feeds_of, model_of, ran, ran_all

import tilesmith as ts
from tilesmith import ops
from tilesmith.base.errors import GraphError
from tilesmith.frontends.open import load_onnx
from tilesmith.graph.graph import Graph

RNG = np.random.default_rng(3)


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def by_onnxruntime(model: Any, arrays: Any) -> list[Any]:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds_of(model, arrays))


def layer_norm(x: Any, first: int, epsilon: float) -> tuple[Any, Any, Any]:
    axes = tuple(range(first, x.ndim))
    wide = x.astype(np.float64)
    mean = wide.mean(axes, keepdims=True)
    scale = 1 / np.sqrt(wide.var(axes, keepdims=True) + epsilon)
    return (wide - mean) * scale, mean, scale


@pytest.mark.parametrize("p", [1, 2])
def test_lp_norm_of_one_element_is_its_sign(p: int) -> None:
    x = np.array([*range(1, 200), 1e30, 1e-30, 1e-42, 3e38], "float32")
    x = np.concatenate([x, -x]).reshape(-1, 1)
    got = ran(model_of("LpNormalization", {"x": x}, p=p), {"x": x})
    np.testing.assert_array_equal(got, np.sign(x))


@pytest.mark.parametrize("scale", [(4, 5), (5,), (4, 1), (1, 1, 1), ()], ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "none"])
def test_layer_norm_broadcasts_scale_and_bias(scale: tuple[int, ...], bias: bool) -> None:
    arrays = {"x": normal(3, 4, 5), "s": normal(*scale)}
    if bias:
        arrays["b"] = normal(*scale)
    got = ran(model_of("LayerNormalization", arrays, axis=1, epsilon=0.01), arrays)
    want = layer_norm(arrays["x"], 1, 0.01)[0] * arrays["s"] + arrays.get("b", 0)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("outputs", [("y", "m", "i"), ("y", "", "i"), ("y", "m")], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["float32", "float16"])
def test_layer_norm_gives_its_statistics(outputs: tuple[str, ...], dtype: Any) -> None:
    arrays = {"x": normal(3, 4, 5, dtype=dtype), "s": normal(4, 5, dtype=dtype)}
    types = (dtype, np.float32, np.float32)[: len(outputs)]
    model = model_of("LayerNormalization", arrays, outputs=outputs, types=types, axis=-2)
    y, mean, scale = layer_norm(arrays["x"], 1, 1e-5)
    want = {"y": y * arrays["s"], "m": mean, "i": scale}
    compiled = ts.compile_model(load_onnx(model))(feeds_of(model, arrays))
    for got in (ran_all(model, arrays), compiled):
        assert sorted(got) == sorted(x for x in outputs if x)
        for name, a in got.items():
            assert a.dtype == (dtype if name == "y" else np.float32)
            np.testing.assert_allclose(
                a, want[name], rtol=1e-5 if a.itemsize > 2 else 2e-3, atol=1e-5
            )


def test_a_layer_norm_is_one_node() -> None:
    arrays = {"x": normal(3, 4), "s": normal(4), "b": normal(4)}
    graph = load_onnx(model_of("LayerNormalization", arrays))
    assert isinstance(graph, Graph)
    assert [n.function for n in graph.nodes] == [ops.layer_norm]


@pytest.mark.parametrize("scale", [(4, 5), (5,), (1,)], ids=str)
def test_rms_norm_broadcasts_its_scale(scale: tuple[int, ...]) -> None:
    arrays = {"x": normal(3, 4, 5), "s": normal(*scale)}
    got = ran(model_of("RMSNormalization", arrays, axis=1, epsilon=0.1, opset=23), arrays)
    x = arrays["x"].astype(np.float64)
    want = x / np.sqrt((x * x).mean((1, 2), keepdims=True) + 0.1) * arrays["s"]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("spatial", [(), (5,), (3, 4), (2, 2, 3)], ids=str)
def test_group_norm_is_that_of_torch(groups: int, spatial: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is the peer of this test")
    arrays = {"x": normal(2, 6, *spatial), "s": normal(6), "b": normal(6)}
    model = model_of("GroupNormalization", arrays, num_groups=groups, opset=21)
    x, s, b = (torch.from_numpy(a) for a in arrays.values())
    want = torch.nn.functional.group_norm(x, groups, s, b).numpy()
    np.testing.assert_allclose(ran(model, arrays), want, rtol=1e-4, atol=1e-5)
    # Opset 18 has one number for each group.
    old = {"x": arrays["x"], "s": arrays["s"][:groups], "b": arrays["b"][:groups]}
    wide = [torch.from_numpy(np.repeat(old[n], 6 // groups)) for n in "sb"]
    want = torch.nn.functional.group_norm(x, groups, *wide).numpy()
    got = ran(model_of("GroupNormalization", old, num_groups=groups, opset=18), old)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("spatial", [(7,), (3, 4), (2, 2, 3)], ids=str)
def test_instance_norm_is_that_of_torch(spatial: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is the peer of this test")
    arrays = {"x": normal(2, 3, *spatial), "s": normal(3), "b": normal(3)}
    model = model_of("InstanceNormalization", arrays, epsilon=0.01)
    x, s, b = (torch.from_numpy(a) for a in arrays.values())
    want = torch.nn.functional.instance_norm(x, weight=s, bias=b, eps=0.01).numpy()
    np.testing.assert_allclose(ran(model, arrays), want, rtol=1e-4, atol=1e-5)


def test_group_norm_compiles() -> None:
    arrays = {"x": normal(2, 6, 5, 3), "s": normal(6), "b": normal(6)}
    model = model_of("GroupNormalization", arrays, ("s", "b"), num_groups=3, opset=21)
    got = ts.compile_model(load_onnx(model))(feeds_of(model, arrays))["y"]
    np.testing.assert_allclose(got, ran(model, arrays), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5), (2, 3, 4, 2)], ids=str)
@pytest.mark.parametrize("opset", [7, 9, 15])
def test_batch_norm(shape: tuple[int, ...], opset: int) -> None:
    arrays = {"x": normal(*shape), **{n: normal(3) for n in "sbm"}, "v": np.abs(normal(3))}
    model = model_of("BatchNormalization", arrays, epsilon=0.01, opset=opset)
    (want,) = by_onnxruntime(model, arrays)
    np.testing.assert_allclose(ran(model, arrays), want, rtol=1e-4, atol=1e-5)


def test_batch_norm_in_training_mode() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is the peer of this test")
    arrays = {"x": normal(4, 3, 5), **{n: normal(3) for n in "sbm"}, "v": np.abs(normal(3))}
    model = model_of(
        "BatchNormalization", arrays, outputs=("y", "m2", "v2"), opset=15, training_mode=1,
        momentum=0.75,
    )  # fmt: skip
    x, s, b, m, v = (torch.from_numpy(a.copy()) for a in arrays.values())
    want = torch.nn.functional.batch_norm(x, m, v, s, b, training=True).numpy()
    got = ran_all(model, arrays)
    np.testing.assert_allclose(got["y"], want, rtol=1e-4, atol=1e-5)
    wide = arrays["x"].astype(np.float64)
    for name, old, new in (("m2", "m", wide.mean((0, 2))), ("v2", "v", wide.var((0, 2)))):
        np.testing.assert_allclose(got[name], arrays[old] * 0.75 + new * 0.25, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize("beta", [0.6, 0.75])
def test_lrn_is_that_of_onnxruntime(size: int, beta: float) -> None:
    arrays = {"x": normal(2, 7, 3, 4)}
    model = model_of("LRN", arrays, size=size, alpha=0.3, beta=beta, bias=1.5)
    (want,) = by_onnxruntime(model, arrays)
    np.testing.assert_allclose(ran(model, arrays), want, rtol=1e-5)


def test_lrn_of_an_even_size_reaches_further_up() -> None:
    arrays = {"x": np.eye(4, dtype=np.float32)[None, :, :]}
    got = ran(model_of("LRN", arrays, size=2, alpha=2.0, beta=1.0, bias=0.0), arrays)
    # Channel c sums the squares of c and c + 1; where both are 0, 0 over 0 is no number.
    assert np.isnan(got[0, 0, 2])
    assert got[0, 0, 0] == 1
    assert got[0, 0, 1] == 0


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_lp_norm_of_zeros_is_0(p: int, axis: int) -> None:
    x = normal(3, 4, 5)
    x[:, 1, 2] = x[1, :, 3] = x[2, 2] = 0
    got = ran(model_of("LpNormalization", {"x": x}, axis=axis, p=p), {"x": x})
    size = np.linalg.norm(x.astype(np.float64), p, axis, keepdims=True)
    np.testing.assert_allclose(got, x / np.where(size == 0, 1, size), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("axes", [None, (1,), (0, -1)], ids=str)
def test_mean_variance_normalization(axes: tuple[int, ...] | None) -> None:
    x = normal(2, 3, 4, 5)
    x[:, 0] = 7
    given = {} if axes is None else {"axes": axes}
    got = ran(model_of("MeanVarianceNormalization", {"x": x}, opset=13, **given), {"x": x})
    over, wide = axes or (0, 2, 3), x.astype(np.float64)
    want = (wide - wide.mean(over, keepdims=True)) / (wide.std(over, keepdims=True) + 1e-9)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


X, V = normal(2, 6, 3), normal(6)
WRONG = [
    ("GroupNormalization", {"x": X, "s": V, "b": V}, {"num_groups": 4}, "4 groups"),
    ("GroupNormalization", {"x": X, "s": V, "b": V}, {}, "num_groups"),
    ("GroupNormalization", {"x": X, "s": V, "b": V}, {"num_groups": 0}, "num_groups"),
    ("InstanceNormalization", {"x": X, "s": normal(5), "b": V}, {}, "gamma"),
    ("LayerNormalization", {"x": X, "s": V}, {}, "does not broadcast"),
    ("LayerNormalization", {"x": X, "s": normal(3)}, {"axis": 3}, "axis 3 does not exist"),
    ("LRN", {"x": X}, {}, "'size' is missing"),
    ("LRN", {"x": X}, {"size": 0}, "at least 1"),
    ("LpNormalization", {"x": X}, {"p": 3}, "1 or 2"),
    ("MeanVarianceNormalization", {"x": X}, {"axes": (5,)}, "axis 5 does not exist"),
    ("BatchNormalization", {"x": X, "s": V, "b": V, "m": V, "v": normal(3)}, {}, "var"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "arrays", "attributes", "why"), WRONG, ids=lambda x: str(x)[:12])
def test_what_is_wrong_is_named(op: str, arrays: Any, attributes: Any, why: str) -> None:
    with pytest.raises(GraphError, match=f"{op} 'n'.*{why}"):
        load_onnx(model_of(op, arrays, opset=22, **attributes))
