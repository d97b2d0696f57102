"""The recorded data set: it loads on any machine, its traces apply, and it teaches. The analytic
score was fitted to it; how good that score is, `test_drawn_dataset.py` asks of other operators.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import tilesmith as ts
from tests.support.thorough import drawn
from tilesmith.search.protocol import Predictor
from tilesmith.search.score_by_target import ScoreByTarget
from tilesmith.search.training import groups_of, labels_of, pairwise_accuracy
from tilesmith.space.variant import reopen

DATA = Path(__file__).parent.parent / "data"
FILES = sorted(DATA.glob("*.jsonl.xz"))


@cache
def read(path: Path) -> list[ts.Measurement]:
    return ts.read_records(path)


@pytest.fixture(scope="module", params=FILES, ids=lambda p: p.name.split(".")[0])
def records(request: pytest.FixtureRequest) -> list[ts.Measurement]:
    return read(request.param)


def test_it_is_small_and_of_several_operators() -> None:
    assert len(FILES) >= 5
    assert sum(p.stat().st_size for p in FILES) < 1 << 20


def test_each_program_is_one_row_of_a_variant(records: list[ts.Measurement]) -> None:
    (task,) = {m.candidate.task for m in records}
    assert all(m.candidate.task is task for m in records)  # one object, whose keys are found once
    assert task.target.num_cores == 1
    assert len({m.candidate for m in records}) == len(records)
    assert all((m.failure is None) == (len(m.seconds) > 0) for m in records)
    for m in records[:: drawn(100, 25)]:
        variant, row = reopen(m.candidate)
        assert variant.candidate(np.array(row)) == m.candidate


def test_programs_are_as_chance_gives_them(records: list[ts.Measurement]) -> None:
    """Most are slow; some are not, so that there is something to be found."""
    labels = labels_of(records)
    assert np.median(labels) < 0.1
    assert (labels > 0.3).sum() >= 30


def wrong_pairs(predictor: Predictor, records: list[ts.Measurement]) -> float:
    groups = groups_of(records)
    scores = np.concatenate([predictor.predict(g.variant, g.rows) for g in groups])
    labels = np.concatenate([g.labels for g in groups])
    return 1 - pairwise_accuracy(scores, labels)


@pytest.mark.turns(3)
@pytest.mark.parametrize("records", FILES[::4], indirect=True)
def test_half_of_it_tells_more_of_the_other_half_than_the_analytic_score(
    records: list[ts.Measurement],
) -> None:
    """The model corrects the analytic score, so that it must be better than that one is alone: of
    programs it has not seen, fewer pairs are in the wrong order, by at least a tenth.
    """
    model = ts.Gbdt(rounds=40).fit(records[::2])
    assert model is not None
    wrong, before = (wrong_pairs(p, records[1::2]) for p in (model, ScoreByTarget()))
    assert wrong < 0.9 * before


def test_a_model_of_shuffled_times_is_worse_than_the_analytic_score() -> None:
    """What the model adds comes from the times it is told."""
    records = read(DATA / "matmul_512.jsonl.xz")
    half = [m for m in records[::2] if m.failure is None]
    order = np.random.default_rng(0).permutation(len(half))
    told = [replace(m, seconds=half[k].seconds) for m, k in zip(half, order, strict=True)]
    model = ts.Gbdt(rounds=40).fit(told)
    assert model is not None
    wrong, before = (wrong_pairs(p, records[1::2]) for p in (model, ScoreByTarget()))
    assert wrong > before


def test_a_search_goes_on_among_the_records() -> None:
    """Kept to them, a strategy finds a program near the best in a third of the trials."""
    records = read(DATA / "matmul_512.jsonl.xz")
    task = records[0].candidate.task
    best = ts.tune(
        task.func, task.target, budget=ts.Budget(trials=len(records) // 3), quiet=True,
        space=ts.RecordedSpace(records), measurer=ts.ReplayMeasurer(records),
        strategy=ts.Recorded(ts.Evolution(cost_model=None), records),
    ).best  # fmt: skip
    assert best in records
    assert best.cost <= 1.25 * min(m.cost for m in records)
