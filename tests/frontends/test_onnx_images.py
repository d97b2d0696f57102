"""ONNX operators on images: what its own cases do not cover, against ONNX Runtime and PyTorch."""

import numpy as np
import pytest
from one_node import feeds_of, model_of, ran, ran_all

from tilesmith.base.errors import GraphError

rng = np.random.default_rng(11)


@pytest.fixture(scope="module")
def runtime():
    return pytest.importorskip("onnxruntime", reason="ONNX Runtime is the peer of this test")


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="PyTorch is the peer of this test")


def _floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def _agree(runtime, model, arrays):
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    want = session.run(None, feeds_of(model, arrays))[0]
    got = ran(model, arrays)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("align", [0, 1])
def test_sampling(runtime, mode, padding, align):
    arrays = {"x": _floats(2, 3, 5, 4), "grid": 1.5 * _floats(2, 6, 3, 2)}
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": align}
    _agree(runtime, model_of("GridSample", arrays, opset=16, **attributes), arrays)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_sampling_of_volumes(torch, padding):
    arrays = {"x": _floats(1, 2, 3, 5, 4), "grid": 1.5 * _floats(1, 2, 6, 3, 3)}
    model = model_of("GridSample", arrays, opset=20, mode="linear", padding_mode=padding)
    want = torch.nn.functional.grid_sample(
        *map(torch.from_numpy, arrays.values()), padding_mode=padding, align_corners=False
    )
    np.testing.assert_allclose(ran(model, arrays), want.numpy(), rtol=1e-4, atol=1e-5)


def test_positions_that_are_no_numbers_read_nothing_outside():
    grid = np.array([np.inf, -np.inf, np.nan, 1e30, -1e30, 0], np.float32).reshape(1, 3, 1, 2)
    arrays = {"x": _floats(1, 1, 2, 2), "grid": grid}
    assert ran(model_of("GridSample", arrays, opset=16), arrays).shape == (1, 1, 3, 1)


@pytest.mark.parametrize("align", [0, 1])
def test_affine_grids(torch, align):
    theta = _floats(2, 2, 3)
    arrays = {"theta": theta, "size": np.array([2, 3, 4, 5], np.int64)}
    got = ran(model_of("AffineGrid", arrays, ("size",), opset=20, align_corners=align), arrays)
    want = torch.nn.functional.affine_grid(
        torch.from_numpy(theta), [2, 3, 4, 5], align_corners=bool(align)
    )
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("mode", "opset", "samples"),
    [
        ("avg", 10, 0),
        ("avg", 16, 0),
        ("max", 16, 0),
        ("avg", 10, 3),
        ("avg", 16, 3),
        ("max", 16, 3),
    ],
)
def test_regions(runtime, mode, opset, samples):
    corners = rng.uniform(-2, 14, (4, 2)).astype(np.float32)
    extents = rng.uniform(0.2, 40, (4, 2)).astype(np.float32)
    arrays = {
        "x": _floats(2, 3, 6, 7), "rois": np.concatenate([corners, corners + extents], 1),
        "batch": np.array([0, 1, 1, 0], np.int64),
    }  # fmt: skip
    attributes = {"output_height": 2, "output_width": 3, "sampling_ratio": samples, "mode": mode}
    _agree(
        runtime, model_of("RoiAlign", arrays, opset=opset, spatial_scale=0.5, **attributes), arrays
    )


def test_maxima_of_regions(runtime):
    rois = np.array([[0, 0, 0, 9, 5], [1, 3, 2, 5, 11], [0, 8, 9, 30, 30], [1, 4, 4, 4, 4]])
    arrays = {"x": _floats(2, 3, 6, 7), "rois": rois.astype(np.float32)}
    model = model_of("MaxRoiPool", arrays, pooled_shape=[2, 3], spatial_scale=0.5)
    _agree(runtime, model, arrays)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_blocks_go_there_and_back(runtime, mode):
    x = _floats(2, 18, 2, 3)
    arrays = {"x": x}
    model = model_of("DepthToSpace", arrays, opset=13, blocksize=3, mode=mode)
    _agree(runtime, model, arrays)
    if mode == "DCR":
        wide = ran(model, arrays)
        back = ran(model_of("SpaceToDepth", {"x": wide}, opset=13, blocksize=3), {"x": wide})
        np.testing.assert_array_equal(back, x)


def test_columns_add_up(torch):
    x = _floats(2, 12, 12)
    arrays = {"x": x, "image": np.array([6, 5]), "block": np.array([2, 3])}
    attributes = {"strides": [2, 1], "pads": [1, 0, 1, 0], "dilations": [1, 1]}
    got = ran(model_of("Col2Im", arrays, ("image", "block"), opset=18, **attributes), arrays)
    want = torch.nn.functional.fold(
        torch.from_numpy(x), (6, 5), (2, 3), padding=(1, 0), stride=(2, 1)
    )
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-6)


def test_centers(runtime):
    arrays = {"x": _floats(5, 4, 3), "shape": np.array([8, 1], np.int64)}
    _agree(runtime, model_of("CenterCropPad", arrays, ("shape",), opset=18, axes=[0, -1]), arrays)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_causal_states_meet_a_whole_run(length):
    """Two calls, the second with the state of the first, are one call."""
    x, w, b = _floats(2, 3, 6), _floats(3, 1, 4), _floats(3)
    names = {"outputs": ("y", "state"), "types": (np.float32, np.float32), "opset": 27}

    def run(part, past=None):
        arrays = {"x": part, "w": w, "b": b, "past" if past is not None else "_past": past}
        return ran_all(model_of("CausalConvWithState", arrays, activation="silu", **names), arrays)

    whole = run(x)
    first = run(np.ascontiguousarray(x[:, :, :length]))
    second = run(np.ascontiguousarray(x[:, :, length:]), first["state"])
    joined = np.concatenate([first["y"], second["y"]], axis=2)
    np.testing.assert_allclose(joined, whole["y"], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(second["state"], whole["state"])


@pytest.mark.parametrize(
    ("op", "arrays", "attributes", "message"),
    [
        ("GridSample", {"x": _floats(1, 1, 2, 2), "g": _floats(1, 2, 2, 3)}, {}, "X has dimension"),
        ("GridSample", {"x": _floats(1, 1, 2, 2), "g": _floats(1, 2, 2, 2)}, {"mode": "best"},
         "'mode' is 'best'"),
        ("DepthToSpace", {"x": _floats(1, 6, 2, 2)}, {"blocksize": 2}, "does not divide"),
        ("DepthToSpace", {"x": _floats(1, 4, 2, 2)}, {}, "'blocksize' is missing"),
        ("SpaceToDepth", {"x": _floats(1, 6, 3, 2)}, {"blocksize": 2}, "does not divide"),
        ("MaxRoiPool", {"x": _floats(1, 1, 2, 2), "r": _floats(1, 4)}, {"pooled_shape": [1, 1]},
         "4 columns; it must have 5"),
    ],
)  # fmt: skip
def test_what_is_refused(op, arrays, attributes, message):
    with pytest.raises(GraphError, match=message):
        ran(model_of(op, arrays, opset=16, **attributes), arrays)
