"""The operators of `bench.everyday` as PyTorch modules, which both sides compute, and contestants
made of them. Run as a program, it is PyTorch on the GPU in a process of its own: cases come in as
lines of JSON, times go out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as f

from bench.everyday_cases import Case
from bench.gpu_torch import graph_us
from bench.module_contestants import by_onnxruntime, ours, save_onnx
from tilesmith_contest.peer import Contestant

Tensor = torch.Tensor


def product(a: Tensor, b: Tensor, *, left_transposed: bool, right_transposed: bool) -> Tensor:
    return torch.matmul(
        a.transpose(-1, -2) if left_transposed else a,
        b.transpose(-1, -2) if right_transposed else b,
    )


def dense(x: Tensor, *others: Tensor, epilogue: str) -> Tensor:
    rest = list(others)
    residual = rest.pop(0) if "residual" in epilogue else None
    y = f.linear(x, rest[0], rest[1] if "bias" in epilogue else None)
    if residual is not None:
        y = y + residual
    for word in epilogue.split():
        match word:
            case "gelu":
                y = f.gelu(y)
            case "relu":
                y = f.relu(y)
            case "silu":
                y = f.silu(y)
            case "scale":
                y = y * 0.125
    return y


def convolution(
    x: Tensor, w: Tensor, bias: Tensor | None = None, *, stride: int, padding: int, dilation: int,
    groups: int, transposed: bool, channels_last: bool, relu: bool,
) -> Tensor:  # fmt: skip
    """Images with channels last lie so in memory; the module sees them as PyTorch does."""
    if channels_last:
        x = x.permute(0, 3, 1, 2)
    dims = x.ndim - 2
    if transposed:
        forward = (f.conv_transpose1d, f.conv_transpose2d, f.conv_transpose3d)[dims - 1]
        y = forward(x, w, bias, stride=stride, padding=padding, groups=groups)
    else:
        forward = (f.conv1d, f.conv2d, f.conv3d)[dims - 1]
        y = forward(x, w, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)
    y = f.relu(y) if relu else y
    return y.permute(0, 2, 3, 1) if channels_last else y


def pooling(x: Tensor, *, kind: str, kernel: int, stride: int) -> Tensor:
    if kind == "global":
        return f.adaptive_avg_pool2d(x, 1)
    pool = f.max_pool2d if kind == "max" else f.avg_pool2d
    return pool(x, kernel, stride, kernel // 2)


def reduction(x: Tensor, *, kind: str, axes: list[int]) -> Tensor:
    match kind:
        case "sum":
            return x.sum(axes)
        case "max":
            return x.amax(axes)
        case "mean":
            return x.mean(axes)
        case "var":
            return x.var(axes, correction=0)
        case "argmax":
            return x.argmax(axes[0])
        case _:
            return torch.any(x, axes)


def running_sum(x: Tensor, *, axis: int) -> Tensor:
    return x.cumsum(axis)


def softmax(x: Tensor, *, axis: int, log: bool) -> Tensor:
    return f.log_softmax(x, axis) if log else f.softmax(x, axis)


def norm(x: Tensor, *weights: Tensor, kind: str, groups: int = 1) -> Tensor:
    match kind:
        case "layer":
            return f.layer_norm(x, x.shape[-1:], *weights)
        case "rms":
            return f.rms_norm(x, x.shape[-1:], weights[0])
        case "group":
            return f.group_norm(x, groups, *weights)
        case _:
            return f.instance_norm(x, weight=weights[0], bias=weights[1])


def transpose(x: Tensor, *, order: list[int]) -> Tensor:
    return x.permute(order).contiguous()


def concatenation(*parts: Tensor, axis: int) -> Tensor:
    return torch.cat(parts, axis)


def pad(x: Tensor, *, widths: list[int]) -> Tensor:
    return f.pad(x, widths)


def gather(x: Tensor, index: Tensor, *, kind: str) -> Tensor:
    match kind:
        case "embedding":
            return f.embedding(index, x)
        case "index_select":
            return x.index_select(0, index)
        case _:
            return x.gather(0, index)


def scatter(x: Tensor, index: Tensor, values: Tensor, *, add: bool) -> Tensor:
    """Without `add`, which of several values stays is open, so all are the same."""
    return x.scatter_add(0, index, values) if add else x.scatter(0, index, 1.0)


def elementwise(x: Tensor, y: Tensor, *, kind: str) -> Tensor:
    match kind:
        case "add":
            return x + y
        case "mul gelu":
            return f.gelu(x * y)
        case "sub relu":
            return f.relu(x - y)
        case "add silu":
            return f.silu(x + y)
        case "mul tanh":
            return torch.tanh(x * y)
        case _:
            return torch.where(x > 0, x, y)


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    return f.scaled_dot_product_attention(q, k, v, is_causal=causal)


OPERATORS: dict[str, Callable[..., Tensor]] = {
    g.__name__: g
    for g in (
        product, dense, convolution, pooling, reduction, running_sum, softmax, norm, transpose,
        concatenation, pad, gather, scatter, elementwise, attention,
    )
}  # fmt: skip


class Operator(torch.nn.Module):
    """Weights are buffers: known ahead, as in a model."""

    def __init__(self, case: Case, weights: list[Tensor]) -> None:
        super().__init__()
        self._operator, self._settings = OPERATORS[case.operator], case.settings
        self._names = [f"w{k}" for k in range(len(weights))]
        for name, w in zip(self._names, weights, strict=True):
            self.register_buffer(name, w)

    def forward(self, *given: Tensor) -> Tensor:
        weights = [getattr(self, n) for n in self._names]
        return self._operator(*given, *weights, **self._settings)


def module_of(case: Case) -> tuple[Operator, list[Tensor]]:
    """The module, and what it is called with."""
    tensors = []
    for spec, array in zip(case.inputs, case.arrays(), strict=True):
        tensors.append(torch.from_numpy(array).to(getattr(torch, spec.dtype)))
    return Operator(case, tensors[case.num_given :]).eval(), tensors[: case.num_given]


def calls_of(case: Case, device: str) -> dict[str, Callable[[], Tensor]]:
    """The ways in which PyTorch computes it: images of either order of channels."""
    module, given = module_of(case)
    module, given = module.to(device), [t.to(device) for t in given]
    calls: dict[str, Callable[[], Tensor]] = {"PyTorch": lambda: module(*given)}
    if case.operator in ("convolution", "pooling") and given[0].ndim == 4:
        last = case.settings.get("channels_last", False)
        other, image = module_of(case)[0].to(device), given[0]
        for name in other._names:
            w = getattr(other, name)
            if w.ndim == 4:
                setattr(other, name, w.contiguous(memory_format=torch.channels_last))
        if last:
            held = image.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
        else:
            held = image.contiguous(memory_format=torch.channels_last)
        calls["PyTorch, other order"] = lambda: other(held, *given[1:])
    return calls


def torch_contestants(case: Case, threads: int) -> list[Contestant]:
    torch.set_num_threads(threads)
    return [
        Contestant(name, call, lambda call=call: call().numpy(), torch.inference_mode)  # type: ignore[misc]
        for name, call in calls_of(case, "cpu").items()
    ]


def our_contestants(case: Case, threads: int, database: str) -> list[Contestant]:
    module, given = module_of(case)
    return [ours(module, given, threads, database)]


def onnx_contestants(case: Case, threads: int, path: str) -> list[Contestant]:
    module, given = module_of(case)
    save_onnx(module, given, path)
    return [by_onnxruntime(path, case.arrays()[: case.num_given], threads)]


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    for line in sys.stdin:
        question = json.loads(line)
        try:
            calls = calls_of(Case.from_json(question["case"]), "cuda")
            times = {name: graph_us(torch, call) for name, call in calls.items()}
            with torch.inference_mode():
                result = calls["PyTorch"]()
            if result.is_floating_point():
                result = result.float()
            np.save(question["answer"], result.cpu().numpy())
            answer: dict[str, Any] = {"times": times}
            del calls, result
            torch.cuda.empty_cache()
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
