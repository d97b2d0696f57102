"""Threads and cores of a model: its options are kept, and models share one pool."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from exported import compiled
from small_graphs import Numbers, feeds_of, graph_of

import tilesmith as ts
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Value
from tilesmith.runtime.chain import Chain

CORES = sorted(os.sched_getaffinity(0))
several = pytest.mark.skipif(len(CORES) < 2, reason="one core")

# Counts the threads of a process after calls of models, whose files are its arguments.
CHILD = """
import os, sys, threading, time
import numpy as np
import tilesmith as ts

def count():
    # Threads of Python that have ended are listed for a moment.
    found = []
    while len(found) < 20 or len(set(found[-20:])) > 1:
        found.append(len(os.listdir("/proc/self/task")))
        time.sleep(0.01)
    return found[-1]

options = eval(sys.argv[1])
x = np.random.default_rng(0).standard_normal((300, 64)).astype(np.float32)
models = [ts.load_model(path, **options) for path in sys.argv[2:]]
before = count()
first = [m({"x": x})["y"] for m in models]
print(count() - before)
wrong = []
def call(model, want):
    for _ in range(200):
        if not np.array_equal(model({"x": x})["y"], want):
            wrong.append(model)
threads = [threading.Thread(target=call, args=pair) for pair in zip(models, first)]
[t.start() for t in threads]
[t.join() for t in threads]
print(count() - before, len(wrong))
"""


def layer(seed: int) -> ts.Graph:
    def network(b: GraphBuilder, x: Value) -> Value:
        return b.add(ts.ops.relu, b.add(ts.ops.matmul, x, b.constant(Numbers(seed)(64, 33))))

    return graph_of(network, 300, 64)


def saved(folder: Path, cores: int, *seeds: int) -> list[Path]:
    paths = []
    for seed in seeds:
        paths.append(folder / f"{seed}.tsm")
        compiled(layer(seed), ts.cpu(1).with_cores(cores)).save(paths[-1])
    return paths


def counted(options: str, paths: list[Path]) -> list[int]:
    env = {**os.environ, "PYTHONPATH": str(Path(ts.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, options, *map(str, paths)],
        capture_output=True, text=True, env=env, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


def test_two_models_share_one_pool(tmp_path: Path) -> None:
    """With three threads each there are two more than the caller, also after calls at once."""
    assert counted("{}", saved(tmp_path, 3, 1, 2)) == [2, 2, 0]


@pytest.mark.parametrize(("threads", "more"), [(1, 0), (2, 1), (9, 2)])
def test_a_loaded_model_has_a_limit_of_its_own(tmp_path: Path, threads: int, more: int) -> None:
    assert counted(f"{{'threads': {threads}}}", saved(tmp_path, 3, 1)) == [more, more, 0]


def test_threads_are_cores_of_the_target() -> None:
    model = ts.compile_model(layer(1), threads=1, cache=None)
    (executor,) = model.executors
    assert {k.artifact.target.num_cores for k in executor.kernels} == {1}
    named = ts.compile_model(layer(1), ts.Target.named("neoverse-n1"), threads=3, cache=None)
    assert {k.artifact.target.num_cores for e in named.executors for k in e.kernels} == {3}


class Watched:
    """A chain that notes the affinity of its calls."""

    def __init__(self, chain: Chain, seen: list[set[int]]) -> None:
        self.chain, self.seen = chain, seen

    def run(self, *words: int) -> None:
        self.seen.append(os.sched_getaffinity(0))
        self.chain.run(*words)

    def run_timed(self, *words: int) -> None:
        self.seen.append(os.sched_getaffinity(0))
        self.chain.run_timed(*words)


def test_calls_run_on_the_cores_that_are_named(tmp_path: Path) -> None:
    graph = layer(1)
    feeds = feeds_of(graph)
    plain = ts.compile_model(graph, threads=1, cache=None)
    want = plain(feeds)["y"]
    plain.save(tmp_path / "m.tsm")
    for model in (
        ts.compile_model(graph, affinity=CORES[-1:], cache=None),
        ts.load_model(tmp_path / "m.tsm", affinity=CORES[-1:]),
    ):
        (executor,) = model.executors
        assert executor.affinity == {CORES[-1]}
        seen: list[set[int]] = []
        executor._chain = Watched(executor._chain, seen)  # type: ignore[assignment]
        np.testing.assert_array_equal(model(feeds)["y"], want)
        np.testing.assert_array_equal(model.bind(feeds)()["y"], want)
        model.profile(feeds, runs=1)
        assert seen == [{CORES[-1]}] * 4
        assert sorted(os.sched_getaffinity(0)) == CORES


@several
def test_workers_follow(tmp_path: Path) -> None:
    """On the cores that are named but the caller's, and elsewhere again in the next call."""
    (path,) = saved(tmp_path, 2, 1)
    program = """
import os, sys, numpy as np, tilesmith as ts
x = np.zeros((300, 64), np.float32)
cores = sorted(os.sched_getaffinity(0))
free, pinned = ts.load_model(sys.argv[1]), ts.load_model(sys.argv[1], affinity=cores[:2])
def workers():
    return [os.sched_getaffinity(int(t)) for t in os.listdir("/proc/self/task") if t not in seen]
seen = set(os.listdir("/proc/self/task"))
pinned({"x": x})
for cores_of_worker in workers():
    assert cores_of_worker < set(cores[:2]), cores_of_worker
free({"x": x})
print(len(workers()), all(w < set(cores) and len(w) == len(cores) - 1 for w in workers()))
"""
    env = {**os.environ, "PYTHONPATH": str(Path(ts.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, env=env
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "True"]


def test_mistakes_are_told(tmp_path: Path) -> None:
    (path,) = saved(tmp_path, 2, 1)
    graph = layer(1)
    for options, said in (
        ({"affinity": []}, "affinity names no core; this process may use the cores"),
        ({"affinity": [4096]}, "affinity names core 4096"),
    ):
        with pytest.raises(ts.GraphError, match=said):
            ts.load_model(path, **options)  # type: ignore[arg-type]
        with pytest.raises(ts.GraphError, match=said):
            ts.compile_model(graph, **options)  # type: ignore[arg-type]
    with pytest.raises(ts.GraphError, match="threads is 0"):
        ts.load_model(path, threads=0)
    with pytest.raises(ts.TilesmithError, match="num_cores is 0"):
        ts.compile_model(graph, threads=0)
    with pytest.raises(ts.GraphError, match="are for CPUs"):
        ts.compile_model(graph, ts.Target.named("nvidia-h200"), threads=2)
