"""The first minute on a new GPU: each part of the run time alone, in the order in which they build
on each other. A row says "ok" or what went wrong.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

import tilesmith as ts
from bench.gpu_faults import N, build_planted, planted
from tilesmith.codegen.artifact import Artifact, Entry, Launch, parameters_of
from tilesmith.codegen.c.nvrtc import compile_cuda
from tilesmith.runtime.device_kernel import kernel_of
from tilesmith.runtime.kernel import Kernel
from tilesmith.tune.build_request import plain_schedule

X = np.linspace(-1, 1, N, dtype=np.float32)
_SHARED = """
extern "C" __global__ void turn(const float *X, float *Y) {
  extern __shared__ float s[];
  int first = blockIdx.x * 1024;
  for (int k = 0; k < 20; k++) s[k * 1024 + threadIdx.x] = first + threadIdx.x < 100000 ?
      X[first + threadIdx.x] : 0.0f;
  __syncthreads();
  if (first + threadIdx.x < 100000) Y[first + threadIdx.x] = 2 * s[19 * 1024 + threadIdx.x] + 1;
}
"""


def smoke(target: ts.Target, add: Callable[..., None]) -> None:
    steps: dict[str, Callable[[ts.Target], Any]] = {
        "target": lambda t: t.to_json(),
        "kernel on NumPy arrays": _numpy,
        "kernel timed": lambda t: str(_kernel(t).time()),
        "two launches and a workspace": _softmax,
        "80 KB of shared memory": _shared,
        "torch tensors in place": _torch,
        "captured by torch": _captured,
        "a small network": _network,
        "measured": _measured,
    }
    for name, step in steps.items():
        began = time.monotonic()
        try:
            result = step(target)
            add(f"smoke {name}", ok=True, result=result, seconds=round(time.monotonic() - began, 2))
        except Exception as error:  # the next steps may still work
            last = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"
            add(f"smoke {name}", ok=False, text=text, seconds=round(time.monotonic() - began, 2))


def _kernel(target: ts.Target) -> Kernel:
    c = planted("threads 128", target)
    return kernel_of(build_planted(c.trace.apply(c.task.func), target))


def _numpy(target: ts.Target) -> None:
    kernel = _kernel(target)
    np.testing.assert_array_equal(kernel(X), 2 * X + 1)
    out = np.zeros_like(X)
    assert kernel(X + 1, out=out) is out
    np.testing.assert_array_equal(out, 2 * (X + 1) + 1)


def _softmax(target: ts.Target) -> int:
    x = ts.placeholder((50, 70), name="x")
    func = ts.function([x, ts.ops.softmax(x)], name="rows")
    kernel = ts.build(ts.Schedule(plain_schedule(func, target)), target)
    data = np.random.default_rng(0).standard_normal((50, 70), dtype=np.float32)
    np.testing.assert_allclose(kernel(data), ts.evaluate(func, data), rtol=1e-5, atol=1e-6)
    return len(kernel.artifact.entries[0].launches)


def _shared(target: ts.Target) -> str | None:
    if target.kind != "cuda":
        return "only CUDA has it"
    func = planted("", target).task.func
    code = compile_cuda("turn", _SHARED, target.arch).cubin
    launch = Launch("turn", -(-N // 1024), 1024, ("X", "Y"), 80 << 10)
    entry = Entry("turn", "turn", parameters_of(func), launches=(launch,))
    kernel = kernel_of(Artifact("turn", target, (entry,), _SHARED, code, language="cuda"))
    np.testing.assert_array_equal(kernel(X), 2 * X + 1)
    return None


def _torch(target: ts.Target) -> str | None:
    if target.kind != "cuda":
        return "only CUDA has it"
    import torch

    kernel = _kernel(target)
    x = torch.from_numpy(X).cuda()
    y = kernel(x)
    assert isinstance(y, torch.Tensor)
    assert torch.equal(y, 2 * x + 1)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        z = torch.empty_like(x)
        kernel(y, out=z)
        w = z + 1
    stream.synchronize()
    assert torch.equal(w, 2 * y + 2)
    kernel(x, out=z, stream=stream)
    stream.synchronize()
    assert torch.equal(z, y)
    return None


def _captured(target: ts.Target) -> str | None:
    """In somebody else's CUDA graph."""
    if target.kind != "cuda":
        return "only CUDA has it"
    import torch

    kernel = _kernel(target)
    x = torch.from_numpy(X).cuda()
    y = torch.zeros_like(x)
    kernel(x, out=y)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(x, out=y)
    y.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, 2 * x + 1)
    return None


def _network(target: ts.Target) -> dict[str, float]:
    import torch

    from tilesmith_contest.networks import catalogue

    net = catalogue.network("resnet50", small=True)
    module, inputs = net.module(), net.inputs()
    tensors = tuple(torch.from_numpy(a) for a in inputs.values())
    model = ts.compile_model(ts.from_torch(module, tensors), target, cache=None, progress=False)
    feeds = {s.name: a for s, a in zip(model.inputs, inputs.values(), strict=True)}
    (got,) = model(feeds).values()
    (want,) = catalogue.in_float64(net, module, inputs).values()
    error = float(np.linalg.norm(got - want) / np.linalg.norm(want))
    assert error < 1e-5, error
    if target.kind == "cuda":
        on_device = {k: torch.from_numpy(a).cuda() for k, a in feeds.items()}
        (there,) = model(on_device).values()
        assert torch.is_tensor(there)
        np.testing.assert_array_equal(there.cpu().numpy(), got)
    return {"error": error}


def _measured(target: ts.Target) -> list[str]:
    """Right, wrong and an illegal address, one after the other."""
    faults = ("threads 64", "wrong", "illegal address", "threads 96")
    candidates = [planted(fault, target) for fault in faults]
    with ts.LocalMeasurer(timeout=5.0).open(candidates[0].task) as run:
        measured = run.measure(candidates)
        best = run.best(candidates[0].task)
    assert [m.failure is None for m in measured] == [True, False, False, True], measured
    assert best is not None
    return [repr(m) for m in measured]
