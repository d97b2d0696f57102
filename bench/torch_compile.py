"""torch.compile by backend, in one process and in turns: `python -m bench.torch_compile [--small]`.

Eager, Inductor and we call the same modules under torch.no_grad() on one thread. What counts is
processor time, as other processes take turns on the machine; each contestant's best of many turns
and the median are shown, and the ratios of the medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import tilesmith as ts
from tilesmith.tune.torch_backend import tilesmith
from tilesmith_contest.networks.catalogue import network, use_fused_kernels

NAMES = ("resnet50", "mobilenet-v2", "bert-base", "resnet18-3d", "dcgan")


def contestants(
    module: torch.nn.Module, options: argparse.Namespace
) -> dict[str, Callable[..., Any]]:
    settings: dict[str, Any] = {"quiet": True, "target": ts.cpu(num_cores=1)}
    if options.budget:
        settings["budget_seconds"] = options.budget
    if options.database:
        settings["database"] = options.database
    found: dict[str, Callable[..., Any]] = {"eager": module}
    if options.inductor:
        found["inductor"] = torch.compile(module, backend="inductor")
    found["tilesmith"] = torch.compile(module, backend=tilesmith, options=settings)
    return found


def turns(runs: dict[str, Callable[..., Any]], x: Any, count: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
    for k in range(count):
        for name in order[k % len(order) :] + order[: k % len(order)]:
            begin = time.process_time()
            runs[name](x)
            seconds[name].append(time.process_time() - begin)
    return seconds


def line(name: str, options: argparse.Namespace) -> str:
    net = network(name, options.small)
    module = use_fused_kernels(net.module())
    x = torch.from_numpy(net.inputs(options.batch)[net.input])
    want = module(x)
    runs = contestants(module, options)
    words, starts = [], []
    for who, run in runs.items():
        begin = time.process_time()
        got = run(x)
        starts.append(f"{who} {time.process_time() - begin:.1f} s")
        torch.testing.assert_close(got, want, atol=1e-2, rtol=1e-2)
    seconds = turns(runs, x, options.turns)
    ours = statistics.median(seconds["tilesmith"])
    for who, all_of in seconds.items():
        middle, best = statistics.median(all_of), min(all_of)
        words.append(f"{who} {1e3 * middle:.2f} ms (best {1e3 * best:.2f}), x{middle / ours:.2f}")
    return f"{name}: {'; '.join(words)}; first call: {', '.join(starts)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", default=",".join(NAMES))
    parser.add_argument("--small", action="store_true", help="the small versions that tests use")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--budget", type=float, default=0.0, help="seconds of tuning")
    parser.add_argument("--database", default="", help="records to start from")
    parser.add_argument("--no-inductor", dest="inductor", action="store_false")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with torch.no_grad():
        for name in options.networks.split(","):
            print(line(name, options), flush=True)
            torch._dynamo.reset()


if __name__ == "__main__":
    main()
