"""The contract suite of strategies: subclass it and set `strategy`. Nothing is compiled or timed.

class TestMine(StrategyContract):
    strategy = MyStrategy()
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tilesmith.schedule.loops import Split
from tilesmith.schedule.trace import Trace
from tilesmith.search.classic.baselines import Random
from tilesmith.search.protocol import Search, Strategy
from tilesmith.space.spaces import Space
from tilesmith.task.task import FAILURES, Candidate, Failure, Measurement, Task
from tilesmith.testing.landscape import FEW, MANY, NONE, all_candidates, matmul_task, measured


def started(strategy: Strategy, space: Space, seed: int = 0, task: Task | None = None) -> Search:
    task = matmul_task() if task is None else task
    return strategy.start(task, space.sketches(task), np.random.default_rng(seed))


def rounds(
    search: Search,
    count: int,
    batch: int,
    measure: Callable[[list[Candidate]], list[Measurement]] = measured,
) -> list[Measurement]:
    """Asks and tells `count` times, or until nothing is left."""
    out: list[Measurement] = []
    for _ in range(count):
        asked = search.ask(batch)
        assert len(asked) <= batch
        if not asked:
            break
        measurements = measure(asked)
        search.tell(measurements)
        out += measurements
    return out


def keys(measurements: list[Measurement]) -> list[str]:
    return [m.candidate.key for m in measurements]


def failing(candidates: list[Candidate]) -> list[Measurement]:
    return measured(candidates, lambda c: Failure("crash", "signal 11"))


class StrategyContract:
    """`draws = False` declares that a strategy is deterministic: then all seeds propose the same.
    `learns = False` declares that it ignores costs: then it must not improve.
    """

    strategy: Strategy
    draws = True
    learns = True

    def test_as_many_as_were_asked_for(self) -> None:
        task = matmul_task()
        search = started(self.strategy, MANY, task=task)
        assert search.ask(0) == []
        for n in (1, 7, 40):
            asked = search.ask(n)
            assert len(asked) == n
            for c in asked:
                assert c.task == task
                assert all(getattr(s, "decision", ()) is not None for s in c.trace)
        asked[0].trace.apply(task.func)

    def test_nothing_is_proposed_twice(self) -> None:
        proposed = keys(rounds(started(self.strategy, MANY), 8, 12))
        assert len(set(proposed)) == len(proposed) == 96

    def test_nothing_is_proposed_twice_while_it_is_being_measured(self) -> None:
        search = started(self.strategy, MANY)
        proposed = [c.key for _ in range(6) for c in search.ask(9)]
        assert len(set(proposed)) == len(proposed) == 54

    def test_the_same_seed_gives_the_same_proposals(self) -> None:
        first, again, other = (
            keys(rounds(started(self.strategy, MANY, seed), 5, 10)) for seed in (3, 3, 4)
        )
        assert first == again
        assert (first != other) == self.draws

    def test_two_searches_do_not_disturb_each_other(self) -> None:
        alone = keys(rounds(started(self.strategy, MANY, 5), 4, 8))
        one, other = started(self.strategy, MANY, 5), started(self.strategy, MANY, 6)
        interleaved = []
        for _ in range(4):
            interleaved += rounds(one, 1, 8)
            rounds(other, 1, 8, failing)
        assert keys(interleaved) == alone

    @pytest.mark.parametrize("batch", [5, 1000])
    def test_an_exhausted_space_ends_the_search(self, batch: int) -> None:
        task = matmul_task()
        search = started(self.strategy, FEW, task=task)
        every = all_candidates(task, FEW.sketches(task))
        proposed = rounds(search, len(every) + 1, batch)
        assert sorted(keys(proposed)) == sorted(c.key for c in every)
        assert search.ask(batch) == search.ask(1) == []
        search.tell(proposed)
        assert search.ask(batch) == []

    def test_a_space_of_failures_ends_as_well(self) -> None:
        task = matmul_task()
        search = started(self.strategy, FEW, task=task)
        proposed = rounds(search, 1000, 6, failing)
        assert len(proposed) == len(all_candidates(task, FEW.sketches(task)))

    def test_nothing_comes_of_nothing(self) -> None:
        task = matmul_task()
        search = self.strategy.start(task, (), np.random.default_rng(0))
        search.tell([])
        assert search.ask(4) == search.ask(4) == []
        assert started(self.strategy, NONE).ask(4) == []

    def test_failures_do_not_end_a_search(self) -> None:
        search = started(self.strategy, MANY)
        assert len(rounds(search, 6, 12, failing)) == 72
        assert len(rounds(search, 2, 12)) == 24

    def test_every_kind_of_measurement_is_taken(self) -> None:
        def odd(candidates: list[Candidate]) -> list[Measurement]:
            measurements = measured(candidates)
            for k, m in enumerate(measurements):
                if k % 3 == 0:
                    kind = FAILURES[k // 3 % len(FAILURES)]
                    measurements[k] = replace(
                        m, seconds=(), failure=Failure(kind, "so it was said")
                    )
                elif k % 3 == 1:
                    measurements[k] = replace(m, contended=True)
            measurements[1] = replace(measurements[1], seconds=())
            return [*measurements[::-1], measurements[2]]

        proposed = rounds(started(self.strategy, MANY), 6, 12, odd)
        assert len(set(keys(proposed))) == 72

    def test_what_others_measured_is_never_proposed(self) -> None:
        task = matmul_task()
        every = all_candidates(task, FEW.sketches(task))
        search = started(self.strategy, FEW, task=task)
        search.tell(measured(every[::2]))
        proposed = rounds(search, 1000, 7)
        assert sorted(keys(proposed)) == sorted(c.key for c in every[1::2])

    def test_records_of_another_run_are_taken_up(self) -> None:
        records = rounds(started(Random(), MANY, seed=7), 4, 10)
        search = started(self.strategy, MANY)
        search.tell(records)
        proposed = keys(rounds(search, 5, 10))
        assert len(set(proposed)) == len(proposed) == 50
        assert set(proposed).isdisjoint(keys(records))

    def test_what_is_not_of_the_space_does_no_harm(self) -> None:
        task, other = matmul_task(), matmul_task(16, 16, 16)
        search = started(self.strategy, MANY, task=task)
        steps = Split("C.i", (None, 4)), Split("C.nowhere", (None, 4))
        strange = [Candidate(task, Trace(steps[:1])), Candidate(task, Trace(steps))]
        search.tell(measured(strange, lambda c: 1e-9))
        search.tell(rounds(started(Random(), MANY, task=other), 3, 10))
        assert {m.candidate.task for m in rounds(search, 4, 12)} == {task}

    def test_it_learns_what_is_fast(self) -> None:
        """After some rounds, its proposals are faster than random ones."""
        drawn = rounds(started(Random(), MANY), 1, 200)
        late = rounds(started(self.strategy, MANY), 16, 16)[-80:]
        faster = np.median([m.cost for m in late]) < np.quantile([m.cost for m in drawn], 0.2)
        assert faster == self.learns
