"""GPUs: are kernels right, how many are measured in a second, are faults survived, and how fast are
tuned kernels and whole networks beside PyTorch?

    python -m bench.gpu smoke
    python -m bench.gpu check   [--candidates 40] [--ops GMM,C2D] [--shapes 1]
    python -m bench.gpu rates   [--seconds 30]
    python -m bench.gpu faults
    python -m bench.gpu suite   --seconds 60 [--ops ...] [--shapes 1,3] [--batch 16] [--db F]
                                [--cases "matmul-float16 4096 4096 4096; layer-norm 8192 8192"]
    python -m bench.gpu models  [--networks resnet50,mobilenet-v2,bert-base] [--seconds 0,60]
                                [--precision float32,float16] [--peers graph,compile] [--db F]

Common: --target cuda|opencl, --limit SECONDS (it ends by itself before that), --json FILE (written
after every row; a row that is in it already is not measured again).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np

import tilesmith as ts
from bench.gpu_cases import cases_of, device, named_cases
from bench.gpu_faults import FAULTS, planted
from bench.gpu_models import models
from bench.gpu_smoke import smoke
from bench.gpu_table import FINISH_SECONDS, Table
from bench.gpu_torch import PEERS
from bench.wrong_kernels import told_apart, wrong_kernels
from tilesmith.measure.parent.timing import TimingRules
from tilesmith.space.spaces import SketchSpace, variants
from tilesmith.task.task import Candidate, Task
from tilesmith_contest.compare import Case, machine_of

# One sample each: `check` is about answers.
_QUICK = TimingRules(min_samples=1, min_seconds=0.0, rounds=1, max_entrants=2)


def name_of(case: Case) -> str:
    return f"{case.op} {','.join(map(str, case.shape))}"


def chosen_cases(options: argparse.Namespace) -> list[Case]:
    if options.cases:
        return named_cases(options.cases)
    return cases_of(options.ops, options.shapes, options.batch)


# check -------------------------------------------------------------------------------------------


def random_candidates(task: Task, rules: Any, count: int, seed: int) -> list[Candidate]:
    """Valid rows of all variants of all sketches, about equally many of each."""
    rng = np.random.default_rng(seed)
    sketches = SketchSpace(rules(task.target)).sketches(task)
    every = [v for s in sketches for v in variants(task, s)]
    found: dict[str, Candidate] = {}
    for _ in range(4):
        each = -(-(count - len(found)) // max(1, len(every)))
        for k in rng.permutation(len(every)):
            v = every[k]
            for row in v.sample(rng, each):
                c = v.candidate(row)
                found.setdefault(c.key, c)
        if len(found) >= count:
            break
    drawn = list(found.values())
    return [drawn[k] for k in rng.permutation(len(drawn))[:count]]


def check(options: argparse.Namespace, target: ts.Target, table: Table) -> None:
    total: Counter[str] = Counter()
    measurer = ts.LocalMeasurer(confirm=False, rules=_QUICK, timeout=options.timeout)
    todo = [
        (f"{name_of(case)} {label}", Task(case.plain, target), rules)
        for case in chosen_cases(options)
        for label, rules in (("default", ts.default_rules), ("ansor", ts.ansor_rules))
    ]
    todo = [t for t in todo if not table.has(t[0])]
    if not todo:
        return
    with measurer.open(todo[0][1]) as run:
        for name, task, rules in todo:
            if table.is_over:
                break
            began = time.monotonic()
            try:
                drawn = random_candidates(task, rules, options.candidates, options.seed)
                sampled = time.monotonic() - began
                measured = run.measure(drawn, seconds=table.left - FINISH_SECONDS)
            except ts.TilesmithError as error:
                table.add(name, error=f"{type(error).__name__}: {error}")
                continue
            kinds = Counter("ok" if m.failure is None else m.failure.kind for m in measured)
            total += kinds
            texts = {m.failure.kind: m.failure.text for m in measured if m.failure is not None}
            costs = [m.cost * 1e6 for m in measured if m.failure is None]
            wrong = [m.candidate.trace.to_json() for m in measured
                     if m.failure is not None and m.failure.kind == "wrong"]  # fmt: skip
            table.add(
                name, drawn=len(drawn), measured=len(measured), **kinds, texts=texts,
                wrong_traces=wrong[:3],
                best_us=min(costs, default=None), draw_seconds=round(sampled, 2),
                seconds=round(time.monotonic() - began, 2),
            )  # fmt: skip
    table.add("all candidates", **total)


# rates -------------------------------------------------------------------------------------------


def rates(options: argparse.Namespace, target: ts.Target, table: Table) -> None:
    """Trials a second of a plain tuning run, and where the time goes."""
    for op, shape in (("GMM", "4"), ("C2D", "3")):
        (case,) = cases_of(op, shape)
        name = f"rate {name_of(case)}"
        if table.has(name) or table.is_over:
            continue
        seconds = min(options.seconds, table.left - FINISH_SECONDS)
        task, measurer = Task(case.plain, target), ts.LocalMeasurer()
        tuner = ts.TaskTuner(task, budget=ts.Budget(seconds=seconds), seed=options.seed)
        began = time.monotonic()
        with measurer.open(task) as run:
            while not tuner.finished:
                tuner.step(run)
            spent = run.spent
        took = time.monotonic() - began
        table.add(
            name, trials=tuner.trials, seconds=round(took, 1),
            per_second=round(tuner.trials / took, 1), best_us=tuner.best_cost * 1e6,
            failures=_failures(tuner), building=round(spent.building, 1),
            waiting=round(spent.waiting, 1), checking=round(spent.checking, 1),
            timing=round(spent.timing, 1), racing=round(spent.racing, 1),
        )  # fmt: skip


def _failures(tuner: ts.TaskTuner) -> dict[str, Any]:
    try:
        return {k: [n, text] for k, (n, text) in tuner.result().failures.items()}
    except ts.TilesmithError as error:
        return {"error": [1, str(error)]}


# faults ------------------------------------------------------------------------------------------


def faults(options: argparse.Namespace, target: ts.Target, table: Table) -> None:
    """Each planted fault: what it became, after how long, and when the next kernel had a result."""
    task = planted("", target).task
    measurer = ts.LocalMeasurer(confirm=False, rules=_QUICK, timeout=options.timeout)
    with measurer.open(task) as run:
        run.measure([planted("threads 32", target)])
        for k, fault in enumerate(FAULTS):
            if table.is_over:
                break
            if target.kind == "opencl" and "shared" in fault:
                continue  # it has no shared memory whose size a launch gives
            began = time.monotonic()
            (bad,) = run.measure([planted(fault, target)])
            middle = time.monotonic()
            (good,) = run.measure([planted(f"threads {33 + k}", target)])
            failure = bad.failure
            table.add(
                f"fault {fault}", kind=None if failure is None else failure.kind,
                text=None if failure is None else failure.text,
                seconds=round(middle - began, 3), next_ok=good.failure is None,
                next_seconds=round(time.monotonic() - middle, 3),
            )  # fmt: skip
    mistakes(options, target, table)


def mistakes(options: argparse.Namespace, target: ts.Target, table: Table) -> None:
    """Kernels with one mistake: whether the check sees it, and accepts the right kernel. Processes
    share the GPU, because building is most of the work.
    """
    count = sum(1 for _ in wrong_kernels())
    missed, refused, seen = [], [], 0
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        work = partial(told_apart, device=options.target)
        for name, right, wrong in pool.map(work, range(count)):
            seen += 1
            if right is not None:
                refused.append(f"{name}: {right}")
            if wrong is None:
                missed.append(name)
            if table.is_over:
                pool.shutdown(cancel_futures=True)
                break
    table.add(f"mistakes {seen}", of=count, missed=missed, right_ones_refused=refused)


# suite -------------------------------------------------------------------------------------------


class Torch:
    """PyTorch in a process of its own; nothing if it is not installed or has no GPU."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.gpu_torch"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, **question: Any) -> dict[str, Any]:
        try:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        except (OSError, ValueError) as error:
            return {"error": f"no answer from PyTorch: {error}"}
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def suite(options: argparse.Namespace, target: ts.Target, table: Table) -> None:
    peer = Torch() if target.kind == "cuda" else None
    database = ts.open_database(options.db) if options.db else None
    try:
        for case in chosen_cases(options):
            name = name_of(case)
            if table.has(name):
                continue
            seconds = min(options.seconds, table.left - 2 * FINISH_SECONDS)
            if seconds < min(10.0, options.seconds):
                break
            try:
                kernel, row = _tuned(case, target, seconds, database, options.seed)
            except ts.TilesmithError as error:
                table.add(name, error=f"{type(error).__name__}: {error}")
                continue
            if peer is not None:
                # Ours before and after theirs, so that a change of the clock shows; then once more.
                for _ in range(3):
                    row["us"] = _device_us(kernel)
                    answer = peer.ask(operator=case.operator, shape=case.shape)
                    row["again_us"] = _device_us(kernel)
                    if 0.9 < row["us"] / row["again_us"] < 1.1:
                        break
                row |= {f"torch_{k}": v for k, v in answer.items()}
                if "us" in answer:
                    row["ratio"] = round(2 * answer["us"] / (row["us"] + row["again_us"]), 3)
            table.add(name, **row)
        ratios = [r["ratio"] for r in table.rows if r.get("ratio")]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            table.add("geometric mean", cases=len(ratios), mean=round(mean, 3))
    finally:
        if database is not None:
            database.close()
        if peer is not None:
            peer.close()


def _tuned(
    case: Case, target: ts.Target, seconds: float, database: Any, seed: int
) -> tuple[Any, dict[str, Any]]:
    budget = ts.Budget(seconds=seconds)
    result = ts.tune(case.plain, target, budget=budget, database=database, seed=seed, quiet=True)
    kernel = result.kernel
    us = _device_us(kernel)
    return kernel, {
        "us": us, "measured_us": result.best.cost * 1e6, "trials": result.trials,
        "seconds": round(result.seconds, 1), "gflops": round(case.work / us / 1e3, 1),
        "confirmed": result.best.confirmed,
        "failures": {k: [n, text] for k, (n, text) in result.failures.items()},
        "launches": [[x.grid, x.threads] for x in kernel.artifact.entries[0].launches],
    }  # fmt: skip


def _device_us(kernel: Any) -> float:
    return statistics.median(kernel.time(repeats=7, min_seconds=0.002).samples) * 1e6


def first_minute(options: argparse.Namespace, target: ts.Target, table: Table) -> None:
    smoke(target, table.add)


COMMANDS = {
    "smoke": first_minute,
    "check": check,
    "rates": rates,
    "faults": faults,
    "suite": suite,
    "models": models,
}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--target", default="cuda", help="cuda, opencl, cuda:1 ...")
    parser.add_argument("--limit", type=float, default=540, help="seconds for everything")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--figure", metavar="FILE", help="the rows too, see bench.figures")
    parser.add_argument("--ops", default="", help="as GMM,C2D; all by default")
    parser.add_argument("--shapes", default="", help="numbers from 1; all by default")
    parser.add_argument("--batch", type=int, default=1, help="of the suite's operators")
    parser.add_argument("--cases", default="", help="other operators with sizes, ; between them")
    parser.add_argument("--candidates", type=int, default=40, help="of each case and rule set")
    parser.add_argument("--seconds", default=None, help="of tuning; several for models, as 0,60")
    parser.add_argument("--timeout", type=float, default=10.0, help="of a build and of a call")
    parser.add_argument("--jobs", type=int, default=8, help="processes that build faulty kernels")
    parser.add_argument("--db", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--networks", default="resnet50,mobilenet-v2,bert-base")
    parser.add_argument("--precision", default="float32", help="of networks, as float32,float16")
    parser.add_argument(
        "--peers", default="graph,compile", help=f"of networks, in this order: {', '.join(PEERS)}"
    )
    parser.add_argument("--peer-seconds", type=float, default=150, help="for all peers of a row")
    parser.add_argument("--small", action="store_true", help="small versions of the networks")
    options = parser.parse_args(words)
    if options.seconds is None:
        options.seconds = {"rates": "30", "models": "0"}.get(options.command, "60")
    if options.command != "models":
        options.seconds = float(options.seconds)
    table = Table(options.json, options.limit)
    target = device(options.target)
    COMMANDS[options.command](options, target, table)
    if options.figure:
        table.save_figure(options.figure, machine_of(target))


if __name__ == "__main__":
    main()
