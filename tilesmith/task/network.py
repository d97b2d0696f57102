"""What tuning a network leaves behind: its estimated latency over time, and its tasks."""

from __future__ import annotations

from math import inf, isfinite

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TilesmithError, TuneError
from tilesmith.base.given import checks_given
from tilesmith.task.describe import places_text, shapes_text
from tilesmith.task.task import Task


@checks_given(error=TuneError)
@dataclass(frozen=True, slots=True)
class TaskTuning:
    """One task of a network, which runs it `weight` times. `first` and `best` are the seconds of a
    call at first and in the end, infinite if no kernel of it was measured. `bound` is a time that
    no kernel beats, 0 if unknown. `seconds` and `trials` were spent on it in this run. `places` are
    the nodes of the model that each of its kernels computes.
    """

    task: Task
    weight: float
    first: float
    best: float
    bound: float
    trials: int
    seconds: float
    places: tuple[tuple[str, ...], ...] = ()

    @property
    def latency(self) -> float:
        """Its part of a run of the network."""
        return self.weight * self.best

    @property
    def gain(self) -> float:
        """How many times faster it got."""
        return self.first / self.best if isfinite(self.first) and self.best else 1.0

    @property
    def label(self) -> str:
        """What it computes, of which shapes, layout and dtype, and where in the model."""
        func = self.task.func
        return f"{func.name} {shapes_text(func)}  {places_text(self.places)}".rstrip()


@checks_given(error=TuneError)
@dataclass(frozen=True)
class ModelTuning:
    """How a network got faster. `latency` has (seconds since the start, estimated seconds of a run)
    at every change, from the moment when each task had a kernel. The estimate is the sum of the
    kernels' times; tasks of which no kernel could be measured are left out.

    A run that was `interrupted`, or ended by an `error`, holds what was known until then. `sizes`
    are those of the inputs that a model with open sizes was tuned for; empty for other models.
    """

    seconds: float
    trials: int
    latency: tuple[tuple[float, float], ...]
    tasks: tuple[TaskTuning, ...]
    interrupted: bool = False
    error: TilesmithError | None = None
    sizes: str = ""

    @property
    def estimate(self) -> float:
        """Estimated seconds of a run in the end; infinite if not every task was measured."""
        return self.latency[-1][1] if self.latency else inf

    @property
    def unmeasured(self) -> int:
        """How many tasks have no measured kernel, and use drafts: the budget was too small."""
        return sum(t.weight > 0 and not isfinite(t.best) for t in self.tasks)

    def __repr__(self) -> str:
        text = f"{len(self.tasks)} tasks, {self.trials} trials in {self.seconds:.1f} s"
        if self.latency:
            first, last = self.latency[0][1], self.latency[-1][1]
            text += f", estimated latency {first * 1e3:.4g} to {last * 1e3:.4g} ms"
        elif self.unmeasured:
            text += f", {self.unmeasured} of the tasks not measured: they use drafts"
        if self.sizes:
            text += f", for {self.sizes}"
        if self.interrupted:
            text += ", interrupted"
        if self.error is not None:
            text += f", ended by {type(self.error).__name__}: {self.error}"
        return f"<ModelTuning of {text}>"

    def __str__(self) -> str:
        """By task, the ones that take most of a run first."""
        lines = [repr(self)]
        total = sum(t.latency for t in self.tasks if isfinite(t.best)) or 1.0
        lines.append(f"{'us':>10} {'times':>5} {'share':>6} {'trials':>6} {'gain':>5}  task")
        for t in sorted(self.tasks, key=lambda t: -t.latency if isfinite(t.best) else 0.0):
            numbers = f"{'draft':>10} {t.weight:5g} {'':6} {t.trials:6} {'':5}"
            if isfinite(t.best):
                share = f"{100 * t.latency / total:.1f}%"
                numbers = (
                    f"{t.best * 1e6:10.1f} {t.weight:5g} {share:>6} {t.trials:6} {t.gain:5.2f}"
                )
            lines.append(f"{numbers}  {t.label}")
        return "\n".join(lines)
