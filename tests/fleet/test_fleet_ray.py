"""On a real Ray cluster of three nodes, each with a worker of its own. The tests share it, and
those that end parts of it come last.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from inspect import signature
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import tilesmith as ts
from tests.support.ray_cluster import Cluster
from tilesmith.cli.main import app
from tilesmith.measure.fleet.measurer import FleetMeasurer, FleetRun
from tilesmith.measure.fleet.pool import Answer, Lost, RayPool
from tilesmith.testing.measurers import small_task, split_by

pytest.importorskip("ray", reason="ray is not installed (pip install 'tilesmith[fleet]')")

A, B = ts.placeholder((16, 16), name="A"), ts.placeholder((16, 16), name="B")
TASK = ts.Task(ts.function([A, B, ts.ops.matmul(A, B, name="C")], name="matmul"), ts.cpu(1))
LIMIT = 300.0  # seconds after which a test has hung, on a machine that is very busy


def opencl() -> ts.Target | None:
    try:
        return ts.opencl()
    except ts.TargetError:
        return None


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[Cluster]:
    """All workers start at the same moment."""
    own = Cluster()
    try:
        for k in range(3):
            more = ("--devices", "cpu,opencl:0") if k == 0 and opencl() else ()
            own.worker(f"node{k}", *more)
        yield own
    finally:
        own.close()


@pytest.fixture
def cluster(own_cluster: Cluster) -> Cluster:
    """With at least one worker, whatever other tests have ended; and all of them have joined."""
    own_cluster.join(LIMIT)
    return own_cluster


@dataclass(frozen=True)
class Recorded(FleetMeasurer):
    """Keeps what travels."""

    sent: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)

    def pool(self) -> RayPool:
        sent, answers = self.sent, self.answers

        class Pool(RayPool):
            def call(self, device: str, method: str, *args: Any) -> int:
                sent.append((method, args))
                return super().call(device, method, *args)

            def wait(self, seconds: float) -> list[Answer]:
                found = super().wait(seconds)
                answers.extend(a.value for a in found if not isinstance(a.value, Lost))
                return found

        return Pool(self.address)


def measured(run: FleetRun, task: ts.Task, count: int) -> list[ts.Measurement]:
    return [*islice(run.results(task, time.monotonic() + LIMIT, every=True), count)]


def test_workers_that_start_at_once_all_join_and_what_travels_is_data(cluster: Cluster) -> None:
    devices, until = 4 if opencl() else 3, time.monotonic() + LIMIT
    measurer = Recorded(cluster.address, wait=LIMIT)
    task = small_task()
    with measurer.open(task) as run:
        run.submit([split_by(2, task)])
        while run.devices < devices:
            assert time.monotonic() < until, f"{run.devices} of {devices} devices have joined"
            time.sleep(0.1)
        run.submit([split_by(n, task) for n in range(2, 40)])  # the first is not measured twice
        found = measured(run, task, 38)
    assert len(found) == 38
    assert all(m.seconds and m.references and m.failure is None for m in found)
    assert len({m.machine for m in found}) == 3  # every CPU had its share
    assert {method for method, _ in measurer.sent} == {"submit", "collect", "leave"}
    for method, args in measurer.sent:
        assert [type(a) for a in args] == (
            {"submit": [str, list], "collect": [str, float], "leave": [str]}[method]
        )
        if method == "submit":
            assert args[1] == []  # code
            assert json.loads(args[0])["traces"]
    assert all(type(value) is str for value in measurer.answers)
    kinds = {"answers": list, "has": list, "hangs": str}
    for value in filter(None, measurer.answers):
        assert value[:1] == "{", value
        assert {key: type(v) for key, v in json.loads(value).items()} == kinds


def template(sch: ts.TemplateSchedule) -> None:
    i, j, _ = sch.loops("C")
    outer, inner = sch.split(sch.fuse(i, j), [None, sch.sample_choice([32, 64, 128], name="n")])
    sch.bind(outer, "blockIdx.x")
    sch.bind(inner, "threadIdx.x")


@pytest.mark.skipif(opencl() is None, reason="no OpenCL device (apt: pocl-opencl-icd)")
def test_a_gpu_of_a_worker_is_tuned_for(cluster: Cluster) -> None:
    """PoCL stands in for one."""
    result = ts.tune(
        TASK.func, ts.opencl(), quiet=True, strategy=ts.Random(), budget=ts.Budget(trials=2),
        space=ts.TemplateSpace(template), measurer=ts.FleetMeasurer(cluster.address, wait=LIMIT),
    )  # fmt: skip
    assert result.trials == 2
    assert result.best.machine.startswith("opencl:0 of node0")


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


def test_the_commands_of_the_how_to_exist() -> None:
    lines = [line for b in blocks("sh") for line in b.splitlines() if line.startswith("tilesmith")]
    commands = {c.name or c.callback.__name__: c for c in app.registered_commands if c.callback}
    for line in lines:
        command = commands[line.split()[1]]
        known = {f"--{name.replace('_', '-')}" for name in signature(command.callback).parameters}
        assert set(re.findall(r"--[a-z-]+", line)) <= known


def test_nodes_are_lost_and_every_trial_is_accounted_for(cluster: Cluster, tmp_path: Path) -> None:
    """Of three, one is killed, another loses its network while the last one measures, and a new
    one joins.
    """
    database = ts.open_database(tmp_path / "tune.db")
    losses = {
        8: lambda: cluster.kill("node0"),
        16: lambda: cluster.worker("node3"),
        50: lambda: cluster.send(signal.SIGSTOP, "node1"),
    }

    def observe(progress: ts.Progress) -> None:
        for trials in [t for t in losses if t <= progress.trials]:
            losses.pop(trials)()

    try:
        result = ts.tune(
            TASK.func, TASK.target, database=database, quiet=True, strategy=ts.Random(),
            budget=ts.Budget(trials=90), observers=[observe],
            measurer=ts.FleetMeasurer(cluster.address, wait=LIMIT, patience=15.0),
        )  # fmt: skip
    finally:
        cluster.kill("node1")
    assert not losses
    records = database.of(TASK)
    database.close()
    assert result.error is None
    assert result.trials == 90 == len(records)
    assert max(Counter(m.candidate.key for m in records).values()) == 1
    assert not any(m.failure is not None and m.failure.kind == "error" for m in records)
    assert all(m.machine and (m.failure or m.is_normal) for m in records)
    assert len({m.machine for m in records}) >= 2
    assert result.best.machine in {m.machine for m in records}


def gone(cluster: Cluster, name: str) -> bool:
    until = time.monotonic() + 30.0
    while cluster.processes(name) and time.monotonic() < until:
        time.sleep(0.1)
    return not cluster.processes(name)


def test_ctrl_c_leaves_no_process_of_a_tuner_or_a_worker(cluster: Cluster, tmp_path: Path) -> None:
    """`tilesmith tune --fleet` of the how-to and `tilesmith worker`, as processes of their own."""
    (tune,) = [line for b in blocks("sh") for line in b.splitlines() if " tune " in line]
    words = tune.replace("10.0.0.1:6379", cluster.address).replace("512", "16").split()[1:]
    place = tmp_path / "tune.db"
    words[words.index("--db") + 1] = str(place)
    code = "from tilesmith.cli.main import app; app()"
    tuner = cluster.start("tuner", "-c", code, *words, "--trials", "100000", "--quiet")
    database, until = ts.open_database(place), time.monotonic() + LIMIT
    while database.count() < 8:
        cluster.keep_running()
        assert time.monotonic() < until
        time.sleep(0.2)
    tuner.send_signal(signal.SIGINT)
    tuner.wait(LIMIT)
    count = database.count()
    database.close()
    assert count >= 8
    assert gone(cluster, "tuner")
    cluster.kill("tuner")
    assert "node2 has joined the fleet" in cluster.log.read_text()
    (folder,) = {p for p in Path(cluster.folder).glob("tsw-*") if _is_of(p, cluster, "node2")}
    worker = cluster.nodes["node2"]
    worker.send_signal(signal.SIGINT)
    assert worker.wait(LIMIT) == 0
    assert gone(cluster, "node2")
    cluster.kill("node2")
    assert not folder.exists()


def _is_of(folder: Path, cluster: Cluster, name: str) -> bool:
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in cluster.processes(name)]
    return any(os.fsencode(folder) in line for line in lines)


def test_a_head_that_dies_is_an_error_that_says_so(cluster: Cluster) -> None:
    task = small_task()
    with ts.FleetMeasurer(cluster.address, wait=LIMIT).open(task) as run:
        assert run.measure([split_by(2, task)])[0].seconds
        cluster.kill()
        began = time.monotonic()
        with pytest.raises(ts.MeasureError, match=r"the Ray cluster at .* (gone|ended)"):
            run.measure([split_by(n, task) for n in range(3, 40)])
        assert time.monotonic() - began < 120
    with pytest.raises(ts.MeasureError, match=r"closed|Ray cluster"):
        run.measure([split_by(2, task)])
