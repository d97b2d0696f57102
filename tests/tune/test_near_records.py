"""Records hang on the number of cores. With another number, those of the nearest one are used, and
the kernel says so. Where the best cannot be applied any more, the next one is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.graph.builder import GraphBuilder
from tilesmith.ops.matmul import matmul
from tilesmith.schedule.kinds import Vectorize
from tilesmith.testing.measurers import FakeMeasurer

HERE = ts.cpu(1)


def with_cores(n: int) -> ts.Target:
    return replace(HERE, num_cores=n)


def network() -> ts.Graph:
    b = GraphBuilder("net")
    x = b.input("x", (24, 40), "float32")
    weights = np.random.default_rng(0).standard_normal((40, 56)).astype(np.float32)
    return b.finish({"y": b.add(matmul, x, b.constant(weights))})


@pytest.fixture
def database() -> Iterator[ts.Database]:
    """With records of two and of eight cores, the latter slower."""
    func = ts.extract_tasks(network(), HERE)[0][0].func
    with ts.open_database(":memory:") as db:
        for cores, seconds in ((2, 1e-5), (8, 2e-5)):
            ts.tune(
                func, with_cores(cores), database=db, quiet=True, strategy=ts.Random(),
                seed=cores, budget=ts.Budget(trials=3),
                measurer=FakeMeasurer(cost=lambda _, s=seconds: s),
            )  # fmt: skip
        yield db


@pytest.mark.parametrize(("cores", "nearest"), [(1, 2), (2, 2), (4, 2), (7, 8), (16, 8)])
def test_the_nearest_count_is_taken(database: ts.Database, cores: int, nearest: int) -> None:
    task = ts.extract_tasks(network(), HERE)[0][0]
    kernel = ts.build(task.func, with_cores(cores), database=database)
    assert kernel.origin.kind == "record"
    model = ts.compile_model(network(), with_cores(cores), database=database, cache=None)
    (other,) = model.executors[0].kernels
    for origin in (kernel.origin, other.origin):
        assert origin.kind == "record"
        assert origin.seconds == {2: 1e-5, 8: 2e-5}[nearest]
        assert (f"with {nearest} cores" in origin.why) == (cores != nearest)
    x = np.random.default_rng(1).standard_normal((24, 40)).astype(np.float32)
    wanted = x @ next(iter(network().constants.values()))
    assert np.allclose(model({"x": x})["y"], wanted, atol=1e-4)


def test_strict_names_what_there_is(database: ts.Database) -> None:
    task = ts.extract_tasks(network(), HERE)[0][0]
    with pytest.raises(
        ts.BuildError, match=r"no record of this task with num_cores=1; there are some with 2, 8"
    ):
        ts.build(task.func, HERE, database=database, strict=True)
    with pytest.raises(
        ts.BuildError, match=r"no record of this task with num_cores=1; there are some with 2, 8"
    ):
        ts.compile_model(network(), HERE, database=database, strict=True, cache=None)


def test_another_processor_is_none_of_them(database: ts.Database) -> None:
    task = ts.extract_tasks(network(), HERE)[0][0]
    other = replace(HERE, model="Another-1")
    assert ts.build(task.func, other, database=database).origin.kind == "draft"


def test_the_next_is_taken_where_the_best_does_not_apply(tmp_path: Path) -> None:
    """At each start: under the name of the best, the code of another one is never kept."""
    task = ts.extract_tasks(network(), HERE)[0][0]
    usual = ts.Candidate(task, ts.Trace())
    stale = ts.Candidate(task, ts.Trace((Vectorize("not a loop"),)))
    with ts.open_database(":memory:") as db:
        db.add([ts.Measurement(usual, (2.0,)), ts.Measurement(stale, (1.0,))])
        for strict in (False, True):
            model = ts.compile_model(network(), HERE, database=db, cache=tmp_path, strict=strict)
            (kernel,) = model.executors[0].kernels
            assert (kernel.origin.kind, kernel.origin.seconds) == ("record", 2.0)
