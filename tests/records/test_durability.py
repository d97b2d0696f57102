"""What was committed stays: killed processes, several writers, torn files, full disks, damage."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

import pytest
from sqlalchemy import event

import tilesmith as ts
from tests.support.thorough import drawn
from tilesmith.records import sql
from tilesmith.records.connect import use_wal
from tilesmith.testing.measurements import measured, task_of

HERE = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
TASK = task_of()
BATCH = 7


def adder(place: str | Path, first: int, limit: int | None = None) -> tuple[int, IO[str]]:
    """A process that adds to a database, and says after each add how many it has added.

    It is forked and not started anew, which takes a hundredth of the time: many can be killed.
    """
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            added, db = 0, ts.open_database(place)
            while limit is None or added < limit:
                db.add([measured(TASK, first + added + k) for k in range(BATCH)])
                added += BATCH
                os.write(writes, f"{added}\n".encode())
            db.close()
            status = 0
        finally:
            os._exit(status)
    os.close(writes)
    return pid, os.fdopen(reads)


def keys(numbers) -> list[str]:
    return [measured(TASK, k).candidate.key for k in numbers]


def check_file(file: Path) -> None:
    with closing(sqlite3.connect(file)) as c:
        assert c.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert c.execute("PRAGMA foreign_key_check").fetchall() == []


# processes
def test_a_killed_process_loses_nothing_that_was_committed(tmp_path):
    file = tmp_path / "a.db"
    rng = random.Random(1)
    have: list[str] = []
    for turn in range(drawn(8, 15)):
        first = 100_000 * turn
        pid, output = adder(file, first)
        lines = [output.readline() for _ in range(rng.randrange(0, 30))]
        time.sleep(rng.random() / 100)  # into the middle of whatever it does then
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with output:
            lines += output.readlines()  # what it could still say before it died
        said = int(lines[-1]) if lines else 0
        with ts.open_database(file) as db:
            found = [m.candidate.key for m in db.of(TASK)]
        assert found[: len(have)] == have
        new = len(found) - len(have)
        assert new >= said
        assert new % BATCH == 0  # an add is there whole, or not at all
        assert found[len(have) :] == keys(range(first, first + new))
        have = found
        check_file(file)


def test_three_processes_on_a_new_database_lose_nothing(new_place):
    place, each = new_place(), 12 * BATCH
    processes = [adder(place, 100_000 * k, each) for k in range(3)]
    for pid, output in processes:
        with output:
            assert len(output.readlines()) == 12
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with ts.open_database(place) as db:
        found = [m.candidate.key for m in db.of(TASK)]
        assert len(found) == 3 * each
        for k in range(3):
            own = keys(range(100_000 * k, 100_000 * k + each))
            known = set(own)
            assert [key for key in found if key in known] == own
        assert len(db.tasks()) == 1


def in_child(work: Callable[[], int]) -> int:
    """Forks a process; its status is what `work` returns, or not that if it does not end."""
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            signal.alarm(120)  # a busy machine may take long over it
            status = work()
        finally:
            os._exit(status)
    return pid


def status_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_fork_is_told_not_to_use_what_its_parent_opened(tmp_path):
    file = tmp_path / "a.db"
    with ts.open_database(file) as db:
        db.add([measured(TASK, 0)])

        def work() -> int:
            for use in (db.count, lambda: db.add([measured(TASK, 1)])):
                with pytest.raises(ts.RecordsError, match="was opened before this process was"):
                    use()
            return 7

        assert status_of(in_child(work)) == 7
        db.add([measured(TASK, 2)])
        assert db.of(TASK) == [measured(TASK, 0), measured(TASK, 2)]


def test_many_may_make_one_file_at_once(tmp_path):
    for k in range(drawn(5, 10)):
        file, start = tmp_path / f"{k}.db", time.monotonic() + 0.03

        def work(file: Path = file, start: float = start) -> int:
            while time.monotonic() < start:
                pass
            return ts.open_database(file).count()

        for child in [in_child(work) for _ in range(6)]:
            assert status_of(child) == 0
        check_file(file)


def test_the_change_to_a_log_is_tried_again_when_it_is_refused():
    """Which happens to one in hundreds of processes that open a new file at once."""
    said = ["database is locked", "database is locked"]

    class Connection:
        def execute(self, _: str) -> Connection:
            if said:
                raise sqlite3.OperationalError(said.pop())
            return self

        def fetchall(self) -> list[object]:
            return []

    use_wal(Connection())
    assert said == []
    said.append("disk I/O error")
    with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
        use_wal(Connection())


# files
def test_a_torn_log_loses_only_what_was_not_committed(tmp_path):
    file, copy = tmp_path / "a.db", tmp_path / "copy.db"
    with ts.open_database(file) as db:
        sizes = []
        for k in range(8):
            db.add([measured(TASK, BATCH * k + j) for j in range(BATCH)])
            sizes.append((tmp_path / "a.db-wal").stat().st_size)
        log = (tmp_path / "a.db-wal").read_bytes()
        assert sizes[-1] == len(log)
        assert sizes == sorted(set(sizes))  # the log holds every add, one after the other
        for cut in range(0, len(log) + 1, 3000):
            shutil.copy(file, copy)
            (tmp_path / "copy.db-wal").write_bytes(log[:cut])
            with ts.open_database(copy) as torn:
                found = torn.of(TASK)
            whole = sum(size <= cut for size in sizes)
            assert found == [measured(TASK, k) for k in range(BATCH * whole)]
            check_file(copy)


def limit_pages(db, more: int) -> None:
    """As if the disk had room for so many more pages."""
    engine = db._at.engine

    @event.listens_for(engine, "connect")
    def limit(connection, _):
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + more}")

    engine.dispose()


def test_a_full_disk_is_said_and_nothing_is_lost(tmp_path):
    file = tmp_path / "full.db"
    with ts.open_database(file) as db:
        db.add([measured(TASK, k) for k in range(10)])
        limit_pages(db, 3)
        with pytest.raises(ts.RecordsError, match=r"full.db: the disk is full. Nothing of this"):
            db.add([measured(TASK, 100 + k) for k in range(500)])
        assert db.of(TASK) == [measured(TASK, k) for k in range(10)]
        db.add([measured(TASK, 10)])  # there is room for this one
        assert db.count() == 11
    check_file(file)
    with ts.open_database(file) as db:  # there is room again
        db.add([measured(TASK, 100 + k) for k in range(500)])
        assert db.count() == 511


FILLER = """
import resource, signal, sys
import tilesmith as ts
from tilesmith.records.connect import use_wal
from tests.support.thorough import drawn
from tilesmith.testing.measurements import measured, task_of
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
db, k = ts.open_database(sys.argv[1]), 0
try:
    while True:
        db.add([measured(task_of(), k + j) for j in range(7)])
        k += 7
except ts.RecordsError as e:
    print(k, e)
"""


def test_a_write_that_is_cut_short_is_said_and_nothing_is_lost(tmp_path):
    file = tmp_path / "short.db"
    out = subprocess.run(
        [sys.executable, "-c", FILLER, str(file)],
        capture_output=True,
        text=True,
        check=True,
        env=HERE,
    ).stdout
    said, text = out.split(" ", 1)
    assert int(said) > 0
    assert "short.db: the disk" in text
    with ts.open_database(file) as db:
        assert db.of(TASK) == [measured(TASK, k) for k in range(int(said))]
    check_file(file)


def test_a_truncated_file_is_named(tmp_path):
    file, cut = tmp_path / "whole.db", tmp_path / "cut.db"
    with ts.open_database(file) as db:
        db.add([measured(TASK, k) for k in range(200)])
    data = file.read_bytes()
    for length in (1, 2, 20, 100, 1000, 4096, len(data) // 2, len(data) - 4096, len(data) - 1):
        cut.write_bytes(data[:length])
        with pytest.raises(ts.RecordsError, match=r"cut.db: this file is") as e:
            ts.open_database(cut).of(TASK)
        assert "\n" not in str(e.value)
        assert cut.read_bytes() == data[:length]  # what may be saved of it is not touched


def test_a_damaged_page_is_named(tmp_path):
    file = tmp_path / "damaged.db"
    with ts.open_database(file) as db:
        db.add([measured(TASK, k) for k in range(200)])
    data = bytearray(file.read_bytes())
    data[4096:] = b"\x5a" * (len(data) - 4096)
    file.write_bytes(data)
    with pytest.raises(ts.RecordsError, match=r"damaged.db: this file is damaged"):
        ts.open_database(file).of(TASK)


def test_a_file_of_something_else_is_named_and_left_alone(tmp_path):
    file = tmp_path / "notes.txt"
    text = "These are not the records you are looking for.\n" * 100
    file.write_text(text)
    with pytest.raises(ts.RecordsError, match=r"notes.txt: this file is not a database"):
        ts.open_database(file)
    assert file.read_text() == text


def test_an_empty_file_becomes_a_database(tmp_path):
    file = tmp_path / "empty.db"
    file.touch()
    with ts.open_database(file) as db:
        assert db.count() == 0


# places
def test_a_place_that_cannot_be_is_named(tmp_path):
    with pytest.raises(ts.RecordsError, match=r"cannot be opened: does its folder exist") as e:
        ts.open_database(tmp_path / "no/such/folder.db")
    assert str(tmp_path) in str(e.value)


@pytest.mark.parametrize("name", [".", "..", "/", "folder", "folder/", "sqlite:///folder"])
def test_a_folder_is_no_database(tmp_path, monkeypatch, name):
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ts.RecordsError, match="is a folder, not a database; name a file in it"):
        ts.open_database(name)


@contextmanager
def closed_to_others() -> Iterator[Path]:
    """A folder with a database, and with nothing in it that may be written to."""
    folder = Path(tempfile.mkdtemp(prefix="tilesmith-"))
    try:
        with ts.open_database(folder / "a.db") as db:
            db.add([measured(TASK, 0), measured(TASK, 1)])
        (folder / "a.db").chmod(0o444)
        folder.chmod(0o555)
        yield folder
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


_MAY_WRITE_ANYWHERE = 1  # CAP_DAC_OVERRIDE


def drop_right_to_write_anywhere() -> None:
    """To root nothing is closed. Another user might not be able to read what Python imports late,
    so the process stays root, without the one capability that opens files whatever their mode.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # of this form, for this process
    sets = (ctypes.c_uint32 * 6)()  # twice: effective, permitted, inheritable; of 32 each
    assert libc.capget(header, sets) == 0
    for k in range(3):
        sets[k] &= ~(1 << _MAY_WRITE_ANYWHERE)
    assert libc.capset(header, sets) == 0, os.strerror(ctypes.get_errno())


def reading(work: Callable[[], None]) -> int:
    """In a process that may not write there."""

    def as_reader() -> int:
        if os.geteuid() == 0:
            drop_right_to_write_anywhere()
        work()
        return 7

    return status_of(in_child(as_reader))


def test_what_may_not_be_written_to_can_be_read():
    with closed_to_others() as folder:

        def work() -> None:
            with ts.open_database(folder / "a.db") as db:
                assert db.of(TASK) == [measured(TASK, 0), measured(TASK, 1)]
                assert db.best(TASK) == measured(TASK, 0)
                assert [t.count for t in db.tasks()] == [2]
                for write in (
                    lambda: db.add([measured(TASK, 2)]),
                    lambda: db.save_state(TASK, "search", b""),
                    lambda: db.prune(failures=True),
                ):
                    with pytest.raises(ts.RecordsError, match=r"a\.db may not be written to"):
                        write()
                assert db.count() == 2
            with pytest.raises(ts.RecordsError, match=r"b\.db: cannot be opened"):
                ts.open_database(folder / "b.db")

        before = sorted(p.name for p in folder.iterdir())
        assert reading(work) == 7
        assert sorted(p.name for p in folder.iterdir()) == before


def test_what_others_write_at_the_same_time_can_be_read_without_writing():
    with closed_to_others() as folder:
        folder.chmod(0o755)
        (folder / "a.db").chmod(0o644)
        with ts.open_database(folder / "a.db") as db:
            db.add([measured(TASK, 2)])
            assert (folder / "a.db-wal").stat().st_size > 0
            for file in folder.iterdir():
                file.chmod(0o444)
            folder.chmod(0o555)

            def work() -> None:
                with ts.open_database(folder / "a.db") as other:
                    assert other.count() == 3

            assert reading(work) == 7
            folder.chmod(0o755)


def test_an_old_file_that_may_not_be_written_to_says_so():
    with closed_to_others() as folder:
        for version, says in ((1, r"has schema version 1 and may not"), (99, r"99.* newer")):
            folder.chmod(0o755)
            (folder / "a.db").chmod(0o644)
            with closing(sqlite3.connect(folder / "a.db")) as c:
                c.execute(f"UPDATE tilesmith_schema SET version = {version}")
                c.commit()
            (folder / "a.db").chmod(0o444)
            folder.chmod(0o555)

            def work(says: str = says) -> None:
                with pytest.raises(ts.RecordsError, match=says):
                    ts.open_database(folder / "a.db")

            assert reading(work) == 7


def test_a_locked_file_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("tilesmith.records.connect.BUSY_SECONDS", 0.2)
    file = tmp_path / "busy.db"
    with ts.open_database(file) as db, closing(sqlite3.connect(file)) as other:
        db.add([measured(TASK, 0)])
        other.isolation_level = None
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(ts.RecordsError, match=r"busy\.db: another process has kept it locked"):
            db.add([measured(TASK, 1)])
        assert db.count() == 1  # it can be read all the same
        other.execute("ROLLBACK")
        db.add([measured(TASK, 1)])
        assert db.count() == 2


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://me@here/db", "no support for mysql"),
        ("://", "is not the URL of a database"),
        ("postgresql://me:secret@localhost:1/none", "refused"),
    ],
)
def test_a_url_that_cannot_be_is_named(url, says):
    if url.startswith("postgresql"):
        pytest.importorskip("psycopg")
    with pytest.raises(ts.RecordsError, match=says) as e:
        ts.open_database(url)
    assert "secret" not in str(e.value)


def test_urls_of_files_and_names_are_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ts.open_database("a.db") as db:
        db.add([measured(TASK, 1)])
        assert repr(db) == "<database a.db>"
    with ts.open_database(f"sqlite:///{tmp_path}/a.db") as db:
        assert db.count() == 1
        assert db.place == f"{tmp_path}/a.db"


def test_the_password_is_not_shown(new_postgres):
    with ts.open_database(new_postgres().replace("tester@", "tester:secret@")) as db:
        assert "secret" not in repr(db)
        assert db.count() == 0


def test_ctrl_c_during_a_transaction_waits_for_its_end(new_place, monkeypatch):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    store = sql.put

    def pressed(*given):
        signal.raise_signal(signal.SIGINT)
        return store(*given)

    monkeypatch.setattr(sql, "put", pressed)
    try:
        with ts.open_database(new_place()) as db:
            with pytest.raises(KeyboardInterrupt):
                db.add([measured(TASK, 1)])
            assert db.of(TASK) == [measured(TASK, 1)]
    finally:
        signal.signal(signal.SIGINT, before)
