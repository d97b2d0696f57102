"""ReplayMeasurer: recorded candidates get their records, others what `missing` says; and strategies
that propose only recorded candidates.
"""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.measure.simulate import kernel, simulate
from tilesmith.search.classic.recorded import rows_by_variant
from tilesmith.search.training import pairwise_accuracy
from tilesmith.space.variant import reopen
from tilesmith.testing.measurers import FakeMeasurer, MeasurerContract, small_task, split_by


def matmul_task(n: int = 64) -> ts.Task:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    return ts.Task(ts.function([a, b, ts.ops.matmul(a, b, name="C")]), ts.cpu(1))


def smooth(c: ts.Candidate) -> float:
    """Seconds as a smooth function of the decisions, with a minimum inside the space."""
    d = c.trace.decisions
    return 1e-4 * float(
        np.exp(
            0.3 * (np.log2(d["#C.i.3"]) - 2) ** 2
            + 0.2 * (np.log2(d["#C.j.3"]) - 4) ** 2
            + 0.1 * (np.log2(d["#C.k.2"]) - 1) ** 2
        )
    )


def recorded(task: ts.Task, n: int, seed: int = 0) -> list[ts.Measurement]:
    search = ts.Random().start(task, ts.SketchSpace().sketches(task), np.random.default_rng(seed))
    with FakeMeasurer(smooth).open(task) as run:
        return run.measure([c for _ in range(n // 10) for c in search.ask(10)])


@pytest.fixture(scope="module")
def records() -> list[ts.Measurement]:
    return recorded(matmul_task(), 200)


def _contract_records() -> list[ts.Measurement]:
    with FakeMeasurer().open(small_task()) as run:
        return run.measure(
            [split_by(n, task) for task in (small_task(), small_task(60)) for n in (2, 3, 4, 6, 8)]
        )


class TestReplay(MeasurerContract):
    measurer = ts.ReplayMeasurer(_contract_records())


def test_what_was_recorded_comes_back(records: list[ts.Measurement]) -> None:
    task = records[0].candidate.task
    with ts.ReplayMeasurer(records).open(task) as run:
        assert run.measure([m.candidate for m in records]) == records
        assert (run.asked, run.answered) == (200, 200)


def test_of_several_records_the_most_reliable_counts() -> None:
    task = small_task()
    c = split_by(4, task)
    disturbed = ts.Measurement(c, (1e-6,), contended=True, when=0.0)
    plain = ts.Measurement(c, (3e-6,), when=0.0)
    confirmed = ts.Measurement(c, (2e-6,), confirmed=True, when=0.0)
    for ms, right in (([disturbed, plain], plain), ([plain, confirmed, disturbed], confirmed)):
        with ts.ReplayMeasurer(ms).open(task) as run:
            assert run.measure([c]) == [right]


def test_what_was_not_recorded_fails(records: list[ts.Measurement]) -> None:
    task = records[0].candidate.task
    with ts.ReplayMeasurer(records[1:]).open(task) as run:
        (m,) = run.measure([records[0].candidate])
        assert m.failure == ts.Failure("error", "no record of this candidate")
        (m,) = run.measure([split_by(4, small_task())])
        assert m.failure == ts.Failure("error", "no record of this task")


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ts.MeasureError, match="'fail', 'nearest', 'model'"):
        ts.ReplayMeasurer([], missing="guess")


def test_the_nearest_record_of_the_variant_answers(records: list[ts.Measurement]) -> None:
    task = records[0].candidate.task
    others = recorded(task, 30, seed=1)
    with ts.ReplayMeasurer(records, missing="nearest").open(task) as run:
        measured = run.measure([m.candidate for m in others])
    for m, other in zip(measured, others, strict=True):
        assert m.candidate == other.candidate
        variant, row = reopen(other.candidate)
        rows = {r: x for x in records for v, r in [reopen(x.candidate)] if v.trace == variant.trace}
        distance = {r: sum(np.log2(np.array(r) / row) ** 2) for r in rows}
        best = min(distance.values())
        answers = {rows[r].cost for r, d in distance.items() if d <= best + 1e-9}
        assert m.cost in answers


def test_the_simulator_knows_programs_it_has_not_seen(records: list[ts.Measurement]) -> None:
    task = records[0].candidate.task
    others = recorded(task, 150, seed=1)
    with ts.ReplayMeasurer(records, missing="model").open(task) as run:
        measured = run.measure([m.candidate for m in others])
    predicted, true = (-np.log([m.cost for m in ms]) for ms in (measured, others))
    assert pairwise_accuracy(predicted, true) > 0.85
    costs = [m.cost for m in records]
    assert all(min(costs) <= m.cost <= max(costs) for m in measured)


def test_the_simulator_says_how_far_to_trust_it(records: list[ts.Measurement]) -> None:
    groups = [
        (r.variant, r.matrix, np.array([m.cost for m in r.items]))
        for r in rows_by_variant((m.candidate, m) for m in records[:60]).values()
    ]
    whole = simulate(groups)
    # The closed form of leave-one-out, against a fit without that record.
    k = 7
    keep = np.arange(len(whole.points)) != k
    logs = np.log(whole.seconds) - np.log(whole.seconds).mean()
    alike = whole.points, whole.kind, whole.points, whole.kind, whole.length, whole.kinship
    matrix = kernel(*alike) + whole.noise * np.eye(len(logs))
    predicted = matrix[k, keep] @ np.linalg.solve(matrix[np.ix_(keep, keep)], logs[keep])
    assert np.log(whole.left_out[k]) == pytest.approx(predicted + np.log(whole.seconds).mean())
    assert whole.error < np.var(logs)


def test_failures_come_in_regions(records: list[ts.Measurement]) -> None:
    failed = ts.Failure("memory", "too much")
    task = records[0].candidate.task
    all_bad = [ts.Measurement(m.candidate, failure=failed, when=0.0) for m in records]
    with ts.ReplayMeasurer(all_bad, missing="model").open(task) as run:
        (m,) = run.measure([recorded(task, 10, seed=1)[0].candidate])
    assert m.failure == failed


@pytest.mark.parametrize("strategy", [ts.Random(), ts.Evolution(population=256, cost_model=None)])
def test_a_search_among_records_proposes_each_once(
    strategy: ts.Random | ts.Evolution, records: list[ts.Measurement]
) -> None:
    task = records[0].candidate.task
    seen: list[ts.Candidate] = []
    records = records[:80]
    search = ts.Recorded(strategy, records).start(
        task, ts.RecordedSpace(records).sketches(task), np.random.default_rng(0)
    )
    search.tell(records[:10])
    with ts.ReplayMeasurer(records).open(task) as run:
        while candidates := search.ask(16):
            seen += candidates
            search.tell(run.measure(candidates))
    assert len(seen) == len(set(seen)) == 70
    assert set(seen) == {m.candidate for m in records[10:]}


def test_replay_tunes_and_the_same_seed_gives_the_same(records: list[ts.Measurement]) -> None:
    task = records[0].candidate.task

    def best(seed: int, missing: str) -> float:
        return ts.tune(
            task.func, task.target, budget=ts.Budget(trials=24), seed=seed, quiet=True,
            space=ts.RecordedSpace(records), strategy=ts.Evolution(population=256, cost_model=None),
            measurer=ts.ReplayMeasurer(records, missing=missing),
        ).best.cost  # fmt: skip

    for missing in ("nearest", "model"):
        assert best(3, missing) == best(3, missing)
