"""Contestants timed in spells: each runs alone for a while, and they take turns for some rounds.

In a spell the caches hold what its contestant uses, and the clock of a core has settled to what its
instructions allow (AMX and wide vectors lower it). Short turns would measure the changes instead.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_SAMPLE_SECONDS = 0.02
_WARM_SHARE = 0.2  # of a spell: the contestant runs, and nothing is noted


@dataclass(frozen=True)
class Spells:
    """`seconds` is the length of a spell."""

    rounds: int
    seconds: float

    @property
    def text(self) -> str:
        """For the head of a table."""
        return (
            f"medians over {self.rounds} rounds of the median of a spell of {self.seconds:g} s each"
        )

    def of(self, runs: Sequence[Callable[[], object]]) -> list[list[float]]:
        """For each contestant, its median processor seconds of a call in every round. Others that
        use the machine do not count, as each contestant has one thread.
        """
        found: list[list[float]] = [[] for _ in runs]
        for _ in range(self.rounds):
            for run, kept in zip(runs, found, strict=True):
                self._spell(run, _WARM_SHARE * self.seconds)
                kept.append(statistics.median(self._spell(run, self.seconds)))
        return found

    def _spell(self, run: Callable[[], object], seconds: float) -> list[float]:
        """Processor seconds of a call, one number for each sample of several calls."""
        start = time.process_time()
        run()
        calls = max(1, int(_SAMPLE_SECONDS / max(time.process_time() - start, 1e-6)))
        out: list[float] = []
        end = time.process_time() + seconds
        while not out or time.process_time() < end:
            start = time.process_time()
            for _ in range(calls):
                run()
            out.append((time.process_time() - start) / calls)
        return out


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="in which each contestant has a turn")
    parser.add_argument("--spell", type=float, default=1.0, help="seconds of a turn")
