"""Attention on a GPU beside PyTorch's fused kernels: cuDNN, FlashAttention, memory-efficient; on
CPUs beside PyTorch, ONNX Runtime and OpenVINO (bench/attention_cpu.py).

    python -m bench.attention [--seconds 60] [--only "4x16x2048x128,1x12x197x64"] [--json FILE]
    python -m bench.attention --target cpu [--threads 1] [--only "causal,alibi 1x4"] [--seconds 20]
                              [--peers torch,flex,onnxruntime,openvino] [--limit SECONDS]

On GPUs, ours is tuned from `F.scaled_dot_product_attention`, which the front end states as
products and a softmax. Each kernel is timed alone, since a hungry one slows its neighbour: in
bursts after a pause, and after 300 ms of itself, when the card is at its limit of power. Errors are
against float64, of a part of the heads.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attend

import tilesmith as ts
from bench.attention_cpu import run as run_on_cpu
from tilesmith.runtime.device_kernel import DeviceKernel
from tilesmith.tune.compile_model import extract_tasks
from tilesmith_contest.pairs import geometric_mean

PEERS = {
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "Flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
# batch x heads x tokens x width, whether causal, and the type
CASES = [
    *(((4, 16, 2048, d), c, t) for d in (64, 128) for c in (False, True) for t in ("float16",)),
    *(((2, 16, 8192, d), c, "bfloat16") for d in (64, 128) for c in (False, True)),
    ((1, 16, 1024, 128), False, "float16"), ((1, 16, 1024, 128), True, "float16"),
    ((1, 16, 512, 64), False, "float16"), ((1, 12, 197, 64), False, "float16"),
    ((8, 12, 77, 64), True, "float16"), ((2, 5, 1237, 80), True, "bfloat16"),
    ((3, 7, 3001, 128), False, "float16"), ((1, 1, 16384, 128), True, "float16"),
]  # fmt: skip


class Attention(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attend(q, k, v, is_causal=self.causal)


def replayed(call: Callable[[], Any]) -> Callable[[], None]:
    """The call as a graph of CUDA, so that nothing of the host is timed."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    replay: Callable[[], None] = graph.replay
    return replay


def microseconds(run: Callable[[], None], warm: float) -> float:
    """Of one call: the best of windows of some milliseconds, after a pause or `warm` seconds."""

    def window(calls: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            run()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / calls * 1e3

    window(3)  # clocks and caches are cold
    calls = max(1, int(4000 / max(1.0, window(10))))
    best = float("inf")
    until = time.monotonic() + warm
    while warm and time.monotonic() < until:
        window(calls)
    for _ in range(5):
        if not warm:
            time.sleep(0.08)
        best = min(best, window(calls))
    return best


def row(shape: tuple[int, ...], causal: bool, dtype: str, seconds: float) -> dict[str, Any]:
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    given = [torch.randn(*shape, device="cuda", dtype=kind) for _ in range(3)]
    q, k, v = given
    few = [x[:1, :2, : min(4096, shape[2])].double() for x in given]
    whole = shape[2] <= 4096
    want = attend(few[0], few[1], few[2], is_causal=causal) if whole or causal else None

    def error(y: torch.Tensor) -> float:
        if want is None:
            return float("nan")
        part = y[:1, :2, : want.shape[2]].double()
        return float((part - want).norm() / want.norm())

    out: dict[str, Any] = {"burst": {}, "sustained": {}, "error": {}}

    def add(name: str, call: Callable[[], torch.Tensor]) -> None:
        out["error"][name] = error(call())
        run = replayed(call)
        out["burst"][name] = microseconds(run, 0)
        out["sustained"][name] = microseconds(run, 0.3)

    for name, backend in PEERS.items():
        try:
            with sdpa_kernel(backend):
                add(name, lambda: attend(q, k, v, is_causal=causal))
        except RuntimeError:
            continue  # it does not take this case
    target = ts.cuda()
    example = tuple(x.cpu() for x in given)
    tasks = extract_tasks(ts.from_torch(Attention(causal), example), target)
    if len(tasks) != 1:
        raise SystemExit(f"{shape} is not one kernel, but {[t.func.name for t, _ in tasks]}")
    result = ts.tune(tasks[0][0].func, target, budget=ts.Budget(seconds=seconds), quiet=True)
    kernel, y = result.kernel, torch.empty_like(given[0])
    assert isinstance(kernel, DeviceKernel)

    def ours() -> torch.Tensor:
        stream = torch.cuda.current_stream().cuda_stream
        kernel(*given, out=y, stream=stream)
        return y

    add("ours", ours)
    out["trials"] = result.trials
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--target", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--threads", type=int, default=1, help="on a CPU")
    parser.add_argument("--peers", default="torch,onnxruntime,openvino", help="on a CPU")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds; then nothing is begun")
    parser.add_argument(
        "--processor-time", action="store_true",
        help="count it instead of wall time, where others use a CPU, too; of one thread",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=60.0, help="of tuning, per case")
    parser.add_argument(
        "--only", default="", help="shapes, such as 4x16x2048x128; on a CPU parts of names"
    )
    parser.add_argument("--json", type=Path, help="where to write the rows")
    args = parser.parse_args()
    if args.target == "cpu":
        run_on_cpu(args)
        return
    only, rows, ratios = args.only.split(",") if args.only else [], {}, []
    failed, end = list[str](), time.monotonic() + args.limit
    for shape, causal, dtype in CASES:
        name = "x".join(map(str, shape))
        if only and name not in only:
            continue
        if time.monotonic() > end:
            break
        mask = "causal" if causal else "full"
        try:
            found = row(shape, causal, dtype, args.seconds)
        except ts.TilesmithError as error:  # the other cases go on
            print(f"{name:16} {mask:6} {dtype:8} {type(error).__name__}: {error}", flush=True)
            failed.append(f"{name} {mask}")
            continue
        work = 4.0 * shape[0] * shape[1] * shape[2] ** 2 * shape[3] / (2 if causal else 1)
        parts = []
        for how in ("burst", "sustained"):
            times = found[how]
            best = min((k for k in times if k != "ours"), key=lambda k: times[k])
            ratio = times[best] / times["ours"]
            tera = work / times["ours"] / 1e6
            parts.append(f"{how} {times['ours']:8.1f} us {tera:4.0f} TFLOP/s {ratio:.2f} of {best}")
            if how == "burst":
                ratios.append(ratio)
        errors = ", ".join(f"{k} {e:.1e}" for k, e in found["error"].items())
        print(f"{name:16} {mask:6} {dtype:8} {'; '.join(parts)}; errors {errors}", flush=True)
        rows[f"{name} {mask} {dtype}"] = found
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1))
    if ratios:
        print(f"geometric mean {geometric_mean(ratios):.2f}, worst {min(ratios):.2f}")
    if failed:
        raise SystemExit(f"without a kernel: {', '.join(failed)}")


if __name__ == "__main__":
    main()
