"""Worker processes that die: a kernel fails when its worker dies twice, the others are measured,
and workers that other processes end are replaced.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import planted
import pytest
from simulated import RULES, InstantBuilders, Machine, built

import tilesmith as ts
from tilesmith.measure.messages import REFERENCE, Build, Sample
from tilesmith.measure.parent.batch import Batch, Incumbents, TimeSpent, Trial
from tilesmith.measure.parent.build_and_run import KernelFailed
from tilesmith.measure.this_machine import Cores
from tilesmith.task.task import Failure
from tilesmith.testing.measurers import children

DEAD = Failure("crash", "SIGSEGV while running")
SECONDS = {1: 0.001, 2: 0.00101, 3: 0.00102, 4: 0.004}
CHECK, ALONE, RACE = "check", "alone", "race"


@dataclass
class Mortal(Machine):
    """Its worker dies when `dies` returns True for a kernel and what is done with it."""

    dies: Callable[[int, str], bool] = lambda kernel, doing: False
    deaths: Counter[tuple[int, str]] = field(default_factory=Counter)

    def _die_if_asked(self, slot: int, doing: str) -> None:
        kernel = slot if slot <= 0 else self.names[slot]
        if self.dies(kernel, doing):
            self.deaths[kernel, doing] += 1
            raise KernelFailed(slot, DEAD, died=True)

    def check(self, slot: int, seconds: float) -> float:
        self._die_if_asked(slot, CHECK)
        return super().check(slot, seconds)

    def times(self, order: Sequence[tuple[int, int]], seconds: float) -> list[Sample]:
        doing = RACE if len({slot for slot, _ in order}) > 2 else ALONE
        for slot, _ in order:
            self._die_if_asked(slot, doing)
        return super().times(order, seconds)


def run(machine: Machine, kernels: Sequence[int], incumbents: Incumbents) -> dict[int, Trial]:
    trials = {str(k): Trial(100 * len(incumbents.verdicts) + k) for k in kernels}
    jobs: dict[str, Build] = {str(k): built(k) for k in kernels}
    batch = Batch(
        InstantBuilders(), machine, Cores((1,), (0,)), incumbents, RULES, 10.0, True,
        random.Random(0), TimeSpent(), float("inf"),
    )  # type: ignore[arg-type]  # fmt: skip
    finished = [*batch.run(trials, jobs, True, lambda: None)]
    assert sorted(t.slot for t in finished) == sorted(t.slot for t in trials.values())  # each once
    return {int(name): t for name, t in trials.items()}


def mortal(dies: Callable[[int, str], bool]) -> Mortal:
    return Mortal(SECONDS, random.Random(0), dies=dies)


def winner(incumbents: Incumbents) -> int | None:
    keep = incumbents.current
    return None if keep is None else int(keep.built.artifact.name)


@pytest.mark.parametrize("doing", [CHECK, ALONE])
@pytest.mark.parametrize("kernel", [REFERENCE, 0, 1, 4])
def test_a_kernel_whose_worker_dies_once_is_measured(kernel: int, doing: str) -> None:
    machine = mortal(lambda k, d: (k, d) == (kernel, doing) and not machine.deaths)
    incumbents = Incumbents()
    trials = run(machine, [4, 3, 1, 2], incumbents)
    assert all(t.failure is None and t.timed.samples for t in trials.values())
    assert winner(incumbents) in (1, 2, 3)


@pytest.mark.parametrize("doing", [CHECK, ALONE])
def test_a_kernel_that_dies_again_is_blamed_and_no_other(doing: str) -> None:
    machine, incumbents = mortal(lambda k, d: (k, d) == (2, doing)), Incumbents()
    trials = run(machine, [4, 2, 1, 3], incumbents)
    assert {k for k, t in trials.items() if t.failure == DEAD} == {2}
    assert machine.deaths == {(2, doing): 2}
    assert winner(incumbents) in (1, 3)


def test_a_kernel_that_dies_in_races_leaves_them() -> None:
    machine, incumbents = mortal(lambda k, d: (k, d) == (2, RACE)), Incumbents()
    trials = run(machine, [4, 2, 1, 3], incumbents)
    assert {k for k, t in trials.items() if t.failure == DEAD} == {2}
    assert winner(incumbents) in (1, 3)


def test_a_reference_that_dies_in_every_race_ends_the_race() -> None:
    machine, incumbents = mortal(lambda k, d: (k, d) == (REFERENCE, RACE)), Incumbents()
    trials = run(machine, [4, 2, 1, 3], incumbents)
    assert all(t.failure is None and t.timed.samples for t in trials.values())
    assert machine.deaths == {(REFERENCE, RACE): 2}
    assert winner(incumbents) is None
    assert not any(t.confirmed for t in trials.values())


@pytest.mark.parametrize("kernel", [REFERENCE, 0])
def test_a_process_that_always_dies_of_no_kernel_is_an_error(kernel: int) -> None:
    machine = mortal(lambda k, d: k == REFERENCE)
    if kernel == 0:
        machine = Nobody(SECONDS, random.Random(0))
    with pytest.raises(ts.MeasureError, match="no kernel was to blame: SIGSEGV"):
        run(machine, [1, 2], Incumbents())


class Nobody(Mortal):
    def times(self, order: Sequence[tuple[int, int]], seconds: float) -> list[Sample]:
        raise KernelFailed(0, DEAD, died=True)


@pytest.mark.parametrize("doing", [ALONE, RACE])
def test_an_incumbent_that_dies_is_replaced(doing: str) -> None:
    bad: set[int] = set()
    machine, incumbents = mortal(lambda k, d: k in bad and d == doing), Incumbents()
    run(machine, [1], incumbents)
    assert winner(incumbents) == 1
    key = next(iter(incumbents.verdicts))
    bad.add(1)
    trials = run(machine, [2, 3], incumbents)
    assert all(t.failure is None for t in trials.values())
    assert winner(incumbents) in (2, 3)
    assert incumbents.verdicts[key].failure == DEAD  # so do all candidates that have its code


def test_an_incumbent_that_dies_once_stays() -> None:
    machine, incumbents = (
        mortal(lambda k, d: k == 1 and not machine.deaths and len(seen) > 0),
        Incumbents(),
    )
    seen: list[int] = []
    run(machine, [1], incumbents)
    seen.append(1)
    run(machine, [4], incumbents)
    assert machine.deaths
    assert winner(incumbents) == 1


def test_real_workers_killed_at_random_moments() -> None:
    """Build and run workers alike. Every candidate has a measurement, and nearly all have a time:
    a candidate fails only when its workers were killed twice.
    """
    rng, over = random.Random(5), threading.Event()
    killed: list[int] = []
    with ts.LocalMeasurer().open(planted.task()) as measuring:
        measuring.measure([planted.good(3)])
        assert measuring._pool.fork_server is not None
        fork_server = measuring._pool.fork_server.pid

        def kill() -> None:
            while not over.wait(0.05 + 0.2 * rng.random()) and len(killed) < 12:
                try:
                    pid = rng.choice(sorted(children(fork_server)))
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
                except (OSError, IndexError):
                    continue

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            end, batches = time.monotonic() + 60, []
            while len(killed) < 12 and time.monotonic() < end:
                n = 10 + 8 * len(batches)
                asked = [planted.good(k) for k in range(n, n + 8)]
                batches.append(measuring.measure(asked))
                assert [m.candidate for m in batches[-1]] == asked
        finally:
            over.set()
            thread.join()
        after = measuring.measure([planted.good(k) for k in (901, 902)])
    assert killed
    assert all(m.seconds for m in after)
    failed = [m.failure for batch in batches for m in batch if m.failure is not None]
    assert len(failed) <= len(killed) // 2
    assert {f.kind for f in failed} <= {"memory"}
