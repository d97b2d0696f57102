"""OpenVINO as an engine, for latency. Its precision is always given: by default it computes in half
precision where the processor can.
"""

from __future__ import annotations

import numpy as np
import openvino

from tilesmith_contest.engine import ModelFile
from tilesmith_contest.peer import Contestant
from tilesmith_contest.problems import Array

# Files in int8 have float32 between their integers.
_HINTS = {"float32": "f32", "int8": "f32", "float16": "f16", "bfloat16": "bf16"}


class OpenVinoEngine:
    def prepare(self, model: ModelFile, threads: int) -> Contestant:
        core = openvino.Core()
        network = core.read_model(str(model.path))
        network.reshape({name: openvino.PartialShape(a.shape) for name, a in model.inputs.items()})
        compiled = core.compile_model(
            network,
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": _HINTS[model.precision],
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_NUM_THREADS": threads,
                "NUM_STREAMS": 1,
            },
        )
        request = compiled.create_infer_request()
        for name, a in model.inputs.items():
            request.set_tensor(name, openvino.Tensor(a, shared_memory=True))

        def run() -> None:
            request.infer(share_outputs=True)

        def answer() -> dict[str, Array]:
            run()
            return {name: np.array(request.get_tensor(name).data) for name in model.outputs}

        run()
        return Contestant("openvino", run, answer)
