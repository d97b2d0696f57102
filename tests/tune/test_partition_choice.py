"""One kernel or two for the same work: both are measured, and the faster way stays."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.ops.elementwise import gelu
from tilesmith.ops.matmul import matmul
from tilesmith.testing.measurers import FakeMeasurer, seconds_by_digest


def network() -> ts.Graph:
    """Two equal layers with gelu, one without."""
    rng = np.random.default_rng(0)
    b = GraphBuilder("net")
    x = b.input("x", (8, 16), "float32")
    for k, (m, n) in enumerate(pairwise((16, 16, 16, 24))):
        x = b.add(matmul, x, b.constant(rng.standard_normal((m, n)).astype(np.float32)))
        x = b.add(gelu, x) if k < 2 else x
    return b.finish({"y": x})


GRAPH = network()
X = np.random.default_rng(1).standard_normal((8, 16)).astype(np.float32)


def seconds(together: float, apart: float) -> FakeMeasurer:
    """Of a product with gelu, and of gelu alone; products alone take a millisecond."""

    def cost(c: ts.Candidate) -> float:
        factor = {"matmul_gelu": together, "gelu": apart}.get(c.task.func.name, 1.0)
        return 1e-3 * factor * (1 + 0.01 * (seconds_by_digest(c) * 1e6 % 1))

    return FakeMeasurer(cost)


def tune(db: ts.Database, measurer: FakeMeasurer, **settings: object) -> ts.Model:
    given = {"budget": ts.Budget(trials=160), "strategy": ts.Random(), **settings}
    return ts.tune_model(  # type: ignore[call-overload, no-any-return]
        GRAPH, ts.cpu(1), measurer=measurer, database=db, quiet=True, cache=None, **given
    )


def names(model: ts.Model) -> list[str]:
    (executor,) = model.executors
    return [k.name for k in executor.kernels]


@pytest.mark.parametrize(("together", "apart"), [(2.0, 0.3), (1.2, 0.3)])
def test_the_faster_way_stays(together: float, apart: float) -> None:
    divided = together > 1 + apart
    with ts.open_database(":memory:") as db:
        model = tune(db, seconds(together, apart))
        want = ["matmul", "gelu"] * 2 if divided else ["matmul_gelu"] * 2
        assert names(model) == [*want, "matmul"]
        assert {k.origin.kind for k in model.executors[0].kernels} == {"record"}
        again = ts.compile_model(GRAPH, ts.cpu(1), database=db, cache=None, progress=False)
        assert names(again) == names(model)
        # Without records of it the rule stands.
        plain = ts.compile_model(GRAPH, ts.cpu(1), cache=None, progress=False)
        assert names(plain) == ["matmul_gelu", "matmul_gelu", "matmul"]
        for m in (model, again):
            np.testing.assert_allclose(
                m({"x": X})["y"], evaluate_graph(GRAPH, {"x": X})["y"], rtol=1e-4, atol=1e-4
            )
    tuning = model.tuning
    assert tuning is not None
    assert tuning.estimate == pytest.approx(sum(t.latency for t in tuning.tasks))
    each = 1 + apart if divided else together
    assert tuning.estimate == pytest.approx(1e-3 * (2 * each + 1), rel=0.02)
    latency = [x for _, x in tuning.latency]
    assert latency == sorted(latency, reverse=True)


def test_a_run_that_goes_on_knows_who_won() -> None:
    with ts.open_database(":memory:") as db:
        tune(db, seconds(2.0, 0.3))
        count = db.count()
        again = tune(db, seconds(2.0, 0.3), budget=ts.Budget(trials=170))
        assert names(again) == ["matmul", "gelu", "matmul", "gelu", "matmul"]
        assert db.count() <= count + 10 + 3  # the best of each task is measured again


def test_a_budget_too_small_for_both_keeps_the_rule() -> None:
    with ts.open_database(":memory:") as db:
        model = tune(db, seconds(2.0, 0.3), budget=ts.Budget(trials=6))
        assert names(model) == ["matmul_gelu", "matmul_gelu", "matmul"]
