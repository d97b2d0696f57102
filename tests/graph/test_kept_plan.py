"""Plans of earlier starts: taken for the same graph, with the same answers, and for no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_graphs import Numbers, assert_close, feeds_of, graph_of

import tilesmith as ts
from tilesmith.base.target import cpu
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Graph, Value
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.ops.conv import conv2d
from tilesmith.ops.elementwise import add, multiply, relu
from tilesmith.ops.matmul import matmul
from tilesmith.testing.measurers import FakeMeasurer
from tilesmith.tune import compile_model as module
from tilesmith.tune import kept_plan
from tilesmith.tune.cache import Cache
from tilesmith.tune.compile_model import compile_model
from tilesmith.tune.partition_choice import RecordedPartition


def layers(seed: int = 0, stride: int = 1) -> Callable[[GraphBuilder, Value], Any]:
    """A scale that is folded into large weights, a bias, a small product."""

    def make(b: GraphBuilder, x: Value) -> Any:
        draw = Numbers(seed)
        y = b.add(conv2d, x, b.constant(draw(24, 16, 3, 3)), padding=1, stride=stride)
        y = b.add(multiply, y, b.constant(draw(1, 24, 1, 1)))
        return b.add(relu, b.add(add, y, b.constant(draw(1, 24, 1, 1))))

    return make


def image(seed: int = 0) -> Graph:
    return graph_of(layers(seed), 1, 16, 12, 12)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The graphs whose passes were run."""
    ran: list[str] = []
    run = module.run_passes

    def counted(graph: Graph, *rest: Any) -> Graph:
        ran.append(graph.name)
        return run(graph, *rest)

    monkeypatch.setattr(module, "run_passes", counted)
    return ran


def results(graph: Graph, cache: Any, **options: Any) -> Any:
    """Of a model, which are right."""
    feeds = feeds_of(graph)
    model = compile_model(graph, cpu(1), cache=cache, **options)
    done = model(feeds)
    assert_close(done, evaluate_graph(graph, feeds), 1e-4)
    return model, done


def test_the_second_start_runs_no_passes(tmp_path: Path, passes: list[str]) -> None:
    first, expected = results(image(), tmp_path)
    assert len(passes) == 1
    second, found = results(image(), tmp_path)
    assert len(passes) == 1
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
    assert second.summary() == first.summary()
    assert second.executors[0].plan.steps == first.executors[0].plan.steps
    assert len(passes) == 1


def test_drafts_of_an_earlier_start_are_no_records(tmp_path: Path) -> None:
    results(image(), tmp_path)
    with pytest.raises(ts.GraphError, match="takes recorded kernels only"):
        compile_model(image(), cpu(1), cache=tmp_path, strict=True)


def test_constants_are_made_when_they_are_asked_for(tmp_path: Path, passes: list[str]) -> None:
    plans = [results(image(), tmp_path)[0].executors[0].plan for _ in range(2)]
    first, second = (p.graph.constants for p in plans)
    assert list(first) == list(second)
    assert len(passes) == 1
    for name, array in first.items():
        np.testing.assert_array_equal(second[name], array)
    assert len(passes) == 2
    assert "nothing" not in second
    with pytest.raises(KeyError):
        second["nothing"]


def test_a_saved_model_is_the_same(tmp_path: Path) -> None:
    names = []
    for k in range(2):
        model, _ = results(image(), tmp_path / "cache")
        names.append(model.save(tmp_path / f"{k}.tsm"))
    one, other = ((tmp_path / f"{k}.tsm").read_bytes() for k in range(2))
    assert one == other


@pytest.mark.parametrize("change", ["weights", "settings", "shape", "name", "accuracy", "cores"])
def test_another_graph_has_a_plan_of_its_own(
    tmp_path: Path, passes: list[str], change: str
) -> None:
    graph = image()
    results(graph, tmp_path)
    options: dict[str, Any] = {}
    match change:
        case "weights":
            graph = image(1)
        case "settings":
            graph = graph_of(layers(stride=2), 1, 16, 12, 12)
        case "shape":
            graph = graph_of(layers(), 1, 16, 11, 12)
        case "name":
            graph = replace(graph, name="another")
        case "accuracy":
            options["accuracy"] = 1e-4
        case _:
            options["threads"] = 2
    results(graph, tmp_path, **options)
    assert len(passes) == 2


def test_lost_weights_are_made_again(tmp_path: Path, passes: list[str]) -> None:
    results(image(), tmp_path)
    for path in tmp_path.glob("*.weights"):
        path.unlink()
    results(image(), tmp_path)
    assert len(passes) == 2  # for the constants alone
    results(image(), tmp_path)
    assert len(passes) == 2


def test_lost_kernels_are_built_again(tmp_path: Path, passes: list[str]) -> None:
    first, _ = results(image(), tmp_path)
    lost = {k.artifact.symbol for k in first.executors[0].kernels}
    for path in tmp_path.glob("*.artifact"):
        if any(s.encode() in path.read_bytes() for s in lost):
            path.unlink()
    second, _ = results(image(), tmp_path)
    assert {k.artifact.symbol for k in second.executors[0].kernels} == lost


@pytest.mark.parametrize("data", [b"", b"junk", b"\x80\x05N."])
def test_what_is_no_plan_is_made_again(
    tmp_path: Path, passes: list[str], data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    results(image(), tmp_path)
    keys: list[str] = []
    get = kept_plan.KeptPlans.get

    def replaced(self: kept_plan.KeptPlans, key: str, graph: Graph) -> Any:
        keys.append(key)
        self.cache.put(key, data)
        return get(self, key, graph)

    monkeypatch.setattr(kept_plan.KeptPlans, "get", replaced)
    results(image(), tmp_path)
    assert len(passes) == 2
    assert Cache(tmp_path).get(keys[0]) not in (data, None)


def test_other_answers_of_the_records_make_another_plan(
    tmp_path: Path, passes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product with gelu behind it may be one kernel or two."""

    def make(b: GraphBuilder, x: Value) -> Any:
        return b.add(ts.ops.gelu, b.add(matmul, x, b.constant(Numbers()(64, 32))))

    graph = graph_of(make, 24, 64)
    with ts.open_database(str(tmp_path / "records.db")) as database:
        for is_divided, count in ((False, 1), (False, 1), (True, 2), (True, 2)):
            monkeypatch.setattr(RecordedPartition, "_divided", lambda *_, said=is_divided: said)
            model, _ = results(graph, tmp_path / "cache", database=database)
            assert len(model.executors[0].kernels) == 1 + is_divided
            assert len(passes) == count


def test_a_plan_made_without_a_database_does_not_answer_for_records(
    tmp_path: Path, passes: list[str]
) -> None:
    """Without one, nobody looked at which groups records would divide."""
    results(image(), tmp_path / "cache")
    with ts.open_database(str(tmp_path / "records.db")) as database:
        results(image(), tmp_path / "cache", database=database)
    assert len(passes) == 2
    results(image(), tmp_path / "cache")
    assert len(passes) == 2


def test_with_a_database_new_records_are_taken(tmp_path: Path, passes: list[str]) -> None:
    with ts.open_database(str(tmp_path / "records.db")) as database:
        model, _ = results(image(), tmp_path / "cache", database=database)
        assert {k.origin.kind for k in model.executors[0].kernels} == {"draft"}
        func = model.executors[0].plan.steps[0].func
        ts.tune(
            func, cpu(1), budget=ts.Budget(trials=4), database=database, quiet=True,
            measurer=FakeMeasurer(), strategy=ts.Random(),
        )  # fmt: skip
        model, _ = results(image(), tmp_path / "cache", database=database)
        assert {k.origin.kind for k in model.executors[0].kernels} == {"record"}
        ran = len(passes)  # for the weights as the recorded kernels want them
        results(image(), tmp_path / "cache", database=database)
    assert len(passes) == ran <= 2


def test_operators_of_a_script_are_planned_each_time(tmp_path: Path, passes: list[str]) -> None:
    space: dict[str, Any] = {"ts": ts, "__name__": "__main__"}
    exec("def twice(x):\n    return ts.ops.add(x, x)\n", space)
    graph = graph_of(lambda b, x: b.add(space["twice"], x), 4, 8)
    for _ in range(2):
        results(graph, tmp_path)
    assert len(passes) == 2
