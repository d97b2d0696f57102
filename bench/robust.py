"""Whether tuning depends on luck: operators and layouts outside of the suite, each tuned with
several seeds, and the winners of all seeds timed side by side.

    python -m bench.robust [--only matmul ...] [--seeds 5] [--seconds 8] [--json FILE]

The winners of a case take turns in one process, so that no mood of the machine decides between
them. `ratio` is the time of the slowest winner over that of the fastest one; above 1.3 a case
counts as a matter of luck, and the command ends with status 1.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import tilesmith as ts
from bench.table import arguments
from tilesmith.base.whole_file import write_whole
from tilesmith.task.inputs import example_inputs

LIMIT = 1.3  # how far the slowest winner may be behind the fastest one
ROUNDS = 15
SAMPLE_SECONDS = 0.004

Tensors = tuple[ts.Tensor, ...]  # inputs, then the output


def _matmul(
    m: int, n: int, k: int, dtype: str = "float32", ta: bool = False, tb: bool = False
) -> Tensors:
    a = ts.placeholder((k, m) if ta else (m, k), dtype, name="A")
    b = ts.placeholder((n, k) if tb else (k, n), dtype, name="B")
    return a, b, ts.ops.matmul(a, b, transpose_a=ta, transpose_b=tb, name="C")


def _batch_matmul(batch: int, m: int, n: int, k: int) -> Tensors:
    a = ts.placeholder((batch, m, k), name="A")
    b = ts.placeholder((batch, n, k), name="B")
    return a, b, ts.ops.batch_matmul(a, b, transpose_b=True, name="C")


def _conv2d(
    size: int, channels: int, filters: int, kernel: int, stride: int, dilation: int = 1
) -> Tensors:
    x = ts.placeholder((1, channels, size, size), name="X")
    w = ts.placeholder((filters, channels, kernel, kernel), name="W")
    pad = dilation * (kernel // 2)
    return x, w, ts.ops.conv2d(x, w, stride=stride, padding=pad, dilation=dilation, name="Y")


def _depthwise(size: int, channels: int, stride: int) -> Tensors:
    x = ts.placeholder((1, channels, size, size), name="X")
    w = ts.placeholder((channels, 1, 3, 3), name="W")
    return x, w, ts.ops.depthwise_conv2d(x, w, stride=stride, padding=1, name="Y")


def _max_pool(size: int, channels: int) -> Tensors:
    x = ts.placeholder((1, channels, size, size), name="X")
    return x, ts.ops.max_pool2d(x, 3, stride=2, padding=1, name="Y")


def _scores(length: int, heads: int, dim: int) -> Tensors:
    q, k = (ts.placeholder((length, heads, dim), name=name) for name in ("Q", "K"))
    scores = ts.ops.transpose_batch_matmul(q, k, name="S")
    return q, k, ts.ops.softmax(scores, name="P")


def _softmax(m: int, n: int, axis: int) -> Tensors:
    x = ts.placeholder((m, n), name="X")
    return x, ts.ops.softmax(x, axis=axis, name="Y")


def _layer_norm(m: int, n: int) -> Tensors:
    x = ts.placeholder((m, n), name="X")
    scale, shift = (ts.placeholder((n,), name=name) for name in ("scale", "shift"))
    return x, scale, shift, ts.ops.layer_norm(x, scale, shift, name="Y")


def _sums(m: int, n: int, columns: bool) -> Tensors:
    x = ts.placeholder((m, n), name="X")
    k = ts.reduce_axis(m if columns else n, name="k")
    if columns:
        return x, ts.compute((n,), lambda j: ts.sum(x[k, j], axis=k), name="Y")
    return x, ts.compute((m,), lambda i: ts.sum(x[i, k], axis=k), name="Y")


def _matvec(m: int, n: int, transposed: bool) -> Tensors:
    a = ts.placeholder((n, m) if transposed else (m, n), name="A")
    v, k = ts.placeholder((n,), name="V"), ts.reduce_axis(n, name="k")
    if transposed:
        return a, v, ts.compute((m,), lambda i: ts.sum(a[k, i] * v[k], axis=k), name="Y")
    return a, v, ts.compute((m,), lambda i: ts.sum(a[i, k] * v[k], axis=k), name="Y")


def _transpose_add(n: int) -> Tensors:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    return a, b, ts.compute((n, n), lambda i, j: a[j, i] + b[i, j], name="Y")


def _outer(n: int) -> Tensors:
    u, v = ts.placeholder((n,), name="U"), ts.placeholder((n,), name="V")
    return u, v, ts.compute((n, n), lambda i, j: u[i] * v[j], name="Y")


def _gelu(m: int, n: int) -> Tensors:
    x = ts.placeholder((m, n), name="X")
    return x, ts.ops.gelu(x, name="Y")


CASES: dict[str, Callable[[], Tensors]] = {
    "matmul 256, A transposed": lambda: _matmul(256, 256, 256, ta=True),
    "matmul 256, B transposed": lambda: _matmul(256, 256, 256, tb=True),
    "matmul 256, both transposed": lambda: _matmul(256, 256, 256, ta=True, tb=True),
    "matmul 251x127x383": lambda: _matmul(251, 127, 383),
    "matmul 251x127x383, both transposed": lambda: _matmul(251, 127, 383, ta=True, tb=True),
    "matmul 256 float16": lambda: _matmul(256, 256, 256, "float16"),
    "matmul 256 bfloat16": lambda: _matmul(256, 256, 256, "bfloat16"),
    "matmul 256 float64": lambda: _matmul(256, 256, 256, "float64"),
    "matmul 256 int8": lambda: _matmul(256, 256, 256, "int8"),
    "batch matmul 12x96x80x64, B transposed": lambda: _batch_matmul(12, 96, 80, 64),
    "attention 128 12x64": lambda: _scores(128, 12, 64),
    "conv2d NCHW 56 64->64 stride 2": lambda: _conv2d(56, 64, 64, 3, 2),
    "conv2d NCHW 1x1 28 128->128": lambda: _conv2d(28, 128, 128, 1, 1),
    "conv2d NCHW 28 64->64 dilated": lambda: _conv2d(28, 64, 64, 3, 1, 2),
    "conv2d NCHW 7x7 112 3->32 stride 2": lambda: _conv2d(112, 3, 32, 7, 2),
    "depthwise NCHW 56 64 stride 2": lambda: _depthwise(56, 64, 2),
    "max pool NCHW 56 64": lambda: _max_pool(56, 64),
    "layer norm 256x768": lambda: _layer_norm(256, 768),
    "softmax of columns 768x512": lambda: _softmax(768, 512, 0),
    "column sums 1000x1000": lambda: _sums(1000, 1000, columns=True),
    "row sums 1000x1000": lambda: _sums(1000, 1000, columns=False),
    "transpose and add 512": lambda: _transpose_add(512),
    "outer product 512": lambda: _outer(512),
    "matrix times vector 1000": lambda: _matvec(1000, 1000, transposed=False),
    "vector times matrix 1000": lambda: _matvec(1000, 1000, transposed=True),
    "gelu 256x1024": lambda: _gelu(256, 1024),
}


@dataclass(frozen=True)
class Outcome:
    """Seconds of each seed's winner, in the order of the seeds."""

    name: str
    seconds: tuple[float, ...]
    trials: tuple[int, ...]

    @property
    def ratio(self) -> float:
        return max(self.seconds) / min(self.seconds)


def compare(kernels: Sequence[ts.Kernel], inputs: Sequence[object]) -> tuple[float, ...]:
    """The least seconds of each, over samples taken in turns. They are the processor's, as each
    kernel has one thread: what else runs on the machine does not count, and can only ever slow a
    sample down. Each begins with a call that is not timed, so that nobody meets another's cache.
    """
    calls = [k.bind(*inputs) for k in kernels]

    def sample(call: Callable[[], object], count: int) -> float:
        call()
        start = time.thread_time()
        for _ in range(count):
            call()
        return max(time.thread_time() - start, 1e-9) / count

    counts = [max(1, math.ceil(SAMPLE_SECONDS / sample(call, 2))) for call in calls]
    best = [math.inf] * len(calls)
    for _ in range(ROUNDS):
        for k, call in enumerate(calls):
            best[k] = min(best[k], sample(call, counts[k]))
    return tuple(best)


def run(name: str, seeds: int, seconds: float) -> Outcome:
    func = ts.function(CASES[name](), name="robust")
    budget = ts.Budget(seconds=seconds)
    found = [
        ts.tune(func, ts.cpu(1), budget=budget, seed=seed, quiet=True) for seed in range(seeds)
    ]
    times = compare([r.kernel for r in found], example_inputs(func))
    return Outcome(name, times, tuple(r.trials for r in found))


def show(o: Outcome) -> None:
    times = (min(o.seconds), statistics.median(o.seconds), max(o.seconds))
    cells = "".join(f"{1e6 * t:11.1f}" for t in times)
    worst = o.seconds.index(max(o.seconds))
    mark = f"  above {LIMIT} (seed {worst})" if o.ratio > LIMIT else ""
    print(f"{o.name:40}{cells}{o.ratio:7.2f}{statistics.median(o.trials):8.0f}{mark}", flush=True)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument(
        "--only", nargs="+", metavar="TEXT", help="cases whose name has one of these in it"
    )
    parser.add_argument("--seeds", type=int, default=5, help="tuning runs of each case")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each tuning run")
    args = parser.parse_args()
    names = [n for n in CASES if args.only is None or any(text in n for text in args.only)]
    if not names:
        parser.error(f"no case has any of {args.only} in its name; there are {', '.join(CASES)}")
    print(f"{'':40}{'best us':>11}{'median us':>11}{'worst us':>11}{'ratio':>7}{'trials':>8}")
    outcomes = []
    for name in names:
        outcomes.append(run(name, args.seeds, args.seconds))
        show(outcomes[-1])
        if args.json:  # after every case: an interrupted run leaves what it has
            rows = [asdict(o) | {"ratio": o.ratio} for o in outcomes]
            write_whole(Path(args.json), json.dumps(rows, indent=1))
    above = [o.name for o in outcomes if o.ratio > LIMIT]
    print(f"{len(outcomes) - len(above)} of {len(outcomes)} cases within {LIMIT}")
    if above:
        sys.exit(f"a matter of luck: {', '.join(above)}")


if __name__ == "__main__":
    main()
