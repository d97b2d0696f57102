"""The recorded data set: it loads on any machine, its traces apply, and it teaches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.search.data import groups_of, labels_of
from tilesmith.search.metrics import pairwise_accuracy
from tilesmith.space.reopen import reopen

DATA = Path(__file__).parent.parent / "data"
FILES = sorted(DATA.glob("*.jsonl.xz"))


@pytest.fixture(scope="module", params=FILES, ids=lambda p: p.name.split(".")[0])
def records(request: pytest.FixtureRequest) -> list[ts.Measurement]:
    return ts.read_records(request.param)


def test_it_is_small_and_of_several_operators() -> None:
    assert len(FILES) >= 5
    assert sum(p.stat().st_size for p in FILES) < 1 << 20


def test_each_program_is_one_row_of_a_variant(records: list[ts.Measurement]) -> None:
    (task,) = {m.candidate.task for m in records}
    assert task.target.num_cores == 1
    assert len({m.candidate for m in records}) == len(records)
    assert all((m.failure is None) == (len(m.seconds) > 0) for m in records)
    for m in records[::25]:
        variant, row = reopen(m.candidate)
        assert variant.candidate(np.array(row)) == m.candidate


def test_programs_are_as_chance_gives_them(records: list[ts.Measurement]) -> None:
    """Most are slow; some are not, so that there is something to be found."""
    labels = labels_of(records)
    assert np.median(labels) < 0.1
    assert (labels > 0.3).sum() >= 30


@pytest.mark.parametrize("records", FILES[::4], indirect=True)
def test_half_of_it_tells_about_the_other_half(records: list[ts.Measurement]) -> None:
    model = ts.Gbdt(rounds=40).fit(records[::2])
    assert model is not None
    groups = groups_of(records[1::2])
    scores = np.concatenate([model.predict(g.variant, g.rows) for g in groups])
    labels = np.concatenate([g.labels for g in groups])
    assert pairwise_accuracy(scores, labels) > 0.8


def test_a_search_goes_on_among_the_records() -> None:
    """Kept to them, a strategy finds a program near the best in a third of the trials."""
    records = ts.read_records(DATA / "matmul_512.jsonl.xz")
    task = records[0].candidate.task
    best = ts.tune(
        task.func, task.target, budget=ts.Budget(trials=len(records) // 3), quiet=True,
        space=ts.RecordedSpace(records), measurer=ts.ReplayMeasurer(records),
        strategy=ts.Recorded(ts.Evolution(cost_model=None), records),
    ).best  # fmt: skip
    assert best in records
    assert best.cost <= 1.25 * min(m.cost for m in records)
