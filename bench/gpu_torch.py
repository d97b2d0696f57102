"""PyTorch on the GPU, in a process of its own: questions come in as lines of JSON, times go out.

An operator or a network is captured in a CUDA graph of up to 40 calls and timed as our kernels are:
CUDA events around a replay, the median of 7. float32 without TF32, cuDNN chooses by measuring.
Convolutions are timed with channels first and last; the faster one counts. A network may be
compiled by `torch.compile` first, and is timed in the same kind of graph. Each of its times is a
line, so that what is known when the time is up counts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

MAX_CALLS = 40
# How PyTorch runs a network: as it is, or compiled by one of torch.compile's modes. CUDA graphs are
# left to us, as they are in the mode "max-autotune".
PEERS = {
    "graph": "",
    "compile": "default",
    "max-autotune": "max-autotune-no-cudagraphs",
}


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
    from tilesmith_contest.compare import inputs_of
    from tilesmith_contest.problems import Convolution, question_of

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


def network_times(torch: Any, question: dict[str, Any]) -> Iterator[dict[str, float]]:
    """Microseconds of a network, by the way in which PyTorch runs it."""
    from tilesmith_contest.networks import catalogue

    net = catalogue.network(question["network"], question["small"])
    dtype = getattr(torch, question["precision"])
    module = catalogue.use_fused_kernels(net.module()).cuda().to(dtype)
    given = [torch.from_numpy(a).cuda() for a in net.inputs().values()]
    given = [x.to(dtype) if x.is_floating_point() else x for x in given]
    orders = {"contiguous": torch.contiguous_format}
    if any(x.ndim == 4 for x in given):
        orders["channels last"] = torch.channels_last
    for peer in question["peers"]:
        # The compiler chooses the order of convolutions itself.
        for order in orders if peer == "graph" else [*orders][-1:]:
            one = module.to(memory_format=orders[order])
            x = [v.to(memory_format=orders[order]) if v.ndim == 4 else v for v in given]
            call = torch.compile(one, mode=PEERS[peer]) if PEERS[peer] else one
            yield {f"{peer} {order}": graph_us(torch, partial(call, *x))}


def answer(torch: Any, question: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "network" in question:
        yield from network_times(torch, question)
        return
    calls = operator_calls(torch, question["operator"], list(question["shape"]))
    times = {name: graph_us(torch, call) for name, call in calls.items()}
    best = min(times, key=lambda k: times[k])
    yield {"us": times[best], "how": best, "all": times}


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
            if torch is None:
                print(json.dumps({"error": why}), flush=True)
                continue
            for out in answer(torch, json.loads(line)):
                print(json.dumps(out), flush=True)
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)


if __name__ == "__main__":
    main()
