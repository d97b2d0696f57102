"""Many kernels are built in processes, whose deaths cost time and speed, never a result."""

from __future__ import annotations

from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.base.errors import BuildError
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.task.task import Task
from tilesmith.tune.build_request import BuildRequest
from tilesmith.workers.pool import Process

build_pool = import_module("tilesmith.tune.build_pool")  # by its name: `ts.tune` is a function


def requests() -> list[BuildRequest]:
    out = []
    for n in (8, 16, 24, 32):
        x = ts.placeholder((n,), name="X")
        func = ts.function([x, ts.compute((n,), lambda i, x=x: x[i] * 2 + 1, name="Y")], f"f{n}")
        out.append(BuildRequest(Task(func, ts.cpu(1)), why="no database", plain_points=100))
    return out


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_pool, "_ALONE_SECONDS", -1.0)


def test_results_come_in_the_order_of_the_requests() -> None:
    reports: list[tuple[int, int]] = []
    results = build_pool.build_all(requests(), lambda *n: reports.append(n), num_workers=2)
    assert [r.artifact.name for r in results] == ["f8", "f16", "f24", "f32"]
    assert all("too small" in r.origin.why for r in results)
    assert reports[0] == (0, 4)
    assert reports[-1] == (4, 4)
    assert reports == sorted(reports)


def replaced(monkeypatch: pytest.MonkeyPatch, what: str) -> list[int]:
    started: list[int] = []

    def start(number: int) -> Process:
        started.append(number)
        return Process("planted_worker", what, patience=0.0)

    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr(build_pool, "_start", start)
    return started


def test_a_kernel_whose_process_dies_twice_is_the_plain_loop_nest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = replaced(monkeypatch, "dies")
    results = build_pool.build_all(requests()[:3], lambda *_: None, num_workers=2, here=False)
    assert [r.artifact.name for r in results] == ["f8", "f16", "f24"]
    assert {r.origin.why for r in results} == {"the process that built it ended"}
    assert len(started) == 2 + 2 * 3


def test_an_error_of_a_build_is_raised_here(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch, "raises")
    # The two largest are begun first; either answer may come first.
    with pytest.raises(BuildError, match=r"'f(32|24)' cannot be built: ValueError: no"):
        build_pool.build_all(requests(), lambda *_: None, num_workers=2, here=False)


class Counted(Process):
    """A process that builds."""

    started: ClassVar[list[Counted]] = []

    def __init__(self, _: int) -> None:
        super().__init__(build_pool.__name__, patience=0.0)
        self.started.append(self)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Counted]:
    monkeypatch.setattr(Counted, "started", [])
    monkeypatch.setattr(build_pool, "_start", Counted)
    return Counted.started


def test_processes_that_started_early_are_taken(started: list[Counted]) -> None:
    early = build_pool.Early(2)
    results = build_pool.build_all(requests(), lambda *_: None, early, num_workers=3, here=False)
    assert [r.artifact.name for r in results] == ["f8", "f16", "f24", "f32"]
    assert len(started) == 3  # one more than there were
    early.close()


def test_processes_that_nobody_took_are_ended(started: list[Counted]) -> None:
    early = build_pool.Early(2)
    build_pool.build_all(requests()[:1], lambda *_: None, early, num_workers=2)
    assert [p.status() for p in started] == [None, None]
    early.close()
    assert all(p.status(10.0) is not None for p in started)


def test_a_model_that_was_compiled_before_needs_no_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nor does one of few kernels, and none stay behind a plan that fails."""
    module = import_module("tilesmith.tune.compile_model")
    counts: list[int] = []

    class Noted(build_pool.Early):  # type: ignore[name-defined, misc]
        def __init__(self, count: int) -> None:
            super().__init__(0)
            counts.append(count)

    def graph(sizes: list[int]) -> ts.Graph:
        b = GraphBuilder("g")
        x = b.input("x", (1, sizes[0]), "float32")
        for m, n in pairwise(sizes):
            x = b.add(ts.ops.matmul, x, b.constant(np.full((m, n), 0.5, np.float32)))
        return b.finish({"y": x})

    monkeypatch.setattr(module, "Early", Noted)
    monkeypatch.setattr(module, "usable_cores", lambda: [0, 1, 2, 3])
    many, few = graph([*range(2, 15)]), graph([*range(2, 6)])
    for g, cache in ((few, tmp_path), (many, tmp_path), (many, tmp_path)):
        feeds = {"x": np.ones(g.values["x"].shape, np.float32)}
        model = ts.compile_model(g, cache=cache, progress=False)
        np.testing.assert_allclose(model(feeds)["y"], evaluate_graph(g, feeds)["y"], rtol=1e-4)
    assert counts == [2]
    with pytest.raises(ZeroDivisionError):
        ts.compile_model(graph([*range(3, 16)]), cache=tmp_path, groups=lambda g: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        ts.compile_model(graph([*range(3, 16)]), cache=tmp_path, groups=lambda g: 1 // 0)
    assert counts == [2] * 3
