"""Two `tilesmith tune` on one PostgreSQL server at the same time, with kernels that really run:
each goes on from what the other has measured, and in the end there is one answer.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import tilesmith as ts
from tilesmith.tune import run_state

TRIALS, FIRST = 60, 4
# The space of so small a product has 432 candidates: two searches that do not know of each other
# would often draw the same ones.
COMMAND = (
    sys.executable, "-m", "tilesmith", "tune", "matmul", "2", "2", "2", "--cores", "1", "--quiet",
    "--strategy", "random", "--trials", f"{TRIALS}", "--time", "10m", "--db",
)  # fmt: skip


def records_of(place: str) -> list[ts.Measurement]:
    with ts.open_database(place) as db:
        return [m for t in db.tasks() for m in db.of(t.task)]


def trials_of(records: Sequence[ts.Measurement], seed: int) -> list[ts.Measurement]:
    """Without what a tuner measures again: the best of the other, beside its own best."""
    return [m for m in records if m.moment and m.moment.run.seed == seed and m.moment.trial > 0]


def keep_together(place: str, running: Sequence[subprocess.Popen[str]]) -> None:
    """Holds the one that is ahead until the other has begun. It is let go again and again, because
    it may hold a lock of the database.
    """
    while all(p.poll() is None for p in running):
        records = records_of(place)
        begun = [len(trials_of(records, seed)) >= FIRST for seed in range(2)]
        if all(begun):
            return
        ahead = [p for p, has_begun in zip(running, begun, strict=True) if has_begun]
        for what, seconds in ((signal.SIGSTOP, 0.3), (signal.SIGCONT, 0.03)):
            for p in ahead:
                p.send_signal(what)
            time.sleep(seconds)


def require_only_in_flight(records: Sequence[ts.Measurement]) -> None:
    """A tuner looks for the other's records when it begins a batch, unless it has looked less than
    `_LOOK_SECONDS` ago. So it measures what the other has already stored only in the batch that it
    had begun by then, or in one that it began within these seconds: of its own trials after the
    other's record, those that come later than these seconds after the first are of one batch.
    """
    first_at: dict[str, tuple[int, int]] = {}  # by candidate: who, and where in the records
    for k, m in enumerate(records):
        if m.moment is None or m.moment.trial == 0:
            continue
        seed = m.moment.run.seed
        who, where = first_at.setdefault(m.candidate.key, (seed, k))
        if where == k:
            continue
        assert who != seed, "a tuner has measured its own candidate twice"
        own = [r.moment for r in trials_of(records[where : k + 1], seed) if r.moment]
        late = [o for o in own if o.seconds > own[0].seconds + run_state._LOOK_SECONDS]
        assert len(late) <= max(n for least, n in run_state._BATCHES if m.moment.trial >= least)


def test_they_share_their_records_while_they_run(
    new_postgres: Callable[[], str], tmp_path: Path
) -> None:
    place = new_postgres()
    running = [
        subprocess.Popen(
            [*COMMAND, place, "--seed", f"{seed}", "--out", f"{tmp_path / str(seed)}"],
            stdout=subprocess.PIPE, text=True,
        )
        for seed in range(2)
    ]  # fmt: skip
    try:
        keep_together(place, running)
        said = [p.communicate()[0] for p in running]
    finally:
        for p in running:
            p.kill()
            p.wait()
    assert [p.returncode for p in running] == [0, 0], said
    records = records_of(place)
    own = [trials_of(records, seed) for seed in range(2)]
    # The budget is for both together, so each has counted what the other measured meanwhile.
    assert all(FIRST <= len(trials) < TRIALS for trials in own)
    assert len({m.candidate.key for m in records}) <= sum(map(len, own))
    assert sum(map(len, own)) >= TRIALS
    require_only_in_flight(records)

    # What each has found is in the database, with all its samples.
    stored = {m.seconds for m in records}
    for seed in range(2):
        found = json.loads((tmp_path / str(seed) / "measurements.json").read_text())
        assert tuple(found["samples_seconds"]) in stored
    # Whoever asks now gets the best of all records, and measures nothing.
    with ts.open_database(place) as db:
        (summary,) = db.tasks()
        task, best = summary.task, db.best(summary.task)
        budget = ts.Budget(trials=TRIALS)
        result = ts.tune(task.func, task.target, database=db, budget=budget, quiet=True)
    assert (result.trials, result.best) == (0, best)
    assert best in records
