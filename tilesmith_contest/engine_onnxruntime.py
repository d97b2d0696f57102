"""ONNX Runtime as an engine. Inputs and outputs are bound, so that a run copies nothing. Half
precision is that of the file, which its own converter writes.
"""

from __future__ import annotations

import numpy as np
import onnxruntime

from tilesmith_contest.engine import ModelFile
from tilesmith_contest.peer import Contestant
from tilesmith_contest.problems import Array


class OnnxRuntimeEngine:
    def prepare(self, model: ModelFile, threads: int) -> Contestant:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        for dim, size in model.dims.items():
            options.add_free_dimension_override_by_name(dim, size)
        file = _in_halves(model) if model.precision == "float16" else str(model.path)
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        for name, a in model.inputs.items():
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(a))
        for name in model.outputs:
            binding.bind_output(name)
        session.run_with_iobinding(binding)
        # Its own answer is kept as the memory of all further ones.
        for name, value in zip(model.outputs, binding.get_outputs(), strict=True):
            binding.bind_ortvalue_output(name, value)

        def run() -> None:
            session.run_with_iobinding(binding)

        def answer() -> dict[str, Array]:
            run()
            arrays = binding.copy_outputs_to_cpu()
            return {n: np.array(a) for n, a in zip(model.outputs, arrays, strict=True)}

        return Contestant("onnxruntime", run, answer)


def _in_halves(model: ModelFile) -> bytes:
    """The file with weights and activations in float16; inputs and outputs stay as they are."""
    # Imported late: it loads the ONNX package, which other precisions do without.
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    whole = convert_float_to_float16(onnx.load(model.path), keep_io_types=True)
    data: bytes = whole.SerializeToString()
    return data
