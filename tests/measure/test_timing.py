"""Screening, racing and confirming, on simulated clocks with known disturbances."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import tilesmith as ts
from tilesmith.cli.operators import operator
from tilesmith.measure.messages import REFERENCE, Sample
from tilesmith.measure.parent.batch import Trial
from tilesmith.measure.parent.timing import (
    DriftMonitor,
    ProcessorClock,
    TimingRules,
    duel,
    is_believed,
    race,
    screen,
)
from tilesmith.schedule.trace import Trace
from tilesmith.task.task import Candidate, Task, trust

RULES = TimingRules()


@dataclass
class Machine:
    """Kernels have known times, multiplied by a slowness that may change, plus positive noise."""

    seconds: dict[int, float]
    noise: float = 0.01
    slowness: float = 1.0
    wander: float = 0.0
    share: float = 1.0
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    asked: list[tuple[int, int]] = field(default_factory=list)

    def times(self, order: Sequence[tuple[int, int]], seconds: float) -> list[Sample]:
        out = []
        if self.wander:
            self.slowness = 1 + self.wander * self.rng.random()
        for slot, calls in order:
            self.asked.append((slot, calls))
            base = 1e-4 if slot == REFERENCE else self.seconds[slot]
            extra = 1 + self.rng.expovariate(1) * self.noise
            out.append(Sample(base * self.slowness * extra, self.share))
        return out

    def calls(self, slot: int) -> int:
        return sum(calls for s, calls in self.asked if s == slot)


def test_screening_stops_early() -> None:
    machine = Machine({1: 0.01, 2: 0.004})
    hopeless = screen(machine, 1, 0.01, 0.002, RULES, DriftMonitor(), 10)
    assert [s.seconds for s in hopeless.samples] == [0.01]  # the first call sufficed
    assert not machine.asked
    doubtful = screen(machine, 2, 0.004, 0.0019, RULES, DriftMonitor(), 10)
    assert len(doubtful.samples) == 1


def test_short_kernels_are_called_many_times() -> None:
    machine = Machine({1: 2e-6})
    timed = screen(machine, 1, 1e-4, float("inf"), RULES, DriftMonitor(), 10)
    assert timed.calls >= 400
    assert len(timed.samples) >= RULES.min_samples
    assert machine.calls(1) * 2e-6 >= RULES.min_seconds


def test_long_kernels_are_called_once_or_twice() -> None:
    machine = Machine({1: 2.0})
    screen(machine, 1, 2.0, float("inf"), RULES, DriftMonitor(), 10)
    assert machine.calls(1) == 1


def test_the_first_call_of_a_long_kernel_tells_more() -> None:
    machine = Machine({1: 0.15, 2: 0.0015})
    assert len(screen(machine, 1, 0.15, 0.1, RULES, DriftMonitor(), 10).samples) == 1
    assert not machine.asked
    screen(machine, 2, 0.0015, 0.001, RULES, DriftMonitor(), 10)  # caches may have been cold
    assert machine.asked


def test_races_of_long_kernels_have_few_rounds() -> None:
    machine = Machine({1: 0.1, 2: 0.11, 9: 0.12})
    result = race(machine, {1: 1, 2: 1}, (9, 1), RULES, DriftMonitor(), random.Random(0), 10)
    assert result.winner == 1
    assert machine.calls(2) == 1
    assert machine.calls(9) == 2


def test_a_slow_machine_is_noticed() -> None:
    machine, monitor = Machine({1: 0.002}), DriftMonitor()
    for _ in range(10):
        timed = screen(machine, 1, 0.002, 0.002, RULES, monitor, 10)
        assert not timed.is_contended(RULES)
    machine.slowness = 1.5
    timed = screen(machine, 1, 0.002, 0.002, RULES, monitor, 10)
    assert timed.is_contended(RULES)
    assert abs(timed.corrected / 0.002 - 1) < 0.05
    for _ in range(20):  # a slowdown that lasts becomes the usual speed
        timed = screen(machine, 1, 0.002, 0.002, RULES, monitor, 10)
    assert not timed.is_contended(RULES)


def test_records_of_a_slow_and_a_fast_day_can_be_compared() -> None:
    """The machine is half as fast on one of two days: seconds differ, normal seconds do not."""
    machine, measured = Machine({1: 0.002, 2: 0.0021}), []
    candidate = Candidate(Task(operator("matmul", (8, 8, 8)), ts.cpu(1)), Trace())
    for slot, slowness in ((1, 1.9), (2, 1.0)):
        machine.slowness = slowness
        trial = Trial(slot, timed=screen(machine, slot, 0.002, 0.002, RULES, DriftMonitor(), 10))
        measured.append(trial.verdict(RULES).of(candidate, 0.0))
    slow, fast = measured
    assert slow.cost > 1.5 * fast.cost
    assert abs(slow.normal_cost / fast.normal_cost - 0.002 / 0.0021) < 0.03
    assert trust(slow) < trust(fast)
    low, high = slow.normal_confidence
    assert low <= slow.normal_cost <= high


def test_a_kernel_that_is_given_up_is_on_the_same_scale() -> None:
    machine, monitor = Machine({1: 0.002, 2: 0.01}, noise=0.0, slowness=0.5), DriftMonitor()
    good = Trial(1, timed=screen(machine, 1, 0.001, float("inf"), RULES, monitor, 10))
    bad = Trial(2, timed=screen(machine, 2, 0.005, 0.001, RULES, monitor, 10))
    candidate = Candidate(Task(operator("matmul", (8, 8, 8)), ts.cpu(1)), Trace())
    fast, slow = (t.verdict(RULES).of(candidate, 0.0) for t in (good, bad))
    assert slow.seconds == (0.005,)  # its first call sufficed
    assert abs(slow.normal_cost / fast.normal_cost - 5) < 1e-6


def test_one_slow_reference_does_not_make_a_kernel_look_fast() -> None:
    monitor = DriftMonitor()
    for seconds in (1e-4, 1e-4, 3e-4):
        (judged,) = monitor.annotate(Sample(seconds, 1.0), [Sample(0.002, 1.0)], RULES)
    assert judged.reference == 1e-4


def test_a_preempted_reference_does_not_make_a_kernel_look_fast() -> None:
    sample, reference = Sample(0.002, 1.0), Sample(8e-4, 0.125)
    (judged,) = DriftMonitor().annotate(reference, [sample], RULES)
    assert judged.reference == 1e-4


def test_a_shared_processor_is_noticed() -> None:
    machine = Machine({1: 0.002}, share=0.5)
    timed = screen(machine, 1, 0.002, 0.002, RULES, DriftMonitor(), 10)
    assert timed.is_contended(RULES)
    assert len(timed.samples) > RULES.min_samples  # more were taken to find clean ones
    assert timed.recorded(RULES)


def test_samples_of_a_shared_processor_do_not_count() -> None:
    machine = Machine({1: 0.002}, noise=0.0)
    timed = screen(machine, 1, 0.002, 0.002, RULES, DriftMonitor(), 10)
    timed.samples.insert(0, Sample(0.009, 0.3))
    assert max(s.seconds for s in timed.recorded(RULES)) < 0.003


def test_races_find_the_fastest_while_the_machine_wanders() -> None:
    right = 0
    for seed in range(20):
        seconds = {s: 0.002 * (1 + 0.03 * s) for s in range(1, 8)}
        machine = Machine(seconds, wander=1.0, rng=random.Random(seed))
        result = race(
            machine,
            dict.fromkeys(seconds, 1),
            (4, 1),
            RULES,
            DriftMonitor(),
            random.Random(seed),
            10,
        )
        right += result.winner == 1
        assert result.winner in (1, 2)
    assert right >= 17


def test_halving_spends_little_on_losers() -> None:
    machine = Machine({1: 0.002, 2: 0.0021, 3: 0.0022, 4: 0.0022, 9: 0.002})
    race(machine, {1: 1, 2: 1, 3: 1, 4: 1}, (9, 1), RULES, DriftMonitor(), random.Random(0), 10)
    assert machine.calls(4) == RULES.rounds
    assert machine.calls(1) >= 2 * RULES.rounds


def test_duels_of_long_kernels_are_short() -> None:
    machine = Machine({1: 0.5, 2: 0.6})
    duel(machine, (1, 1), (2, 1), RULES, DriftMonitor(), random.Random(0), 10)
    assert machine.calls(1) == 2


def believed(new: float, seed: int) -> bool:
    machine = Machine({1: new, 2: 0.002}, wander=0.5, rng=random.Random(seed))
    result = duel(machine, (1, 1), (2, 1), RULES, DriftMonitor(), random.Random(seed), 10)
    return is_believed(result.ratios[1], RULES)


def test_a_challenger_is_believed_if_it_is_faster() -> None:
    assert sum(believed(0.0019, seed) for seed in range(30)) >= 28  # 5 % faster
    assert sum(believed(0.002, seed) for seed in range(30)) <= 4  # equals
    assert sum(believed(0.0021, seed) for seed in range(30)) == 0


def test_processor_time_is_what_a_preempted_kernel_took() -> None:
    """Another process has the core for most of the time."""
    machine = Machine({1: 0.008}, noise=0.0, share=0.25)
    timed = screen(ProcessorClock(machine), 1, 0.008, float("inf"), RULES, DriftMonitor(), 10)
    assert {s.seconds for s in timed.recorded(RULES)} == {0.002}
    assert not timed.is_contended(RULES)
    assert screen(machine, 1, 0.008, float("inf"), RULES, DriftMonitor(), 10).is_contended(RULES)
