"""PyTorch as an engine, in inference mode. It reads no ONNX files, but the program that
`torch.export.save` writes; one beside the ONNX file is taken for the same model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import config as inductor

from tilesmith_contest.engine import ModelFile
from tilesmith_contest.peer import Contestant
from tilesmith_contest.problems import Array

_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


class TorchEngine:
    """Eager, with images and weights in channels-last order."""

    def prepare(self, model: ModelFile, threads: int) -> Contestant:
        torch.set_num_threads(threads)
        return _contestant("torch channels-last", _module(model), model)


class TorchCompileEngine:
    """`torch.compile`, which may treat the weights as constants."""

    def prepare(self, model: ModelFile, threads: int) -> Contestant:
        torch.set_num_threads(threads)
        inductor.freezing = True
        inductor.compile_threads = 1  # no worker processes: only this one is stopped and pinned
        return _contestant("torch.compile", torch.compile(_module(model)), model)


def _module(model: ModelFile) -> Any:
    module = torch.export.load(model.program).module()
    for p in module.parameters():
        p.requires_grad_(False)
        p.data = _channels_last(p.data)
    return module


def _channels_last(t: Any) -> Any:
    order = _LAST.get(t.ndim)
    return t if order is None else t.contiguous(memory_format=order)


def _contestant(name: str, module: Any, model: ModelFile) -> Contestant:
    inputs = [_channels_last(torch.from_numpy(a)) for a in model.inputs.values()]

    def run() -> Any:
        return module(*inputs)

    def answer() -> dict[str, Array]:
        out = run()
        tensors = out if isinstance(out, tuple | list) else (out,)
        arrays = [t.contiguous().numpy() for t in tensors]
        return dict(zip(model.outputs, arrays, strict=True))

    with torch.inference_mode():
        run()
        run()  # the compiler looks at a graph again after its first call
    return Contestant(name, run, answer, torch.inference_mode)
