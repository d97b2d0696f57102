"""Whole models compiled once for all of their sizes, against the same model compiled at each size:
`python -m bench.sizes --models bert-base mobilenet-small`.

Lengths are drawn by the clock, or by `--seed`. A row says

- regret: the time of the open model over that of the model that was compiled at this very length,
  of the fastest of some rounds in which both run in turns (processor time of one thread). With
  `--tune-models`, also that of tuned models: one tuned open model against one tuned at each length;
- bind: milliseconds until the open model is ready for a length that it sees for the first time;
- memory: megabytes that 200 lengths add;
- compile: processor time to compile the open model over that of one fixed size, in new processes
  that keep nothing, the least of some turns; with the seconds on the clock.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import tilesmith as ts
from bench.networks import cache_folder
from bench.startup import children_seconds, environment
from tilesmith.base.whole_file import write_whole
from tilesmith_contest.networks.catalogue import Network, network
from tilesmith_contest.networks.export import export

_MANY = 200
Sizes = dict[str, int]


@dataclass(frozen=True)
class Case:
    """A network of the catalogue; ranges of its open sizes, and the size of a fixed model."""

    network: str
    small: bool
    ranges: Mapping[str, tuple[int, int]]
    fixed: Mapping[str, int]

    @property
    def net(self) -> Network:
        return network(self.network, self.small)

    def path(self) -> Path:
        stem = f"{self.network}{'-small' if self.small else ''}-open.onnx"
        if not (path := cache_folder() / stem).exists():
            export(self.network, path, dynamic=tuple(self.ranges), small=self.small)
        return path

    def drawn(self, rng: np.random.Generator) -> Sizes:
        return {n: int(rng.integers(low, high + 1)) for n, (low, high) in self.ranges.items()}

    def feeds(self, sizes: Mapping[str, int]) -> dict[str, np.ndarray[Any, Any]]:
        shape = (1, *(sizes.get(d, n) for d, n in self.net.dims.items()))
        rng = np.random.default_rng(0)
        if self.net.below is not None:
            return {self.net.input: rng.integers(0, self.net.below, shape)}
        return {self.net.input: rng.standard_normal(shape, dtype=np.float32)}


_SIDES = {"height": (32, 512), "width": (32, 512)}
CASES = {
    "bert-base": Case("bert-base", False, {"sequence": (1, 512)}, {"sequence": 128}),
    "bert-small": Case("bert-base", True, {"sequence": (1, 32)}, {"sequence": 16}),
    "mobilenet-small": Case("mobilenet-v2", True, _SIDES, dict.fromkeys(_SIDES, 128)),
    "resnet50": Case("resnet50", False, _SIDES, dict.fromkeys(_SIDES, 224)),
}


@dataclass
class Outcome:
    """`regrets` and `tuned` are by the sizes, in words."""

    model: str
    seed: int
    regrets: dict[str, float] = field(default_factory=dict)
    tuned: dict[str, float] = field(default_factory=dict)
    bind_ms: float | None = None
    memory_mb: float | None = None
    compile_ratio: float | None = None
    compile_seconds: dict[str, list[float]] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.model} (seed {self.seed})"]
        for name, regrets in (("untuned", self.regrets), ("tuned", self.tuned)):
            lines += [f"  {name:8} {at:28} regret {r:.3f}" for at, r in regrets.items()]
            if regrets:
                mean = statistics.geometric_mean(regrets.values())
                lines.append(f"  {name:8} mean {mean:.3f}, worst {max(regrets.values()):.3f}")
        if self.bind_ms is not None:
            lines.append(f"  a new length is bound in {self.bind_ms:.2f} ms")
        if self.memory_mb is not None:
            lines.append(f"  {_MANY} lengths add {self.memory_mb:.1f} MB")
        if self.compile_ratio is not None:
            lines.append(f"  compiled in {self.compile_ratio:.2f} of the time of one fixed size")
            for kind, (processor, clock) in self.compile_seconds.items():
                lines.append(f"    {kind:6} {processor:.2f} s of processors, {clock:.2f} s")
        return "\n".join(lines)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", choices=list(CASES), default=[],
                        help="whole models instead of operators")  # fmt: skip
    parser.add_argument("--draws", type=int, default=4, metavar="N", help="lengths to compare at")
    parser.add_argument("--seed", type=int, help="draws these lengths again; else the clock does")
    parser.add_argument("--tune-models", type=float, default=0, metavar="SECONDS",
                        help="tuning time of an open model; 0 compares untuned ones")  # fmt: skip
    parser.add_argument("--turns", type=int, default=2, metavar="N",
                        help="compilations of each kind; 0 leaves compile time out")  # fmt: skip


def compare(options: argparse.Namespace) -> None:
    outcomes = []
    for name in options.models:
        outcome = _compared(name, CASES[name], options)
        print(outcome, flush=True)
        outcomes.append(outcome)
        if options.json:
            rows = [asdict(o) for o in outcomes]
            write_whole(Path(options.json), json.dumps(rows, indent=1) + "\n")


def _compared(name: str, case: Case, options: argparse.Namespace) -> Outcome:
    seed = time.time_ns() % 2**32 if options.seed is None else options.seed
    rng, path, target = np.random.default_rng(seed), case.path(), ts.cpu(options.threads)
    outcome = Outcome(name, seed)
    if options.turns:
        seconds = compile_seconds(case, options.threads, options.turns)
        outcome.compile_seconds = seconds
        outcome.compile_ratio = seconds["open"][0] / seconds["fixed"][0]
    lengths = [case.drawn(rng) for _ in range(options.draws)]
    program = ts.load_onnx(path)
    opened = ts.compile_model(program, target, sizes=case.ranges)
    if not opened.is_open:
        raise SystemExit(opened.summary())
    outcome.bind_ms = statistics.median(bind_seconds(opened, case, rng)) * 1e3
    outcome.memory_mb = added_nbytes(opened, case, rng) / 1e6
    for sizes in lengths:
        graph = ts.load_onnx(path, dims=sizes)
        fixed = ts.compile_model(graph, target)
        outcome.regrets[_text(sizes)] = regret(opened, fixed, case.feeds(sizes))
    if options.tune_models:
        budget = ts.Budget(seconds=options.tune_models)
        tuned = ts.tune_model(program, target, sizes=case.ranges, budget=budget, quiet=True)
        budget = ts.Budget(seconds=options.fixed_seconds)
        for sizes in lengths:
            graph = ts.load_onnx(path, dims=sizes)
            own = ts.tune_model(graph, target, budget=budget, quiet=True)
            outcome.tuned[_text(sizes)] = regret(tuned, own, case.feeds(sizes))
    return outcome


def _text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{n} = {v}" for n, v in sizes.items())


def regret(
    ours: ts.Model, other: ts.Model, feeds: Mapping[str, Any], seconds: float = 4.0
) -> float:
    """The time of ours over that of the other, which both run in turns."""
    calls = [ours.bind(feeds), other.bind(feeds)]
    best = [float("inf")] * 2
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < 5 or time.perf_counter() < end:
        for k, call in enumerate(calls):
            start = time.thread_time()
            call()
            best[k] = min(best[k], time.thread_time() - start)
        rounds += 1
    return best[0] / best[1]


def bind_seconds(model: ts.Model, case: Case, rng: np.random.Generator) -> Iterator[float]:
    """Of lengths that come for the first time, without the call itself."""
    seen = []
    for _ in range(30):
        sizes = case.drawn(rng)
        if sizes not in seen:
            seen.append(sizes)
            feeds = case.feeds(sizes)
            start = time.perf_counter()
            model.bind(feeds)
            yield time.perf_counter() - start


def added_nbytes(model: ts.Model, case: Case, rng: np.random.Generator) -> int:
    """By which this process grows with new lengths, once it has memory for the largest ones."""
    model(case.feeds({n: high for n, (_, high) in case.ranges.items()}))
    model(case.feeds(case.drawn(rng)))
    before = _resident()
    for _ in range(_MANY):
        model.bind(case.feeds(case.drawn(rng)))
    return _resident() - before


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


_PROGRAM = r"""
import json, sys
import tilesmith as ts
path, threads, dims, sizes = sys.argv[1:]
program = ts.load_onnx(path, dims=json.loads(dims))
ranges = {n: tuple(v) for n, v in json.loads(sizes).items()}
ts.compile_model(program, ts.cpu(int(threads)), cache=None, progress=False, sizes=ranges or None)
"""


def compile_seconds(case: Case, threads: int, turns: int) -> dict[str, list[float]]:
    """Of processors and on the clock, the least of some turns, with the start of a process."""
    kinds: dict[str, tuple[Any, Any]] = {"fixed": (case.fixed, {}), "open": ({}, case.ranges)}
    words = [sys.executable, "-c", _PROGRAM, str(case.path()), str(threads)]
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for _ in range(turns):
        for kind, (dims, sizes) in kinds.items():
            before, start = children_seconds(), time.perf_counter()
            given = [json.dumps(dict(dims)), json.dumps(dict(sizes))]
            subprocess.run([*words, *given], check=True, env=environment())
            found[kind].append((children_seconds() - before, time.perf_counter() - start))
    return {kind: [min(x) for x in zip(*times, strict=True)] for kind, times in found.items()}
