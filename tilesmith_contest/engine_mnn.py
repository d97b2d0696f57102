"""MNN as an engine. Its converter is called directly: the `mnnconvert` command
and the Python module behind it install packages and report to a server.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import _tools
import MNN
import numpy as np

from tilesmith.base.errors import MeasureError
from tilesmith_contest.engine import ModelFile
from tilesmith_contest.peer import Contestant
from tilesmith_contest.problems import Array

_PRECISIONS = {"float32": "high", "int8": "high", "float16": "low", "bfloat16": "low_bf16"}


class MnnEngine:
    def prepare(self, model: ModelFile, threads: int) -> Contestant:
        precision = _PRECISIONS[model.precision]
        settings = {"backend": "CPU", "precision": precision, "numThread": threads}
        runtime = MNN.nn.create_runtime_manager((settings,))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.mnn"
            words = ("-f", "ONNX", "--modelFile", model.path, "--MNNModel", path, "--bizCode", "x")
            _tools.mnnconvert(["mnnconvert", *map(str, words)])
            if not path.exists():
                raise MeasureError("its converter wrote no file")
            module = MNN.nn.load_module_from_file(
                str(path), list(model.inputs), list(model.outputs), runtime_manager=runtime,
                shape_mutable=False,
            )  # fmt: skip
        variables = list(map(_variable, model.inputs.values()))

        def run() -> list[Any]:
            # Reading is part of a run: an output may still be in the engine's own layout.
            return [y.read() for y in module.onForward(variables)]

        def answer() -> dict[str, Array]:
            return {n: np.array(a) for n, a in zip(model.outputs, run(), strict=True)}

        run()
        return Contestant("mnn", run, answer)


_KINDS = {"f": ("float", np.float32), "i": ("int", np.int32), "b": ("int", np.int32)}


def _variable(a: Array) -> Any:
    """It computes with 32-bit integers where ONNX has 64."""
    name, dtype = _KINDS[a.dtype.kind]
    variable = MNN.expr.placeholder(list(a.shape), MNN.expr.NCHW, getattr(MNN.expr, name))
    variable.write(np.ascontiguousarray(a, dtype))
    return variable
