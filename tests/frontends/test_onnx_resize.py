"""ONNX Resize and Upsample: modes in combination, against ONNX Runtime, NumPy and PyTorch."""

import numpy as np
import pytest
from one_node import feeds_of, model_of, ran

from tilesmith.base.errors import GraphError
from tilesmith.frontends.open import load_onnx

rng = np.random.default_rng(5)
EMPTY = np.array([], np.float32)


@pytest.fixture(scope="module")
def runtime():
    return pytest.importorskip("onnxruntime", reason="ONNX Runtime is the peer of this test")


def _image(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def _resize(x, scales=None, sizes=None, roi=None, opset=18, **attributes):
    arrays = {"x": x}
    arrays["roi" if roi is not None else "_roi"] = roi
    arrays["scales" if scales is not None else "_scales"] = (
        None if scales is None else np.array(scales, np.float32)
    )
    if sizes is not None:
        arrays["sizes"] = np.array(sizes, np.int64)
    fixed = tuple(n for n in arrays if n != "x" and not n.startswith("_"))
    return model_of("Resize", arrays, fixed, opset=opset, **attributes), arrays


def _agree(runtime, model, arrays):
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    want = session.run(None, feeds_of(model, arrays))[0]
    got = ran(model, arrays)
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("where", ["half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize("sizes", [(1, 2, 10, 3), (1, 2, 4, 14), (1, 2, 5, 9)])
def test_nearest(runtime, rounding, where, sizes):
    model, arrays = _resize(
        _image(1, 2, 5, 7), sizes=sizes, mode="nearest", nearest_mode=rounding,
        coordinate_transformation_mode=where,
    )  # fmt: skip
    _agree(runtime, model, arrays)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize(
    "where", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
)
@pytest.mark.parametrize("sizes", [(1, 2, 10, 3), (1, 2, 1, 14), (1, 2, 5, 9)])
def test_between_elements(runtime, mode, where, sizes):
    model, arrays = _resize(
        _image(1, 2, 5, 7), sizes=sizes, mode=mode, coordinate_transformation_mode=where
    )
    _agree(runtime, model, arrays)


def test_cubic_without_what_lies_outside(runtime):
    model, arrays = _resize(
        _image(1, 1, 6, 5), scales=[1, 1, 1.7, 0.6], mode="cubic", exclude_outside=1,
        cubic_coeff_a=-0.5,
    )  # fmt: skip
    _agree(runtime, model, arrays)


@pytest.mark.parametrize(("mode", "peer"), [("linear", "bilinear"), ("cubic", "bicubic")])
def test_smaller_without_aliases(mode, peer):
    torch = pytest.importorskip("torch", reason="PyTorch is the peer of this test")
    x = _image(1, 2, 17, 12)
    # PyTorch leaves out what lies outside, and has another cubic here.
    model, arrays = _resize(
        x, sizes=(1, 2, 5, 4), mode=mode, antialias=1, exclude_outside=1, cubic_coeff_a=-0.5
    )
    want = torch.nn.functional.interpolate(
        torch.from_numpy(x), (5, 4), mode=peer, antialias=True
    ).numpy()
    np.testing.assert_allclose(ran(model, arrays), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rank", [3, 5])
def test_other_ranks(runtime, rank):
    x = _image(*(1, 2, 4, 3, 5)[:rank])
    scales = (1, 1, 2, 1.5, 0.7)[:rank]
    model, arrays = _resize(x, scales=scales, mode="linear")
    _agree(runtime, model, arrays)


def test_a_crop(runtime):
    model, arrays = _resize(
        _image(1, 1, 6, 5), sizes=(1, 1, 4, 7), mode="linear", extrapolation_value=9.0,
        roi=np.array([0, 0, 0.3, -0.2, 1, 1, 0.9, 1.1], np.float32),
        coordinate_transformation_mode="tf_crop_and_resize",
    )  # fmt: skip
    _agree(runtime, model, arrays)


def test_images_of_bytes_are_rounded():
    x = np.array([[[[0, 255, 10, 12]]]], np.uint8)
    model, arrays = _resize(x, sizes=(1, 1, 1, 8), mode="linear")
    got = ran(model, arrays)
    assert got.dtype == np.uint8
    assert got.reshape(-1).tolist() == [0, 64, 191, 194, 71, 10, 12, 12]


def test_scales_that_double_are_read_without_a_table():
    model, _ = _resize(_image(1, 2, 3, 4), scales=[1, 1, 2, 3], mode="nearest")
    graph = load_onnx(model)
    (node,) = graph.nodes
    assert node.op == "resize_nearest"
    assert [(s.axis, s.times, s.plus, s.per) for s in node.setting("steps")] == [
        (2, 1, 0, 2),
        (3, 1, 0, 3),
    ]
    assert not graph.constants


def test_scales_at_run_time():
    x = _image(1, 1, 2, 2)
    arrays = {"x": x, "_roi": None, "scales": np.array([1, 1, 2, 2], np.float32)}
    got = ran(model_of("Resize", arrays, opset=13, mode="nearest"), arrays)
    np.testing.assert_array_equal(got, x.repeat(2, 2).repeat(2, 3))


def test_nothing_to_do():
    x = _image(1, 2, 3, 4)
    model, arrays = _resize(x, scales=[1, 1, 1, 1], mode="cubic")
    np.testing.assert_array_equal(ran(model, arrays), x)


@pytest.mark.parametrize(("op", "opset"), [("Upsample", 7), ("Upsample", 9), ("Resize", 10)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_old_forms(runtime, op, opset, mode):
    arrays = {"x": _image(1, 2, 3, 4)}
    attributes = {"mode": mode}
    if opset == 7:
        attributes["scales"] = [1.0, 1.0, 2.0, 1.5]
    else:
        arrays["scales"] = np.array([1, 1, 2, 1.5], np.float32)
    _agree(runtime, model_of(op, arrays, tuple(arrays)[1:], opset=opset, **attributes), arrays)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scales": [1, 1, 2]}, "3 scales for 4 axes"),
        ({"scales": [1, 1, 2, 0]}, "scale of dimension 3 is 0.0; it must be above 0"),
        ({"sizes": [1, 1, 2]}, "there must be one of at least 0 for each axis"),
        ({"scales": [1, 1, 2, 2], "mode": "best"}, "'mode' is 'best'; it must be nearest"),
        ({"scales": [2.0], "axes": [7]}, "axis 7 does not exist"),
        ({}, "input 2 is missing"),
    ],
)
def test_what_it_refuses(settings, message):
    model, arrays = _resize(_image(1, 1, 2, 3), **settings)
    with pytest.raises(GraphError, match=message):
        ran(model, arrays)
