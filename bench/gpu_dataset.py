"""The recorded data set of GPUs: programs of several operators, measured on a GPU, as a compressed
file of JSON lines for each task. The constants of the analytic score are fitted to it.

    python -m bench.gpu_dataset [--size 120] [--seconds 9] [--to DIR]

Half of the programs are drawn at random. The others are the best of many by the analytic score,
because a search chooses among those.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

import tilesmith as ts
from bench.dataset import condensed
from bench.gpu_cases import device, function_of
from tilesmith.measure.parent.timing import TimingRules
from tilesmith.records.lines import write_lines
from tilesmith.records.rows import Entry, record_row, task_row
from tilesmith.search.gpu_score import GpuScore
from tilesmith.space.spaces import SketchSpace, variants

DATA = Path(__file__).parent.parent / "tests" / "data" / "gpu"
QUICK = TimingRules(
    min_samples=2, min_seconds=0.001, max_seconds=0.02, first_cutoff=1e9, long_cutoff=1e9,
    cutoffs=(1e9,), rounds=1, max_entrants=2,
)  # fmt: skip
CASES: dict[str, tuple[str, tuple[int, ...]]] = {
    "matmul": ("matmul", (1024, 1024, 1024)),
    "conv2d": ("conv2d", (28, 128, 128, 3, 1, 1)),
    "strided": ("conv2d", (224, 3, 64, 7, 2, 3)),
    "depthwise": ("depthwise-conv2d", (112, 64, 3, 2, 1, 16)),
    "transposed": ("conv2d-transpose", (16, 128, 64, 4, 2, 1, 16)),
    "conv3d": ("conv3d", (14, 256, 256, 3, 1, 1)),
    "grouped": ("group-conv2d", (56, 64, 128, 3, 2, 1, 4, 16)),
    "capsule": ("capsule-conv2d", (16, 8, 16, 3, 2, 1, 4, 16)),
    "scores": ("transpose-batch-matmul", (128, 12, 64, 16)),
    "softmax": ("softmax", (4096, 2048)),
}  # fmt: skip
SKETCHES = 8  # of a task, at most
MANY = 64  # rows by score among so many times as many


def drawn(task: ts.Task, size: int, seed: int) -> list[ts.Candidate]:
    rng = np.random.default_rng(seed)
    sketches = SketchSpace().sketches(task)
    some = [sketches[k] for k in rng.permutation(len(sketches))[:SKETCHES]]
    every = [v for s in some for v in variants(task, s)]
    each = -(-size // len(every))
    out: list[ts.Candidate] = []
    for v in every:
        out += [v.candidate(row) for row in v.sample(rng, -(-each // 2))]
        rows = v.sample(rng, MANY * each)
        order = np.argsort(-GpuScore().predict(v, rows))
        out += [v.candidate(row) for row in rows[order[: 2 * each : 4]]]
    unique = list(dict.fromkeys(out))
    return [unique[k] for k in rng.permutation(len(unique))[:size]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--size", type=int, default=120, help="programs of each task")
    parser.add_argument("--seconds", type=float, default=9.0, help="of measuring a task, at most")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--to", type=Path, default=DATA)
    args = parser.parse_args()
    target = device(args.target)
    tasks = {n: ts.Task(function_of(*CASES[n]), target) for n in args.cases.split(",")}
    args.to.mkdir(parents=True, exist_ok=True)
    measurer = ts.LocalMeasurer(rules=QUICK, confirm=False, timeout=10.0)
    with measurer.open(next(iter(tasks.values()))) as run:
        for name, task in tasks.items():
            began = time.monotonic()
            asked = drawn(task, args.size, args.seed)
            middle = time.monotonic()
            found = condensed(run.measure(asked, seconds=args.seconds))
            entries = [Entry(task_row(task), record_row(m)) for m in found]
            write_lines(args.to / f"{name}.jsonl.xz", entries)
            best = min((m.cost for m in found if m.failure is None), default=0.0)
            print(
                f"{name}: drawn in {middle - began:.1f} s, {len(found)} measured in "
                f"{time.monotonic() - middle:.1f} s, best {best * 1e6:.1f} us", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
