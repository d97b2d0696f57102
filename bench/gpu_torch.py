"""PyTorch on the GPU, in a process of its own: questions come in as lines of JSON, times go out.

An operator or a network is captured in a CUDA graph of up to 40 calls and timed as our kernels are:
CUDA events around a replay, the median of 7. float32 without TF32, cuDNN chooses by measuring.
Convolutions are timed with channels first and last; the faster one counts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

MAX_CALLS = 40


def graph_us(torch: Any, call: Callable[[], Any]) -> float:
    """Microseconds of a call on the device."""
    stream = torch.cuda.Stream()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.inference_mode(), torch.cuda.stream(stream):
        for _ in range(3):
            call()
        stream.synchronize()
        begin.record(stream)
        call()
        end.record(stream)
        stream.synchronize()
        one = max(begin.elapsed_time(end), 0.004)  # ms
        count = max(1, min(MAX_CALLS, int(4 / one)))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
            for _ in range(count):
                call()
        graph.replay()
        times = []
        for _ in range(7):
            begin.record(stream)
            graph.replay()
            end.record(stream)
            stream.synchronize()
            times.append(begin.elapsed_time(end) / count * 1e3)
    return float(sorted(times)[3])


def operator_calls(torch: Any, operator: str, shape: list[int]) -> dict[str, Callable[[], Any]]:
    """The ways in which PyTorch computes an operator of the suite, by name."""
    from bench.gpu_cases import HALF_CONVOLUTIONS, HALF_PRODUCTS, LAYER_NORM, function_of
    from tilesmith.cli.operators import numbers
    from tilesmith.report.compare import inputs_of
    from tilesmith.report.problems import Convolution, question_of

    f = torch.nn.functional
    if operator in HALF_PRODUCTS:
        m, n, k = shape
        half = {"device": "cuda", "dtype": getattr(torch, HALF_PRODUCTS[operator])}
        a, b, c = torch.randn(m, k, **half), torch.randn(k, n, **half), torch.empty(m, n, **half)
        return {"matmul": lambda: torch.matmul(a, b, out=c)}
    if operator in HALF_CONVOLUTIONS:
        return half_convolutions(torch, HALF_CONVOLUTIONS[operator], shape)
    inputs = inputs_of(function_of(operator, tuple(shape)))
    if operator == LAYER_NORM:
        rows, gamma, beta = (torch.from_numpy(a).cuda() for a in inputs)
        return {LAYER_NORM: lambda: f.layer_norm(rows, rows.shape[-1:], gamma, beta)}
    problem = question_of(operator, numbers(operator, shape), inputs).problem
    if not isinstance(problem, Convolution):
        t = [torch.from_numpy(a).cuda() for a in problem.inputs]
        match problem.kind:
            case "matmul":
                out = torch.empty((*t[0].shape[:-1], t[1].shape[-1]), device="cuda")
                return {"matmul": lambda: torch.matmul(t[0], t[1], out=out)}
            case "norm":
                return {"norm": lambda: torch.linalg.vector_norm(t[0], dim=(-2, -1))}
            case "softmax":
                return {"softmax": lambda: torch.softmax(t[0], 1)}
            case _:
                left, right = t[0].permute(0, 2, 1, 3), t[1].permute(0, 2, 3, 1)
                return {"matmul": lambda: torch.matmul(left, right)}
    p = problem
    sizes = {"stride": p.stride, "padding": p.padding, "dilation": p.dilation, "groups": p.groups}
    forward = {1: f.conv1d, 2: f.conv2d, 3: f.conv3d}[p.num_spatial]
    forward = f.conv_transpose2d if p.transposed else forward
    orders = {"channels first": None}
    last = {2: torch.channels_last, 3: torch.channels_last_3d}.get(p.num_spatial)
    if last is not None:
        orders["channels last"] = last
    calls: dict[str, Callable[[], Any]] = {}
    for name, order in orders.items():
        x, w = torch.from_numpy(p.x).cuda(), torch.from_numpy(p.w).cuda()
        if order is not None:
            x, w = x.to(memory_format=order), w.to(memory_format=order)
        bias = None if p.bias is None else torch.from_numpy(p.bias).cuda()

        def call(x: Any = x, w: Any = w, bias: Any = bias) -> Any:
            y = forward(x, w, bias, **sizes)
            return torch.relu_(y) if p.relu else y

        calls[name] = call
    return calls


def half_convolutions(torch: Any, dtype: str, shape: list[int]) -> dict[str, Callable[[], Any]]:
    n, height, width, ci, co, kernel, stride = shape
    half = {"device": "cuda", "dtype": getattr(torch, dtype)}
    x, w = torch.randn(n, ci, height, width, **half), torch.randn(co, ci, kernel, kernel, **half)
    orders = {"channels first": torch.contiguous_format, "channels last": torch.channels_last}

    def call(order: Any) -> Callable[[], Any]:
        image, weights = x.to(memory_format=order), w.to(memory_format=order)
        return lambda: torch.nn.functional.conv2d(image, weights, None, stride, kernel // 2)

    return {name: call(order) for name, order in orders.items()}


def answer(torch: Any, question: dict[str, Any]) -> dict[str, Any]:
    if "network" in question:
        from tilesmith.testing.networks import catalogue

        net = catalogue.network(question["network"], question["small"])
        module = catalogue.use_fused_kernels(net.module()).cuda()
        given = [torch.from_numpy(a).cuda() for a in net.inputs().values()]
        calls: dict[str, Callable[[], Any]] = {"eager in a graph": lambda: module(*given)}
    else:
        calls = operator_calls(torch, question["operator"], list(question["shape"]))
    times = {}
    for name, call in calls.items():
        times[name] = graph_us(torch, call)
    best = min(times, key=lambda k: times[k])
    return {"us": times[best], "how": best, "all": times}


def main() -> None:
    try:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cudnn.benchmark = True
        torch.zeros(1, device="cuda")
        why = ""
    except Exception as error:  # not installed, or without a GPU
        torch, why = None, f"{type(error).__name__}: {error}"
    for line in sys.stdin:
        try:
            out = {"error": why} if torch is None else answer(torch, json.loads(line))
        except Exception as error:
            out = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(out), flush=True)


if __name__ == "__main__":
    main()
