"""Where the time of building for a GPU goes, without one: draws candidates as a search does, builds
them for an H200 as a build worker does, and prints core-seconds of each stage, what the assembler
says of the kernels, and what NVRTC's time goes with.

    python -m bench.gpu_builds --each 15
    python -m bench.gpu_builds --cases "conv2d 14 256 256 3 1 1" --seeds 3 --each 30

Measured times are simulated by the analytic score with noise, so that a search has something to
learn. Compare two versions in turns on an idle machine: --save and --load keep the candidates.
"""

from __future__ import annotations

import argparse
import json
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

import tilesmith as ts
from bench.gpu_cases import named_cases
from tilesmith.codegen.c.backends import emit_launches
from tilesmith.codegen.c.dialect import CUDA
from tilesmith.codegen.c.nvrtc import compile_cuda
from tilesmith.search.evolution import EvolutionSearch

T = TypeVar("T")
H200 = ts.Target.named("nvidia-h200")
CASES = (
    "conv2d 14 256 256 3 1 1; conv2d 28 128 128 3 1 1; conv2d 56 64 64 3 1 1; matmul 1024 1024 1024"
)
_BATCH, _ROUNDS = 64, 6
_NOISE = 0.35  # of the simulated times, in doublings
STAGES = ("search", "schedule", "lower", "emit", "nvrtc")


class _Store(dict[str, bytes]):
    """What was compiled before, as the build workers of a run have it."""

    def put(self, key: str, code: bytes) -> None:
        self[key] = code


_STORE = _Store()


@dataclass(frozen=True, slots=True)
class Drawn:
    case: str
    candidate: ts.Candidate
    seconds: float  # its share of the search


@dataclass(frozen=True, slots=True)
class Profile:
    case: str
    seconds: tuple[float, ...]  # of one core, by stage
    text: str  # the C source
    registers: int
    spilled: int
    code_nbytes: int


def drawn(text: str, seeds: int, each: int) -> Iterator[Drawn]:
    """`each` candidates of every case, of all rounds of the searches with these seeds."""
    for case in named_cases(text):
        everyone: list[Drawn] = []
        task = ts.Task(case.plain, H200)
        sketches = ts.SketchSpace().sketches(task)
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            search = ts.Evolution().start(task, sketches, rng)
            for _ in range(_ROUNDS):
                start = time.process_time()
                asked = search.ask(_BATCH)
                seconds = time.process_time() - start
                name = f"{case.op} {case.shape[0]}"
                everyone += [Drawn(name, c, seconds / max(1, len(asked))) for c in asked]
                search.tell([_simulated(search, c, rng) for c in asked])
        for k in np.random.default_rng(0).permutation(len(everyone))[:each]:
            yield everyone[k]


def _simulated(
    search: EvolutionSearch, c: ts.Candidate, rng: np.random.Generator
) -> ts.Measurement:
    who = search.catalogue.adopt(c)
    assert who is not None
    variant = search.catalogue.lowered(who.variant)
    score = ts.ScoreByTarget().predict(variant, np.array([who.row], np.int32))[0]
    return ts.Measurement(c, (1e-5 * 2.0 ** float(rng.normal(-score, _NOISE)),) * 3)


def save(path: Path, everyone: list[Drawn]) -> None:
    rows = [
        [d.case, ts.function_to_json(d.candidate.task.func), d.candidate.trace.to_json(), d.seconds]
        for d in everyone
    ]
    path.write_text(json.dumps(rows))


def load(path: Path) -> list[Drawn]:
    return [
        Drawn(
            case,
            ts.Candidate(ts.Task(ts.function_from_json(func), H200), ts.Trace.from_json(trace)),
            seconds,
        )
        for case, func, trace, seconds in json.loads(path.read_text())
    ]


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    start = time.process_time()
    return work(), time.process_time() - start


def profile(d: Drawn) -> Profile:
    trace = pickle.dumps(d.candidate.trace)
    func, schedule = _timed(lambda: pickle.loads(trace).apply(d.candidate.task.func))
    lowered, lower = _timed(lambda: ts.lower(func, H200, ts.GPU_PASSES))
    emitted, emit = _timed(lambda: emit_launches(lowered, CUDA))
    compiled, nvrtc = _timed(
        lambda: [compile_cuda("kernel", text, H200.arch, _STORE) for text in emitted.modules]
    )
    used = [r for c in compiled for r in c.resources.values()]
    return Profile(
        d.case, (d.seconds, schedule, lower, emit, nvrtc), emitted.source,
        max(r.registers for r in used), sum(r.spilled_nbytes for r in used),
        sum(len(c.cubin) for c in compiled),
    )  # fmt: skip


def features(p: Profile) -> dict[str, float]:
    """What the time of a build may go with."""
    return {
        "lines": p.text.count("\n"), "unrolled loops": p.text.count("#pragma unroll\n"),
        "bytes of code": p.code_nbytes, "registers": p.registers, "spilled bytes": p.spilled,
    }  # fmt: skip


def table(profiles: list[Profile]) -> str:
    lines = [
        f"{'core-seconds of':16}{'n':>4}" + "".join(f"{s:>10}" for s in STAGES)
        + f"{'median':>10}{'most':>8}{'registers':>11}{'spilling':>10}"
    ]  # fmt: skip
    for case in dict.fromkeys(p.case for p in profiles):
        own = [p for p in profiles if p.case == case]
        seconds = np.array([p.seconds for p in own])
        total = seconds.sum(axis=1)
        lines.append(
            f"{case:16}{len(own):4}" + "".join(f"{s:10.3f}" for s in seconds.mean(axis=0))
            + f"{np.median(total):10.3f}{total.max():8.2f}"
            + f"{np.mean([p.registers for p in own]):11.0f}{sum(p.spilled > 0 for p in own):10}"
        )  # fmt: skip
    nvrtc = np.array([p.seconds[-1] for p in profiles])
    lines += ["", "correlation of NVRTC's time with"]
    for name in features(profiles[0]):
        x = np.array([features(p)[name] for p in profiles])
        r = np.corrcoef(x, nvrtc)[0, 1] if x.std() > 0 else 0.0
        lines.append(f"  {name:28}{r:6.2f}")
    texts = len({p.text for p in profiles})
    lines.append(f"{len(profiles) - texts} of {len(profiles)} have the text of another one")
    lines.append(f"{len(_STORE)} launches were compiled")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=CASES, help="as of bench.gpu")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--each", type=int, default=15, help="candidates of a case")
    parser.add_argument("--save", type=Path, help="write the candidates to this file")
    parser.add_argument("--load", type=Path, help="take the candidates of this file")
    options = parser.parse_args()
    chosen = (
        load(options.load) if options.load
        else list(drawn(options.cases, options.seeds, options.each))
    )  # fmt: skip
    if options.save:
        save(options.save, chosen)
    profile(chosen[0])  # loads what is loaded once
    _STORE.clear()
    print(table([profile(d) for d in chosen]))


if __name__ == "__main__":
    main()
