"""Networks that nobody here wrote, beside PyTorch, torch.compile, ONNX Runtime and OpenVINO.

    python -m bench.zoo --target cpu [--threads 1] [--seconds 20] [--names resnet18,bert]
    python -m bench.zoo --target cuda --precision float16 [--seconds 20] [--json FILE]

Needs torchvision and transformers. A row has the ratio to the fastest peer (above 1 we are faster),
tuned and untuned, the error relative to the norm of PyTorch's answer, which operators run on the
host, and kernels that are plain loop nests, as no sketch of them built. On a CPU, ours and every
peer are in a process of their own and take turns; on a GPU, calls of all are captured in CUDA
graphs, without copies.
"""

from __future__ import annotations

import argparse
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import tilesmith as ts
from bench.everyday import distance
from bench.gpu_cases import device
from bench.gpu_table import Table
from bench.gpu_torch import graph_us
from bench.zoo_networks import Network, by_onnx, graph_of, networks, ours, theirs, typed
from tilesmith.base.errors import MeasureError
from tilesmith.graph.device_executor import DeviceExecutor
from tilesmith.tune.build_request import TOO_SMALL
from tilesmith_contest.pairs import Turns, contest, geometric_mean
from tilesmith_contest.process import ContestantProcess, Make, cores_for

_TURNS = Turns(rounds=7, sample_seconds=0.1, most_seconds=20.0)
_NEAR = {"float32": 1e-3, "float16": 5e-2, "bfloat16": 2e-1}  # of the norm of the answer
_MEAN, _WORST = 1.2, 0.9


def told(model: Any) -> dict[str, Any]:
    """What of the network does not run in kernels as it should."""
    on_host = sorted({h.op for h in model.host_steps})
    plain = [
        f"{k.artifact.name}: {k.origin.why}"[:120]
        for e in model.executors
        for k in e.kernels
        if k.origin.kind == "naive" and k.origin.why != TOO_SMALL
    ]
    return {"on_host": on_host, "plain": plain}


class OnCpu:
    def __init__(self, target: ts.Target, precision: str, peers: Sequence[str]) -> None:
        self._target, self._precision = target, precision
        self._peers = tuple(peers)
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))

    def close(self) -> None:
        self._stack.close()

    def row(self, network: Network, seconds: float) -> dict[str, Any]:
        threads, precision = self._target.num_cores, self._precision
        module, given = typed(network, precision)
        graph = graph_of(module, given)
        model = ts.compile_model(graph, self._target, progress=False)
        row = told(model)
        own = {"untuned": Make(ours, (network, precision, threads, ""))}
        if seconds:
            path = self._folder / f"{network.name}.db"
            with ts.open_database(path) as database:
                budget = ts.Budget(seconds=seconds)
                tuned = ts.tune_model(
                    graph, self._target, budget=budget, quiet=True, database=database
                )
            row["trials"] = tuned.tuning.trials
            own["tilesmith"] = Make(ours, (network, precision, threads, str(path)))
        peers = {
            "torch": Make(theirs, (network, precision, threads, False)),
            "compile": Make(theirs, (network, precision, threads, True)),
            **{
                engine: Make(by_onnx, (network, threads, str(self._folder / "it.onnx"), engine))
                for engine in ("onnxruntime", "openvino")
                if precision == "float32"
            },
        }
        recipes = {**own, **{n: m for n, m in peers.items() if n in self._peers}}
        with ExitStack() as processes:
            samplers, answers = {}, {}
            for name, recipe in recipes.items():
                process = processes.enter_context(ContestantProcess(name, cores_for(threads)))
                try:
                    (made,) = process.make(recipe)
                    samplers[name], answers[name] = process.sampler(made), process.answer(made)
                except MeasureError as error:
                    if name in own or name == "torch":
                        raise
                    row[name] = str(error)[:160]
            errors = {n: distance(np.asarray(a), answers["torch"]) for n, a in answers.items()}
            near = _NEAR[precision]
            base = "tilesmith" if seconds else "untuned"
            right = {n: s for n, s in samplers.items() if errors[n] < near or n == base}
            result = contest(right.pop(base), right, _TURNS)
        times = {**result.times, base: result.ours}
        rivals = {n: t for n, t in times.items() if n not in own}
        best = min(rivals, key=lambda n: rivals[n])
        return {
            "ratio": round(rivals[best] / times[base], 3), "peer": best,
            "untuned": round(rivals[best] / times["untuned"], 3),
            "ms": {n: round(t * 1e3, 3) for n, t in times.items()}, **row,
            "error_norm": max(errors[n] for n in own),
        }  # fmt: skip


class OnGpu:
    def __init__(self, target: ts.Target, precision: str, peers: Sequence[str]) -> None:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        self._torch, self._target, self._precision = torch, target, precision
        self._peers = tuple(peers)

    def close(self) -> None:
        pass

    def row(self, network: Network, seconds: float) -> dict[str, Any]:
        torch = self._torch
        module, given = typed(network, self._precision)
        graph = graph_of(module, given)
        there, tensors = module.cuda(), [t.cuda() for t in given]
        with torch.inference_mode():
            want = there(*tensors).float().cpu().numpy()
        times = {"torch": graph_us(torch, lambda: there(*tensors))}
        row: dict[str, Any] = {}
        if "compile" in self._peers:
            try:
                quick = torch.compile(there, mode="max-autotune-no-cudagraphs")
                times["compile"] = graph_us(torch, lambda: quick(*tensors))
            except Exception as error:  # the compiler's own, of any kind
                row["compile"] = f"{type(error).__name__}: {error}"[:160]
        draft = ts.compile_model(graph, self._target, progress=False)
        untuned, error = self._ours(draft, given, want)
        us, row = untuned, {**row, **told(draft)}
        if seconds:
            budget = ts.Budget(seconds=seconds)
            tuned = ts.tune_model(graph, self._target, budget=budget, quiet=True)
            us, error = self._ours(tuned, given, want)
            row["trials"] = tuned.tuning.trials
        best = min(times, key=lambda n: times[n])
        return {
            "ratio": round(times[best] / us, 3), "peer": best,
            "untuned": round(times[best] / untuned, 3),
            "ms": {n: round(t / 1e3, 3) for n, t in (*times.items(), ("tilesmith", us))}, **row,
            "error_norm": error,
        }  # fmt: skip

    def _ours(self, model: Any, given: Sequence[Any], want: Any) -> tuple[float, float]:
        feeds = {s.name: t for s, t in zip(model.inputs, given, strict=True)}
        got = np.asarray(next(iter(model(feeds).values())), np.float32)
        timed = [e for e in model.executors if isinstance(e, DeviceExecutor)]
        us = sorted(sum(e.seconds() for e in timed) for _ in range(9))[4] * 1e6
        return us, distance(got, want)


def summary(rows: Sequence[dict[str, Any]], precision: str) -> Iterator[str]:
    timed = [r for r in rows if "ratio" in r]
    if timed:
        mean = geometric_mean(r["ratio"] for r in timed)
        drafts = geometric_mean(r["untuned"] for r in timed)
        worst = min(timed, key=lambda r: r["ratio"])
        yield (
            f"{len(timed)} networks, mean {mean:.3f} (wanted {_MEAN}), untuned {drafts:.3f}, worst "
            f"{worst['ratio']} {worst['name']}, {sum(r['ratio'] < _WORST for r in timed)} below "
            f"{_WORST}"
        )
    for r in rows:
        if "error" in r:
            yield f"failed: {r['name']}: {r['error']}"
        elif not r["error_norm"] <= _NEAR[precision]:
            yield f"wrong: {r['name']}: off by {r['error_norm']:.1e}"
        if r.get("on_host"):
            yield f"on the host: {r['name']}: {', '.join(r['on_host'])}"
        if r.get("plain"):
            yield f"plain loop nests: {r['name']}: {', '.join(r['plain'])}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--precision", default="float32", choices=tuple(_NEAR))
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--names", default="", help="of networks; without it, all")
    parser.add_argument("--peers", default="torch,compile,onnxruntime,openvino")
    parser.add_argument("--json")
    parser.add_argument("--limit", type=float, default=1e9)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    is_cpu = options.target == "cpu"
    target = ts.cpu(options.threads) if is_cpu else device(options.target)
    peers = options.peers.split(",")
    table = Table(options.json, options.limit)
    where = (OnCpu if is_cpu else OnGpu)(target, options.precision, peers)
    names = tuple(n.strip() for n in options.names.split(",") if n.strip())
    try:
        for network in networks(names):
            if table.has(network.name):
                continue
            if table.is_over:
                break
            try:
                row = where.row(network, options.seconds)
            except Exception as error:  # also the packages' own: the others go on
                if not isinstance(error, ts.TilesmithError):
                    traceback.print_exc()
                row = {"error": f"{type(error).__name__}: {error}"[:300]}
            table.add(network.name, **row)
    finally:
        where.close()
    print()
    for line in summary(table.rows, options.precision):
        print(line)


if __name__ == "__main__":
    main()
