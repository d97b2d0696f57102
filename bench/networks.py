"""The five networks against the inference engines, all in one run: `python -m bench.networks`.

Each network is exported to ONNX, tuned for `--budget` seconds, and then run by every engine and by
us in processes of their own, timed in turns. Errors are against PyTorch in float64. PyTorch's own
contestants run the same network from its own program format. With `--precision int8`, all of them
run the file that ONNX Runtime's quantiser writes; with float16, each computes in halves as it can.

Every step is appended to the file of `--json` when it is done. Steps that are there already are not
repeated, and a tuning run that was ended goes on with what is left of its budget. `--replot` draws
the figure and writes the tables of the page from that file, and runs nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from bench.network_log import Case, Compared, NetworkLog, Tuned
from bench.table import arguments
from tilesmith.base.target import cpu
from tilesmith.frontends.open import load_onnx
from tilesmith.graph.graph import Graph
from tilesmith.records.open import open_database
from tilesmith.task.task import Budget
from tilesmith.tune.network_run import NetworkProgress
from tilesmith.tune.tune_model import tune_model
from tilesmith_contest.engine import ModelFile
from tilesmith_contest.engines import ENGINES, usable_engines
from tilesmith_contest.model_rows import ModelRow
from tilesmith_contest.model_table import line_of, text_of
from tilesmith_contest.models import TURNS, compare_ours
from tilesmith_contest.networks import catalogue
from tilesmith_contest.networks.catalogue import NETWORKS, Network, in_float64, network
from tilesmith_contest.networks.export import export, save_program
from tilesmith_contest.networks.quantized import quantize_file

Arrays = dict[str, np.ndarray[Any, Any]]
PRECISIONS = ("float32", "float16", "bfloat16", "int8")
TORCH_ENGINES = ("torch", "torch-compile")
_CALIBRATED = 4  # inputs from which scales are taken
_NOTE_SECONDS = 10.0  # between notes of how far a tuning run is


def cache_folder() -> Path:
    """Exported files depend on how the networks are written, so that is part of their place."""
    sources = sorted(Path(catalogue.__file__).parent.glob("*.py"))
    text = b"".join(p.read_bytes() for p in sources)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tilesmith" / "networks" / hashlib.sha256(text).hexdigest()[:12]


def exported(name: str, batch: int, small: bool, folder: Path) -> Path:
    """The ONNX file of a network. Beside it are PyTorch's program, and an NPZ file with an input
    and the right outputs. What is there already is kept.
    """
    stem = f"{name}-small" if small else name
    path = folder / f"{stem}-b{batch}.onnx" if batch > 1 else folder / f"{stem}.onnx"
    net = network(name, small)
    if not path.exists():
        export(name, path, batch, small=small)
    if not path.with_suffix(".pt2").exists():
        save_program(name, path.with_suffix(".pt2"), batch, small=small)
    if not (arrays := path.with_suffix(".npz")).exists():
        right = in_float64(net, net.module(), net.inputs(batch))
        np.savez(arrays, **net.inputs(batch), **right)
    return path


def calibration(net: Network) -> list[Arrays]:
    """Inputs of the same kind as the one that is timed, without it."""
    return [net.inputs(1, seed) for seed in range(1, 1 + _CALIBRATED)]


def in_int8(path: Path, name: str, small: bool) -> Path:
    """The quantised file of a network, beside that in float32; the right outputs are the same."""
    file = path.with_name(f"{path.stem}-int8.onnx")
    if not file.exists():
        quantize_file(path, file, calibration(network(name, small)))
    return file


def tune(case: Case, path: Path, database: str, log: NetworkLog, quiet: bool) -> Tuned:
    """Goes on where a run that was ended had come to. How far it is is noted every few seconds."""
    before = log.tuned(case)
    earlier = Tuned(case, 0.0, 0, 0, ()) if before is None else before
    noted = time.monotonic()
    curve = list(earlier.curve)

    def note(p: NetworkProgress) -> None:
        nonlocal noted
        (latency,) = p.latency
        seconds, trials = earlier.seconds + p.seconds, earlier.trials + p.trials
        if np.isfinite(latency) and (not curve or latency < curve[-1][1]):
            curve.append((seconds, latency))
        if p.finished or time.monotonic() - noted >= _NOTE_SECONDS:
            noted = time.monotonic()
            count = sum(t.weight > 0 for t in p.tasks)
            bound = sum(t.weight * t.bound for t in p.tasks)
            log.add(Tuned(case, seconds, trials, count, tuple(curve), done=False, bound=bound))

    graph = load_onnx(path)
    assert isinstance(graph, Graph), "the networks have no open sizes"
    left = Budget(seconds=max(1.0, case.budget - earlier.seconds))
    with open_database(database) as records:
        model = tune_model(
            graph, cpu(case.threads), budget=left, database=records, observers=[note], quiet=quiet,
            cache=None, precision=case.precision,
        )  # fmt: skip
    assert model.tuning is not None
    if model.tuning.interrupted:
        raise KeyboardInterrupt
    if model.tuning.error is not None:
        raise model.tuning.error
    tuned = log.tuned(case)
    assert tuned is not None
    log.add(replace(tuned, done=True))
    return tuned


def compare(case: Case, path: Path, options: argparse.Namespace) -> ModelRow:
    net = network(case.network, options.small)
    with np.load(path.with_suffix(".npz")) as arrays:
        feeds = {net.input: arrays[net.input]}
        file = in_int8(path, case.network, options.small) if case.precision == "int8" else path
        model = ModelFile(file, feeds, net.outputs, precision=case.precision)
        right = {name: arrays[name] for name in net.outputs}
    engines, absent = usable_engines([e for e in options.against.split(",") if e], file)
    if case.precision != "float32":  # PyTorch's programs are in float32
        absent |= {e: f"it has no {case.precision} here" for e in engines if e in TORCH_ENGINES}
    for engine, why in absent.items():
        print(f"absent: {engine}: {why}", file=sys.stderr)
    engines = [e for e in engines if e not in absent]
    turns = replace(TURNS, processor_time=options.processor_time and case.threads == 1)
    database = options.db if case.budget or options.recorded else ""
    reference = ("PyTorch in float64", right)
    return compare_ours(model, engines, cpu(case.threads), database, reference, turns)


def run(options: argparse.Namespace, log: NetworkLog) -> list[str]:
    """What went wrong: that case is left out, and the next run tries it again."""
    wrong = []
    counts = threads_of(options.threads)
    for count, name, precision in product(counts, options.only, options.precision.split(",")):
        case = Case(name, count, options.budget, precision)
        try:
            run_case(case, options, log)
        except Exception as error:  # of an engine, an export, a full disk: the rest goes on
            traceback.print_exc()
            wrong.append(f"{name}, {count}, {precision}: {type(error).__name__}: {error}")
    return wrong


def run_case(case: Case, options: argparse.Namespace, log: NetworkLog) -> None:
    folder = options.cache or cache_folder()
    path = exported(case.network, options.batch, options.small, folder)
    tuned = log.tuned(case)
    if case.budget and (tuned is None or not tuned.done):
        file = in_int8(path, case.network, options.small) if case.precision == "int8" else path
        tuned = tune(case, file, options.db, log, options.quiet)
        reached = f"{1e3 * tuned.estimate:.2f} ms" if isfinite(tuned.estimate) else "drafts in part"
        text = f"{case.network}, {case.threads}: tuned to {reached}"
        print(text, file=sys.stderr, flush=True)
    if log.compared(case) is None or options.again:
        done = Compared(case, compare(case, path, options))
        log.add(done)
        print(line_of(done.row), file=sys.stderr, flush=True)


def threads_of(text: str) -> list[int]:
    """ "1,all" is one thread, then all cores; on a machine with one core that is the same."""
    every = cpu().num_cores
    return list(dict.fromkeys(every if t == "all" else int(t) for t in text.split(",")))


def main(words: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__ or "")
    parser.set_defaults(json="build/networks.jsonl")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=list(NETWORKS),
                        choices=list(NETWORKS), help="the networks to run")  # fmt: skip
    parser.add_argument("--threads", default="1,all", help='such as "1,2"; "all" is every core')
    parser.add_argument("--precision", default="float32",
                        help="types of products, by commas: float32, float16, int8")  # fmt: skip
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--against", default=",".join(ENGINES), help="engines, by commas")
    parser.add_argument("--db", default="build/networks.db", help="database of our records")
    parser.add_argument("--budget", type=float, default=600.0, metavar="SECONDS",
                        help="tuning time of each case; 0 compares drafts")  # fmt: skip
    parser.add_argument("--recorded", action="store_true",
                        help="with --budget 0: use the records of --db")  # fmt: skip
    parser.add_argument("--again", action="store_true", help="repeat comparisons that are done")
    parser.add_argument("--cache", type=Path, default=None, help="folder of exported files")
    parser.add_argument("--processor-time", action="store_true",
                        help="count processor time where there is one thread")  # fmt: skip
    parser.add_argument("--small", action="store_true", help="small versions, to try the bench")
    parser.add_argument("--quiet", action="store_true", help="no table while tuning")
    parser.add_argument("--replot", action="store_true", help="draw from --json, run nothing")
    parser.add_argument("--chart", type=Path, default=None, metavar="FILE.svg",
                        help="where --replot draws, docs/networks.svg")  # fmt: skip
    parser.add_argument("--page", type=Path, default=None, metavar="FILE.md",
                        help="tables that --replot writes, docs/networks.md")  # fmt: skip
    options = parser.parse_args(words)
    for word in options.precision.split(","):
        if word not in PRECISIONS:
            parser.error(f"--precision {word} is unknown; known are {', '.join(PRECISIONS)}")
    Path(options.db).parent.mkdir(parents=True, exist_ok=True)
    log = NetworkLog(Path(options.json))
    if not options.replot:
        wrong = run(options, log)
        print(text_of([r.row for r in log.results], None))
        if wrong:
            raise SystemExit("\n".join(["not done; run it again:", *wrong]))
        return
    # Imported here because only drawing needs matplotlib.
    from bench.network_figures import draw, write_page

    docs = Path(__file__).parent.parent / "docs"
    figure = options.chart or docs / "networks.svg"
    draw(log, figure)
    write_page(log, options.page or docs / "networks.md", figure)


if __name__ == "__main__":
    main()
