"""Signals: Fourier transforms, windows and mel weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from tilesmith.frontends.onnx.call import Call, Importer, RunOnHost
from tilesmith.frontends.onnx.host_numpy import fourier_frames as fourier_frames_array
from tilesmith.frontends.shared.building import shaped
from tilesmith.graph.graph import Array, Value
from tilesmith.ops.elementwise import multiply
from tilesmith.ops.fourier import fourier, fourier_frames

# A transform by a table takes a step per pair of input and output, which is fast while the table
# is small; what is longer goes to the host, which has fast transforms.
_MAX_TABLE = 1 << 22


def _table(length: int, outputs: int, parts: int, out_parts: int, sign: int) -> Array:
    """(length, parts, outputs, out_parts): what part p of element n adds to the parts of output k,
    exp(sign * 2 pi i n k / length).
    """
    n, k = np.arange(length)[:, None], np.arange(outputs)[None]
    angle = sign * 2 * np.pi * ((n * k) % length) / length
    c, s = np.cos(angle), np.sin(angle)
    whole = np.array([[c, s], [-s, c]])  # [part, out part, n, k]
    return whole[:parts, :out_parts].transpose(2, 0, 3, 1)


def _length(call: Call, what: str, a: Array) -> int:
    if a.size != 1 or a.dtype.kind not in "iu":
        call.refuse(f"{what} is {a.dtype}{list(a.shape)}; it must be one whole number")
    n = int(a.reshape(()))
    if n < 1:
        call.refuse(f"{what} is {n}; it must be at least 1")
    return n


def transform(
    call: Call, x: Value, dft_length: Array | None = None, axis: list[int] | int | None = None, *,
    inverse: bool = False, onesided: bool = False,
) -> Value:  # fmt: skip
    """Before opset 20 the axis is an attribute, and another one by default."""
    if axis is None:
        axis = 1 if call.version < 20 else -2
    axis = axis if isinstance(axis, int) else axis[0]
    rank = len(x.shape)
    parts = x.shape[-1] if rank else 0
    if rank < 2 or parts not in (1, 2) or not x.dtype.is_float:
        call.refuse(f"{x} must be a float signal of shape (..., 1) or (..., 2)")
    a = call.axis(axis, rank)
    if a == rank - 1:
        call.refuse(f"axis {axis} is that of real and imaginary parts")
    if onesided and not inverse and parts == 2:
        call.refuse(f"{x} is complex, so the transform has two sides; onesided must be 0")
    if dft_length is not None:
        length = _length(call, "dft_length", dft_length)
    else:
        length = 2 * (x.shape[a] - 1) if inverse and onesided else x.shape[a]
    if length < 1:
        call.refuse(f"{x} is too short along axis {axis}")
    outputs = length // 2 + 1 if onesided and not inverse else length
    used = min(length, x.shape[a])
    call.check_room("its result", x.size // max(x.shape[a], 1), length, 2)
    if used * outputs * 4 > _MAX_TABLE:
        raise RunOnHost(f"a transform of {length} elements is faster by the host's library")
    out_parts = 1 if inverse and onesided else 2
    table = _table(length, outputs, parts, out_parts, 1 if inverse else -1)
    if inverse:
        table = table / length
    if inverse and onesided:  # the other side has the same real parts, as its elements are mirrored
        used = min(used, length // 2 + 1)
        twice = np.full(length, 2.0)
        twice[0] = 1
        if length % 2 == 0:
            twice[length // 2] = 1
        table = table * twice[:, None, None, None]
    held = call.constant(table[:used].astype(x.dtype.numpy))
    return call.add(fourier, x, held, axis=a)


def short_time(
    call: Call, x: Value, frame_step: Array, window: Value | None = None,
    frame_length: Array | None = None, *, onesided: bool = True,
) -> Value:  # fmt: skip
    step = _length(call, "frame_step", frame_step)
    if len(x.shape) not in (2, 3) or not x.dtype.is_float:
        call.refuse(f"{x} must be a float signal of shape (N, length, 1) or (N, length, 2)")
    if len(x.shape) == 2:
        x = shaped(call, x, (*x.shape, 1))
    parts = x.shape[2]
    if parts not in (1, 2):
        call.refuse(f"{x} must have 1 or 2 parts")
    if frame_length is not None:
        length = _length(call, "frame_length", frame_length)
    else:
        length = x.shape[1] if window is None else window.shape[0]
    if window is not None and window.shape != (length,):
        call.refuse(f"window {window} must be a vector of frame_length {length}")
    if length > x.shape[1]:
        call.refuse(f"{x} is shorter than a frame of {length}")
    if onesided and parts == 2:
        call.refuse(f"{x} is complex, so the transform has two sides; onesided must be 0")
    outputs = length // 2 + 1 if onesided else length
    if length * outputs * 4 > _MAX_TABLE:
        raise RunOnHost(
            f"a transform of {length} elements is faster by the host's library",
            partial(fourier_frames_array, step=step, length=length, onesided=onesided),
        )
    table = call.constant(_table(length, outputs, parts, 2, -1).astype(x.dtype.numpy))
    if window is not None:
        column = shaped(call, window, (length, 1, 1, 1))
        table = call.add(multiply, table, column)
    return call.add(fourier_frames, x, table, step=step)


def window(*weights: float) -> Importer:
    """The sum of weights[j] * cos(2 pi j n / N), with N one less where the window is symmetric."""

    def read(call: Call, size: Array, *, output_datatype: int = 1, periodic: bool = True) -> Value:
        if size.size != 1 or size.dtype.kind not in "iu" or int(size.reshape(())) < 0:
            call.refuse("its size must be one whole number of at least 0")
        count = int(size.reshape(()))
        call.check_room("its window", count)
        n = np.arange(count) * (2 * np.pi / max(count if periodic else count - 1, 1))
        values = sum((w * np.cos(j * n) for j, w in enumerate(weights)), np.zeros(count))
        return _constant(call, values, output_datatype)

    return read


def _constant(call: Call, values: Array, code: int) -> Value:
    made = call.element_type(code, "attribute 'output_datatype'")
    return call.constant(values.astype(made.numpy))


def mel_weights(
    call: Call, num_mel_bins: Array, dft_length: Array, sample_rate: Array, lowest: Array,
    highest: Array, *, output_datatype: int = 1,
) -> Value:  # fmt: skip
    """Triangles whose corners lie evenly on the mel scale, as columns."""
    numbers = (num_mel_bins, dft_length, sample_rate, lowest, highest)
    if any(a.size != 1 for a in numbers):
        call.refuse("each of its inputs must be one number")
    bins, length, rate, low, high = (float(a.reshape(())) for a in numbers)
    if not (1 <= bins < 1 << 40 and 1 <= length < 1 << 40 and rate > 0 and min(low, high) > -700):
        call.refuse(
            f"it asks for {bins:g} bins of {length:g} elements at rate {rate:g}, from {low:g} to "
            f"{high:g} Hz; bins, elements and rate must be above 0, and frequencies above -700"
        )
    count = int(bins)
    call.check_room("its matrix", int(length) // 2 + 1, count + 2)
    mel_low, mel_high = (2595 * np.log10(1 + f / 700) for f in (low, high))
    mels = mel_low + np.arange(count + 2) * ((mel_high - mel_low) / (count + 2))
    corners = np.floor((length + 1) * (700 * (10 ** (mels / 2595) - 1)) / rate).astype(int)
    rows = int(length) // 2 + 1
    if corners.min() < 0 or corners.max() > rows:
        call.refuse(f"the band from {low} to {high} Hz leaves the spectrum of rate {rate}")
    out = np.zeros((rows, count))
    for k in range(count):
        left, middle, right = corners[k : k + 3]
        if left == middle:
            out[middle : middle + 1, k] = 1
        else:
            rising = np.arange(left, min(middle + 1, rows))
            out[rising, k] = (rising - left) / (middle - left)
        falling = np.arange(middle, right)
        if right > middle:
            out[falling, k] = (right - falling) / (right - middle)
    return _constant(call, out, output_datatype)


IMPORTERS: Mapping[str, Importer] = {
    "BlackmanWindow": window(0.42, -0.5, 0.08),
    "DFT": transform,
    "HammingWindow": window(25 / 46, -21 / 46),
    "HannWindow": window(0.5, -0.5),
    "MelWeightMatrix": mel_weights,
    "STFT": short_time,
}
