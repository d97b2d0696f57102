"""Every fault of a candidate becomes a Failure of the right kind. The rest of the batch is
measured, and no process is left behind.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import planted
import pytest

import tilesmith as ts
from tests.support.thorough import drawn
from tilesmith.measure.local import LocalRun
from tilesmith.measure.messages import FORK_SERVER
from tilesmith.measure.parent.timing import TimingRules
from tilesmith.testing.measurers import children
from tilesmith.workers.pool import ForkServer

ROOT = Path(__file__).parent.parent.parent


def opened(timeout: float) -> LocalRun:
    settings = ts.LocalMeasurer(timeout=timeout, memory_nbytes=512 << 20)
    return settings.open(planted.task())


@pytest.fixture(scope="module")
def run() -> Iterator[LocalRun]:
    """A timeout that only endless loops reach, however busy the machine is."""
    with opened(300.0) as run:
        yield run


@pytest.fixture(scope="module")
def hasty() -> Iterator[LocalRun]:
    with opened(8.0) as run:
        yield run


FAULTS = [
    ("segfault", "crash", "SIGSEGV at address 0x10"),
    ("loop", "timeout", "no answer after"),
    ("allocate", "memory", "memory beyond the limit"),
    ("lie", "wrong", "max error inf at index [0]; 923 of 1000 elements are off"),
    ("write past", "bounds", "touched Y 0 bytes past its end"),
    ("write a row past", "bounds", "touched Y 20000 bytes past its end"),
    ("write before", "bounds", "before the begin of Y"),
    ("write far before", "bounds", "touched Y 20000 bytes before its begin"),
    ("read past", "bounds", "touched X 0 bytes past its end"),
    ("write input", "bounds", "wrote to X, which is read-only"),
    ("trap", "crash", "SIG"),
    ("abort", "crash", "SIGABRT"),
    ("leave", "crash", "exited with status 0"),
    ("overflow", "crash", "the stack overflowed"),
    ("missing", "build", "for want of: no_such_thing"),
    ("raise", "build", "what the builder says"),
    ("die", "crash", "while building: LLVM ERROR: Cannot select"),
    ("hang", "timeout", "while building"),
    ("hoard", "memory", "while building"),
    ("refuse", "schedule", "ScheduleError: no loop 'C.i'"),
    ("stumble", "schedule", "ZeroDivisionError: division by zero"),
]


@pytest.mark.parametrize(("fault", "kind", "text"), FAULTS, ids=[f[0] for f in FAULTS])
def test_fault(run: LocalRun, hasty: LocalRun, fault: str, kind: str, text: str) -> None:
    run = hasty if kind == "timeout" else run
    before, wrong, after = run.measure([planted.good(4), planted.bad(fault), planted.good(5)])
    # Code that was not measured before: it runs after the fault, perhaps in the same worker.
    (fresh,) = run.measure([planted.good(30 + [f for f, _, _ in FAULTS].index(fault))])
    assert wrong.failure is not None
    assert wrong.failure.kind == kind, wrong.failure
    assert text in wrong.failure.text
    assert "\n" not in wrong.failure.text
    assert before.seconds
    assert after.seconds
    assert fresh.seconds, fresh.failure


def test_every_fault_is_planted() -> None:
    assert {f[0] for f in FAULTS} >= set(planted.BODIES)


def test_all_at_once(run: LocalRun) -> None:
    quick = [f for f in FAULTS if f[1] != "timeout"]
    goods = [planted.good(n) for n in range(8, 8 + len(quick))]
    bads = [planted.bad(f) for f, _, _ in quick]
    measured = run.measure([c for pair in zip(bads, goods, strict=True) for c in pair])
    kinds = [m.failure.kind if m.failure else None for m in measured[0::2]]
    assert kinds == [kind for _, kind, _ in quick]
    assert not [m.failure for m in measured[1::2] if not m.seconds]


def group(fork_server: int) -> set[int]:
    """Ids of the fork server and its workers."""
    return {fork_server} | children(fork_server)


def gone(pids: set[int], seconds: float = 300.0) -> bool:
    end = time.monotonic() + seconds
    while any(Path(f"/proc/{p}").exists() for p in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def test_processes_end_with_the_run() -> None:
    with ts.LocalMeasurer().open(planted.task()) as run:
        run.measure([planted.good(4)])
        assert run._pool.fork_server is not None
        workers = group(run._pool.fork_server.pid)
        assert len(workers) >= 3
    assert gone(workers)


def test_a_run_that_is_closed_before_its_processes_are_up_says_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    fork_server: ForkServer[object] = ForkServer(FORK_SERVER)
    fork_server.close()
    assert capfd.readouterr() == ("", "")


def test_processes_end_with_their_owner() -> None:
    """Even if the owner is killed."""
    code = (
        "import planted, tilesmith as ts, time\n"
        "run = ts.LocalMeasurer(timeout=100).open(planted.task())\n"
        "run.measure([planted.good(4)])\n"
        "print(run._pool.fork_server.pid, flush=True)\n"
        "run.measure([planted.bad('sleep'), planted.bad('loop')])\n"
    )
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as owner:
        assert owner.stdout is not None
        workers = group(int(owner.stdout.readline()))
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    assert gone(workers)


def test_interrupted_in_the_middle() -> None:
    """The next batch does not read answers to requests of the interrupted one."""
    run = ts.LocalMeasurer(timeout=60).open(planted.task())
    with run:
        run.measure([planted.good(4)])
        old = signal.signal(signal.SIGALRM, interrupt)
        callbacks, gc.callbacks[:] = gc.callbacks[:], []  # an interrupt inside of one is dropped
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(KeyboardInterrupt):
                run.measure([planted.bad("sleep"), planted.good(5)])
        finally:
            gc.callbacks[:] = callbacks
            signal.signal(signal.SIGALRM, old)
        assert all(m.seconds for m in run.measure([planted.good(6), planted.good(7)]))


def test_closed_from_another_thread() -> None:
    run = ts.LocalMeasurer(timeout=60).open(planted.task())
    run.measure([planted.good(4)])
    timer = threading.Timer(0.3, run.close)
    timer.start()
    with pytest.raises(ts.MeasureError):
        run.measure([planted.bad("sleep"), planted.good(5)])
    timer.join()


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_workers_that_someone_ends_are_replaced() -> None:
    with ts.LocalMeasurer().open(planted.task()) as run:
        run.measure([planted.good(4)])
        assert run._pool.fork_server is not None
        fork_server = run._pool.fork_server.pid
        for worker in group(fork_server) - {fork_server}:
            os.kill(worker, signal.SIGKILL)
        measured = run.measure([planted.good(n) for n in (5, 6, 7, 8)])
        assert all(m.seconds for m in measured)  # those at work are built or run again
        os.kill(fork_server, signal.SIGKILL)
        assert all(m.seconds for m in run.measure([planted.good(n) for n in (9, 10)]))


def resident_kb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


def test_memory_stays_flat() -> None:
    """Over some hundred candidates, some of which crash. They are not compared with each other."""
    with ts.LocalMeasurer(rules=TimingRules(min_seconds=0.0), confirm=False).open(
        planted.task()
    ) as run:
        assert run._pool.fork_server is not None
        pids = (os.getpid(), run._pool.fork_server.pid)
        sizes = []
        each = drawn(12, 36)
        for start in range(1, 280, 40):
            batch = [planted.good(n) for n in range(start, start + each)]
            run.measure([*batch, planted.bad("segfault"), planted.bad("write past")])
            sizes.append([resident_kb(p) for p in pids])
        for early, late in zip(sizes[2], sizes[-1], strict=True):
            assert late - early < 8 << 10, sizes
        fds = len(list(Path(f"/proc/{run._pool.fork_server.pid}/fd").iterdir()))
        assert fds < 32
