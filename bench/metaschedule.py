"""TVM's MetaSchedule as a tuner to compare with: a matmul and its trials in, its database in a
folder and its best kernel out. TVM is imported in processes of its own only.

It works with apache-tvm 0.26.0 and apache-tvm-ffi 0.1.13.post3; `python -m bench.tuners` uses it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import tilesmith as ts
from tilesmith.report.peer import Contestant

NAME = "MetaSchedule"


def is_installed() -> bool:
    return find_spec("tvm") is not None


@dataclass(frozen=True)
class Tuned:
    """`best` is in seconds, by MetaSchedule's own measurement."""

    seconds: float
    trials: int
    best: float


def tuned(sizes: tuple[int, int, int], trials: int, folder: Path) -> Tuned:
    """Tunes a matmul of n, k, m in another process, which leaves its records in the folder."""
    words = [*map(str, sizes), str(trials), str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "bench.metaschedule", *words],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
    )  # fmt: skip
    return Tuned(**json.loads(done.stdout.splitlines()[-1]))


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
    import tvm

    here = ts.cpu(1)
    triple = f"{here.arch}-linux-gnu"
    return tvm.target.Target(
        {"kind": "llvm", "mcpu": here.cpu, "mtriple": triple, "num-cores": here.num_cores}
    )


def _main(sizes: tuple[int, int, int], trials: int, folder: str) -> None:
    from tvm.s_tir import meta_schedule

    start = time.perf_counter()
    database = meta_schedule.tune_tir(
        _module(sizes), _target(), folder, trials, num_trials_per_iter=min(64, trials),
        num_tuning_cores=len(os.sched_getaffinity(0)), seed=1,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    records = [r for r in database.get_all_tuning_records() if r.run_secs]
    best = min(statistics.fmean(float(s) for s in r.run_secs) for r in records)
    print(json.dumps({"seconds": seconds, "trials": len(records), "best": best}))


if __name__ == "__main__":
    n, k, m, count = map(int, sys.argv[1:5])
    _main((n, k, m), count, sys.argv[5])
