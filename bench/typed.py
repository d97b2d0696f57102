"""Operators as people type them beside PyTorch: channels first, weights as inputs, nothing packed
ahead.

    python -m bench.typed [--only 3x3 ...] [--seconds 8] [--db FILE] [--json FILE]

Both run in one thread of one process and take turns of about a second; the median over the rounds
of the median of each turn counts, in processor time. A ratio above 1 means that we are faster;
`least` and `most` are those of single rounds.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

import tilesmith as ts
from bench.spells import Spells, add_options
from bench.table import arguments
from tilesmith.base.whole_file import write_whole

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    func: ts.Function
    torch: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def conv2d(
    size: int, channels: int, filters: int, kernel: int, stride: int = 1, groups: int = 1
) -> Case:
    """The padding keeps the size of the image, but for the stride."""
    padding = kernel // 2
    x = ts.placeholder((1, channels, size, size), name="X")
    w = ts.placeholder((filters, channels // groups, kernel, kernel), name="W")
    y = ts.ops.conv2d(x, w, stride=stride, padding=padding, groups=groups, name="Y")

    def peer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(x, w, stride=stride, padding=padding, groups=groups)

    return Case(ts.function([x, w, y], name="typed"), peer)


def batch_matmul(batch: int, m: int, n: int, k: int) -> Case:
    a, b = (ts.placeholder(s, name=t) for s, t in (((batch, m, k), "A"), ((batch, k, n), "B")))
    return Case(ts.function([a, b, ts.ops.batch_matmul(a, b, name="C")], name="typed"), torch.bmm)


CASES: dict[str, Callable[[], Case]] = {
    "conv2d 28x28 96->160 3x3": lambda: conv2d(28, 96, 160, 3),
    "conv2d 27x27 48->64 5x5 stride 2": lambda: conv2d(27, 48, 64, 5, stride=2),
    "conv2d 28x28 96->192 3x3, 3 groups": lambda: conv2d(28, 96, 192, 3, groups=3),
    "conv2d 14x14 512->512 1x1": lambda: conv2d(14, 512, 512, 1),
    "conv2d 14x14 512->512 3x3": lambda: conv2d(14, 512, 512, 3),
    "conv2d 15x15 128->128 3x3": lambda: conv2d(15, 128, 128, 3),
    "conv2d 7x7 512->512 3x3": lambda: conv2d(7, 512, 512, 3),
    "batch matmul 12x96x96x80": lambda: batch_matmul(12, 96, 96, 80),
}


@dataclass(frozen=True)
class Outcome:
    """Seconds in each round, and the ratio of the medians."""

    name: str
    ours: tuple[float, ...]
    torch: tuple[float, ...]
    trials: int

    @property
    def ratio(self) -> float:
        return statistics.median(self.torch) / statistics.median(self.ours)


def run(name: str, seconds: float, database: Any, spells: Spells) -> Outcome:
    case = CASES[name]()
    rng = np.random.default_rng(0)
    arrays: list[Array] = [
        rng.standard_normal([n.number for n in p.shape], dtype=np.float32) for p in case.func.inputs
    ]
    target, budget = ts.cpu(num_cores=1), ts.Budget(seconds=seconds)
    result = ts.tune(case.func, target, budget=budget, database=database, quiet=True)
    kernel, tensors = result.kernel, [torch.from_numpy(a) for a in arrays]
    want = case.torch(*tensors).numpy()
    out = np.zeros_like(want)

    def ours() -> object:
        return kernel(*arrays, out=out)

    ours()
    np.testing.assert_allclose(out, want, rtol=1e-3, atol=1e-3)
    mine, theirs = spells.of([ours, lambda: case.torch(*tensors)])
    return Outcome(name, tuple(mine), tuple(theirs), result.trials)


def show(o: Outcome) -> None:
    ours, peer = (1e6 * statistics.median(x) for x in (o.ours, o.torch))
    each = [t / u for t, u in zip(o.torch, o.ours, strict=True)]
    ratios = "".join(f"{r:7.2f}" for r in (o.ratio, min(each), max(each)))
    print(f"{o.name:40}{ours:11.0f}{peer:11.0f}{ratios}{o.trials:8}", flush=True)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument(
        "--only", nargs="+", metavar="TEXT", help="cases whose name has one of these in it"
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="tuning time per case")
    parser.add_argument("--db", default=":memory:", help="database of measurements to use and fill")
    add_options(parser)
    args = parser.parse_args()
    names = [n for n in CASES if args.only is None or any(text in n for text in args.only)]
    if not names:
        parser.error(f"no case has any of {args.only} in its name; there are {', '.join(CASES)}")
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    spells, outcomes = Spells(args.rounds, args.spell), []
    print(f"one thread; {spells.text}")
    head = ("ours us", "torch us"), ("ratio", "least", "most")
    print(f"{'':40}" + "".join(f"{h:>11}" for h in head[0]) + "".join(f"{h:>7}" for h in head[1])
          + f"{'trials':>8}")  # fmt: skip
    with ts.open_database(args.db) as database:
        for name in names:
            outcomes.append(run(name, args.seconds, database, spells))
            show(outcomes[-1])
            if args.json:  # after every case: an interrupted run leaves what it has
                rows = [asdict(o) | {"ratio": o.ratio} for o in outcomes]
                write_whole(Path(args.json), json.dumps(rows, indent=1))
    if len(outcomes) > 1:
        print(f"{'geometric mean':62}{statistics.geometric_mean(o.ratio for o in outcomes):7.2f}")


if __name__ == "__main__":
    main()
