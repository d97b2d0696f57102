"""Damages a database in many ways and does everything with it that can be done with a database.

PYTHONPATH=. python tests/records/damage.py --trials 3000
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import sqlite3
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Set
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import tilesmith as ts
from tilesmith.base.errors import TilesmithError
from tilesmith.cli.show_records import records as show_records
from tilesmith.cli.show_records import runs as show_runs
from tilesmith.cli.show_tasks import database_tasks
from tilesmith.records.networks import NetworkUse, network_uses, store_network_uses
from tilesmith.records.sql import SqlDatabase
from tilesmith.report.records_view import records_view
from tilesmith.task.task import Budget, Failure, Moment
from tilesmith.testing.measurements import measured, task_of, tuning_run

FIRST, SECOND = task_of(8), task_of(16)
RENAMED = task_of(8, names=("p", "y", "i", "j", "other"))
TASKS = (FIRST, SECOND, RENAMED)


def make(file: Path) -> None:
    """A database with everything that a database holds."""
    with ts.open_database(file) as db:
        for k in range(30):
            task = TASKS[k % 3]
            run = tuning_run(Budget(trials=9, seconds=1.5, patience=3), k % 2)
            m = measured(task, k, (1e-3 + k * 1e-5, 1e-3), confirmed=k % 5 == 0)
            m = replace(m, references=(1e-4, 1e-4), moment=Moment(run, 0.5 * k, k))
            db.add([m if k % 4 else replace(m, moment=None)])
        db.add([measured(FIRST, 40, (), Failure("build", "no such instruction"))])
        db.add([measured(FIRST, 3, (), Failure("wrong", "ü" * 300))])
        for task in (FIRST, SECOND):
            db.save_state(task, "search", b'{"rng": 7, "space": "x"}')
            store_network_uses(db, task, 1.0, [NetworkUse("net", 3, 1.0, "run0")])
    with closing(sqlite3.connect(file)) as c:  # and of an older code generator
        c.execute("UPDATE tilesmith_tasks SET codegen = 'old' WHERE id = 3")
        c.commit()


def operations(file: Path, folder: Path) -> dict[str, Callable[[], object]]:
    """Everything that can be done with a database, each on a newly opened one."""

    def on(use: Callable[[SqlDatabase], object]) -> Callable[[], object]:
        def work() -> object:
            with ts.open_database(file) as db:
                return use(db)

        return work

    def merged_into(db: SqlDatabase) -> int:
        with ts.open_database(":memory:") as other:
            other.add([measured(SECOND, 90)])
            return db.merge(other)

    def merged_from(db: SqlDatabase) -> int:
        with ts.open_database(":memory:") as other:
            return other.merge(db)

    def exchanged(db: SqlDatabase) -> object:
        lines = folder / "lines.jsonl"
        db.export(lines)
        with ts.open_database(":memory:") as other:
            return other.import_(lines)

    def imported(db: SqlDatabase) -> object:
        lines = folder / "good.jsonl"
        if not lines.exists():
            with ts.open_database(":memory:") as other:
                other.add([measured(SECOND, 90)])
                other.export(lines)
        return db.import_(lines)

    reads: dict[str, Callable[[SqlDatabase], object]] = {
        "count": lambda db: (db.count(), db.count(FIRST)),
        "of": lambda db: [db.of(t) for t in TASKS],
        "best": lambda db: [db.best(t) for t in TASKS],
        "unread": lambda db: (db.unread(), db.unread(FIRST)),
        "earlier": lambda db: [db.earlier(t) for t in TASKS],
        "runs": lambda db: [r.curve for t in TASKS for r in db.runs(t)],
        "since": lambda db: [db.since(t, 3) for t in TASKS],
        "tasks": lambda db: db.tasks(),
        "load_state": lambda db: [db.load_state(t, "search") for t in TASKS],
        "networks": lambda db: [network_uses(db, t) for t in TASKS],
        "merge from": merged_from,
        "exchange": exchanged,
        "report": lambda db: records_view(db, db.place, [("other", db)]),
        "add": lambda db: db.add([measured(FIRST, 95), measured(task_of(24), 1)]),
        "save_state": lambda db: db.save_state(SECOND, "search", b"new"),
        "merge into": merged_into,
        "import": imported,
        "prune failures": lambda db: db.prune(failures=True),
        "prune best": lambda db: db.prune(keep=2),
        "prune outdated": lambda db: db.prune(outdated=True),
    }
    place = str(file)
    return {
        "open": on(lambda db: db.place),
        **{name: on(use) for name, use in reads.items()},
        "show tasks": lambda: database_tasks(place, 100, ""),
        "show records": lambda: show_records(place, task="clip8"),
        "show runs": lambda: show_runs(place, task="clip8"),
    }


def damages(data: bytes, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Endless."""
    while True:
        out = bytearray(data)
        kind = rng.choice(("flip", "flip", "byte", "byte", "zero", "noise", "cut", "swap", "text"))
        at = rng.randrange(len(out))
        if rng.random() < 0.15:
            at = rng.randrange(4096)
        what = f"{kind} at {at}"
        size = rng.choice((1, 4, 16, 100, 512, 4096))
        match kind:
            case "flip":
                out[at] ^= 1 << rng.randrange(8)
            case "byte":
                for _ in range(rng.choice((1, 1, 5))):
                    out[rng.randrange(len(out)) if rng.random() < 0.5 else at] = rng.randrange(256)
            case "zero":
                out[at : at + size] = bytes(len(out[at : at + size]))
            case "noise":
                out[at : at + size] = rng.randbytes(len(out[at : at + size]))
            case "cut":
                del out[max(1, at - at % 4096 if rng.random() < 0.7 else at) :]
            case "swap":
                a, b = (rng.randrange(len(out) // 4096) * 4096 for _ in range(2))
                out[a : a + 4096], out[b : b + 4096] = out[b : b + 4096], out[a : a + 4096]
            case "text":  # digits and quotes become others: rows stay rows, with other values
                spots = [k for k in range(at, min(at + 2000, len(out))) if chr(out[k]) in '0123"[,']
                for k in rng.sample(spots, min(len(spots), 3)):
                    out[k] = rng.choice(b'9-e"[]{}:x\xff\x00')
        yield what, bytes(out)


def _contents(data: bytes) -> bytes:
    """All but what SQLite may change in the head of a file without changing what it holds: how it
    is written to, and counters of changes.
    """
    return data[:18] + data[20:24] + data[28:92] + data[96:]


def defects(
    file: Path, folder: Path, without: Set[str] = frozenset()
) -> Iterator[tuple[str, BaseException]]:
    """What goes wrong in another way than with an error that names the file."""
    data = file.read_bytes()
    for name, work in operations(file, folder).items():
        if name in without:
            continue
        for rest in ("-wal", "-shm", "-journal"):
            Path(f"{file}{rest}").unlink(missing_ok=True)
        file.write_bytes(data)
        try:
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                work()
        except TilesmithError as error:
            if str(file) not in str(error):
                yield name, error
            elif _contents(file.read_bytes()) != _contents(data):
                yield name, AssertionError(f"the file has changed, though: {error}")
        except Exception as error:
            yield name, error
    file.write_bytes(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # waits for no disk
    with tempfile.TemporaryDirectory(dir=memory) as made:
        folder = Path(made)
        make(folder / "whole.db")
        data = (folder / "whole.db").read_bytes()
        print(f"{len(data)} bytes")
        found: Counter[str] = Counter()
        trials = damages(data, random.Random(options.seed))
        for k in range(options.trials):
            if k % 50 == 0:
                print(f"{k} damages, {sum(found.values())} defects", flush=True)
            what, damaged = next(trials)
            file = folder / "damaged.db"
            file.write_bytes(damaged)
            slow = set() if k % 20 == 0 else {"report"}
            for name, error in defects(file, folder, slow):
                kind = f"{name}: {type(error).__name__}: {str(error)[:90]}"
                if not found[kind]:
                    print(f"trial {k}, {what}")
                    traceback.print_exception(error, limit=-4, chain=False)
                found[kind] += 1
    for kind, count in found.most_common():
        print(count, kind.replace(os.linesep, " "))
    print(f"{sum(found.values())} defects in {options.trials} damages")


if __name__ == "__main__":
    main()
