"""What a fleet loses costs a retry elsewhere, and nothing else: every candidate has one result. On
a fleet in this process, whose machines are simulated.
"""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from fleet_pools import LocalFleet, LocalPool, Machine, fleet

import tilesmith as ts
from tilesmith.measure.fleet.device import TunerBuilds
from tilesmith.measure.fleet.host import DeviceHost
from tilesmith.measure.fleet.messages import Settings, read_request, write_request
from tilesmith.measure.fleet.offer import ACCEPTS_CODE, Offer
from tilesmith.measure.parent.timing import TimingRules
from tilesmith.testing.measurers import seconds_by_digest, small_task, split_by

TASK = small_task()
A, B = ts.placeholder((32, 32), name="A"), ts.placeholder((32, 32), name="B")
MATMUL = ts.Task(ts.function([A, B, ts.ops.matmul(A, B, name="C")], name="matmul"), ts.cpu(1))
SETTINGS = Settings(10.0, False, 1 << 30, True, 0, TimingRules())


def close(measurer: LocalFleet) -> None:
    for host in measurer.hosts.values():
        host.close()


def test_every_device_gets_work_and_a_slow_one_gets_less() -> None:
    machines = [Machine("a"), Machine("b"), Machine("slow", seconds=0.05)]
    measurer = fleet(machines)
    candidates = [split_by(n, TASK) for n in range(2, 90)]
    with measurer.open(TASK) as run:
        measured = run.measure(candidates)
    close(measurer)
    assert [m.candidate for m in measured] == candidates
    assert all(m.cost == pytest.approx(seconds_by_digest(m.candidate)) for m in measured)
    a, b, slow = (sum(m.measured.values()) for m in machines)
    assert a + b + slow == len(candidates)
    assert 0 < slow < min(a, b)


@pytest.mark.parametrize("how", ["dead", "hung"])
def test_what_a_lost_device_had_is_measured_elsewhere(how: str) -> None:
    machines = [Machine("a", 0.01), Machine("b", 0.01), Machine("lost", 0.01)]
    measurer = fleet(machines, patience=1.5)
    candidates = [split_by(n, TASK) for n in range(2, 60)]
    heard: list[ts.Measurement] = []
    with measurer.open(TASK) as run:
        run.report_to(heard.extend)
        (pool,) = measurer.pools
        timer = threading.Timer(0.1, lambda: getattr(pool, how).add("lost"))
        timer.start()
        measured = run.measure(candidates)
        pool.hung.clear()
    close(measurer)
    assert [m.candidate for m in measured] == candidates
    assert all(m.failure is None for m in measured)
    assert sorted(m.candidate.key for m in heard) == sorted(c.key for c in candidates)


def test_a_candidate_with_which_every_worker_dies_has_failed() -> None:
    measurer = fleet([Machine(f"m{k}", 0.02) for k in range(6)])
    bad = split_by(5, TASK)

    class Deadly(LocalPool):
        def call(self, device: str, method: str, *args: Any) -> int:
            if method == "submit" and [bad.key] == [*json.loads(args[0])["traces"]]:
                self.dead.add(device)  # a request of this candidate alone
            return super().call(device, method, *args)

    pool = Deadly(measurer.hosts)
    with LocalFleetOf(pool).open(TASK) as run:
        measured = run.measure([split_by(n, TASK) for n in (2, 3, 5, 7)])
    close(measurer)
    (failed,) = [m for m in measured if m.failure is not None]
    assert failed.candidate == bad
    assert "2 workers were lost" in failed.failure.text
    assert len(measured) == 4


class LocalFleetOf(LocalFleet):
    def __init__(self, pool: LocalPool) -> None:
        super().__init__(retries=1, wait=2.0)
        object.__setattr__(self, "given", pool)

    def pool(self) -> LocalPool:
        given: LocalPool = self.__dict__["given"]
        return given


def test_a_head_that_dies_ends_the_run_with_what_there_is() -> None:
    measurer = fleet([Machine("a", 0.005)])
    database = ts.open_database(":memory:")

    def observe(progress: ts.Progress) -> None:
        if progress.trials > 20:
            measurer.pools[-1].head_is_dead = True

    with pytest.warns(UserWarning, match="ended early: the Ray cluster"):
        result = ts.tune(
            MATMUL.func, MATMUL.target, measurer=measurer, database=database, quiet=True,
            budget=ts.Budget(trials=500), strategy=ts.Random(), observers=[observe],
        )  # fmt: skip
    close(measurer)
    assert "head" in str(result.error)
    before = database.count(MATMUL)
    assert before == result.trials > 20
    again = ts.tune(
        MATMUL.func, MATMUL.target, measurer=fleet([Machine("b", 0.0)]), database=database,
        quiet=True, budget=ts.Budget(trials=before + 16), strategy=ts.Random(),
    )  # fmt: skip
    assert again.error is None
    keys = [m.candidate.key for m in database.of(MATMUL)]
    assert len(set(keys)) == before + 16  # what was measured before counts


def test_tuning_counts_every_trial_once_and_does_not_wait_for_a_slow_device() -> None:
    machines = [Machine("a"), Machine("b"), Machine("slow", seconds=0.3)]
    measurer = fleet(machines)
    database = ts.open_database(":memory:")
    result = ts.tune(
        MATMUL.func, MATMUL.target, measurer=measurer, database=database, quiet=True,
        budget=ts.Budget(trials=40), strategy=ts.Random(),
    )  # fmt: skip
    close(measurer)
    assert result.trials == 40 == database.count(MATMUL)
    assert all(n == 1 for m in machines for n in m.measured.values())
    assert {m.machine for m in database.of(MATMUL)} == {
        str(h._offer) for h in measurer.hosts.values()
    }


def test_two_tuners_share_a_device_in_turns() -> None:
    machine = Machine("one", 0.005)
    measurer = fleet([machine])
    tasks = small_task(), small_task(60)
    runs = [measurer.open(t) for t in tasks]
    with ThreadPoolExecutor() as threads:
        batches = ([split_by(n, t) for n in range(2, 42)] for t in tasks)
        done = [*threads.map(lambda run, batch: run.measure(batch), runs, batches)]
    assert [len(measured) for measured in done] == [40, 40]
    for run in runs:
        run.close()
    close(measurer)
    half = machine.order[: len(machine.order) // 2]
    share = half.count(tasks[0].func.name) / len(half)
    assert 0.2 <= share <= 0.8


def test_without_a_worker_for_the_target_the_error_says_what_there_is() -> None:
    other = ts.Task(TASK.func, ts.Target.named("skylake-avx512" if _is_arm() else "neoverse-v1"))
    measurer = fleet([Machine("a")], wait=0.2)
    candidate = replace(split_by(4, TASK), task=other)
    with measurer.open(other) as run, pytest.raises(ts.MeasureError, match="the architectures"):
        run.measure([candidate])
    close(measurer)


def _is_arm() -> bool:
    return ts.cpu().arch == "aarch64"


def request(task: ts.Task = TASK, **changes: Any) -> str:
    text, _ = write_request("t", "1", SETTINGS, [split_by(4, task)], {})
    return json.dumps({**json.loads(text), **changes})


def test_a_worker_refuses_what_is_not_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ACCEPTS_CODE, raising=False)
    host = DeviceHost("cpu", Machine("a"))
    other = ts.Target.named("skylake-avx512" if _is_arm() else "neoverse-v1")
    assert "the architectures differ" in host.submit(request(ts.Task(TASK.func, other)), [])
    assert "code generator 0" in host.submit(request(codegen="0"), [])
    assert "not what its key says" in host.submit(request(statement="no"), [])
    assert "cannot be read" in host.submit("[1, 2]", [])
    assert "cannot be read" in host.submit(request(func="{}"), [])
    artifact = ts.LlvmBackend().compile(split_by(4, TASK).trace.apply(TASK.func), TASK.target)
    key = split_by(4, TASK).key
    text, code = write_request("t", "1", SETTINGS, [split_by(4, TASK)], {key: artifact})
    assert "compiled itself" in host.submit(text, code)
    assert "its digest differs" in host.submit(text, [code[0][:-1] + b"?"])
    elsewhere = replace(artifact, target=other)
    text, code = write_request("t", "1", SETTINGS, [split_by(4, TASK)], {key: elsewhere})
    assert "code is for" in host.submit(text, code)
    assert host.submit(request(), []) == ""
    until = time.monotonic() + 300
    while (
        not (answers := json.loads(host.collect("t", 1.0))["answers"]) and time.monotonic() < until
    ):
        pass
    assert answers[0]["key"] == key
    host.close()


def test_an_offer_is_read_as_written() -> None:
    host = DeviceHost("cpu", Machine("a"))
    offer = Offer.from_json(host.describe())
    assert offer.to_json() == host.describe()
    assert offer.target == ts.cpu()
    with pytest.raises(ts.MeasureError, match="not the offer"):
        Offer.from_json("{}")


def test_code_for_another_architecture_travels_as_data() -> None:
    """The tuner compiles for a machine that is not this one; its worker rebuilds the artifact."""
    other = ts.Task(TASK.func, ts.Target.named("skylake-avx512" if _is_arm() else "neoverse-v1"))
    candidate = replace(split_by(4, TASK), task=other)
    builds = TunerBuilds(60.0, 1 << 30)
    try:
        builds.begin([candidate])
        until = time.monotonic() + 300
        while not (done := list(builds.finished())) and time.monotonic() < until:
            time.sleep(0.01)
    finally:
        builds.close()
    ((built, artifact),) = done
    assert built == candidate
    assert isinstance(artifact, ts.Artifact)
    text, code = write_request("t", "1", SETTINGS, [candidate], {candidate.key: artifact})
    request = read_request(text, code)
    assert request.candidates == (candidate,)
    func = candidate.trace.apply(TASK.func)
    assert request.compiled[candidate.key](func, other.target) == artifact
