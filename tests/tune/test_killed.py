"""kill -9 of a whole tuning run at random moments, over and over on one database: nothing that was
committed is lost, nothing is measured twice, and no process outlives its run.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO

import pytest

import tilesmith as ts
from tests.support.thorough import drawn
from tilesmith.testing.measurers import children

TURNS = drawn(4, 12)
_PR_SET_CHILD_SUBREAPER = 36


def product() -> ts.Function:
    a, b = ts.placeholder((24, 24), name="A"), ts.placeholder((24, 24), name="B")
    return ts.function([a, b, ts.ops.matmul(a, b, name="C")], name="product")


TASK = ts.Task(product(), ts.cpu(1))


@pytest.fixture
def adopting() -> Iterator[None]:
    """Orphans become our children, so that none goes unseen."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    yield
    prctl(_PR_SET_CHILD_SUBREAPER, 0)


def tuner(file: Path, trials: int) -> tuple[int, IO[str]]:
    """A process that tunes, and says after every batch how many records there are. It is forked
    and not started anew, which saves loading everything each time.
    """
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setsid()
            db = ts.open_database(file)

            def report(_: ts.Progress) -> None:
                os.write(writes, f"{db.count()}\n".encode())

            budget = ts.Budget(trials=trials)
            ts.tune(
                product(), ts.cpu(1), budget=budget, database=db, observers=[report], quiet=True
            )
            db.close()
            status = 0
        finally:
            os._exit(status)
    os.close(writes)
    return pid, os.fdopen(reads)


def keys(file: Path) -> list[str]:
    with ts.open_database(file) as db:
        return [m.candidate.key for m in db.of(TASK)]


def check_repeats(file: Path) -> None:
    """Each run measures the best of the runs before it again, and nothing else."""
    with ts.open_database(file) as db:
        records = db.of(TASK)
    for n, m in enumerate(records):
        before = [x for x in records[:n] if x.failure is None]
        if any(x.candidate == m.candidate for x in before):
            # which one it was is up to the clock, but it was one of the most reliable
            best = max((x.confirmed, not x.contended) for x in before)
            same = [x for x in before if x.candidate == m.candidate]
            assert best in [(x.confirmed, not x.contended) for x in same]


def wait_for_the_end_of(orphans: set[int]) -> None:
    """What a killed run leaves ends by itself, soon; a test that waits for it proves that."""
    deadline = time.monotonic() + 300
    for pid in orphans:
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            assert time.monotonic() < deadline, f"process {pid} is still there"
            time.sleep(0.005)


def check(file: Path) -> None:
    with closing(sqlite3.connect(file)) as c:
        assert c.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert c.execute("PRAGMA foreign_key_check").fetchall() == []


def test_killed_over_and_over_and_resumed(tmp_path: Path, adopting: None) -> None:
    file, rng = tmp_path / "t.db", random.Random(4)
    before = children()
    have: list[str] = []
    for _ in range(TURNS):
        pid, output = tuner(file, trials=100_000)
        lines = [output.readline() for _ in range(rng.choice((0, 1, 2, 2, 3)))]
        time.sleep(rng.random() / 3)  # into the middle of whatever it does then
        os.killpg(pid, signal.SIGKILL) if os.getpgid(pid) == pid else os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while left := children() - before:
            wait_for_the_end_of(left)
        with output:
            lines += output.readlines()  # what it could still say before it died
        found = keys(file)
        assert found[: len(have)] == have
        check_repeats(file)
        assert len(found) >= max((int(line) for line in lines if line.endswith("\n")), default=0)
        have = found
        check(file)
    assert len(set(have)) > TURNS, "the runs were killed before they did anything"
    pid, output = tuner(file, trials=len(set(have)) + 10)
    with output:
        output.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    wait_for_the_end_of(children() - before)
    found = keys(file)
    assert found[: len(have)] == have
    assert len(set(found)) == len(set(have)) + 10
    check_repeats(file)
    with ts.open_database(file) as db:
        best = db.best(TASK)
        assert best is None or best.failure is None
        assert len(db.tasks()) == 1
    check(file)
