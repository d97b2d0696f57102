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

import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tilesmith as ts
from bench.gpu_cases import device
from bench.gpu_table import Table
from bench.gpu_torch import graph_us
from bench.module_contestants import graph_of
from bench.module_rows import compared, mean_line, on_device, parser_of
from bench.zoo_networks import Network, by_onnx, networks, our_contestants, theirs, typed
from tilesmith.tune.build_request import TOO_SMALL
from tilesmith_contest.pairs import Turns
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
        recipes = {"untuned": Make(our_contestants, (network, precision, threads, ""))}
        if seconds:
            path = str(self._folder / f"{network.name}.db")
            with ts.open_database(path) as database:
                budget = ts.Budget(seconds=seconds)
                tuned = ts.tune_model(
                    graph, self._target, budget=budget, quiet=True, database=database
                )
            row["trials"] = tuned.tuning.trials
            recipes["tilesmith"] = Make(our_contestants, (network, precision, threads, path))
        engines = ("onnxruntime", "openvino") if precision == "float32" else ()
        onnx_file = str(self._folder / "it.onnx")
        peers = {
            "torch": Make(theirs, (network, precision, threads, False)),
            "compile": Make(theirs, (network, precision, threads, True)),
            **{e: Make(by_onnx, (network, threads, onnx_file, e)) for e in engines},
        }
        recipes |= {n: m for n, m in peers.items() if n in ("torch", *self._peers)}
        with ExitStack() as processes:

            def process_of(name: str) -> ContestantProcess:
                return processes.enter_context(ContestantProcess(name, cores_for(threads)))

            them = compared(recipes, process_of, _TURNS, _NEAR[precision])
        return {
            "ratio": them.ratio, "peer": them.peer, "untuned": them.untuned,
            "ms": {n: round(t * 1e3, 3) for n, t in them.seconds.items()}, **row, **them.failed,
            "error_norm": them.error,
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
        untuned, error = on_device(draft, given, want)
        us, row = untuned, {**row, **told(draft)}
        if seconds:
            budget = ts.Budget(seconds=seconds)
            tuned = ts.tune_model(graph, self._target, budget=budget, quiet=True)
            us, error = on_device(tuned, given, want)
            row["trials"] = tuned.tuning.trials
        best = min(times, key=lambda n: times[n])
        return {
            "ratio": round(times[best] / us, 3), "peer": best,
            "untuned": round(times[best] / untuned, 3),
            "ms": {n: round(t / 1e3, 3) for n, t in (*times.items(), ("tilesmith", us))}, **row,
            "error_norm": error,
        }  # fmt: skip


def summary(rows: Sequence[dict[str, Any]], precision: str) -> Iterator[str]:
    timed = [r for r in rows if "ratio" in r]
    if timed:
        yield mean_line(timed, "networks", _MEAN, _WORST)
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
    parser = parser_of(__doc__, seconds=20.0, peers="torch,compile,onnxruntime,openvino")
    parser.add_argument("--precision", default="float32", choices=tuple(_NEAR))
    parser.add_argument("--names", default="", help="of networks; without it, all")
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
