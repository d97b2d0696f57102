"""One kernel for all sizes against a kernel tuned for each: `python -m bench.sizes --seconds 60`.

Each operator is tuned once with an open size. At lengths that were no samples, its kernel is timed
in turns with one that was tuned for that very length; the regret is the ratio of both times. The
column `draft` has the regret of the untuned open kernel.

With `--models bert-base`, whole models; see `bench/model_sizes.py`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np

import tilesmith as ts
from bench.model_sizes import add_options, compare
from bench.table import arguments
from tilesmith.base.whole_file import write_whole
from tilesmith.task.inputs import example_inputs

_SAMPLES = {1: 1.0, 4: 1.0, 16: 1.0, 64: 2.0, 128: 4.0, 384: 1.0}
_ROUNDS = 7


def _tokens() -> ts.Int:
    return ts.size("tokens", range=(1, 512), samples=_SAMPLES)


def dense() -> ts.Function:
    """A layer of a text encoder: a product with weights, a bias and GELU."""
    X, W = ts.placeholder((_tokens(), 768), name="X"), ts.placeholder((768, 768), name="W")
    b = ts.placeholder((768,), name="b")
    Y = ts.ops.gelu(ts.ops.add(ts.ops.matmul(X, W), b))
    return ts.function([X, W, b, Y], name="dense", constants=[W])


def softmax() -> ts.Function:
    """The scores of 12 heads: rows and columns are open."""
    n = _tokens()
    X = ts.placeholder((12, n, n), name="X")
    return ts.function([X, ts.ops.softmax(X)], name="softmax")


def layer_norm() -> ts.Function:
    X = ts.placeholder((_tokens(), 768), name="X")
    g, b = ts.placeholder((768,), name="g"), ts.placeholder((768,), name="b")
    return ts.function([X, g, b, ts.ops.layer_norm(X, g, b)], name="layer_norm")


OPERATORS: dict[str, Callable[[], ts.Function]] = {
    f.__name__: f for f in (dense, softmax, layer_norm)
}


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", nargs="+", choices=list(OPERATORS), default=list(OPERATORS))
    parser.add_argument("--lengths", default="3,23,77,200,511", help="lengths that are compared")
    parser.add_argument("--seconds", type=float, default=60, help="tuning time of an operator")
    parser.add_argument("--fixed-seconds", type=float, default=20,
                        help="tuning time of an operator at one length")  # fmt: skip
    parser.add_argument("--threads", type=int, default=1)
    add_options(parser)
    options = parser.parse_args()
    if options.models:
        compare(options)
        return
    rows = []
    for name in options.only:
        func, target = OPERATORS[name](), ts.cpu(num_cores=options.threads)
        budget = ts.Budget(seconds=options.seconds)
        result = ts.tune(func, target, budget=budget, quiet=True)
        draft = ts.build(func, target)
        print(result.portfolio, flush=True)
        for length in map(int, options.lengths.split(",")):
            fixed = ts.instantiate(func, {"tokens": length})
            own = ts.tune(
                fixed, target, budget=ts.Budget(seconds=options.fixed_seconds), quiet=True
            )
            arrays = example_inputs(fixed)
            times = _in_turns([own.kernel, result.kernel, draft], fixed, arrays)
            row = {
                "operator": name, "length": length, "seconds": times[1],
                "regret": times[1] / times[0], "draft": times[2] / times[0],
            }  # fmt: skip
            rows.append(row)
            print(
                f"{name:12} {length:5}  {times[1] * 1e6:10.2f} us  regret {row['regret']:.3f}  "
                f"draft {row['draft']:.3f}", flush=True,
            )  # fmt: skip
        regrets = [r["regret"] for r in rows if r["operator"] == name]
        mean = statistics.geometric_mean(regrets)
        print(f"{name:12} mean regret {mean:.3f}, worst {max(regrets):.3f}", flush=True)
    if options.json:
        write_whole(Path(options.json), json.dumps(rows, indent=1) + "\n")


def _in_turns(kernels: list[ts.Kernel], func: ts.Function, arrays: list[np.ndarray]) -> list[float]:
    """The best time of each, of rounds in which all of them run."""
    best = [float("inf")] * len(kernels)
    for _ in range(_ROUNDS):
        for k, kernel in enumerate(kernels):
            given = [kernel.pack(b.name, a) for b, a in zip(func.inputs, arrays, strict=True)]
            took = kernel.time(*given, repeats=2, min_seconds=0.005).best
            best[k] = min(best[k], took)
    return best


if __name__ == "__main__":
    main()
