"""TVM's MetaSchedule as a tuner to compare with: a matmul, a number of trials and a time limit in,
its database in a folder, its best kernel and its progress over time out. TVM is imported in
processes of its own only.

It works with apache-tvm 0.26.0 and apache-tvm-ffi 0.1.13.post3; `python -m bench.tuners` uses it.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import tilesmith as ts
from tilesmith_contest.peer import Contestant

NAME = "MetaSchedule"
# MetaSchedule stores records when a whole batch is measured, so that small batches show progress.
BATCH = 16
# Seconds for building or running one candidate. A worker's first build imports TVM's tensor
# intrinsics, which takes 35 s of processor time on a Neoverse-N1. With TVM's own timeout of 30 s
# every build is ended before it begins, its worker is started again, and tuning never ends.
TIMEOUT = 600.0
POLL = 0.5  # seconds
FAILED = 1e9  # MetaSchedule stores 1e10 seconds for a candidate that failed


def is_installed() -> bool:
    return find_spec("tvm") is not None


@dataclass(frozen=True)
class Moment:
    """What was reached after so many seconds; `best` is in seconds."""

    seconds: float
    trials: int
    best: float


@dataclass(frozen=True)
class Tuned:
    """`progress` is by MetaSchedule's own measurement. `ended` says why the run ended."""

    seconds: float
    progress: tuple[Moment, ...]
    ended: str


def tuned(sizes: tuple[int, int, int], trials: int, folder: Path, limit: float) -> Tuned:
    """Tunes a matmul of n, k, m in another process, which leaves its records in the folder. After
    `limit` seconds it is ended, and what it has stored counts.
    """
    words = [*map(str, sizes), str(trials), str(folder)]
    with (folder / "output.txt").open("w") as log:
        start = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.metaschedule", *words],
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        progress: list[Moment] = []
        try:
            while True:
                running = process.poll() is None
                seconds = time.perf_counter() - start
                costs = recorded(folder)
                if len(costs) > (progress[-1].trials if progress else 0):
                    progress.append(Moment(seconds, len(costs), min(costs)))
                if not running or seconds >= limit:
                    break
                time.sleep(POLL)
        finally:
            if process.poll() is None:  # with the workers it has started
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if running:
        ended = f"ended after the limit of {limit:.0f} s"
    elif process.returncode:
        last = (folder / "output.txt").read_text().strip().splitlines()[-1:]
        ended = f"failed with status {process.returncode}: {' '.join(last)}"
    else:
        ended = "done"
    return Tuned(seconds, tuple(progress), ended)


def recorded(folder: Path) -> list[float]:
    """The mean seconds of each candidate in the folder's records that ran."""
    path = folder / "database_tuning_record.json"
    return costs_of(path.read_text().splitlines(keepends=True)) if path.exists() else []


def costs_of(lines: Iterable[str]) -> list[float]:
    """A line holds [workload, [trace, seconds, target, arguments]]. One that is still being written
    has no end yet.
    """
    samples = [json.loads(line)[1][1] or [] for line in lines if line.endswith("\n")]
    means = [statistics.fmean(map(float, s)) for s in samples if s]
    return [mean for mean in means if mean < FAILED]


def contestants(sizes: tuple[int, int, int], folder: str, arrays: list[Any]) -> list[Contestant]:
    """Called in a process of its own: the best kernel of the folder, on our arrays."""
    import tvm
    from tvm.s_tir import meta_schedule

    target = _target()
    database = meta_schedule.database.JSONDatabase(work_dir=folder)
    schedule = meta_schedule.tir_integration.compile_tir(database, _module(sizes), target)
    run = tvm.compile(schedule.mod, target=target)["main"]
    n, _, m = sizes
    device = tvm.cpu()
    operands = [tvm.runtime.tensor(a, device) for a in (*arrays, np.zeros((n, m), np.float32))]

    def answer() -> Any:
        run(*operands)
        return operands[-1].numpy()

    return [Contestant(NAME, lambda: run(*operands), answer)]


def _module(sizes: tuple[int, int, int]) -> Any:
    import tvm
    from tvm import te

    n, depth, m = sizes
    a, b = te.placeholder((n, depth), name="A"), te.placeholder((depth, m), name="B")
    k = te.reduce_axis((0, depth), name="k")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return tvm.IRModule({"main": te.create_prim_func([a, b, c])})


def _target() -> Any:
    """This machine's, with LLVM's name of its processor: TVM takes "native" for a generic one."""
    import tvm
    from llvmlite import binding

    here = ts.cpu(1)
    triple = f"{here.arch.replace('-', '_')}-linux-gnu"
    return tvm.target.Target(
        {
            "kind": "llvm", "mcpu": binding.get_host_cpu_name(), "mtriple": triple,
            "num-cores": here.num_cores,
        }
    )  # fmt: skip


def _main(sizes: tuple[int, int, int], trials: int, folder: str) -> None:
    from tvm.s_tir import meta_schedule
    from tvm.s_tir.meta_schedule.builder import LocalBuilder
    from tvm.s_tir.meta_schedule.runner import LocalRunner

    meta_schedule.tune_tir(
        _module(sizes), _target(), folder, trials, num_trials_per_iter=min(BATCH, trials), seed=1,
        builder=LocalBuilder(timeout_sec=TIMEOUT), runner=LocalRunner(timeout_sec=TIMEOUT),
        num_tuning_cores=len(os.sched_getaffinity(0)),
    )  # fmt: skip


if __name__ == "__main__":
    n, k, m, count = map(int, sys.argv[1:5])
    _main((n, k, m), count, sys.argv[5])
