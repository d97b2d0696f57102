"""Operators that run on the host honour all that a node may say, or the node is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from one_node import feeds_of, model_of, ran, ran_all
from onnx import defs, helper

import tilesmith.frontends.onnx.signal as signal_importers
from tilesmith.base.errors import GraphError
from tilesmith.frontends.onnx.call import OnHost
from tilesmith.frontends.onnx.host import host_step
from tilesmith.frontends.onnx.model import OnnxNode
from tilesmith.frontends.onnx.operators import IMPORTERS
from tilesmith.frontends.open import load_onnx

RNG = np.random.default_rng(17)
I64 = np.int64


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def by_runtime(model: Any, arrays: Any) -> list[Any]:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return list(session.run(None, feeds_of(model, arrays)))


# Importers send these to the reference operator for some sizes or settings.
SOMETIMES = [
    "BitCast", "Compress", "Conv", "ConvInteger", "ConvTranspose", "DFT", "DequantizeLinear",
    "Det", "LinearAttention", "QLinearConv", "QuantizeLinear", "RoiAlign",
]  # fmt: skip


NEEDED: dict[str, Any] = {"to": 1, "shape": [2], "q_num_heads": 1, "kv_num_heads": 1}


@pytest.mark.parametrize(
    "op", [*SOMETIMES, *(n for n, importer in IMPORTERS.items() if isinstance(importer, OnHost))]
)
def test_the_package_has_what_is_left_to_it(op: str) -> None:
    schema = defs.get_schema(op)
    needed = {n: NEEDED[n] for n, a in schema.attributes.items() if a.required}
    proto = helper.make_node(op, ["x"] * schema.min_input, ["y"], **needed)
    host_step(OnnxNode("n", op, "", schema.since_version, tuple(proto.input), ("y",), {}, proto),
              "a test")  # fmt: skip


# Unique
@pytest.mark.parametrize("is_sorted", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_unique(axis: int | None, is_sorted: int) -> None:
    arrays = {"x": np.array([[3, 1, 3], [2, 2, 2], [3, 1, 3], [0, 5, 0]], np.float32)}
    settings = {"sorted": is_sorted} | ({} if axis is None else {"axis": axis})
    model = model_of("Unique", arrays, outputs=("y", "first", "which", "counts"),
                     types=(np.float32, I64, I64, I64), **settings)  # fmt: skip
    for got, want in zip(ran_all(model, arrays).values(), by_runtime(model, arrays), strict=True):
        np.testing.assert_array_equal(got, want)


# NonMaxSuppression
def boxes() -> dict[str, Any]:
    """Boxes that overlap much, with their corners in any order."""
    at, size = RNG.random((2, 30, 2)), RNG.random((2, 30, 2)) * 0.5 + 0.1
    flip = RNG.random((2, 30, 1)) < 0.3
    corners = np.concatenate([at, at + size], 2)
    corners = np.where(flip, corners[..., [2, 3, 0, 1]], corners)
    scores = np.round(RNG.random((2, 3, 30)), 1)  # some are equal
    return {"b": corners.astype(np.float32), "s": scores.astype(np.float32)}


LIMITS = {
    "_m": None, "m": np.array([7]), "_i": None, "i": np.array([0.4], np.float32),
    "t": np.array([0.35], np.float32),
}  # fmt: skip


@pytest.mark.parametrize(
    "given", [(), ("m",), ("m", "i"), ("m", "_i", "t"), ("m", "i", "t"), ("_m", "i", "t")], ids=str
)
@pytest.mark.parametrize("by_center", [0, 1])
def test_suppression_of_boxes(given: tuple[str, ...], by_center: int) -> None:
    arrays = boxes() | {name: LIMITS[name] for name in given}
    model = model_of("NonMaxSuppression", arrays, types=(I64,), center_point_box=by_center)
    (want,) = by_runtime(model, arrays)
    assert (len(want) > 0) == ("m" in given)
    np.testing.assert_array_equal(ran(model, arrays), want)


def test_boxes_and_scores_must_fit() -> None:
    arrays = boxes()
    arrays["s"] = arrays["s"][:, :, 1:]
    with pytest.raises(GraphError, match=r"NonMaxSuppression 'n'.*must be"):
        load_onnx(model_of("NonMaxSuppression", arrays, types=(I64,)))


# random numbers
def test_dropout_of_half_if_nothing_is_said() -> None:
    arrays = {"x": np.full(4000, 3, np.float16), "_r": None, "t": np.array(True)}
    model = model_of("Dropout", arrays, ("t",), outputs=("y", "m"), types=(np.float16, bool))
    y, kept = ran_all(model, arrays).values()
    assert y.dtype == np.float16
    np.testing.assert_array_equal(y, np.where(kept, 6, 0))
    assert 0.45 < kept.mean() < 0.55


def test_classes_are_drawn_by_their_probability() -> None:
    p = np.array([[0.7, 0.2, 0.1], [0.05, 0.05, 0.9]])
    arrays = {"x": np.log(p).astype(np.float32)}
    settings = {"sample_size": 4000, "dtype": 7, "seed": 3.0}
    model = model_of("Multinomial", arrays, types=(I64,), **settings)
    y = ran(model, arrays)
    assert y.dtype == I64
    assert y.shape == (2, 4000)
    shares = np.stack([(y == c).mean(1) for c in range(3)], 1)
    np.testing.assert_allclose(shares, p, atol=0.04)
    np.testing.assert_array_equal(ran(model, arrays), y)  # of one seed


# transforms that are too long for a table
@pytest.mark.parametrize("shape", [(2, 32), (2, 32, 1), (2, 32, 2)])
@pytest.mark.parametrize("has_window", [True, False])
def test_frames_of_a_signal(shape: Any, has_window: bool, monkeypatch: Any) -> None:
    window = {"w": normal(10)} if has_window else {"_w": None}
    arrays = {"x": normal(*shape), "s": np.array(3), **window, "l": np.array(10)}
    fixed = tuple(n for n in ("s", "w", "l") if n in arrays)
    model = model_of("STFT", arrays, fixed, onesided=int(shape[-1] != 2))
    want = ran(model, arrays)
    monkeypatch.setattr(signal_importers, "_MAX_TABLE", 0)
    np.testing.assert_allclose(ran(model, arrays), want, rtol=1e-5, atol=1e-5)


# more than three spatial dimensions
X4 = normal(2, 4, 2, 3, 2, 2)


def test_convolutions_in_four_dimensions() -> None:
    arrays = {"x": X4, "w": normal(6, 2, 1, 2, 1, 1)}
    y = ran(model_of("Conv", arrays, group=2, pads=[0, 1, 0, 0, 0, 0, 0, 0]), arrays)
    padded = np.pad(X4, [(0, 0), (0, 0), (0, 0), (1, 0), (0, 0), (0, 0)])
    pairs = np.stack([padded[:, :, :, :-1], padded[:, :, :, 1:]]).reshape(2, 2, 2, 2, 2, 3, 2, 2)
    weights = arrays["w"].reshape(2, 3, 2, 2)
    want = np.einsum("kngchijl,gock->ngohijl", pairs, weights).reshape(2, 6, 2, 3, 2, 2)
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "change", "settings"),
    [
        ("ConvTranspose", {}, {"group": 2}),
        ("ConvTranspose", {}, {"output_shape": [3, 4, 3, 3]}),
        ("ConvTranspose", {}, {"auto_pad": "SAME_LOWER"}),
        ("ConvInteger", {"x": X4.astype(np.uint8), "w": np.ones((4, 4, 1, 1, 1, 1), np.uint8),
                         "_z": None, "z": np.ones(4, np.uint8)}, {}),
    ],
)  # fmt: skip
def test_what_the_package_does_wrong_is_refused(op: str, change: Any, settings: Any) -> None:
    arrays = {"x": X4, "w": normal(4, 4, 2, 2, 2, 2)} | change
    with pytest.raises(GraphError, match=rf"{op} 'n': its input has 4 spatial dimensions"):
        load_onnx(model_of(op, arrays, **settings))


def test_an_attribute_that_the_package_does_not_heed() -> None:
    arrays = {"x": normal(3, 2)}
    model = model_of("TreeEnsemble", arrays, domain="ai.onnx.ml", opset=5, post_transform=1)
    model.opset_import.append(helper.make_opsetid("", 17))
    with pytest.raises(GraphError, match=r"TreeEnsemble 'n' has post_transform=1"):
        load_onnx(model)
