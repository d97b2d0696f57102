"""Schedulers on the steps of a real run, which were recorded: networks of these tasks, tuned alone
and together.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

import tilesmith as ts
from tests.support.recorded_runs import (
    RecordedTask,
    cost_of_sharing,
    merged,
    network_of,
    read_run,
    share_of_time,
    write_run,
)
from tilesmith.testing.schedulers import simulate
from tilesmith.tune.scheduler import TaskStep

TASKS = read_run(Path(__file__).parent.parent / "data" / "network_run.json")
NETWORKS = [network_of(TASKS, seed, 20) for seed in range(5)]


def test_gradient_is_sooner_than_round_robin() -> None:
    shares = [share_of_time(net, ts.gradient()) for net in NETWORKS]
    assert statistics.median(shares) <= 0.6
    assert share_of_time(NETWORKS[0], ts.round_robin()) <= 1


def test_two_networks_in_one_run_cost_less_than_two_runs() -> None:
    others = [network_of(TASKS, 100 + seed, 20) for seed in range(3)]
    costs = [cost_of_sharing(a, b) for a, b in zip(NETWORKS[:3], others, strict=True)]
    # By the seeds of the random steps the mean is between 0.72 and 0.81.
    assert statistics.fmean(costs) <= 0.85
    assert cost_of_sharing(NETWORKS[0], NETWORKS[0]) == pytest.approx(0.5, abs=0.1)


def test_tasks_of_both_networks_are_there_once() -> None:
    a, b = NETWORKS[:2]
    both = merged(a, b)
    assert sum(t.weight for t in both) == sum(t.weight for t in (*a, *b))
    assert len({t.history for t in both}) == len(both) < len(a) + len(b)


def test_a_run_comes_back_from_its_file(tmp_path: Path) -> None:
    task = RecordedTask("conv", 3, 1e9, 1e-3, "c", (TaskStep(1.0, 2, 2e-3), TaskStep(3.0, 8, 1e-3)))
    write_run(tmp_path / "run.json", [task], "by hand")
    assert read_run(tmp_path / "run.json") == [task]
    done = simulate(ts.gradient(), [task], 10)
    assert done.seconds == [1.0, 3.0]
    assert done.latency == [6e-3, 3e-3]
    assert done.time_to(4e-3) == 3.0
    assert done.latency_at(2.0) == 6e-3
