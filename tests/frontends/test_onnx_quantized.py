"""Quantised operators of ONNX models: exactly what ONNX Runtime gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from one_node import feeds_of, model_of, ran, ran_all

from tilesmith.base.errors import GraphError
from tilesmith.frontends.open import load_onnx
from tilesmith.graph.graph import Graph

RNG = np.random.default_rng(5)
F = np.float32


def small(dtype: Any, *shape: int) -> Any:
    kind = np.iinfo(dtype)
    return RNG.integers(kind.min, kind.max + 1, shape).astype(dtype)


def same_as_runtime(model: Any, arrays: dict[str, Any]) -> None:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    want = session.run(None, feeds_of(model, arrays))
    got = list(ran_all(model, arrays).values())
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_array_equal(g, w)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
@pytest.mark.parametrize("shape", [(), (3,)], ids=["one", "axis"])
def test_quantize_rounds_halves_to_even_and_saturates(dtype: Any, shape: Any) -> None:
    x = np.concatenate([np.arange(-6, 6) * 0.25, [1e30, -1e30, np.inf, -np.inf, 40000, -4e5]])
    arrays = {
        "x": np.tile(x.astype(F), (2, 3, 1)),
        "s": np.full(shape, 0.5, F),
        "z": small(dtype, *shape),
    }
    same_as_runtime(model_of("QuantizeLinear", arrays, opset=21, types=(dtype,)), arrays)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16])
@pytest.mark.parametrize("block", [1, 2, 3])
def test_blocks_along_an_axis(dtype: Any, block: int) -> None:
    count = -(-5 // block)
    scale = RNG.random((3, count, 2)).astype(F) + F(0.1)
    zero = small(dtype, 3, count, 2)
    arrays = {"x": RNG.standard_normal((3, 5, 2)).astype(F) * 9, "s": scale, "z": zero}
    spread = [np.repeat(t, block, axis=1)[:, :5] for t in (scale, zero)]
    model = model_of("QuantizeLinear", arrays, opset=21, axis=-2, block_size=block, types=(dtype,))
    kind = np.iinfo(dtype)
    whole = np.rint(arrays["x"] / spread[0]).astype(np.int64) + spread[1]
    np.testing.assert_array_equal(ran(model, arrays), np.clip(whole, kind.min, kind.max))
    back = {"x": small(dtype, 3, 5, 2), "s": scale, "z": zero}
    model = model_of("DequantizeLinear", back, opset=21, axis=1, block_size=block, types=(F,))
    want = (back["x"].astype(np.int32) - spread[1]).astype(F) * spread[0]
    np.testing.assert_array_equal(ran(model, back), want)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32])
@pytest.mark.parametrize("scale", [F, np.float16])
def test_dequantize_along_an_axis(dtype: Any, scale: Any) -> None:
    arrays = {"x": small(np.int8 if dtype is np.int32 else dtype, 2, 3, 4).astype(dtype),
              "s": RNG.random(3).astype(scale), "z": np.zeros(3, dtype)}  # fmt: skip
    if dtype is not np.int32:
        arrays["z"] = small(dtype, 3)
    same_as_runtime(model_of("DequantizeLinear", arrays, opset=19, types=(scale,)), arrays)


@pytest.mark.parametrize("shape", [(7,), (3, 4), ()])
def test_dynamic_quantize(shape: Any) -> None:
    for shift in (0, 5, -5):
        arrays = {"x": np.asarray(RNG.standard_normal(shape) + shift).astype(F)}
        model = model_of("DynamicQuantizeLinear", arrays, outputs=("y", "s", "z"),
                         types=(np.uint8, F, np.uint8))  # fmt: skip
        same_as_runtime(model, arrays)


@pytest.mark.parametrize("fixed", [(), ("b", "zb"), ("b", "za", "zb")], ids=str)
@pytest.mark.parametrize("a_type", [np.uint8, np.int8])
@pytest.mark.parametrize("b_type", [np.uint8, np.int8])
@pytest.mark.parametrize("zb", [(), (4,)], ids=["one", "columns"])
def test_integer_products(fixed: Any, a_type: Any, b_type: Any, zb: Any) -> None:
    arrays = {"a": small(a_type, 2, 3, 5), "b": small(b_type, 5, 4),
              "za": small(a_type), "zb": small(b_type, *zb)}  # fmt: skip
    model = model_of("MatMulInteger", arrays, fixed, types=(np.int32,))
    a, b, za, zb = (arrays[n].astype(np.int64) for n in ("a", "b", "za", "zb"))
    np.testing.assert_array_equal(ran(model, arrays), (a - za) @ (b - zb))


def test_a_zero_point_for_each_row() -> None:
    arrays = {"a": small(np.uint8, 3, 5), "b": small(np.int8, 5, 4), "za": small(np.uint8, 3)}
    want = (arrays["a"].astype(int) - arrays["za"][:, None]) @ arrays["b"].astype(int)
    for fixed in ((), ("b",), ("b", "za")):
        model = model_of("MatMulInteger", arrays, fixed, types=(np.int32,))
        np.testing.assert_array_equal(ran(model, arrays), want)


def test_constant_weights_leave_a_product_of_small_integers() -> None:
    arrays = {"a": small(np.uint8, 3, 5), "b": small(np.int8, 5, 4),
              "za": np.uint8(7).reshape(()), "zb": np.zeros((), np.int8)}  # fmt: skip
    graph = load_onnx(model_of("MatMulInteger", arrays, ("b", "za", "zb"), types=(np.int32,)))
    assert isinstance(graph, Graph)
    assert [n.op for n in graph.nodes] == ["matmul", "bias_add"]
    assert [graph.values[x].dtype.name for x in graph.nodes[0].inputs] == ["uint8", "int8"]


@pytest.mark.parametrize("fixed", [(), ("b", "sb", "zb")], ids=["given", "constant"])
@pytest.mark.parametrize("columns", [(), (4,)], ids=["one", "columns"])
def test_qlinear_matmul(fixed: Any, columns: Any) -> None:
    arrays = {
        "a": small(np.uint8, 2, 3, 9), "sa": F(0.03).reshape(()), "za": small(np.uint8),
        "b": small(np.int8, 9, 4), "sb": (RNG.random(columns) * 0.1).astype(F).reshape(columns),
        "zb": np.zeros(columns, np.int8), "sy": F(0.11).reshape(()), "zy": small(np.uint8),
    }  # fmt: skip
    same_as_runtime(model_of("QLinearMatMul", arrays, fixed, types=(np.uint8,)), arrays)


@pytest.mark.parametrize("fixed", [(), ("w", "zw")], ids=["given", "constant"])
@pytest.mark.parametrize("zw", [(), (6,)], ids=["one", "channels"])
def test_conv_integer_pads_with_the_zero_point(fixed: Any, zw: Any) -> None:
    arrays = {"x": small(np.uint8, 1, 4, 6, 5), "w": small(np.uint8, 6, 2, 3, 2),
              "zx": small(np.uint8), "zw": small(np.uint8, *zw)}  # fmt: skip
    settings = {"pads": (1, 0, 2, 1), "strides": (2, 1), "dilations": (1, 2), "group": 2}
    model = model_of("ConvInteger", arrays, fixed, types=(np.int32,), **settings)
    floats = {"x": arrays["x"].astype(F) - arrays["zx"].astype(F),
              "w": arrays["w"].astype(F) - arrays["zw"].astype(F).reshape(-1, 1, 1, 1)}  # fmt: skip
    plain = onnxruntime.InferenceSession(model_of("Conv", floats, **settings).SerializeToString())
    np.testing.assert_array_equal(ran(model, arrays), plain.run(None, floats)[0].astype(np.int32))


@pytest.mark.parametrize("fixed", [(), ("w", "zw"), ("w", "zx", "zw")], ids=str)
@pytest.mark.parametrize("zw", [(), (6,)], ids=["one", "channels"])
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 0, 2, 1)], ids=str)
def test_zero_points_of_weights_leave_a_convolution_of_small_integers(
    fixed: Any, zw: Any, pads: Any
) -> None:
    """What they add is a sum over each window."""
    arrays = {"x": small(np.uint8, 2, 4, 6, 5), "w": small(np.uint8, 6, 4, 3, 2),
              "zx": small(np.uint8), "zw": small(np.uint8, *zw)}  # fmt: skip
    arrays["w"].flat[:2] = 0, 255  # so that no zero point makes all fit into int8
    arrays["zw"][...] = 100
    settings = {"pads": pads, "strides": (2, 1), "dilations": (1, 2)}
    model = model_of("ConvInteger", arrays, fixed, types=(np.int32,), **settings)
    graph = load_onnx(model)
    assert isinstance(graph, Graph)
    conv = next(n for n in graph.nodes if n.op == "conv2d")
    assert [graph.values[x].dtype.name for x in conv.inputs] == ["uint8", "uint8"]
    floats = {"x": arrays["x"].astype(F) - arrays["zx"].astype(F),
              "w": arrays["w"].astype(F) - arrays["zw"].astype(F).reshape(-1, 1, 1, 1)}  # fmt: skip
    plain = onnxruntime.InferenceSession(model_of("Conv", floats, **settings).SerializeToString())
    np.testing.assert_array_equal(ran(model, arrays), plain.run(None, floats)[0].astype(np.int32))


@pytest.mark.parametrize(("zb", "kind"), [(128, "int8"), (100, "uint8")])
def test_weights_and_their_zero_point_are_one_constant_where_it_fits(zb: int, kind: str) -> None:
    arrays = {"a": small(np.uint8, 3, 5), "b": small(np.uint8, 5, 4), "za": small(np.uint8),
              "zb": np.uint8(zb).reshape(())}  # fmt: skip
    arrays["b"].flat[:2] = 0, 255
    model = model_of("MatMulInteger", arrays, ("b", "zb"), types=(np.int32,))
    graph = load_onnx(model)
    assert isinstance(graph, Graph)
    product = next(n for n in graph.nodes if n.op == "matmul")
    assert [graph.values[x].dtype.name for x in product.inputs] == ["uint8", kind]
    a, b, za = (arrays[n].astype(np.int64) for n in ("a", "b", "za"))
    np.testing.assert_array_equal(ran(model, arrays), (a - za) @ (b - zb))


@pytest.mark.parametrize("fixed", [("w", "sw", "zw", "b"), ()], ids=["constant", "given"])
@pytest.mark.parametrize("x_type", [np.uint8, np.int8])
def test_qlinear_conv(fixed: Any, x_type: Any) -> None:
    arrays = {
        "x": small(x_type, 2, 3, 5, 5), "sx": F(0.05).reshape(()), "zx": small(x_type),
        "w": small(np.int8, 4, 3, 3, 3), "sw": (RNG.random(4) * 0.1 + 0.01).astype(F),
        "zw": np.zeros(4, np.int8), "sy": F(0.9).reshape(()), "zy": small(x_type),
        "b": RNG.integers(-900, 900, 4).astype(np.int32),
    }  # fmt: skip
    model = model_of("QLinearConv", arrays, fixed, types=(x_type,), auto_pad="SAME_UPPER")
    same_as_runtime(model, arrays)


@pytest.mark.parametrize(
    ("op", "arrays", "settings", "words"),
    [
        ("QuantizeLinear", {"x": np.ones((2, 3), F), "s": np.ones(2, F)}, {}, "axis 1 of X is 3"),
        ("QuantizeLinear", {"x": np.ones((2, 3), F), "s": np.ones(2, F)}, {"axis": 2}, "axis 2"),
        ("QuantizeLinear", {"x": np.ones((2, 3), F), "s": np.ones((2, 3), F)}, {"block_size": 2},
         "in blocks of 2"),
        ("DequantizeLinear", {"x": small(np.int8, 3), "s": F(1).reshape(()),
                              "z": np.zeros((), np.uint8)}, {}, "not of the type"),
        ("MatMulInteger", {"a": np.ones((2, 3), F), "b": np.ones((3, 2), F)}, {}, "int8 or uint8"),
        ("ConvInteger", {"x": small(np.int8, 1, 2, 3, 3), "w": small(np.int8, 2, 2, 3)}, {},
         "must be of rank 4"),
    ],
)  # fmt: skip
def test_errors_name_the_node(op: str, arrays: Any, settings: Any, words: str) -> None:
    with pytest.raises(GraphError, match=words) as caught:
        load_onnx(model_of(op, arrays, opset=21, **settings))
    assert f"{op} 'n'" in str(caught.value)
