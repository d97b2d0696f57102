"""ONNX operators on signals against NumPy and SciPy's definitions."""

import numpy as np
import pytest
from one_node import model_of, ran

from tilesmith.base.errors import GraphError

rng = np.random.default_rng(13)


def _floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def _parts(z):
    return np.stack([z.real, z.imag], -1).astype(np.float32)


def _dft(x, length=None, axis=None, opset=20, **attributes):
    arrays = {"x": x}
    arrays["length" if length else "_length"] = np.array(length) if length else None
    if axis is not None:
        arrays["axis"] = np.array(axis)
    fixed = tuple(n for n in arrays if n != "x" and not n.startswith("_"))
    return ran(model_of("DFT", arrays, fixed, opset=opset, **attributes), arrays)


@pytest.mark.parametrize("length", [None, 4, 9])
@pytest.mark.parametrize("axis", [0, 1, -3])
def test_transforms(length, axis):
    x = _floats(3, 5, 6, 2)
    z = x[..., 0] + 1j * x[..., 1]
    at = axis if axis >= 0 else axis + 4
    got = _dft(x, length, axis)
    np.testing.assert_allclose(got, _parts(np.fft.fft(z, length, at)), rtol=1e-4, atol=1e-4)
    got = _dft(x, length, axis, inverse=1)
    np.testing.assert_allclose(got, _parts(np.fft.ifft(z, length, at)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n", [7, 8])
@pytest.mark.parametrize("length", [None, 5, 12])
def test_one_sided_transforms(n, length):
    x = _floats(2, n, 1)
    got = _dft(x, length, 1, onesided=1)
    want = _parts(np.fft.rfft(x[..., 0], length, 1))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    spectrum = _floats(2, n, 2)
    back = _dft(spectrum, length, 1, onesided=1, inverse=1)
    z = spectrum[..., 0] + 1j * spectrum[..., 1]
    np.testing.assert_allclose(back[..., 0], np.fft.irfft(z, length, 1), rtol=1e-4, atol=1e-5)


def test_long_transforms_run():
    x = _floats(1, 5000, 1)
    want = _parts(np.fft.fft(x[..., 0], axis=1))
    np.testing.assert_allclose(_dft(x, axis=1), want, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("parts", [1, 2])
def test_frames(parts):
    x, window = _floats(2, 20, parts), _floats(6)
    arrays = {"x": x, "step": np.array(3), "window": window}
    got = ran(model_of("STFT", arrays, ("step",), onesided=parts % 2), arrays)
    z = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
    frames = np.stack([z[:, s : s + 6] * window for s in range(0, 15, 3)], 1)
    want = np.fft.fft(frames) if parts == 2 else np.fft.rfft(frames.real)
    np.testing.assert_allclose(got, _parts(want), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("size", [1, 6])
def test_windows(periodic, size):
    n = np.arange(size) * 2 * np.pi / max(size if periodic else size - 1, 1)
    for op, want in {
        "HannWindow": 0.5 - 0.5 * np.cos(n),
        "HammingWindow": 25 / 46 - 21 / 46 * np.cos(n),
        "BlackmanWindow": 0.42 - 0.5 * np.cos(n) + 0.08 * np.cos(2 * n),
    }.items():
        arrays = {"size": np.array(size)}
        model = model_of(op, arrays, types=(np.float64,), periodic=periodic, output_datatype=11)
        np.testing.assert_allclose(ran(model, arrays), want, atol=1e-12)


def test_mel_weights_are_triangles():
    names = ("bins", "length", "rate", "low", "high")
    arrays = dict(zip(names, map(np.array, (8, 64, 8192, 0.0, 4096.0)), strict=True))
    for n in ("low", "high"):
        arrays[n] = arrays[n].astype(np.float32)
    got = ran(model_of("MelWeightMatrix", arrays, types=(np.float32,)), arrays)
    assert got.shape == (33, 8)
    np.testing.assert_array_equal(got.max(axis=0), 1)
    assert np.all(np.diff(got.argmax(axis=0)) > 0)


@pytest.mark.parametrize(
    ("x", "settings", "message"),
    [
        (_floats(2, 3), {}, r"must be a float signal of shape \(..., 1\)"),
        (_floats(2, 3, 1), {"axis": 2}, "is that of real and imaginary parts"),
        (_floats(2, 3, 2), {"onesided": 1}, "onesided must be 0"),
        (_floats(2, 3, 1), {"axis": 9}, "axis 9 does not exist"),
    ],
)
def test_what_is_refused(x, settings, message):
    with pytest.raises(GraphError, match=message):
        _dft(x, **settings)
