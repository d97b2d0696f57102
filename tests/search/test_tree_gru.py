"""TreeGru: what every cost model must do, and that trees of many shapes go through the network
together as they would alone.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tests.support.thorough import drawn
from tilesmith.search.classic import tree_gru
from tilesmith.search.classic.context import tree_of
from tilesmith.search.population import Catalogue
from tilesmith.search.protocol import Predictor, Scores
from tilesmith.space.domains import Matrix

torch = pytest.importorskip("torch")
network = pytest.importorskip("tilesmith.search.classic.tree_network")

QUICK = ts.TreeGru(hidden=16, epochs=drawn(18, 30), max_seconds=600)


@cache
def matmul(n: int = 64) -> ts.Task:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    return ts.Task(ts.function([a, b, ts.ops.matmul(a, b, name="C")], name="matmul"), ts.cpu(1))


@cache
def variants_of(task: ts.Task) -> list[ts.Variant]:
    catalogue = Catalogue(task, ts.SketchSpace().sketches(task))
    return [v for v in map(catalogue.variant, range(len(catalogue))) if v is not None]


def seconds(variant: ts.Variant, rows: Matrix) -> Scores:
    """Made up, and smooth on the scale of the features: a good tile is 8 by 32, less loop is better
    outside, and a packed copy costs.
    """
    at = {c: np.log2(rows[:, k]) for k, c in enumerate(variant.columns)}
    off = abs(at["#C.i.3"] - 3) + abs(at["#C.j.3"] - 5) + 0.3 * at["#C.k.0"]
    return np.asarray(1e-5 * 1.5 ** (off + len(variant.func.buffers)))


def measured(task: ts.Task, n: int, seed: int = 0) -> list[ts.Measurement]:
    rng = np.random.default_rng(seed)
    out = []
    variants = variants_of(task)
    for v in variants:
        rows = v.sample(rng, n // len(variants))
        for row, cost in zip(rows, seconds(v, rows), strict=True):
            out.append(ts.Measurement(v.candidate(row), (float(cost),), when=0.0))
    return out


def agreement(predictor: Predictor, task: ts.Task) -> float:
    """Share of pairs of unseen programs that are in the right order."""
    rng = np.random.default_rng(99)
    scores, costs = [], []
    for v in variants_of(task):
        rows = v.sample(rng, 50)
        scores.append(predictor.predict(v, rows))
        costs.append(seconds(v, rows))
    s, c = np.concatenate(scores), np.concatenate(costs)
    faster = c[:, None] < c[None, :]
    return float((s[:, None] > s[None, :])[faster].mean())


@pytest.fixture(scope="module")
def learned() -> Predictor:
    predictor = QUICK.fit(measured(matmul(), 160))
    assert predictor is not None
    return predictor


def test_nothing_teaches_nothing() -> None:
    assert QUICK.fit([]) is None
    assert QUICK.fit(measured(matmul(), 160)[:3]) is None
    alike = [ts.Measurement(m.candidate, (1e-3,)) for m in measured(matmul(), 40)]
    assert QUICK.fit(alike) is None


def test_it_learns_which_is_faster(learned: Predictor) -> None:
    assert agreement(learned, matmul()) > 0.85


def test_regression_learns_too() -> None:
    predictor = replace(QUICK, loss="regression").fit(measured(matmul(), 160))
    assert predictor is not None
    assert agreement(predictor, matmul()) > 0.75


def test_failures_teach() -> None:
    """All that have a wide tile fail: they score below the others."""
    task = matmul()
    failed = ts.Failure("crash")
    told, v = [], variants_of(task)[0]
    j = v.columns.index("#C.j.3")
    rows = v.sample(np.random.default_rng(0), 120)
    for row in rows:
        c = v.candidate(row)
        wide = row[j] >= 4
        told.append(ts.Measurement(c, () if wide else (1e-4,), failed if wide else None, when=0.0))
    predictor = QUICK.fit(told)
    assert predictor is not None
    unseen = v.sample(np.random.default_rng(1), 200)
    scores = predictor.predict(v, unseen)
    wide = unseen[:, j] >= 4
    assert np.median(scores[wide]) < np.median(scores[~wide])
    assert (scores[wide][:, None] < scores[~wide]).mean() > 0.8


def test_the_same_seed_gives_the_same_predictor_and_nothing_else_changes() -> None:
    task = matmul()
    told = measured(task, 60)
    v = variants_of(task)[0]
    rows = v.sample(np.random.default_rng(5), 20)
    torch.manual_seed(1)
    torch.set_num_threads(2)  # training has one
    state = torch.get_rng_state()
    settings = [ts.TreeGru(hidden=8, epochs=3, seed=s) for s in (0, 0, 1)]
    fits = [s.fit(told) for s in settings]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert torch.is_grad_enabled()
    first, again, other = (p.predict(v, rows) for p in fits if p is not None)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_row_has_its_score_whatever_stands_around_it(learned: Predictor) -> None:
    v = variants_of(matmul())[-1]
    rows = v.sample(np.random.default_rng(0), 1500)
    whole = learned.predict(v, rows)
    assert whole.shape == (1500,)
    assert whole.dtype == np.float64
    np.testing.assert_allclose(learned.predict(v, rows[1020:1030]), whole[1020:1030], atol=1e-4)
    assert learned.predict(v, rows[:0]).shape == (0,)


def test_a_predictor_goes_through_pickle(learned: Predictor) -> None:
    v = variants_of(matmul())[0]
    rows = v.sample(np.random.default_rng(0), 10)
    again = pickle.loads(pickle.dumps(learned))
    np.testing.assert_array_equal(again.predict(v, rows), learned.predict(v, rows))


def test_it_scores_programs_of_tasks_it_has_not_seen(learned: Predictor) -> None:
    x = ts.placeholder((12, 40), name="X")
    other = ts.Task(ts.function([x, ts.ops.softmax(x)], name="softmax"), ts.cpu(1))
    for v in variants_of(other)[:3]:
        assert np.isfinite(learned.predict(v, v.sample(np.random.default_rng(0), 5))).all()


def test_time_ends_training() -> None:
    predictor = ts.TreeGru(hidden=8, epochs=100_000, patience=100_000, max_seconds=0.2).fit(
        measured(matmul(), 40)
    )
    assert predictor is not None


def test_trees_of_many_shapes_go_through_together_as_one_by_one() -> None:
    x = ts.placeholder((12, 40), name="X")
    softmax = ts.Task(ts.function([x, ts.ops.softmax(x)], name="softmax"), ts.cpu(1))
    rng = np.random.default_rng(0)
    batch = []
    for v in [*variants_of(softmax)[:4], *variants_of(matmul())]:
        tree = tree_of(v)
        batch.append((tree, torch.from_numpy(tree.of(v.sample(rng, 3)))))
    torch.manual_seed(0)
    net = network.Network(8, 2, torch.cat([x.flatten(0, 1) for _, x in batch]))
    with torch.no_grad():
        together = net(network.levels_of(batch), 3 * len(batch))
        alone = [one_by_one(net, tree.parents, row) for tree, x in batch for row in x]
    np.testing.assert_allclose(together.numpy(), torch.stack(alone).numpy(), atol=1e-5)


def one_by_one(net: Any, parents: tuple[int, ...], x: Any) -> Any:
    """The network as it is described: node by node, children first."""
    state = [torch.zeros(1, net.hidden) for _ in parents]
    memory = torch.zeros(net.slots, net.hidden)
    for node in range(len(parents) - 1, -1, -1):
        features = x[node : node + 1]
        embed = net.statement if features[0, 0] else net.loop
        inside = torch.zeros(1, net.hidden)
        for k, p in enumerate(parents):
            inside = inside + state[k] if p == node else inside
        state[node] = net.cell(embed(features), inside)
        share = torch.softmax(net.address(state[node]), 1)
        memory = memory + share.T @ state[node]
    return net.score(memory.reshape(1, -1))[0, 0]


def test_settings_are_checked() -> None:
    with pytest.raises(ts.TuneError, match="'squared'; it takes 'rank' or 'regression'"):
        ts.TreeGru(loss="squared")  # type: ignore[arg-type]
    with pytest.raises(ts.TuneError, match=r"hidden=0.*at least 1"):
        ts.TreeGru(hidden=0)


def test_without_torch_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_gru, "find_spec", lambda name: None)
    with pytest.raises(ts.TuneError, match=r"tilesmith\[torch\]"):
        QUICK.fit([])


def test_everything_is_computed_on_the_device() -> None:
    """A device without memory of its own refuses what is still on the CPU."""
    task = matmul()
    v = variants_of(task)[0]
    tree = tree_of(v)
    x = torch.from_numpy(tree.of(v.sample(np.random.default_rng(0), 5)))
    net = network.Network(8, 2, x.flatten(0, 1))
    levels = network.levels_of([(tree, x)])
    there = net.to("meta")(levels, 5)
    assert there.device.type == "meta"
    assert there.shape == (5,)


def test_cuda_is_used_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert network.device_of("auto").type == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert network.device_of("auto").type == "cpu"
    assert network.device_of("cpu").type == "cpu"


def test_a_device_that_is_not_there_is_named() -> None:
    told = measured(matmul(), 40)
    with pytest.raises(ts.TuneError, match=r"device='nowhere'.*cannot use it"):
        replace(QUICK, device="nowhere").fit(told)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_learns_what_a_cpu_learns() -> None:
    told = measured(matmul(), 120)
    v = variants_of(matmul())[0]
    rows = v.sample(np.random.default_rng(3), 200)
    scores = [replace(QUICK, device=d).fit(told).predict(v, rows) for d in ("cpu", "cuda")]
    assert np.corrcoef(*scores)[0, 1] > 0.9
