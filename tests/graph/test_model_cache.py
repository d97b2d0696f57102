"""The cache of kernels and packed weights: used, bounded, safe."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_graphs import Numbers, assert_close, feeds_of, graph_of

from tilesmith.base.dtype import FLOAT32
from tilesmith.base.target import cpu
from tilesmith.codegen.artifact import Parameter
from tilesmith.expr.ints import of
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.executor import constant_key
from tilesmith.graph.graph import Graph, Value
from tilesmith.graph.oracle import evaluate_graph
from tilesmith.ir.nodes import Buffer
from tilesmith.ops.elementwise import relu
from tilesmith.ops.matmul import matmul
from tilesmith.tune import compile_model as module
from tilesmith.tune.cache import Cache, default_folder
from tilesmith.tune.compile_model import compile_model

ROOT = Path(__file__).parents[2]


def make(b: GraphBuilder, x: Value) -> Any:
    return b.add(relu, b.add(matmul, x, b.constant(Numbers()(64, 128))))


def checked(graph: Graph, cache: Any) -> None:
    feeds = feeds_of(graph)
    assert_close(
        compile_model(graph, cpu(1), cache=cache)(feeds), evaluate_graph(graph, feeds), 1e-4
    )


def files(folder: Path) -> dict[str, int]:
    return {p.name: p.stat().st_size for p in folder.iterdir()}


@pytest.fixture
def no_building(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    def refuse(*_: Any) -> Any:
        raise AssertionError("a kernel is built that the cache has")

    monkeypatch.setattr(module, "build_all", refuse)
    return monkeypatch


def test_tests_do_not_write_to_the_users_folder() -> None:
    assert "tilesmith-tests-" in str(default_folder())


def test_the_second_start_builds_nothing(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    graph = graph_of(make, 32, 64)
    checked(graph, tmp_path)
    before = files(tmp_path)
    assert {Path(name).suffix for name in before} == {".artifact", ".weights"}
    request.getfixturevalue("no_building")
    checked(graph, tmp_path)
    assert files(tmp_path) == before


def test_without_a_cache_nothing_is_written(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    checked(graph_of(make, 32, 64), None)
    assert files(tmp_path) == {}


def test_other_weights_use_the_same_kernel(tmp_path: Path, request: Any) -> None:
    graph = graph_of(make, 32, 64)
    checked(graph, tmp_path)

    def other(b: GraphBuilder, x: Value) -> Any:
        return b.add(relu, b.add(matmul, x, b.constant(Numbers(5)(64, 128))))

    request.getfixturevalue("no_building")
    checked(graph_of(other, 32, 64), tmp_path)


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "foreign"])
def test_a_damaged_entry_is_made_again(tmp_path: Path, damage: str) -> None:
    graph = graph_of(make, 32, 64)
    checked(graph, tmp_path)
    before = files(tmp_path)
    for path in tmp_path.iterdir():
        data = bytearray(path.read_bytes())
        if damage == "flipped":
            data[-1] ^= 255
        elif damage == "cut":
            del data[len(data) // 2 :]
        elif damage == "empty":
            data.clear()
        else:
            data[:] = b"#!/bin/sh\n" * 50
        path.write_bytes(bytes(data))
    checked(graph, tmp_path)
    assert files(tmp_path) == before


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    checked(graph_of(make, 32, 64), blocked)


def test_the_bound_holds(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_nbytes=5000)
    for k in range(20):
        cache.put_array(f"a{k}", np.full(250, k, "float32"))
        assert sum(files(tmp_path).values()) <= 5000
    newest = cache.get_array("a19", (250,), np.dtype("float32"))
    assert newest is not None
    np.testing.assert_array_equal(newest, 19)
    assert cache.get_array("a0", (250,), np.dtype("float32")) is None


def test_what_is_used_stays(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_nbytes=5000)
    cache.put("used", b"x" * 100)
    os.utime(tmp_path / "used.artifact", (1, 1))
    for k in range(10):
        assert cache.get("used") == b"x" * 100
        cache.put(f"other{k}", b"y" * 900)
        for path in tmp_path.glob("other*"):  # as if they were older
            os.utime(path, (1000 + k, 1000 + k))
    assert cache.get("used") is not None


def test_what_is_larger_than_the_bound_is_not_kept(tmp_path: Path) -> None:
    Cache(tmp_path, max_nbytes=10).put("k", b"x" * 1000)
    assert files(tmp_path) == {}


def test_an_array_of_another_shape_is_absent(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put_array("a", np.zeros(8, "float32"))
    assert cache.get_array("a", (9,), np.dtype("float32")) is None


_FILL = """
import sys
sys.path.insert(0, {folder!r})
from test_model_cache import checked, graph_of, make
checked(graph_of(make, 32, 64), sys.argv[1])
"""


def test_two_processes_fill_it_at_once(tmp_path: Path, request: Any) -> None:
    code = _FILL.format(folder=str(Path(__file__).parent))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    both = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=env) for _ in range(2)
    ]
    assert [p.wait(300) for p in both] == [0, 0]
    assert not [name for name in files(tmp_path) if name.endswith(".part")]
    request.getfixturevalue("no_building")
    checked(graph_of(make, 32, 64), tmp_path)


def test_weights_are_kept_by_what_they_hold_in_whatever_order() -> None:
    a = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    packed = Buffer("w", (of(2), of(3), of(4)), FLOAT32)
    p = Parameter("w", (2, 3, 4), FLOAT32, output=False, packed=packed)
    keys = {
        constant_key(p, a),
        constant_key(p, a + 1),
        constant_key(p, a[::-1]),
        constant_key(p, np.arange(24, dtype=np.float32).reshape(4, 3, 2).T),
        constant_key(p, np.broadcast_to(a[:1], a.shape)),
        constant_key(p, np.broadcast_to(a[1:], a.shape)),
        constant_key(p, a.reshape(2, 4, 3).transpose(0, 2, 1)),
    }
    assert len(keys) == 7
    assert constant_key(p, a.copy()) in keys
    assert constant_key(p, np.array(a[::-1])) not in keys - {constant_key(p, a[::-1])}
