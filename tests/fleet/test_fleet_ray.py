"""On a real Ray cluster of four nodes, each with a worker of its own."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

import tilesmith as ts
from tilesmith.cli.main import app
from tilesmith.testing.measurers import small_task, split_by
from tilesmith.testing.ray_cluster import Cluster

pytest.importorskip("ray", reason="ray is not installed (pip install 'tilesmith[fleet]')")

A, B = ts.placeholder((16, 16), name="A"), ts.placeholder((16, 16), name="B")
TASK = ts.Task(ts.function([A, B, ts.ops.matmul(A, B, name="C")], name="matmul"), ts.cpu(1))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    own = Cluster()
    try:
        for k in range(4):
            own.worker(f"node{k}")
        yield own
    finally:
        own.close()


def test_nodes_are_killed_and_every_trial_is_accounted_for(
    cluster: Cluster, tmp_path: Path
) -> None:
    """One node is killed every few seconds while the others measure; one joins late."""
    database = ts.open_database(tmp_path / "tune.db")
    begun = threading.Event()
    over = threading.Event()

    def kill() -> None:
        begun.wait()
        for name in ("node0", "node1"):
            cluster.kill(name)
            if over.wait(3.0):
                return
        cluster.worker("node4")

    killer = threading.Thread(target=kill)
    killer.start()

    def observe(progress: ts.Progress) -> None:
        if progress.trials >= 8:
            begun.set()

    try:
        result = ts.tune(
            TASK.func, TASK.target, database=database, quiet=True, strategy=ts.Random(),
            budget=ts.Budget(trials=150), observers=[observe],
            measurer=ts.FleetMeasurer(cluster.address, wait=120.0, patience=15.0),
        )  # fmt: skip
    finally:
        over.set()
        begun.set()
        killer.join()
    records = database.of(TASK)
    database.close()
    assert result.error is None
    assert result.trials == 150 == len(records)
    assert max(Counter(m.candidate.key for m in records).values()) == 1
    assert not any(m.failure is not None and m.failure.kind == "error" for m in records)
    assert all(m.machine and (m.failure or m.is_normal) for m in records)
    assert len({m.machine for m in records}) >= 2
    assert result.best.machine in {m.machine for m in records}


def blocks(language: str) -> list[str]:
    text = (Path(__file__).parents[2] / "docs" / "howto_fleet.md").read_text()
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for name, block in found if name == language]


def test_the_how_to_runs(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    scope: dict[str, Any] = {}
    code = "\n".join(blocks("python"))
    for here, there in (("trials=100)", "trials=8)"), ("database=db)", "database=db, quiet=True)")):
        assert here in code
        code = code.replace(here, there)
    exec(compile(code, "docs/howto_fleet.md", "exec"), scope)
    assert scope["result"].trials == 8
    assert scope["result"].best.machine
    scope["db"].close()
    (tune,) = [line for b in blocks("sh") for line in b.splitlines() if " tune " in line]
    words = tune.replace("10.0.0.1:6379", cluster.address).replace("512", "16").split()[1:]
    words[words.index("--db") + 1] = "more.db"
    with pytest.raises(SystemExit) as left:
        app([*words, "--trials", "4", "--quiet"])
    assert left.value.code == 0


def test_the_commands_of_the_how_to_exist() -> None:
    lines = [line for b in blocks("sh") for line in b.splitlines() if line.startswith("tilesmith")]
    commands = {c.name or c.callback.__name__: c for c in app.registered_commands if c.callback}
    for line in lines:
        command = commands[line.split()[1]]
        known = {f"--{name.replace('_', '-')}" for name in signature(command.callback).parameters}
        assert set(re.findall(r"--[a-z-]+", line)) <= known


def test_a_head_that_dies_is_an_error_that_says_so(cluster: Cluster) -> None:
    task = small_task()
    with ts.FleetMeasurer(cluster.address, wait=60.0).open(task) as run:
        assert run.measure([split_by(2, task)])[0].seconds
        cluster.kill()
        began = time.monotonic()
        with pytest.raises(ts.MeasureError, match="the Ray cluster at"):
            run.measure([split_by(n, task) for n in range(3, 40)])
        assert time.monotonic() - began < 120
    with pytest.raises(ts.MeasureError, match=r"closed|Ray cluster"):
        run.measure([split_by(2, task)])
