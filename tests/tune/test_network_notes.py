"""What a database keeps of the networks that were tuned into it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

import tilesmith as ts
from tilesmith.graph.builder import GraphBuilder
from tilesmith.ops.elementwise import relu
from tilesmith.ops.matmul import matmul
from tilesmith.records.networks import (
    NetworkUse,
    latest_step,
    network_uses,
    store_network_step,
    store_network_uses,
)
from tilesmith.report.records_view import records_view
from tilesmith.testing.measurers import FakeMeasurer


def network(name: str, *widths: int) -> ts.Graph:
    b = GraphBuilder(name)
    x = b.input("x", (8, widths[0]), "float32")
    for m, n in pairwise(widths):
        x = b.add(relu, b.add(matmul, x, b.constant(np.ones((m, n), np.float32))))
    return b.finish({"y": x})


def test_the_weights_of_each_network_are_stored_with_its_tasks(tmp_path: Path) -> None:
    graphs = [network("one", 8, 16, 8, 16), network("two </script>", 8, 16)]
    with ts.open_database(tmp_path / "t.db") as d:
        for _ in range(2):
            ts.tune_model(
                graphs, ts.cpu(1), budget=ts.Budget(trials=24), measurer=FakeMeasurer(),
                strategy=ts.Random(), database=d, quiet=True, cache=None,
            )  # fmt: skip
        by_shape = {str(s.task.func.outputs[0].shape): s.task for s in d.tasks()}
        wide, narrow = (network_uses(d, by_shape[shape]) for shape in ("(8, 16)", "(8, 8)"))
        assert [(u.network, u.weight) for u in wide] == 2 * [("one", 2), ("two </script>", 1)]
        assert [(u.network, u.weight) for u in narrow] == 2 * [("one", 1)]
        first, second = narrow
        assert first.started < second.started
        assert {u.started for u in wide} == {first.started, second.started}
        runs = {r.run.key for r in d.runs(by_shape["(8, 8)"])}
        assert first.run in runs


def test_the_types_of_layers_are_stored_with_the_tasks_that_compute_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.standard_normal((8, 8)).astype(np.float32)} for _ in range(2)]
    with ts.open_database(tmp_path / "t.db") as d:
        model = ts.tune_model(
            network("net", 8, 16, 24), ts.cpu(1), budget=ts.Budget(trials=16), quiet=True,
            measurer=FakeMeasurer(), strategy=ts.Random(), database=d, cache=None,
            precision="int8", calibration=feeds,
        )  # fmt: skip
        assert isinstance(model, ts.Model)
        uses = [u for s in d.tasks() for u in network_uses(d, s.task)]
        found = {x.name: x for u in uses for x in u.layers}
        view = records_view(d, "t.db")
    notes = {n.name: n for n in model.precision.layers}
    assert found.keys() == notes.keys()
    for name, n in notes.items():
        stored = found[name]
        assert (stored.precision, stored.error, stored.share) == (n.precision, n.error, n.share)
    (shown,) = view.networks
    assert {r.name: r.precision for r in shown.precision} == dict.fromkeys(notes, "int8")
    assert all(r.time is not None and r.time > 0 for r in shown.precision)
    lines = model.summary().splitlines()[-len(notes) :]
    assert all(float(line.split()[0]) > 0 for line in lines)


def test_what_is_stored_of_the_same_start_is_replaced(tmp_path: Path) -> None:
    a = ts.placeholder((4,), name="A")
    task = ts.Task(ts.function([a, ts.ops.relu(a)], name="f"), ts.cpu(1))
    with ts.open_database(tmp_path / "t.db") as d:
        assert network_uses(d, task) == ()
        early, late = NetworkUse("n", 1, 1.0, "r"), NetworkUse("n", 2, 2.0, "s")
        store_network_uses(d, task, 1.0, [early])
        store_network_uses(d, task, 2.0, [NetworkUse("m", 9, 2.0, "s")])
        store_network_uses(d, task, 2.0, [late])
        assert network_uses(d, task) == (early, late)
        store_network_uses(d, task, 2.0, [])
        assert network_uses(d, task) == (early,)
        for strange in (b"\xff", b"[1]", b'[{"other": 1}]', b"null"):
            d.save_state(task, "networks", strange)
            assert network_uses(d, task) == ()


def test_the_next_step_is_stored_with_its_reason(tmp_path: Path) -> None:
    """As another process sees it after every step."""
    place = tmp_path / "t.db"
    seen = []

    def watch(p: ts.NetworkProgress) -> None:
        with ts.open_database(place) as other:
            tasks = [s.task for s in other.tasks()]
            seen.append((p, latest_step(other, tasks), len(tasks)))

    with ts.open_database(place) as d:
        ts.tune_model(
            network("net", 8, 16, 24), ts.cpu(1), budget=ts.Budget(trials=60, seconds=600),
            measurer=FakeMeasurer(), strategy=ts.Random(), scheduler=ts.gradient(epsilon=0),
            database=d, quiet=True, cache=None, observers=[watch],
        )  # fmt: skip
        end = latest_step(d, [s.task for s in d.tasks()])
        assert end is not None
        assert (end.label, end.trials, end.networks) == ("", 60, ("net",))
        task = d.tasks()[0].task
        for strange in (b"\xff", b"[1]", b'{"networks": 1}', b"null"):
            d.save_state(task, "next step", strange)
        assert latest_step(d, [s.task for s in d.tasks()]) is None
        store_network_step(d, task, replace(end, label="x"))
        assert latest_step(d, [task]) == replace(end, label="x")
    # An observer before the one that stores sees what was stored after the last step.
    for (p, _, _), (_, step, _) in pairwise(seen):
        assert p.following is not None
        assert step is not None
        chosen = p.tasks[p.following.task]
        assert (step.key, step.label) == (chosen.task.key, chosen.label)
        assert step.reason == p.following.reason
        assert (step.trials, step.budget_seconds) == (p.trials, 600)
    reasons = [s.reason for _, s, _ in seen if s is not None]
    assert reasons[0] == "it has not been measured yet"
    assert seen[0][0].following.gain is seen[1][1].gain is None
    for _, step, _ in seen[3:]:
        assert 0 <= step.gain <= step.best - step.bound
        assert step.latency > 0
    assert seen[-1][2] == 2  # nothing but the tasks
