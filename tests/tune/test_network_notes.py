"""What a database keeps of the networks that were tuned into it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np

import tilesmith as ts
from tilesmith.graph.builder import GraphBuilder
from tilesmith.ops.elementwise import relu
from tilesmith.ops.matmul import matmul
from tilesmith.records.networks import NetworkUse, network_uses, store_network_uses
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
