"""What users bring: operators of many families, drawn by a seed, beside PyTorch and on CPUs ONNX
Runtime. Each is stated once, as a PyTorch module, which we read by `ts.from_torch`.

    python -m bench.everyday --target cpu --seed 7 [--cases 60] [--seconds 8] [--threads 1]
    python -m bench.everyday --target cuda --seed 7 [--families "reduction,product"] [--only 3,17]
                             [--json FILE] [--limit SECONDS]

A row has the ratios to the fastest peer, tuned and untuned (above 1 we are faster), the seconds
until 90 % of the end, the trials, and how many programs the spaces of its tasks hold. Peers run in
processes of their own; on a CPU all take turns.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import tilesmith as ts
from bench.everyday_cases import CPU, FAMILIES, GPU, Case, draw
from bench.gpu_cases import device
from bench.gpu_table import Table
from bench.module_rows import compared, mean_line, on_device, parser_of
from tilesmith.base.errors import MeasureError
from tilesmith.space.spaces import SketchSpace, variants
from tilesmith.tune.compile_model import extract_tasks
from tilesmith_contest.pairs import Turns, geometric_mean
from tilesmith_contest.process import ContestantProcess, Make, cores_for

_TURNS = Turns(rounds=9, sample_seconds=0.01, most_seconds=6.0)
_NEAR = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}  # of the norm of the answer
_FAMILY_BAR = {"cuda": (1.3, 1.0, 0.7), "cpu": (1.4, 1.0, 0.8)}  # mean, each family, each case


def space_sizes(graph: Any, target: ts.Target) -> list[int]:
    """How many programs the space of each task holds, before limits; of chains of many stages, the
    first ones are counted.
    """
    tasks = extract_tasks(graph, target)
    return [
        sum(v.size for s in SketchSpace().sketches(task) for v in islice(variants(task, s), 64))
        for task, _ in tasks
    ]


def near_seconds(model: Any) -> float | None:
    """When the estimate was first within 10 % of its end."""
    curve = model.tuning.latency
    if not curve:
        return None
    return next(round(s, 1) for s, cost in curve if cost <= curve[-1][1] / 0.9)


def told(model: Any) -> dict[str, Any]:
    """How a model was tuned: the trials, and the microseconds of each of its kernels."""
    tuning = model.tuning
    kernels = [f"{t.weight} x {t.task.func.name} {t.best * 1e6:.1f}" for t in tuning.tasks]
    return {"near": near_seconds(model), "trials": tuning.trials, "kernels": kernels}


class OnGpu:
    """PyTorch is in one process for all cases."""

    def __init__(self, target: ts.Target) -> None:
        self._target = target
        self._folder = tempfile.TemporaryDirectory(prefix="tilesmith-everyday-")
        self._answer = str(Path(self._folder.name) / "answer.npy")
        self._peer: subprocess.Popen[str] | None = None

    def close(self) -> None:
        if self._peer is not None:
            self._peer.kill()
            self._peer.wait()
        self._folder.cleanup()

    def ask(self, case: Case) -> dict[str, Any]:
        if self._peer is None or self._peer.poll() is not None:
            self._peer = subprocess.Popen(
                [sys.executable, "-m", "bench.everyday_modules"], text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        assert self._peer.stdin is not None
        assert self._peer.stdout is not None
        question = {"case": case.to_json(), "answer": self._answer}
        self._peer.stdin.write(json.dumps(question) + "\n")
        self._peer.stdin.flush()
        line = self._peer.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "its process died"}
        if "error" in answer:
            raise MeasureError(f"PyTorch: {answer['error']}")
        return answer

    def row(self, case: Case, graph: Any, given: Sequence[Any], seconds: float) -> dict[str, Any]:
        times = self.ask(case)["times"]
        want = np.load(self._answer)
        untuned, error = on_device(ts.compile_model(graph, self._target), given, want)
        row: dict[str, Any] = {"untuned_us": untuned}
        us = untuned
        if seconds:
            budget = ts.Budget(seconds=seconds)
            model = ts.tune_model(graph, self._target, budget=budget, quiet=True)
            us, error = on_device(model, given, want)
            row |= told(model)
        best = min(times, key=lambda k: times[k])
        ratios = {"ratio": times[best] / us, "untuned": times[best] / untuned}
        return {
            "us": round(us, 2), "peer_us": round(times[best], 2), "peer": best, **row,
            **{k: round(v, 3) for k, v in ratios.items()}, "error_norm": error,
        }  # fmt: skip


class OnCpu:
    """Ours and each peer are in a process of their own for all cases, and take turns."""

    def __init__(self, target: ts.Target, peers: Sequence[str]) -> None:
        self._target = target
        cores = cores_for(target.num_cores)
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._processes = {
            name: self._stack.enter_context(ContestantProcess(name, cores))
            for name in ("tilesmith", "untuned", *peers)
        }

    def close(self) -> None:
        self._stack.close()

    def row(self, case: Case, graph: Any, given: Sequence[Any], seconds: float) -> dict[str, Any]:
        from bench.everyday_modules import onnx_contestants, our_contestants, torch_contestants

        threads, row = self._target.num_cores, dict[str, Any]()
        recipes = {"untuned": Make(our_contestants, (case, threads, ""))}
        if seconds:
            path = self._folder / f"{time.monotonic_ns()}.db"
            with ts.open_database(path) as database:
                budget = ts.Budget(seconds=seconds)
                model = ts.tune_model(
                    graph, self._target, budget=budget, quiet=True, database=database
                )
            row |= told(model)
            recipes["tilesmith"] = Make(our_contestants, (case, threads, str(path)))
        recipes["torch"] = Make(torch_contestants, (case, threads))
        if "onnxruntime" in self._processes:
            onnx_file = str(self._folder / "case.onnx")
            recipes["onnxruntime"] = Make(onnx_contestants, (case, threads, onnx_file))
        them = compared(recipes, self._processes.__getitem__, _TURNS, near=1e-2)
        us = {n: round(t * 1e6, 2) for n, t in them.seconds.items()}
        return {
            "us": us["tilesmith" if seconds else "untuned"], "peer_us": us[them.peer],
            "peer": them.peer, "ratio": them.ratio, "untuned": them.untuned, **row, **them.failed,
            "error_norm": them.error,
        }  # fmt: skip


def measured(case: Case, where: OnGpu | OnCpu, target: ts.Target, seconds: float) -> dict[str, Any]:
    from bench.everyday_modules import module_of
    from bench.module_contestants import graph_of

    row: dict[str, Any] = {"family": case.family, "work": case.work}
    try:
        module, given = module_of(case)
        graph = graph_of(module, given)
        row["spaces"] = space_sizes(graph, target)
        row |= where.row(case, graph, given, seconds)
        near = _NEAR.get(case.dtype, 1e-4)
        if not row["error_norm"] <= near:
            row["wrong"] = True
    except Exception as error:  # also PyTorch's own: the other cases go on
        if not isinstance(error, ts.TilesmithError):
            traceback.print_exc()
        row["error"] = f"{type(error).__name__}: {error}"[:500]
    return row


def summary(rows: Sequence[dict[str, Any]], bars: tuple[float, float, float]) -> Iterator[str]:
    timed = [r for r in rows if "ratio" in r]
    for family in FAMILIES:
        own = [r for r in timed if r["family"] == family]
        if not own:
            continue
        mean = geometric_mean(r["ratio"] for r in own)
        drafts = geometric_mean(r["untuned"] for r in own)
        worst = min(own, key=lambda r: r["ratio"])
        low = " <" if mean is not None and mean < bars[1] else ""
        yield (
            f"{family:24} {len(own):3} cases, mean {mean:5.2f}{low:2}, untuned {drafts:5.2f}, "
            f"worst {worst['ratio']:5.2f} {worst['name']}"
        )
    if timed:
        yield f"all: {mean_line(timed, 'cases', bars[0], bars[2])}"
    small = [r for r in rows if r["work"] > 1e6 and any(s < 50 for s in r.get("spaces", ()))]
    for r in small:
        yield f"fewer than 50 programs: {r['name']}: {r['spaces']}"
    for r in rows:
        if "error" in r or r.get("wrong"):
            why = r.get("error") or f"its answer is off by {r['error_norm']:.1e}"
            yield f"failed: {r['name']}: {why}"


def main() -> None:
    parser = parser_of(__doc__, seconds=8.0, peers="torch,onnxruntime")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--families", default="")
    parser.add_argument("--only", default="", help="numbers of cases, from 0")
    options = parser.parse_args()
    target = ts.cpu(options.threads) if options.target == "cpu" else device(options.target)
    is_cpu = target.kind == "cpu"
    families = tuple(x.strip() for x in options.families.split(",") if x.strip())
    only = {int(x) for x in options.only.split(",") if x}
    table = Table(options.json, options.limit)
    where = OnCpu(target, options.peers.split(",")) if is_cpu else OnGpu(target)
    try:
        for k, case in enumerate(
            draw(options.seed, options.cases, CPU if is_cpu else GPU, families)
        ):
            name = f"{k} {case.name}"
            if (only and k not in only) or table.has(name):
                continue
            if table.is_over:
                break
            table.add(name, **measured(case, where, target, options.seconds))
    finally:
        where.close()
    print()
    for line in summary(table.rows, _FAMILY_BAR["cpu" if is_cpu else "cuda"]):
        print(line)


if __name__ == "__main__":
    main()
