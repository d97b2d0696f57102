"""A network in float32 in, the same in int8 out, by ONNX Runtime's quantiser: quantize and
dequantize nodes around its operators, which all engines read.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

from tilesmith_contest.networks.export import in_place_of, quiet

Array = np.ndarray[Any, Any]


class _Feeds(CalibrationDataReader):  # type: ignore[misc]  # it has no types
    def __init__(self, feeds: Sequence[dict[str, Array]]) -> None:
        self._left: Iterator[dict[str, Array]] = iter(feeds)

    def get_next(self) -> dict[str, Array] | None:
        return next(self._left, None)


def quantize_file(source: Path, path: Path, feeds: Sequence[dict[str, Array]]) -> None:
    """Activations become uint8 and weights int8, with a scale for each channel: what ONNX Runtime
    asks for on processors with dot products. Ranges are from the least to the largest number that
    the inputs `feeds` lead to.
    """
    with tempfile.TemporaryDirectory() as folder, in_place_of(path) as part, quiet():
        plain = str(Path(folder) / "plain.onnx")
        quant_pre_process(str(source), plain, skip_symbolic_shape=True)
        quantize_static(
            plain, part, _Feeds(feeds), quant_format=QuantFormat.QDQ, per_channel=True,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        )  # fmt: skip
