"""The recorded measurements of an H200: traces apply on any machine, and the analytic score of
GPUs, whose constants were fitted to them, knows their order.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilesmith as ts
from tests.support.thorough import drawn
from tilesmith.search.gpu_score import GpuScore
from tilesmith.search.training import groups_of, pairwise_accuracy
from tilesmith.space.variant import reopen

# Pairs of programs in the right order, at least, by operator.
# The padded copies of the kernels that were timed moved single elements; today's move vectors.
ACCURACY = {
    "capsule": 0.83, "conv2d": 0.82, "conv3d": 0.79, "depthwise": 0.84, "grouped": 0.72,
    "matmul": 0.76, "scores": 0.68, "softmax": 0.87, "strided": 0.86, "transposed": 0.77,
}  # fmt: skip
FILES = sorted((Path(__file__).parent.parent / "data" / "gpu").glob("*.jsonl.xz"))


@pytest.fixture(scope="module", params=FILES, ids=lambda p: p.name.split(".")[0])
def records(request: pytest.FixtureRequest) -> tuple[str, list[ts.Measurement]]:
    return request.param.name.split(".")[0], ts.read_records(request.param)


def test_it_is_small_and_of_all_operators() -> None:
    assert {p.name.split(".")[0] for p in FILES} == set(ACCURACY)
    assert sum(p.stat().st_size for p in FILES) < 1 << 17


def test_each_program_is_one_row_of_a_variant(records: tuple[str, list[ts.Measurement]]) -> None:
    _, measured = records
    (task,) = {m.candidate.task for m in measured}
    assert task.target.kind == "cuda"
    assert len({m.candidate for m in measured}) == len(measured) >= 90
    for m in measured[:: drawn(100, 40)]:
        variant, row = reopen(m.candidate)
        assert variant.candidate(np.array(row)) == m.candidate


def test_the_analytic_score_knows_the_order_of_most(
    records: tuple[str, list[ts.Measurement]],
) -> None:
    """Among the ten programs that it likes best is one near the best that was measured."""
    name, measured = records
    groups = groups_of([m for m in measured if m.failure is None])
    scores = np.concatenate([GpuScore().predict(g.variant, g.rows) for g in groups])
    labels = np.concatenate([g.labels for g in groups])
    assert pairwise_accuracy(scores, labels) > ACCURACY[name]
    assert labels[np.argsort(-scores)[:10]].max() > 0.8
