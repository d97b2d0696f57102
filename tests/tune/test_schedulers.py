"""Schedulers on simulated tasks: who gets the budget, exactly where the formula says it, and how
soon the network is fast.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

import tilesmith as ts
from tilesmith.testing.schedulers import (
    SchedulerContract,
    SimulatedTask,
    simulate,
    simulated_network,
)
from tilesmith.tune.scheduler import TaskStep

EXACT = ts.gradient(epsilon=0)


class TestGradient(SchedulerContract):
    scheduler = ts.gradient()


class TestGradientWithoutChance(SchedulerContract):
    scheduler = EXACT


class TestGradientOfMostlyTheLastStep(SchedulerContract):
    scheduler = ts.gradient(alpha=0.9, window=1, epsilon=0)


class TestRoundRobin(SchedulerContract):
    scheduler = ts.round_robin()


def by_name(states: Sequence[ts.TaskState]) -> int:
    """A user's own: the unmeasured first, then the slowest for what was spent."""
    left = [k for k, s in enumerate(states) if not s.finished]
    return min(left, key=lambda k: (len(states[k].history), states[k].name, k))


class TestOfAUser(SchedulerContract):
    scheduler = staticmethod(by_name)


def state(*bests: float, pace: float = 1.0, **given: object) -> ts.TaskState:
    """A task whose steps have 10 trials each."""
    history = tuple(TaskStep(10 * pace * k, 10 * k, b) for k, b in enumerate(bests, 1))
    weight = given.pop("weight", 1.0)
    settings = {"name": "t", "weight": weight, "slope": weight, "flops": 1e6, **given}
    return ts.TaskState(history=history, **settings)  # type: ignore[arg-type]


def test_the_only_task_that_matters_gets_the_budget() -> None:
    tasks = [SimulatedTask(f"t{k}", first=1e-6, last=5e-7) for k in range(9)]
    tasks.append(SimulatedTask("heavy", first=1e-2, last=5e-3))
    assert Counter(simulate(EXACT, tasks, 109).chosen)[9] == 100


def test_a_weight_is_worth_as_much_as_seconds() -> None:
    often, slow = state(1e-3, weight=10), state(5e-3)
    assert EXACT([often, slow]) == 0
    assert EXACT([replace(often, slope=4.0), slow]) == 1


def test_the_slope_decides_and_not_the_weight() -> None:
    assert EXACT([replace(state(1e-2, weight=9), slope=0.0), state(1e-3)]) == 1


def test_a_task_at_its_bound_gives_its_share_away() -> None:
    assert EXACT([state(1e-2, bound=1e-2), state(1e-4, bound=5e-5)]) == 1
    tasks = [
        SimulatedTask(first=1e-2, last=9e-3, half=1.0, bound=9e-3),
        SimulatedTask(first=2e-3, last=1e-3, half=20.0, bound=1e-3),
    ]
    count = Counter(simulate(EXACT, tasks, 60).chosen)
    assert count[1] > 3 * count[0]


def test_a_task_without_improvement_gives_its_share_away() -> None:
    flat, falling = state(*[1e-3] * 6), state(1.3e-3, 1.25e-3, 1.2e-3, 1.1e-3, 1.05e-3, 1e-3)
    assert EXACT([flat, falling]) == 1


def test_what_takes_longer_to_measure_promises_less_per_second() -> None:
    assert EXACT([state(1e-3, 1e-3, pace=5.0), state(9e-4, 9e-4)]) == 1


def test_the_first_step_may_take_long() -> None:
    """It includes what is done once."""
    late = replace(state(1e-3), history=(TaskStep(60.0, 10, 1e-3), TaskStep(70.0, 20, 1e-3)))
    assert late.pace == 1.0
    assert EXACT([late, state(9e-4, 9e-4)]) == 0


def test_a_task_that_only_the_database_knows_is_as_quick_as_the_others() -> None:
    known = replace(state(1e-3), history=(TaskStep(0.0, 10, 1e-3),))
    others = [state(8e-4, 8e-4, pace=p, slope=0.5) for p in (5.0, 6.0, 7.0)]
    assert EXACT([*others, known]) == 3
    assert EXACT([*others, replace(known, slope=0.1)]) == 0


def test_seconds_per_trial() -> None:
    known, first = TaskStep(0.0, 40, 1e-3), TaskStep(3.0, 50, 1e-3)
    task = replace(state(1e-3), history=(known, first))
    assert replace(task, history=(known,)).pace == 0
    assert task.pace == 0  # the first step includes what is done once
    later = replace(task, history=(*task.history, TaskStep(5.0, 60, 1e-3)))
    assert later.pace == pytest.approx(0.2)


def test_a_first_step_that_took_long_is_not_held_against_a_task() -> None:
    heavy = replace(state(2e-3), history=(TaskStep(100.0, 10, 2e-3),))
    assert EXACT([state(1e-3, 1e-3), heavy]) == 1


def test_the_formula() -> None:
    """Both terms by hand: 0.2 of what was gained, 0.8 of the bound by spending as much again."""
    tasks = [state(8e-3, 6e-3, 5e-3, 4e-3, bound=1e-3), state(4e-3, 4e-3, 4e-3, 4e-3)]
    first = 0.2 * (8e-3 - 4e-3) / 30 + 0.8 * (4e-3 - 1e-3) / 40
    second = 0.8 * 4e-3 / 40
    for factor in (0.99, 1.01):
        equal = replace(tasks[1], slope=factor * first / second)
        assert EXACT([tasks[0], equal]) == (0 if factor < 1 else 1)


def test_a_task_slower_than_its_like_is_tried() -> None:
    """The same structure at half the size: it should take half the time, and takes five times."""
    alike = {"structure": "conv", "flops": 2e6}
    fast, slow = state(1e-3, 1e-3, **alike), state(5e-3, 5e-3, structure="conv")
    rival = state(1.5e-2, 1.5e-2)
    assert EXACT([fast, slow, rival]) == 2  # 0.8 * (5e-3 - 1e-3) / 10 against 0.8 * 1.5e-2 / 20
    assert EXACT([fast, slow, replace(rival, slope=0.5)]) == 1
    assert EXACT([fast, replace(slow, structure="other"), replace(rival, slope=0.5)]) == 2


def test_a_task_that_stays_slower_than_its_like_is_let_go() -> None:
    fast = state(1e-3, structure="conv")
    never = state(*[1e-2] * 7, structure="conv")
    rival = state(1.5e-2, 1.5e-2, slope=0.5, structure="")
    assert EXACT([fast, state(*[1e-2] * 6, structure="conv"), rival]) == 1
    assert EXACT([fast, never, rival]) == 2


def test_bounds_that_promise_too_much_are_trusted_less() -> None:
    """Three tasks that never came nearer to their bounds, beside three that did."""
    stuck = [state(*[2e-3] * 4, bound=1e-4, structure="depthwise") for _ in range(3)]
    moved = [state(4e-3, 3e-3, 2.5e-3, 2e-3, bound=1e-4, structure="conv") for _ in range(3)]
    plain = ts.gradient(alpha=0, epsilon=0)
    assert plain([*stuck, *moved]) == 3
    assert plain([*moved, *stuck]) == 0
    few = [stuck[0], replace(moved[0], slope=0.99)]
    assert plain(few) == 0  # too few to tell


def test_what_tasks_further_along_gained_is_expected() -> None:
    """Two of three kinds of task are flat at first; those of one kind fall after 30 trials."""
    falls = [state(2e-3, 2e-3, 2e-3, 1e-3, bound=5e-4, structure="conv") for _ in range(3)]
    flat = [state(2e-3, 2e-3, 2e-3, 2e-3, bound=5e-4, structure="pool") for _ in range(3)]
    new = [state(2e-3, 2e-3, 2e-3, bound=5e-4, structure=s) for s in ("pool", "conv")]
    assert ts.gradient(alpha=0, epsilon=0)([*falls, *flat, *new]) == 7


def test_sizes_are_compared_by_bounds_where_these_are_known() -> None:
    """Memory bounds the second one: its rate of operations is no guide."""
    product = state(1e-3, 1e-3, structure="dense", flops=1e9, bound=8e-4)
    vector = state(1e-3, 1e-3, structure="dense", flops=1e7, bound=8e-4)
    rival = state(2.2e-4, 2.2e-4, slope=1.0)
    assert EXACT([product, vector, rival]) == 2
    assert EXACT([replace(product, bound=0.0), replace(vector, bound=0.0), rival]) == 1


def test_a_choice_says_why_and_what_is_expected() -> None:
    new, far = state(), state(9e-3, 9e-3, bound=1e-3)
    assert EXACT.choose([far, new]) == ts.TaskChoice(1, "it has not been measured yet")
    near = state(2e-3, 2e-3, bound=1e-3)
    choice = EXACT.choose([near, far])
    assert choice.task == 1
    assert choice.reason == "most can be gained between its best and its lower bound"
    # As many trials again as were spent reach the bound; a step has half of them.
    assert choice.gain == pytest.approx(0.8 * 8e-3 / 2)
    falling = ts.gradient(alpha=1, epsilon=0).choose([near, state(9e-3, 8e-3)])
    assert (falling.task, falling.reason) == (1, "its last steps have gained most")
    assert falling.gain == pytest.approx(1e-3)
    slow, fast = (state(b, b, bound=1e-5, structure="conv") for b in (9e-3, 1e-4))
    likes = ts.gradient(alpha=0, epsilon=0).choose([replace(slow, flops=0), fast])
    assert (likes.task, likes.reason) == (0, "a task like it is much faster for its size")
    assert ts.gradient(epsilon=1).choose([near, far]).reason == "by chance, as 100% of all steps"
    assert ts.round_robin().choose([near, new]).task == 1
    dead = state(float("inf"))
    assert EXACT.choose([dead]) == ts.TaskChoice(0, "no other task is left", 0.0)


def test_chance_reaches_what_promises_nothing() -> None:
    tasks = [SimulatedTask(first=1e-9, last=9e-10), SimulatedTask(first=1.0, last=0.5)]
    count = Counter(simulate(ts.gradient(epsilon=0.2), tasks, 500).chosen)
    assert 25 < count[0] < 80
    assert Counter(simulate(EXACT, tasks, 500).chosen)[0] == 1


def test_gradient_is_sooner_than_round_robin() -> None:
    shares, times = [], []
    for seed in range(3):
        tasks = simulated_network(seed)
        plain = simulate(ts.round_robin(), tasks, 20 * len(tasks))
        steps = simulate(ts.gradient(), tasks, 40 * len(tasks))
        needed = steps.reached(plain.latency[-1])
        shares.append(needed / len(plain.chosen))
        times.append(steps.seconds[needed - 1] / plain.seconds[-1])
    assert statistics.median(shares) <= 0.6
    assert statistics.median(times) <= 0.6


@pytest.mark.parametrize(
    "given", [{"alpha": -0.1}, {"alpha": 2}, {"beta": 0}, {"window": 0}, {"epsilon": 1.5}]
)
def test_mistakes_are_named(given: dict[str, float]) -> None:
    (name,) = given
    with pytest.raises(ts.TuneError, match=rf"gradient\({name}="):
        ts.gradient(**given)  # type: ignore[arg-type]
