"""Many kernels are built in processes, whose deaths cost time and speed, never a result."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import tilesmith as ts
from tilesmith.base.errors import BuildError
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
