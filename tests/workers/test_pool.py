"""Processes end with their owner. A pool replaces those that die, are late or have done much."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tilesmith.workers.pool import Lost, Pool, Process, python_path
from tilesmith.workers.wire import Gone, ready


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def is_gone(pid: int, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def asked(process: Process, message: object) -> Any:
    process.channel.send(message)
    return process.channel.receive()


def test_a_process_has_its_arguments_and_cores() -> None:
    core = max(os.sched_getaffinity(0))
    process = Process("worker_main", "its name", cores=(core,))
    assert asked(process, "who") == (process.pid, "its name", [core])
    assert process.status() is None
    process.close()
    assert process.status() == 0  # by itself, since its channel was closed


def test_a_process_that_is_dropped_ends() -> None:
    process = Process("worker_main")
    pid = process.pid
    asked(process, "hello")
    del process
    assert is_gone(pid)


def test_one_that_does_not_end_is_killed() -> None:
    process = Process("worker_main", patience=0.05)
    process.channel.send("sleep")
    process.close()
    assert process.status() == -signal.SIGKILL
    with pytest.raises(Gone):
        process.channel.send("hello")


def test_a_process_ends_with_an_owner_that_is_killed() -> None:
    """Even while a child of the owner holds its end of the channel open."""
    code = (
        "import os, time\n"
        "from tilesmith.workers.pool import Process\n"
        "process = Process('worker_main')\n"
        "process.channel.send('hello')\n"
        "process.channel.receive()\n"
        "if not os.fork():\n"
        "    print(os.getpid(), process.pid, flush=True)\n"
        "time.sleep(1000)\n"
    )
    environment = {**os.environ, "PYTHONPATH": python_path()}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    ) as owner:
        assert owner.stdout is not None
        holder, pid = map(int, owner.stdout.readline().split())
        try:
            owner.kill()
            owner.wait()
            assert Path(f"/proc/{holder}").exists()
            assert is_gone(pid)
        finally:
            os.kill(holder, signal.SIGKILL)


def stop(process: Process, kill: bool) -> int | None:
    status = None if kill else process.status(10.0)
    process.close()
    return status


def opened(seconds: float = 60.0, most_jobs: float = 100) -> Iterator[Pool[str, int | None]]:
    pool: Pool[str, int | None] = Pool(
        range(2), lambda _: Process("worker_main", patience=0.0), stop, seconds, most_jobs
    )
    try:
        yield pool
    finally:
        pool.close()


@pytest.fixture
def pool() -> Iterator[Pool[str, int | None]]:
    yield from opened()


def finished(pool: Pool[str, int | None], seconds: float = 60.0) -> dict[str, Any]:
    """Answers by job, when all that were given are done."""
    done: dict[str, Any] = {}
    while pool.busy:
        assert ready(pool.channels, min(seconds, pool.deadline - time.monotonic() + 0.01)) or (
            time.monotonic() > pool.deadline
        )
        done |= {job: answer for job, _, answer in pool.serve()}
    return done


def test_each_place_does_a_job(pool: Pool[str, int | None]) -> None:
    for place, job in zip(pool.places, "ab", strict=True):
        pool.give(place, job, "who")
    answers = finished(pool)
    assert {pid for pid, _, _ in answers.values()} == {p.worker.pid for p in pool.places}
    assert not pool.channels


def test_time_in_which_others_have_the_core_does_not_count() -> None:
    """Three jobs take three times as long on one core, and none of them is late."""
    core = min(os.sched_getaffinity(0))
    pool: Pool[str, int | None] = Pool(
        range(3), lambda _: Process("worker_main", cores=(core,), patience=0.0), stop, 0.5
    )
    try:
        for place, job in zip(pool.places, "abc", strict=True):
            assert isinstance(place.worker, Process)
            assert asked(place.worker, "hello") == "hello"  # it has started
            pool.give(place, job, ("spin", 0.3))
        assert finished(pool) == dict.fromkeys("abc", ("spin", 0.3))
        pool.give(pool.places[0], "endless", ("spin", 1000))
        pool.give(pool.places[1], "idle", "sleep")
        assert finished(pool) == dict.fromkeys(("endless", "idle"), Lost(None, late=True))
    finally:
        pool.close()


def test_a_worker_that_dies_is_replaced(pool: Pool[str, int | None]) -> None:
    first, second = pool.places
    pid = first.worker.pid
    pool.give(first, "a", "die")
    pool.give(second, "b", "hello")
    assert finished(pool) == {"a": Lost(-signal.SIGKILL, late=False), "b": "hello"}
    assert first.worker.pid != pid
    pool.give(first, "c", "hello")
    assert finished(pool) == {"c": "hello"}


def test_one_that_has_died_before_its_job_is_noticed(pool: Pool[str, int | None]) -> None:
    place = pool.places[0]
    os.kill(place.worker.pid, signal.SIGKILL)
    assert is_dead(place.worker.pid)
    pool.give(place, "a", "hello")
    assert finished(pool) == {"a": Lost(-signal.SIGKILL, late=False)}


def is_dead(pid: int) -> bool:
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_a_late_worker_is_ended() -> None:
    for pool in opened(seconds=0.05):
        place = pool.places[0]
        pid = place.worker.pid
        pool.give(place, "a", "sleep")
        assert finished(pool) == {"a": Lost(None, late=True)}
        assert is_gone(pid)
        assert place.worker.pid != pid


def test_a_worker_is_replaced_after_its_jobs() -> None:
    for pool in opened(most_jobs=2):
        place, seen = pool.places[0], []
        for _ in range(4):
            pool.give(place, "a", "who")
            seen.append(finished(pool)["a"][0])
        assert seen[0] == seen[1] != seen[2] == seen[3]
