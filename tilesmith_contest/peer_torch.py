"""PyTorch as a peer, in inference mode: channels first, channels last, and with weights that oneDNN
has reordered ahead of time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from tilesmith_contest.peer import Contestant
from tilesmith_contest.problems import Array, Convolution, Plain, Problem

_FORWARD = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


class TorchPeer:
    def contestants(self, problem: Problem, threads: int) -> list[Contestant]:
        torch.set_num_threads(threads)
        with torch.inference_mode():
            return _contestants(problem)


def _contestants(problem: Problem) -> list[Contestant]:
    if isinstance(problem, Plain):
        tensors = [torch.from_numpy(a) for a in problem.inputs]
        return [_contestant("torch", _plain(problem.kind, *tensors))]
    contestants = [_contestant("torch", _convolution(problem, None))]
    last = _LAST.get(problem.num_spatial)
    if last is not None:
        contestants.append(_contestant("torch channels-last", _convolution(problem, last)))
    for name, order in (("torch oneDNN", None), ("torch oneDNN channels-last", last)):
        try:  # not every build has oneDNN, and it does not support every convolution
            call = _prepacked(problem, order)
            call()
        except (RuntimeError, AttributeError):
            continue
        contestants.append(_contestant(name, call))
    return contestants


def _contestant(name: str, call: Callable[[], Any]) -> Contestant:
    def answer() -> Array:
        out: Array = call().contiguous().numpy()
        return out

    return Contestant(name, call, answer, torch.inference_mode)


def _plain(kind: str, *t: Any) -> Callable[[], Any]:
    if kind == "matmul":
        out = torch.empty((*t[0].shape[:-1], t[1].shape[-1]))
        return lambda: torch.matmul(t[0], t[1], out=out)
    if kind == "norm":
        dims = (-2, -1)
        return lambda: torch.linalg.vector_norm(t[0], dim=dims)
    if kind == "softmax":
        return lambda: torch.softmax(t[0], 1)
    left, right = t[0].permute(0, 2, 1, 3), t[1].permute(0, 2, 3, 1)
    return lambda: torch.matmul(left, right)


def _tensors(p: Convolution, order: Any) -> tuple[Any, Any, Any]:
    x, w = torch.from_numpy(p.x), torch.from_numpy(p.w)
    if order is not None:
        x, w = x.to(memory_format=order), w.to(memory_format=order)
    return x, w, None if p.bias is None else torch.from_numpy(p.bias)


def _convolution(p: Convolution, order: Any) -> Callable[[], Any]:
    x, w, bias = _tensors(p, order)
    forward = functional.conv_transpose2d if p.transposed else _FORWARD[p.num_spatial]
    sizes = {"stride": p.stride, "padding": p.padding, "dilation": p.dilation, "groups": p.groups}
    if p.relu:
        return lambda: torch.relu_(forward(x, w, bias, **sizes))
    return lambda: forward(x, w, bias, **sizes)


def _prepacked(p: Convolution, order: Any) -> Callable[[], Any]:
    """The function that PyTorch's compiler calls for frozen weights."""
    x, w, bias = _tensors(p, order)
    ops = torch.ops.mkldnn
    count = p.num_spatial
    padding, stride, dilation = ([n] * count for n in (p.padding, p.stride, p.dilation))
    after = "relu" if p.relu else "none"
    if p.transposed:
        extra = [0] * count
        packed = ops._reorder_convolution_transpose_weight(
            w, padding, extra, stride, dilation, p.groups, list(x.shape)
        )
        return lambda: ops._convolution_transpose_pointwise(
            x, packed, bias, padding, extra, stride, dilation, p.groups, after, [], ""
        )
    packed = ops._reorder_convolution_weight(w, padding, stride, dilation, p.groups, list(x.shape))
    return lambda: ops._convolution_pointwise(
        x, packed, bias, padding, stride, dilation, p.groups, after, [], ""
    )
