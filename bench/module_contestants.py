"""A PyTorch module and its inputs as contestants on a CPU: ours, and engines that read ONNX."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

import tilesmith as ts
from tilesmith_contest.peer import Contestant


def graph_of(module: torch.nn.Module, given: Sequence[torch.Tensor]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ts.from_torch(module, tuple(given))


def ours(
    module: torch.nn.Module, given: Sequence[torch.Tensor], threads: int, database: str
) -> Contestant:
    """With the records of a database; without one, the draft."""
    graph, target = graph_of(module, given), ts.cpu(threads)
    if database:
        with ts.open_database(database) as records:
            model = ts.compile_model(graph, target, database=records, progress=False)
    else:
        model = ts.compile_model(graph, target, progress=False)
    feeds = {s.name: t.numpy() for s, t in zip(model.inputs, given, strict=True)}
    # arrays are bound ahead, as ONNX Runtime's are
    call = model.bind(feeds) if not model.host_steps else (lambda: model(feeds))
    return Contestant("tilesmith", call, lambda: next(iter(call().values())))


def save_onnx(module: torch.nn.Module, given: Sequence[torch.Tensor], path: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, tuple(given), path, dynamo=False, opset_version=17)


def by_onnxruntime(path: str, arrays: Sequence[Any], threads: int) -> Contestant:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    binding = session.io_binding()
    for given, array in zip(session.get_inputs(), arrays, strict=True):
        binding.bind_cpu_input(given.name, array)
    binding.bind_output(session.get_outputs()[0].name)

    def run() -> None:
        session.run_with_iobinding(binding)

    def answer() -> Any:
        run()
        return binding.copy_outputs_to_cpu()[0]

    return Contestant("ONNX Runtime", run, answer)


def by_openvino(path: str, arrays: Sequence[Any], threads: int) -> Contestant:
    import openvino

    core = openvino.Core()
    core.set_property("CPU", {"INFERENCE_NUM_THREADS": threads})
    request = core.compile_model(core.read_model(path), "CPU").create_infer_request()
    given = list(arrays)
    return Contestant(
        "OpenVINO", lambda: request.infer(given), lambda: next(iter(request.infer(given).values()))
    )
