"""No wait of a fleet is without a bound, and who is waited for is named. The fleet is in this
process, and its machines are simulated: they wait for events, so that counts decide.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from fleet_pools import LocalFleet, LocalPool, Machine, fleet

import tilesmith as ts
from tilesmith.measure.fleet import dispatch as dispatch_module
from tilesmith.measure.fleet import host as host_module
from tilesmith.measure.fleet import pool as pool_module
from tilesmith.measure.fleet.host import DeviceHost
from tilesmith.measure.fleet.messages import Settings, write_request
from tilesmith.measure.fleet.offer import ACCEPTS_CODE
from tilesmith.measure.parent.timing import TimingRules
from tilesmith.measure.protocol import Results
from tilesmith.testing.measurers import small_task, split_by

TASK = small_task()
SETTINGS = Settings(10.0, False, 1 << 30, True, 0, TimingRules())
A, B = ts.placeholder((32, 32), name="A"), ts.placeholder((32, 32), name="B")
MATMUL = ts.Task(ts.function([A, B, ts.ops.matmul(A, B, name="C")], name="matmul"), ts.cpu(1))
LIMIT = 300.0  # seconds after which a test has hung, on a machine that is very busy


def collect(results: Results, count: int) -> list[ts.Measurement]:
    found = [*islice(results, count)]
    assert len(found) == count
    return found


def close(measurer: LocalFleet) -> None:
    for host in measurer.hosts.values():
        host.close()


def test_a_fast_device_is_not_held_up_by_one_that_has_stopped() -> None:
    """All but what the other one has in its hands is measured before that goes on."""
    gate = threading.Event()
    fast, slow = Machine("fast", 0.0), Machine("slow", gate=gate)
    measurer = fleet([fast, slow])
    candidates = [split_by(n, TASK) for n in range(2, 96)]
    with measurer.open(TASK) as run:
        run.submit(candidates)
        results = run.results(TASK, time.monotonic() + LIMIT, every=True)
        found = collect(results, len(candidates) - 16)  # two requests of eight at most
        assert sum(slow.measured.values()) == 0
        gate.set()
        found += collect(results, len(candidates) - len(found))
    close(measurer)
    assert sorted(m.candidate.key for m in found) == sorted(c.key for c in candidates)


def test_a_search_goes_on_while_a_device_has_stopped() -> None:
    gate = threading.Event()
    measurer = fleet([Machine("fast", 0.0), Machine("slow", gate=gate)])

    opened_by_search = False

    def observe(progress: ts.Progress) -> None:
        nonlocal opened_by_search
        if progress.trials >= 40 and not gate.is_set():
            opened_by_search = True
            gate.set()

    hung = threading.Timer(LIMIT, gate.set)
    hung.start()
    result = ts.tune(
        MATMUL.func, MATMUL.target, measurer=measurer, quiet=True, budget=ts.Budget(trials=60),
        strategy=ts.Random(), observers=[observe],
    )  # fmt: skip
    hung.cancel()
    close(measurer)
    assert result.trials == 60
    assert opened_by_search, "the search has waited for the slow device"


def test_a_device_whose_measuring_hangs_costs_a_retry_elsewhere() -> None:
    """It still answers that it has nothing."""
    measurer = fleet([Machine("good"), Machine("hung", gate=threading.Event())], timeout=0.01)
    hung = measurer.hosts["hung"]
    hung.slack, hung.first = 0.5, 0.0
    candidates = [split_by(n, TASK) for n in range(2, 40)]
    with measurer.open(TASK) as run:
        run.submit(candidates)
        found = collect(run.results(TASK, time.monotonic() + LIMIT, every=True), len(candidates))
    close(measurer)
    assert all(m.failure is None for m in found)
    assert len({m.candidate.key for m in found}) == len(candidates)


class Deaf(LocalPool):
    """Requests to one device get lost."""

    def call(self, device: str, method: str, *args: Any) -> int:
        if device == "deaf" and method == "submit":
            self._tickets += 1
            return self._tickets
        return super().call(device, method, *args)


class Forgetful(LocalPool):
    """A device forgets what it has taken, once, as if it had not heard of the tuner for long."""

    forgot = False

    def call(self, device: str, method: str, *args: Any) -> int:
        if method == "collect" and not self.forgot and device == "deaf":
            self.forgot = bool(self.hosts[device]._tuners[args[0]].requests)
            self.hosts[device].leave(args[0])
        return super().call(device, method, *args)


@pytest.mark.parametrize("kind", [Deaf, Forgetful])
def test_a_request_that_gets_lost_is_handed_out_again(
    kind: type[LocalPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    measurer = fleet([Machine("good", 0.01), Machine("deaf", 0.01)], patience=2.0)
    monkeypatch.setattr(LocalFleet, "pool", lambda self: kind(self.hosts))
    candidates = [split_by(n, TASK) for n in range(2, 40)]
    with measurer.open(TASK) as run:
        run.submit(candidates)
        found = collect(run.results(TASK, time.monotonic() + LIMIT, every=True), len(candidates))
    close(measurer)
    assert all(m.failure is None for m in found)


def test_tuners_share_a_device_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One has kernels that are four times as slow; the clock is advanced by what they take."""
    ahead = 0.0

    class Timed(Machine):
        def takes(self, candidate: ts.Candidate) -> None:
            nonlocal ahead
            ahead += 0.4 if candidate.task == tasks[0] else 0.1

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead)
    monkeypatch.setattr(host_module, "time", clock)
    tasks = small_task(), small_task(60)
    machine = Timed("one", 0.0, gate=threading.Event())
    host = DeviceHost("cpu", machine)
    for k in range(8):
        for task in tasks:
            own = [split_by(n, task) for n in range(2 + 4 * k, 6 + 4 * k)]
            text, _ = write_request(task.func.name, f"{task.func.name} {k}", SETTINGS, own, {})
            assert host.submit(text, []) == ""
    machine.gate.set()
    until = time.monotonic() + LIMIT
    while len(machine.order) < 64 and time.monotonic() < until:
        time.sleep(0.01)
    host.close()
    slow, fast = (t.func.name for t in tasks)
    last = max(k for k, name in enumerate(machine.order) if name == fast)
    assert 4 <= machine.order[:last].count(slow) <= 16


def other_target() -> ts.Target:
    return ts.Target.named("skylake-avx512" if ts.cpu().arch == "aarch64" else "neoverse-v1")


@pytest.mark.parametrize("build", ["auto", "tuner"])
def test_kernels_for_another_architecture_are_compiled_by_the_tuner(
    build: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker is simulated; what arrives there is an object file for its processor."""
    monkeypatch.setenv(ACCEPTS_CODE, "1")
    there, codes = other_target(), []

    class Board(DeviceHost):
        def submit(self, text: str, code: Any) -> str:
            assert set(json.loads(text)["code"]) == set(json.loads(text)["traces"])
            codes.extend(code)
            return super().submit(text, code)

    host = Board("cpu", Machine("board"))
    host._offer = replace(host._offer, target=there, processor=there.cpu, build_rate=0.01)
    measurer = LocalFleet(wait=2.0, hosts={"board": host}, build=build)
    task = ts.Task(TASK.func, there)
    candidates = [replace(split_by(n, TASK), task=task) for n in range(2, 8)]
    with measurer.open(task) as run:
        run.submit(candidates)
        found = collect(run.results(task, time.monotonic() + LIMIT, every=True), len(candidates))
    host.close()
    assert all(m.failure is None for m in found)
    assert len(codes) == len(candidates)
    machine = 62 if there.arch == "x86-64" else 183  # of ELF
    assert {int.from_bytes(code[18:20], "little") for code in codes} == {machine}


def test_workers_that_compile_fast_are_sent_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ACCEPTS_CODE, "1")
    sent: list[int] = []

    class Watched(DeviceHost):
        def submit(self, text: str, code: Any) -> str:
            sent.append(len(code))
            return super().submit(text, code)

    host = Watched("cpu", Machine("fast"))
    host._offer = replace(host._offer, build_rate=1e9)
    with LocalFleet(wait=2.0, hosts={"fast": host}).open(TASK) as run:
        run.submit([split_by(n, TASK) for n in range(2, 8)])
        collect(run.results(TASK, time.monotonic() + LIMIT, every=True), 6)
    host.close()
    assert not any(sent)


class NoRay:
    """A cluster with one device, whose process never starts, or which fails to."""

    def __init__(self, error: str) -> None:
        self.error = error

    def nodes(self) -> list[dict[str, Any]]:
        resources = {"tilesmith:cpu:0123456789abcdef": 1.0}
        return [
            {"NodeID": "ab" * 28, "Alive": True, "Resources": resources, "NodeManagerHostname": "b"}
        ]

    def remote(self, kind: type) -> Any:
        def future() -> Any:
            return SimpleNamespace(add_done_callback=self._call)

        describe = SimpleNamespace(remote=lambda: SimpleNamespace(future=future))
        actor = SimpleNamespace(describe=describe)
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_: actor))

    def _call(self, done: Any) -> None:
        if self.error:
            future = SimpleNamespace(result=lambda: (_ for _ in ()).throw(OSError(self.error)))
            threading.Thread(target=done, args=(future,)).start()


@pytest.mark.parametrize(
    ("error", "text"), [("", "has not started for"), ("no such GPU", "no such GPU")]
)
def test_a_device_that_does_not_start_is_named(
    error: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="ray is not installed (pip install 'tilesmith[fleet]')")
    from tilesmith.measure.fleet import bridge

    monkeypatch.setattr(bridge, "ray", NoRay(error))
    monkeypatch.setattr(bridge, "_DEVICE_SECONDS", 0.1)
    monkeypatch.setattr(bridge, "_LOOK_SECONDS", 0.05)
    told: SimpleQueue[Any] = SimpleQueue()
    one = bridge.Bridge(SimpleNamespace(send=told.put))  # type: ignore[arg-type]
    threading.Thread(target=one._look, daemon=True).start()
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        try:
            _, (offers, troubles), _ = told.get(timeout=1.0)
        except Empty:
            continue
        assert not offers
        if troubles:
            break
    ((name, why),) = troubles.items()
    assert name.startswith("cpu of b")
    assert text in why
    pool = LocalPool({})
    monkeypatch.setattr(pool, "troubles", lambda: troubles)
    measurer = LocalFleet(wait=0.1)
    monkeypatch.setattr(LocalFleet, "pool", lambda self: pool)
    with measurer.open(TASK) as run, pytest.raises(ts.MeasureError, match=f"cpu of b.*{text}"):
        run.measure([split_by(2, TASK)])


def test_a_run_whose_time_ends_without_a_worker_names_what_there_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if it would wait longer for one: the time of the budget is the shorter one."""
    monkeypatch.setattr(dispatch_module, "_TELL_SECONDS", 0.0)
    other = replace(ts.cpu(1), model="Another-1", cpu="another", features=frozenset())
    measurer = fleet([Machine("one")])
    elsewhere = replace(MATMUL, target=other)
    with measurer.open(elsewhere) as run:
        run.submit([split_by(4, elsewhere)])
        with pytest.raises(ts.MeasureError, match=r"no worker of the fleet measures .*one"):
            collect(run.results(elsewhere, time.monotonic() + 0.5, every=True), 1)
    close(measurer)
    told = [r for r in caplog.records if r.name == "tilesmith"]
    assert len(told) == 1
    assert "no worker of the fleet measures" in told[0].getMessage()


def test_an_address_where_nothing_listens_is_an_error_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(ts.MeasureError, match=rf"nothing answers at {address}.*ray start --head"):
        pool_module._require_answer(address)
    pool_module._require_answer("auto")


def test_a_bridge_ends_with_its_tuner() -> None:
    """Also one that still waits for its cluster, and would not hear of it by its channel."""
    code = (
        "import os, sys, threading, time\n"
        "sys.modules['ray'] = sys.modules['ray.util'] = type(sys)('ray')\n"
        "s = sys.modules['ray.util.scheduling_strategies'] = type(sys)('s')\n"
        "s.NodeAffinitySchedulingStrategy = None\n"
        "from tilesmith.measure.fleet import bridge\n"
        "bridge._LOOK_SECONDS = 0.05\n"
        "bridge._connect = lambda address: time.sleep(600)\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    print(os.getpid(), flush=True)\n"
        "    os.close(1)\n"
        "    bridge.main(None, 'x')\n"
        "time.sleep(0.3)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT, check=True
    )
    pid = int(done.stdout)
    until = time.monotonic() + LIMIT
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < until, "the bridge has outlived its tuner"
        time.sleep(0.02)
