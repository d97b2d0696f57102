"""The thread pool: every index once, whoever calls, and no trouble at fork and exit."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from pool_bodies import Region

from tilesmith.base.machines.aarch64 import AARCH64
from tilesmith.base.target import Target, set_num_threads
from tilesmith.codegen.llvm.compiler import assembly, compile_ir
from tilesmith.runtime.threads import pool_source

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("num_threads", [-1, 0, 1, 2, 3, 8, 1000])
@pytest.mark.parametrize("n", [1, 2, 7, 64, 1000])
def test_every_index_is_visited_once(n: int, num_threads: int) -> None:
    region = Region(n + 10)
    region.run("visit", n, num_threads)
    np.testing.assert_array_equal(region.visits, [1] * n + [0] * 10)
    assert region.who[:n].min() >= 0
    assert region.who.max() < max(1, min(num_threads, 256))


@pytest.mark.parametrize("n", [0, -3])
def test_an_empty_range_calls_nothing(n: int) -> None:
    region = Region(4)
    region.run("visit", n, 2)
    assert not region.visits.any()


def test_the_workers_do_work() -> None:
    Region(60).run_until_all_took_part("slow", 60, 3)


def test_threads_of_equal_speed_keep_to_their_own_parts() -> None:
    """What a thread wrote in one kernel is in its cache when it runs the same part of the next."""
    until = time.monotonic() + 30
    while time.monotonic() < until:  # on a busy machine one thread helps the other
        region = Region(64)
        region.run("slow", 64, 2)
        if list(region.who) == [0] * 32 + [1] * 32:
            return
    raise AssertionError(f"the threads of 64 indices, in the last try: {list(region.who)}")


def test_fewer_threads_than_the_pool_has() -> None:
    Region(60).run_until_all_took_part("slow", 60, 5)
    for _ in range(5):
        region = Region(20)
        region.run("slow", 20, 2)
        assert set(region.who) <= {0, 1}


def test_the_limit_of_the_process_holds_for_code_that_asks_for_more() -> None:
    Region(60).run_until_all_took_part("slow", 60, 3)
    set_num_threads(1)
    try:
        for _ in range(3):
            region = Region(60)
            region.run("slow", 60, 3)
            assert set(region.who) == {0}
            assert region.visits.tolist() == [1] * 60
    finally:
        set_num_threads(None)
    Region(60).run_until_all_took_part("slow", 60, 3)


def test_one_thread_is_the_caller_in_one_go() -> None:
    region = Region(60)
    region.run("visit", 60, 1)
    assert set(region.who) == {0}


def test_thread_numbers_are_unique_among_those_running() -> None:
    region = Region(200)
    region.run_until_all_took_part("alone", 200, 4)
    assert region.cells[255] == 0


def test_thousands_of_dispatches() -> None:
    region = Region(40)
    for i in range(5000):
        region.run("visit", 1 + i % 40, 2 + i % 3)
    want = sum(np.arange(40) < 1 + i % 40 for i in range(5000))
    np.testing.assert_array_equal(region.visits, want)


def test_dispatches_after_the_workers_went_to_sleep() -> None:
    region = Region(10)
    for _ in range(100):
        time.sleep(0.0005)
        region.run("visit", 10, 3)
    assert (region.visits == 100).all()


def test_callers_from_several_python_threads() -> None:
    regions = [Region(100) for _ in range(3)]

    def many(region: Region) -> None:
        for _ in range(1000):
            region.run("visit", 100, 2)

    callers = [threading.Thread(target=many, args=(r,)) for r in regions]
    for c in callers:
        c.start()
    for c in callers:
        c.join(timeout=300)
    for r in regions:
        assert (r.visits == 1000).all()


def test_a_region_inside_a_region() -> None:
    region = Region(50)
    region.run("nested", 20, 3)
    assert (region.visits == 20).all()


_IMPORT = "from pool_bodies import Region\n"


def _python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        # From 3.12 on, Python warns of forks in a process with threads; here they are meant.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", f"{_IMPORT}{script}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}"},
        capture_output=True,
        text=True,
        timeout=300,
    )


_IDLE = """
import os, signal, time
from pathlib import Path
Region(30).run("slow", 30, 3)
deadline = time.monotonic() + 120
while True:
    tasks = [t for t in Path("/proc/self/task").iterdir() if int(t.name) != os.getpid()]
    status = [(t / "status").read_text() for t in tasks]
    if all("State:\\tS" in s for s in status):
        break
    assert time.monotonic() < deadline, "a worker spins for ever"
    time.sleep(0.01)
blocked = [int(s.split("SigBlk:")[1].split()[0], 16) for s in status]
workers = [b for b in blocked if b >> (signal.SIGINT - 1) & 1]
assert len(workers) == 2, blocked
assert not any(b >> (signal.SIGSEGV - 1) & 1 for b in workers), blocked
print("end")
"""


def test_idle_workers_sleep_and_leave_signals_to_python() -> None:
    done = _python(_IDLE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


_MOVED = """
import ctypes, os
from pathlib import Path
here = ctypes.CDLL(None).sched_getcpu
cores = os.sched_getaffinity(0)
Region(30).run("slow", 30, 3)
threads = {int(t.name) for t in Path("/proc/self/task").iterdir()} - {os.getpid()}
threads = {t for t in threads if os.sched_getaffinity(t) != cores}
assert len(threads) == 2, threads
checked = 0
for core in list(cores)[:4] * 10:
    os.sched_setaffinity(0, {core})
    os.sched_setaffinity(0, cores)
    before = here()
    Region(30).run("visit", 30, 3)
    if before == here() == core:
        checked += 1
        for t in threads:
            assert os.sched_getaffinity(t) == cores - {core}, (core, os.sched_getaffinity(t))
assert checked, "the caller was moved every time"
print("end")
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_workers_keep_off_the_core_that_the_caller_has_moved_to() -> None:
    done = _python(_MOVED)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("Region(9).run('visit', 9, 3)", id="spinning"),
        pytest.param("Region(9).run('visit', 9, 3)\nimport time; time.sleep(0.05)", id="asleep"),
        pytest.param(
            "import threading, time\n"
            "t = threading.Thread(target=Region(10**6).run, args=('slow', 10**6, 3), daemon=True)\n"
            "t.start(); time.sleep(0.05)",
            id="working",
        ),
    ],
)
def test_the_process_ends(script: str) -> None:
    done = _python(script + "\nprint('end')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


_FORK = """
import os, threading, time
def use():
    Region(60).run_until_all_took_part("slow", 60, 3)
def child():
    # alone here, and so the owner of the pool: nobody takes it away
    try:
        use()
        os._exit(7)
    finally:
        os._exit(1)
use()
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        child()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
use()
# with a region under way in another thread, and code being compiled in a third
going = True
def keep(f):
    while going:
        f()
from tilesmith.base.target import cpu
from tilesmith.codegen.llvm.compiler import compile_ir
nothing = "define void @tilesmith_entry() {\\n ret void\\n}\\n"
compiling = lambda: compile_ir("f", nothing, cpu(), ())
looping = lambda: Region(60).run("slow", 60, 3)
threads = [threading.Thread(target=keep, args=(f,)) for f in (looping, compiling)]
for t in threads:
    t.start()
for _ in range(5):
    time.sleep(0.01)
    pid = os.fork()
    if pid == 0:
        compiling()
        child()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
going = False
for t in threads:
    t.join()
use()
print("end")
"""


def test_a_forked_child_has_threads_of_its_own() -> None:
    done = _python(_FORK)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


@pytest.mark.parametrize("name", ["neoverse-n1", "cortex-a53"])
def test_the_pool_compiles_for_aarch64(name: str) -> None:
    text = assembly(compile_ir("threads", pool_source(AARCH64), Target.named(name), ()))
    assert "CNTVCT_EL0" in text
    assert "yield" in text
    assert "#98" in text  # the futex system call
