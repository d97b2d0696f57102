"""`Portfolio`: which kernels of a Function with open sizes run at which sizes, with their times.
`covering` chooses as few as cover the samples well.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.ir.function import Function
from tilesmith.runtime.kernel import Origin
from tilesmith.tune.open_build import Sizes, limits_of, sizes_text

_MOST_MEMBERS = 8
_WORST_REGRET = 1.10
_WORTH = 1.01  # a further kernel must gain so much on average while no regret is too large


@dataclass(frozen=True)
class Portfolio:
    """The kernels that cover the sizes of a Function: `seconds[k][s]` is the time of kernel k at
    sample s, nan where it was not timed. `members` are the numbers of the kernels that are kept,
    the first of which runs at sizes outside of the range; `chosen` has the kernel of each sample.
    """

    func: Function
    samples: tuple[Sizes, ...]
    weights: tuple[float, ...]
    kernels: tuple[str, ...]  # where each comes from
    seconds: tuple[tuple[float, ...], ...]
    members: tuple[int, ...]
    left_out: tuple[str, ...] = ()  # schedules that need numbers, and why
    origins: tuple[Origin, ...] = ()  # of the kernels, with their schedules

    @property
    def chosen(self) -> tuple[int, ...]:
        """The member that is fastest at each sample."""
        return tuple(
            min(self.members, key=lambda k: _known(self.seconds[k][s]))
            for s in range(len(self.samples))
        )

    @property
    def regrets(self) -> tuple[float, ...]:
        """At each sample, the time of the chosen kernel over that of the fastest one."""
        best = [min(_known(row[s]) for row in self.seconds) for s in range(len(self.samples))]
        return tuple(self.seconds[k][s] / best[s] for s, k in enumerate(self.chosen))

    @property
    def times(self) -> tuple[tuple[float, float], ...]:
        """At each sample, the seconds of the chosen kernel, and its regret."""
        own = (self.seconds[k][s] for s, k in enumerate(self.chosen))
        return tuple(zip(own, self.regrets, strict=True))

    @property
    def cost(self) -> float:
        """The weighted geometric mean over samples of its time over that of the draft, which is
        kernel 0.
        """
        ratios = [self.seconds[k][s] / self.seconds[0][s] for s, k in enumerate(self.chosen)]
        return weighted_mean(ratios, self.weights)

    def __str__(self) -> str:
        """A line for each sample: its kernel, its time and its regret."""
        limits = limits_of(self.func).items()
        ranges = ", ".join(f"{n} {low} to {high}" for n, (low, high) in limits)
        lines = [
            f"{self.func.name}, {ranges}: {len(self.members)} of {len(self.kernels)} kernels, "
            f"{self.cost:.3f} of the draft's time"
        ]
        for s, (k, regret) in enumerate(zip(self.chosen, self.regrets, strict=True)):
            lines.append(
                f"  {sizes_text(self.samples[s]):20} kernel {k}  {self.seconds[k][s] * 1e6:10.2f} "
                f"us  regret {regret:.3f}"
            )
        lines += [f"  kernel {k}: {self.kernels[k]}" for k in self.members]
        return "\n".join(lines)


def _known(seconds: float) -> float:
    return seconds if seconds == seconds else float("inf")


def weighted_mean(ratios: Sequence[float], weights: Sequence[float]) -> float:
    """The weighted geometric mean."""
    total = sum(w * log(r) for r, w in zip(ratios, weights, strict=True))
    return exp(total / sum(weights))


def covering(
    seconds: Sequence[Sequence[float]], weights: Sequence[float], most: int = _MOST_MEMBERS
) -> tuple[int, ...]:
    """A greedy cover of the samples, kernel 0 first: the kernel that lowers the weighted geometric
    mean most is added, while some regret is above 1.10, or the gain is above 1 %.
    """
    times = np.where(np.isnan(seconds), np.inf, np.asarray(seconds))
    best = times.min(axis=0)
    members = [0]
    while len(members) < min(most, len(times)):
        now = times[members].min(axis=0)
        others = [k for k in range(len(times)) if k not in members]
        means = [
            weighted_mean([float(x) for x in np.minimum(now, times[k]) / best], weights)
            for k in others
        ]
        mean = weighted_mean([float(x) for x in now / best], weights)
        gain = mean / min(means)
        if gain <= 1 or (gain < _WORTH and (now / best).max() <= _WORST_REGRET):
            break
        members.append(others[means.index(min(means))])
    return tuple(members)
