"""The end of a run: candidates not reached in time are left out, and the run ends in time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import planted
import pytest
from simulated import RULES, InstantBuilders, Machine, built

import tilesmith as ts
from tilesmith.measure.messages import Build, Sample
from tilesmith.measure.parent import batch as batch_module
from tilesmith.measure.parent import worker_pool as pool_module
from tilesmith.measure.parent.batch import Batch, Incumbents, TimeSpent, Trial
from tilesmith.measure.parent.build_and_run import KernelFailed
from tilesmith.measure.this_machine import Cores
from tilesmith.task.task import Failure


@dataclass
class Clock:
    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic


@dataclass
class Timely(Machine):
    """Calls advance a simulated clock; one that takes longer than its timeout raises."""

    clock: Clock = field(default_factory=Clock)

    def check(self, slot: int, seconds: float) -> float:
        needs = self.seconds[self.names[slot]]
        self.clock.now += min(needs, seconds)
        if needs > seconds:
            raise KernelFailed(slot, Failure("timeout", f"no answer after {seconds:.3g} s"))
        return needs

    def verify(self, slot: int, calls: int, timed: bool, seconds: float) -> None:
        self.clock.now += calls * self.seconds[self.names[slot]]

    def times(self, order: Sequence[tuple[int, int]], seconds: float) -> list[Sample]:
        out = super().times(order, seconds)
        self.clock.now += sum(s.seconds * n for s, (_, n) in zip(out, order, strict=True))
        return out


def run(
    seconds: dict[int, float], left: float, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[int, Trial], float]:
    """Measures kernels with these times and `left` seconds; trials, and seconds past the end."""
    machine = Timely(seconds, random.Random(0), wander=0.0)
    monkeypatch.setattr(batch_module, "time", machine.clock)
    until = machine.clock.now + left
    trials = {str(k): Trial(k) for k in seconds}
    jobs: dict[str, Build] = {str(k): built(k) for k in seconds}
    batch = Batch(
        InstantBuilders(), machine, Cores((1,), (0,)), Incumbents(), RULES, 10.0, True,
        random.Random(0), TimeSpent(), until,
    )  # type: ignore[arg-type]  # fmt: skip
    assert len([*batch.run(trials, jobs, True, lambda: None)]) <= len(trials)
    return {int(k): t for k, t in trials.items()}, machine.clock.now - max(until, 1000.0)


def test_with_time_enough_all_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    trials, late = run({1: 0.01, 2: 0.02, 3: 0.012}, 10.0, monkeypatch)
    assert all(t.reached for t in trials.values())
    assert late < 0


@pytest.mark.parametrize("left", [-5.0, 0.0, 0.1, 1.0, 3.0])
@pytest.mark.parametrize("each", [0.001, 0.3, 0.7, 1.8, 9.0])
def test_the_end_is_kept_within_three_seconds(
    left: float, each: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials, late = run({k: each * (1 + 0.1 * k) for k in range(8)}, left, monkeypatch)
    assert late <= 3.0 + 1e-6
    assert not any(t.failure for t in trials.values())  # being late is no failure
    reached = [t for t in trials.values() if t.reached]
    assert bool(reached) == (each * 1.01 <= max(left, 0.0) + 3.0)


def test_a_kernel_that_hangs_is_still_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    trials, _ = run({1: 0.01, 2: 1e9}, 100.0, monkeypatch)
    assert trials[1].timed.samples
    assert trials[2].failure is not None
    assert trials[2].failure.kind == "timeout"


def test_an_oracle_that_takes_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []

    def ready(channels: object, seconds: float) -> list[object]:
        waited.append(seconds)
        return []

    with ts.LocalMeasurer().open(planted.task()) as measuring:
        monkeypatch.setattr(pool_module, "ready", ready)
        with pytest.raises(ts.MeasureError, match=r"'double' was evaluated once.*more seconds"):
            measuring.measure([planted.good(4)], seconds=2.0)
        assert 1.0 < max(waited) <= 5.0
        waited.clear()
        with pytest.raises(ts.MeasureError, match=r"'double' .* more than 600 s"):
            measuring.measure([planted.good(4)])
        assert 500.0 < max(waited) <= 600.0
        monkeypatch.undo()
        (m,) = measuring.measure([planted.good(4)])
    assert m.seconds
