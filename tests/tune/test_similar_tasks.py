"""What a database knows of similar tasks is where tuning a network starts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.graph.builder import GraphBuilder
from tilesmith.ops.elementwise import relu
from tilesmith.ops.matmul import matmul
from tilesmith.ops.norm import softmax
from tilesmith.space.variant import without_numbers
from tilesmith.testing.measurers import FakeMeasurer
from tilesmith.tune.network_tasks import alone, fastest_of, merged, similar_tasks

ONE_CORE = ts.cpu(1)


def network(width: int, name: str) -> ts.Graph:
    rng = np.random.default_rng(0)
    b = GraphBuilder(name)
    x = b.input("x", (8, 16), "float32")
    w = b.constant(rng.standard_normal((16, width)).astype(np.float32))
    return b.finish({"y": b.add(softmax, b.add(relu, b.add(matmul, x, w)))})


def tune(graph: ts.Graph, db: ts.Database, strategy: object = None) -> ts.Model:
    return ts.tune_model(  # type: ignore[call-overload, no-any-return]
        graph, ONE_CORE, budget=ts.Budget(trials=24), measurer=FakeMeasurer(), database=db,
        strategy=strategy or ts.Random(), quiet=True, cache=None,
    )  # fmt: skip


def test_tasks_of_the_same_structure_are_found() -> None:
    with ts.open_database(":memory:") as db:
        tune(network(32, "known"), db)
        tasks = merged([ts.extract_tasks(network(48, "new"), ONE_CORE)])
        found = similar_tasks(db, tasks)
        assert {s.structure for s in found} == {t.structure for t in tasks}
        known = {t.task.key for t in db.tasks()}
        for s in found:
            assert s.best.task.key in known
            assert s.best == s.records[0].candidate
            assert len({m.candidate for m in s.records}) == len(s.records)
            assert s.slowness > 0
            assert len({without_numbers(m.candidate.trace) for m in s.records}) <= 3
        # What the run tunes itself is not another task, and another machine's is none.
        again = merged([ts.extract_tasks(network(32, "known"), ONE_CORE)])
        assert similar_tasks(db, again) == []
        elsewhere = merged(
            [ts.extract_tasks(network(48, "new"), ts.Target.named("skylake-avx512"))]
        )
        assert similar_tasks(db, elsewhere) == []
        assert similar_tasks(db, []) == []


def test_searches_begin_with_what_was_fast_there() -> None:
    heard: dict[str, list[ts.Candidate]] = {}

    class Listening:
        def start(self, task: ts.Task, sketches: object, rng: object) -> object:
            search = ts.Random().start(task, sketches, rng)  # type: ignore[arg-type]
            search.suggest = heard.setdefault(task.key, []).extend  # type: ignore[attr-defined]
            return search

    with ts.open_database(":memory:") as db:
        tune(network(32, "known"), db)
        known = {t.task.key: db.best(t.task) for t in db.tasks()}
        tune(network(48, "new"), db, Listening())
    for candidates in heard.values():
        best = known[candidates[0].task.key]
        assert best is not None
        assert candidates[0] == best.candidate
    assert len(heard) == 2


def product(n: int) -> ts.Function:
    A, B = ts.placeholder((24, 40), name="A"), ts.placeholder((40, n), name="B")
    return ts.function([A, B, matmul(A, B)], name=f"product{n}")


@pytest.mark.parametrize("strategy", [None, ts.Random()])
def test_one_function_begins_with_what_was_fast_elsewhere(strategy: object) -> None:
    given = {"budget": ts.Budget(trials=12), "quiet": True, "strategy": strategy}
    with ts.open_database(":memory:") as db:
        first = ts.tune(product(48), ONE_CORE, database=db, measurer=FakeMeasurer(), **given)  # type: ignore[arg-type]
        known = similar_tasks(db, [alone(ts.Task(product(56), ONE_CORE))])
        assert [s.best for s in known] == [first.best.candidate] == fastest_of(known)
        heard: list[ts.Candidate] = []

        class Listening:
            def start(self, task: ts.Task, sketches: object, rng: object) -> object:
                inner = strategy or ts.Evolution()
                search = inner.start(task, sketches, rng)  # type: ignore[attr-defined]
                search.suggest = heard.extend
                return search

        ts.tune(
            product(56), ONE_CORE, database=db, measurer=FakeMeasurer(),
            **{**given, "strategy": Listening()},  # type: ignore[arg-type]
        )  # fmt: skip
    assert heard == [first.best.candidate]


def test_a_cost_model_learns_from_similar_records_from_the_start() -> None:
    given = {"quiet": True, "measurer": FakeMeasurer(), "budget": ts.Budget(trials=40)}
    fits: list[set[str]] = []

    class Watching(ts.Gbdt):  # type: ignore[misc]
        def fit(self, measurements: Sequence[ts.Measurement]) -> None:
            fits.append({m.candidate.task.func.name for m in measurements})

    with ts.open_database(":memory:") as db:
        ts.tune(product(48), ONE_CORE, database=db, strategy=ts.Random(), **given)  # type: ignore[arg-type]
        strategy = ts.Evolution(cost_model=Watching())
        result = ts.tune(product(56), ONE_CORE, database=db, strategy=strategy, **given)  # type: ignore[arg-type]
        assert result.trials == 40
        assert fits[0] == {"product48", "product56"}
        fits.clear()
        softmax_only = ts.placeholder((24, 40), name="X")
        other = ts.function([softmax_only, softmax(softmax_only)], name="other")
        ts.tune(other, ONE_CORE, database=db, strategy=strategy, **given)  # type: ignore[arg-type]
        assert {"other"} in fits
        assert all(names <= {"other"} for names in fits)
