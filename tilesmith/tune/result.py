"""The outcome of a tuning run: the best candidate, the kernel built from it, and how the best cost
fell over time.
"""

from __future__ import annotations

from functools import cached_property

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TilesmithError, TuneError
from tilesmith.base.given import checks_given
from tilesmith.base.html import html_folded, html_pairs
from tilesmith.runtime.build import compile_for
from tilesmith.runtime.device_kernel import kernel_of
from tilesmith.runtime.kernel import Kernel
from tilesmith.task.task import Curve, Measurement, Task, TuningRun
from tilesmith.tune.portfolio import Portfolio


@checks_given(error=TuneError)
@dataclass(frozen=True)
class Result:
    """The outcome of `ts.tune`: `best` is the best Measurement and `kernel` is built from it.
    `curve` has (seconds, trials, best cost) at every improvement; a database gives the same curve
    for `run`. A run that was `interrupted`, or ended by an `error` of the measurer or the database,
    holds what was measured until then. `left_out` counts the sketches and structures (sketches
    with places and orders chosen) that are not in the search because there are too many; it is 0
    for most operators.
    """

    task: Task
    best: Measurement
    trials: int
    failures: dict[str, tuple[int, str]]  # by kind: the count, and the text of the first one
    curve: Curve
    seconds: float
    run: TuningRun
    interrupted: bool = False
    error: TilesmithError | None = None
    portfolio: Portfolio | None = None  # of a Function with open sizes
    left_out: int = 0

    def __repr__(self) -> str:
        failed = sum(count for count, _ in self.failures.values())
        parts = [
            f"{self.task.func.name} for {self.task.target.name}",
            f"best {self.best.cost * 1e6:.4g} us",
            f"{self.trials} trials ({failed} failed) in {self.seconds:.1f} s",
        ]
        if self.left_out:
            parts.append(f"{self.left_out} structures not searched")
        if self.interrupted:
            parts.append("interrupted")
        if self.error is not None:
            parts.append(f"ended by {type(self.error).__name__}: {self.error}")
        return f"<Result {', '.join(parts)}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        target = self.task.target
        best = f"{self.best.cost * 1e6:.4g} us"
        if self.task.func.flops:
            best += f", {self.gflops:.1f} GFLOP/s"
        pairs = [("best", best), ("trials", f"{self.trials} in {self.seconds:.1f} s")]
        pairs += [(f"failed: {kind}", f"{n}") for kind, (n, _) in self.failures.items()]
        if self.left_out:
            pairs.append(("structures not searched", f"{self.left_out}"))
        if self.interrupted or self.error is not None:
            pairs.append(("ended early", str(self.error or "interrupted")))
        title = f"{self.task.func.name} for {target.name}"
        schedule = str(self.best.candidate.trace) or "the loops as stated"
        return html_pairs(title, pairs) + html_folded("schedule", schedule)

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel of the best candidate, built at first use."""
        func = self.best.candidate.trace.apply(self.task.func)
        return kernel_of(compile_for(self.task, func))

    @property
    def gflops(self) -> float:
        """Billions of operations per second of the best candidate."""
        return self.task.func.flops / self.best.cost / 1e9

    @property
    def near(self) -> float:
        """Seconds until the best was within 10 % of the final one; 0 if the database had it."""
        curve = self.curve
        return next(seconds for seconds, _, cost in curve if cost <= 1.1 * curve[-1][2])


@checks_given(error=TuneError)
@dataclass(frozen=True)
class OpenResult(Result):
    """The outcome of `ts.tune` for a Function with open sizes: `kernel` takes arrays of any size,
    and `portfolio` says which kernels it is made of, with their times at the samples. Task, best
    measurement and curve are those of the sample with the largest weight.
    """

    open_kernel: Kernel | None = None

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel for all sizes."""
        assert self.open_kernel is not None
        return self.open_kernel

    def __repr__(self) -> str:
        return f"<OpenResult {self.portfolio}>"
