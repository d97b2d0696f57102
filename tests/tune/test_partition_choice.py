"""One kernel or two for the same work: both are measured, and the faster way stays."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.graph.partition import partition
from tilesmith.graph.pipeline import PASSES, run_passes
from tilesmith.ops.elementwise import gelu
from tilesmith.ops.matmul import batch_matmul, matmul
from tilesmith.ops.norm import softmax
from tilesmith.testing.measurers import FakeMeasurer, seconds_by_digest
from tilesmith.tune.partition_choice import (
    RecordedPartition,
    all_rivals,
    estimated_cycles,
    offered,
)


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


def test_records_that_decide_nothing_are_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a group that the rule has joined, those of one way alone."""
    graph, base = run_passes(GRAPH, PASSES), offered(partition, ts.cpu(1))
    rivals = next(all_rivals(graph, base, ts.cpu(1)))
    with ts.open_database(":memory:") as db:
        ts.tune(
            rivals.whole.func, ts.cpu(1), budget=ts.Budget(trials=4), database=db, quiet=True,
            measurer=FakeMeasurer(), strategy=ts.Random(),
        )  # fmt: skip
        monkeypatch.setattr(ts.Trace, "apply", lambda *_: pytest.fail("a trace was replayed"))
        groups, decisions = RecordedPartition(base, db, ts.cpu(1)).decided(graph)
    assert groups == base(graph)
    assert [d.is_divided for d in decisions] == [False]


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


def attention(heads: int, queries: int, keys: int, depth: int) -> ts.Graph:
    b = GraphBuilder("net")
    q, k, v = (
        b.input(n, (heads, rows, depth), "float32")
        for n, rows in (("q", queries), ("k", keys), ("v", keys))
    )
    p = b.add(softmax, b.add(batch_matmul, q, k, transpose_b=True))
    return b.finish({"y": b.add(batch_matmul, p, v)})


WHOLE, PARTS = ["batch_matmul_softmax"], ["batch_matmul", "softmax", "batch_matmul"]


@pytest.mark.parametrize("together", [3.5, 2.5])
def test_attention_is_one_kernel_if_that_is_faster(together: float) -> None:
    graph = attention(3, 11, 13, 8)
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(graph.values[n].shape).astype(np.float32) for n in graph.inputs}

    def cost(c: ts.Candidate) -> float:
        factor = together if c.task.func.name == WHOLE[0] else 1.0
        return 1e-3 * factor * (1 + 0.01 * (seconds_by_digest(c) * 1e6 % 1))

    want = WHOLE if together < 3 else PARTS
    with ts.open_database(":memory:") as db:
        model = ts.tune_model(
            graph, ts.cpu(1), measurer=FakeMeasurer(cost), database=db, quiet=True, cache=None,
            budget=ts.Budget(trials=96), strategy=ts.Random(),
        )  # fmt: skip
        again = ts.compile_model(
            graph, ts.cpu(1), database=db, strict=True, cache=None, progress=False
        )
    for m in (model, again):
        assert names(m) == want
        got, right = m(feeds)["y"], evaluate_graph(graph, feeds)["y"]
        np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-5)


def test_one_way_that_has_records_is_taken() -> None:
    """Also if the other one would be drafted."""
    graph, target = attention(3, 11, 13, 8), ts.cpu(1)
    (rivals,) = all_rivals(graph, offered(partition, target), target)
    for tasks, want in (((rivals.whole,), WHOLE), (rivals.parts, PARTS)):
        with ts.open_database(":memory:") as db:
            for task in tasks:
                sketch = ts.SketchSpace().sketches(task)[0]
                v = next(iter(ts.variants(task, sketch)))
                c = v.candidate(v.sample(np.random.default_rng(0), 1)[0])
                db.add([ts.Measurement(c, seconds=(1e-3,))])
            model = ts.compile_model(graph, target, database=db, cache=None, progress=False)
        assert names(model) == want
        assert {k.origin.kind for k in model.executors[0].kernels} == {"record"}


def test_without_records_the_better_drafts_are_taken() -> None:
    target = ts.Target.named("neoverse-n1").with_cores(1)
    graph = attention(12, 128, 128, 64)
    (rivals,) = all_rivals(graph, offered(partition, target), target)
    parts = [*map(estimated_cycles, rivals.parts)]
    # What goes through memory costs something, and products are most of the work.
    assert max(parts) < estimated_cycles(rivals.whole) < sum(parts)


def test_what_was_estimated_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a damaged cache: it is estimated once more."""
    graph, target = attention(3, 11, 13, 8), ts.cpu(1)
    estimated: list[str] = []

    def cycles(task: ts.Task, *_: object) -> float:
        estimated.append(task.func.name)
        return 1.0

    monkeypatch.setattr(sys.modules["tilesmith.tune.partition_choice"], "estimated_cycles", cycles)
    models = [ts.compile_model(graph, target, cache=tmp_path, progress=False) for _ in range(2)]
    (rivals,) = all_rivals(graph, offered(partition, target), target)
    assert len(estimated) == 1 + len(rivals.parts)
    assert names(models[0]) == names(models[1]) == WHOLE
    cache = ts.Cache(tmp_path)
    for path in tmp_path.glob("*.artifact"):
        if cache.get(path.stem) == b"1.0":
            cache.put(path.stem, b"nonsense")
    ts.compile_model(graph, target, cache=tmp_path, progress=False)
    assert len(estimated) == 2 * (1 + len(rivals.parts))
