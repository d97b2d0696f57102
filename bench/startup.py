"""How long a model takes to start: `python -m bench.startup [MODEL ...]`.

A start is a fresh process that imports Tilesmith, loads an ONNX file, calls `ts.compile_model` and
runs the model once. It is timed

- cold: without a database, and with an empty cache;
- records: with a record of every task that has a draft, and with an empty cache;
- warm: without a database, and with the cache that the cold start has filled.

A row is the processor time of a start in all its processes, because others may use the machine too.
The seconds on the clock of each part are printed before the table.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.networks import cache_folder
from bench.table import Row, arguments, finish
from tilesmith.base.target import cpu
from tilesmith.frontends.open import load_onnx
from tilesmith.records.open import open_database
from tilesmith.task.task import Candidate, Measurement
from tilesmith.tune.compile_model import ModelBuilder, cache_of, plan_of, tasks_of
from tilesmith.tune.specialise import known_graphs
from tilesmith_contest.networks.catalogue import NETWORKS
from tilesmith_contest.networks.export import export

# Of a model, a cache, and a database or nothing; it prints the seconds of each part.
_PROGRAM = r"""
import sys, time
clock = [time.perf_counter()]
def tick():
    clock.append(time.perf_counter())
import numpy as np
import tilesmith as ts
tick()
_, model, cache, records = sys.argv
graph = ts.load_onnx(model)
tick()
database = ts.open_database(records) if records else None
compiled = ts.compile_model(graph, cache=cache, database=database)
tick()
values = {name: graph.values[name] for name in graph.inputs}
compiled({name: np.ones(v.shape, v.dtype.numpy) for name, v in values.items()})
tick()
print([b - a for a, b in zip(clock, clock[1:])])
"""


@dataclass(frozen=True)
class Start:
    """Seconds: on the clock of each part, and of processors for all of it in all processes."""

    importing: float
    loading: float
    compiling: float
    first_call: float
    processor: float

    def __str__(self) -> str:
        parts = f"import {self.importing:.2f}, load {self.loading:.2f}"
        parts += f", compile {self.compiling:.2f}, first call {self.first_call:.2f} s"
        return f"{parts}; {self.processor:.2f} s of processors"


def start(model: Path, cache: Path, database: Path | None = None) -> Start:
    words = [sys.executable, "-c", _PROGRAM, str(model), str(cache), str(database or "")]
    before = children_seconds()
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, env=environment())
    importing, loading, compiling, first_call = json.loads(done.stdout)
    return Start(importing, loading, compiling, first_call, children_seconds() - before)


def environment() -> dict[str, str]:
    """Compiled modules are kept, as those of an installed package are: without them each process
    would compile the package.
    """
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def children_seconds() -> float:
    """Of processes that were waited for, by this one or by one of them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def record_drafts(model: Path, cache: Path, database: Path) -> int:
    """Adds the drafts that a cold start has left in its cache as records; how many there were.
    Their times are invented: only that there are records matters here.
    """
    target = cpu()
    plans = [plan_of(g, target) for g in known_graphs(load_onnx(model))]
    builder = ModelBuilder(target, None, False, cache_of(cache), False)
    builder.build_drafts(plans)
    drafts = [(task, builder.draft_of(task)) for task, _ in tasks_of(plans, target)]
    known = [Candidate(task, trace) for task, trace in drafts if trace is not None]
    with open_database(str(database)) as records:
        records.add([Measurement(c, (1e-3,) * 3) for c in known])
    return len(known)


def starts(name: str, model: Path, turns: int) -> list[Row]:
    """The least of some turns."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        cache, records, other = (Path(folder) / n for n in ("cache", "records.db", "other"))
        for kind in ("cold", "records", "warm"):
            if kind == "records":
                print(f"{name}: {record_drafts(model, cache, records)} records", flush=True)
            seconds = []
            for _ in range(turns):
                if kind != "warm":
                    shutil.rmtree(cache if kind == "cold" else other, ignore_errors=True)
                if kind == "records":
                    done = start(model, other, records)
                else:
                    done = start(model, cache)
                print(f"{name} {kind}: {done}", flush=True)
                seconds.append(done.processor)
            rows.append(Row(f"{name} {kind}", min(seconds), "s"))
    return rows


def main() -> None:
    parser = arguments(__doc__ or "")
    names = ", ".join(NETWORKS)
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", default=["resnet50"],
        help=f"ONNX files without open sizes, or some of {names}; by default resnet50",
    )  # fmt: skip
    parser.add_argument(
        "--turns", type=int, default=1, help="starts of each kind; the least counts"
    )
    options = parser.parse_args()
    rows = []
    for name in options.models:
        model = Path(name)
        if name in NETWORKS:
            model = cache_folder() / f"{name}.onnx"
            if not model.exists():
                model.parent.mkdir(parents=True, exist_ok=True)
                export(name, model, 1, small=False)
        rows += starts(model.stem, model, options.turns)
    finish(rows, options)


if __name__ == "__main__":
    main()
