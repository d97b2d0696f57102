"""What takes long is told once, on the logger "tilesmith"."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.base import waits
from tilesmith.graph.builder import GraphBuilder
from tilesmith.ops.matmul import matmul
from tilesmith.testing.measurers import FakeMeasurer


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "tilesmith"]


def test_a_short_wait_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    with waits.told_wait("something"):
        pass
    assert not told(caplog)


def test_a_wait_is_told_once_with_what_it_is_for(caplog: pytest.LogCaptureFixture) -> None:
    with waits.told_wait("something", 0.0):
        while not told(caplog):
            time.sleep(0.001)
    assert told(caplog) == ["0 s so far: something"]


def test_building_a_model_is_told_where_no_terminal_is(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "_LONG_SECONDS", 0.0)
    b = GraphBuilder("net")
    weights = np.ones((48, 56), np.float32)
    graph = b.finish({"y": b.add(matmul, b.input("x", (24, 48), "float32"), b.constant(weights))})
    ts.compile_model(graph, ts.cpu(1), cache=None, progress=False)
    assert not told(caplog)
    ts.compile_model(graph, ts.cpu(1), cache=None)
    assert [t.partition(", ")[0] for t in told(caplog)] == ["0 s so far: building 1 kernels"]


def test_a_locked_database_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "r.db"
    a = ts.placeholder((8,), name="a")
    func = ts.function([a, ts.compute((8,), lambda i: a[i] + 1, name="b")])
    with ts.open_database(file) as db:
        monkeypatch.setattr(waits, "_LONG_SECONDS", 0.05)
        other = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")

        def release() -> None:
            while not told(caplog):
                time.sleep(0.01)
            other.execute("ROLLBACK")

        thread = threading.Thread(target=release)
        thread.start()
        ts.tune(
            func, ts.cpu(1), database=db, measurer=FakeMeasurer(), quiet=True,
            budget=ts.Budget(trials=2),
        )  # fmt: skip
        thread.join()
        other.close()
        assert db.count() == 2
    assert "has locked" in told(caplog)[0]
    assert str(file) in told(caplog)[0]
