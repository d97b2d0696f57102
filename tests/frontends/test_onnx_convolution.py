"""ONNX convolutions and pooling: what its own cases do not cover, against ONNX Runtime."""

import numpy as np
import pytest
from one_node import feeds_of, model_of, ran, ran_all

from tilesmith.base.errors import GraphError

rng = np.random.default_rng(3)


@pytest.fixture(scope="module")
def runtime():
    return pytest.importorskip("onnxruntime", reason="ONNX Runtime is the peer of this test")


def _floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def _agree(runtime, model, arrays):
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    want = session.run(None, feeds_of(model, arrays))
    got = list(ran_all(model, arrays).values())
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 3, 9), (4, 3, 3), {"auto_pad": "SAME_LOWER", "strides": [2]}),
        ((1, 4, 7, 6), (6, 2, 3, 2), {"group": 2, "dilations": [2, 1], "pads": [1, 0, 2, 1]}),
        ((1, 4, 7, 6), (8, 1, 3, 3), {"group": 4, "auto_pad": "SAME_UPPER", "strides": [2, 3]}),
        ((1, 4, 7, 6), (4, 1, 3, 3), {"group": 4, "auto_pad": "VALID"}),
        ((1, 2, 4, 5, 6), (3, 2, 2, 3, 1), {"pads": [1, 0, 0, 0, 2, 0], "kernel_shape": [2, 3, 1]}),
    ],
)
def test_conv(runtime, x, w, attributes):
    arrays = {"x": _floats(*x), "w": _floats(*w), "b": _floats(w[0])}
    _agree(runtime, model_of("Conv", arrays, ("w", "b"), **attributes), arrays)


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 3, 5), (3, 2, 4), {"strides": [2], "pads": [1, 0]}),
        ((1, 4, 3, 4), (4, 2, 3, 3), {"group": 2, "strides": [2, 3], "output_padding": [1, 2]}),
        ((1, 2, 3, 4), (2, 3, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        ((1, 2, 3, 4), (2, 3, 4, 3), {"strides": [3, 2], "auto_pad": "SAME_LOWER"}),
        ((1, 2, 3, 4), (2, 3, 3, 3), {"strides": [2, 2], "output_shape": [6, 9]}),
        ((1, 2, 3, 4), (2, 3, 3, 3), {"dilations": [2, 2], "pads": [1, 2, 2, 1]}),
        ((1, 2, 3, 4), (2, 3, 3, 1), {"strides": [2, 2], "pads": [1, 0, 1, 0]}),
        ((1, 2, 3, 4), (2, 3, 5, 4), {"strides": [3, 3], "pads": [1, 2, 4, 1]}),
        ((1, 2, 2, 3, 2), (2, 1, 2, 2, 3), {"strides": [2, 1, 2], "pads": [0, 1, 0, 1, 0, 1]}),
    ],
)
def test_conv_transpose(runtime, x, w, attributes):
    filters = w[1] * attributes.get("group", 1)
    arrays = {"x": _floats(*x), "w": _floats(*w), "b": _floats(filters)}
    _agree(runtime, model_of("ConvTranspose", arrays, ("w", "b"), **attributes), arrays)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(
    ("x", "attributes"),
    [
        ((2, 3, 9), {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
        ((1, 2, 7, 8), {"kernel_shape": [3, 2], "strides": [2, 3], "auto_pad": "SAME_UPPER"}),
        ((1, 2, 7, 8), {"kernel_shape": [2, 3], "strides": [3, 2], "auto_pad": "SAME_LOWER"}),
        ((1, 2, 5, 6, 4), {"kernel_shape": [2, 3, 2], "pads": [1, 0, 1, 0, 2, 1]}),
        ((1, 2, 8, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ],
)
def test_pooling(runtime, op, x, attributes):
    arrays = {"x": _floats(*x)}
    _agree(runtime, model_of(op, arrays, opset=18, **attributes), arrays)


def test_average_that_counts_padding(runtime):
    arrays = {"x": _floats(1, 2, 5, 5)}
    attributes = {"kernel_shape": [3, 3], "pads": [1, 1, 0, 2], "count_include_pad": 1}
    _agree(runtime, model_of("AveragePool", arrays, **attributes), arrays)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize(
    ("x", "attributes"),
    [
        ((2, 3, 5, 7), {"kernel_shape": [3, 3], "strides": [2, 1], "pads": [1, 1, 1, 1]}),
        ((1, 2, 6), {"kernel_shape": [2], "dilations": [3]}),
        ((1, 2, 4, 3, 5), {"kernel_shape": [2, 2, 2], "strides": [2, 1, 2]}),
    ],
)
def test_where_the_maxima_lie(x, attributes, order):
    values = rng.permutation(np.prod(x)).reshape(x).astype(np.float32)  # no two are the same
    model = model_of(
        "MaxPool", {"x": values}, outputs=("y", "at"), types=(np.float32, np.int64),
        storage_order=order, **attributes,
    )  # fmt: skip
    got = ran_all(model, {"x": values})
    rows = values
    if order:  # within each channel the first spatial dimension is the fastest
        rows = values.transpose(0, 1, *range(len(x) - 1, 1, -1))
    np.testing.assert_array_equal(rows.reshape(-1)[got["at"]], got["y"])


def test_padding_does_not_win_against_the_lowest_number():
    x = np.full((1, 1, 2, 2), -np.inf, np.float32)
    model = model_of(
        "MaxPool", {"x": x}, outputs=("y", "at"), types=(np.float32, np.int64),
        kernel_shape=[2, 2], pads=[1, 1, 1, 1],
    )  # fmt: skip
    assert ran_all(model, {"x": x})["at"].reshape(-1).tolist() == [0, 0, 1, 0, 0, 1, 2, 2, 3]


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
@pytest.mark.parametrize("x", [(2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 1, 2)])
def test_global_pooling(runtime, op, x):
    arrays = {"x": _floats(*x)}
    _agree(runtime, model_of(op, arrays), arrays)


@pytest.mark.parametrize("side", [2, 70])  # few elements look for their place, many are put there
def test_what_is_pooled_can_be_unpooled(runtime, side):
    x = _floats(2, 3, 2 * side, side + 1)
    settings = {"kernel_shape": [2, 1], "strides": [2, 1]}
    pooled = ran_all(
        model_of(
            "MaxPool", {"x": x}, outputs=("y", "at"), types=(np.float32, np.int64), **settings
        ),
        {"x": x},
    )
    arrays = {"y": pooled["y"], "at": pooled["at"]}
    model = model_of("MaxUnpool", arrays, outputs=("z",), **settings)
    back = ran_all(model, arrays)["z"]
    highest = x == x.reshape(2, 3, side, 2, side + 1).max(3).repeat(2, 2)
    np.testing.assert_array_equal(back, np.where(highest, x, 0))


def test_deformable_convolution(runtime):
    arrays = {
        "x": _floats(2, 4, 6, 5), "w": _floats(6, 2, 3, 2), "offset": 2 * _floats(2, 24, 3, 4),
        "b": _floats(6), "mask": _floats(2, 12, 3, 4),
    }  # fmt: skip
    attributes = {"group": 2, "offset_group": 2, "strides": [2, 1], "pads": [1, 0, 0, 0]}
    _agree(runtime, model_of("DeformConv", arrays, opset=19, **attributes), arrays)


@pytest.mark.parametrize(
    ("op", "x", "w", "attributes", "message"),
    [
        ("Conv", (1, 2, 4, 4), (3, 2, 3), {}, "weights .* must be of rank 4"),
        ("Conv", (1, 2, 4, 4), (3, 2, 3, 3), {"kernel_shape": [2, 2]}, "'kernel_shape' is .2, 2."),
        ("Conv", (1, 2, 4, 4), (3, 2, 3, 3), {"strides": [1]}, "'strides' is .1.; it must be 2"),
        ("Conv", (1, 2, 4, 4), (3, 2, 3, 3), {"strides": [0, 1]}, "each at least 1"),
        ("Conv", (1, 2, 4, 4), (3, 2, 3, 3), {"pads": [1, 1]}, "'pads' is .1, 1.; it must be 4"),
        ("Conv", (1, 2, 4, 4), (3, 2, 3, 3), {"group": 0}, "'group' is 0"),
        ("Conv", (1, 2, 4, 4), (3, 2, 3, 3), {"group": 2}, "Conv 'n': conv2d: |depthwise_conv2d: "),
        ("Conv", (1, 2, 4, 4), (3, 2, 3, 3), {"auto_pad": "SAME"}, "'auto_pad' is 'SAME'"),
        ("Conv", (2, 4), (3, 2), {}, "must be .N, C, ...."),
        ("Conv", (1, 2, 4, 4), (3, 2, 9, 9), {}, "kernel reaches over 9"),
        ("ConvTranspose", (1, 2, 4), (3, 2, 3), {}, "W has 3 input channels, but X has 2"),
        ("ConvTranspose", (1, 2, 4), (2, 2, 3), {"output_shape": [0]}, "entries of at least 1"),
    ],
)
def test_what_a_convolution_refuses(op, x, w, attributes, message):
    arrays = {"x": _floats(*x), "w": _floats(*w)}
    with pytest.raises(GraphError, match=message):
        ran(model_of(op, arrays, **attributes), arrays)


@pytest.mark.parametrize(
    ("op", "attributes", "message"),
    [
        ("MaxPool", {}, "'kernel_shape' is missing"),
        ("MaxPool", {"kernel_shape": [2]}, "it must be 2 whole numbers"),
        ("AveragePool", {"kernel_shape": [2, 2], "pads": [2, 2, 2, 2]}, "as large as the kernel"),
        ("LpPool", {"kernel_shape": [2, 2], "p": 0}, "p is 0; it must be above 0"),
    ],
)
def test_what_pooling_refuses(op, attributes, message):
    arrays = {"x": _floats(1, 2, 4, 4)}
    with pytest.raises(GraphError, match=message):
        ran(model_of(op, arrays, **attributes), arrays)
