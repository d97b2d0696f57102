"""Two tuners of one task that share a database while they run, as a team does on PostgreSQL."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import tilesmith as ts
from tilesmith.testing.measurers import FakeMeasurer
from tilesmith.tune import run_state

A, B = ts.placeholder((32, 32), name="A"), ts.placeholder((32, 32), name="B")
TASK = ts.Task(ts.function([A, B, ts.ops.matmul(A, B, name="C")], name="matmul"), ts.cpu(1))


def test_each_learns_what_the_other_has_measured(new_place: Callable[[], str], monkeypatch) -> None:
    """They take turns, so that it does not depend on their speed. Both draw the same candidates,
    because they have the same seed: one that did not learn of the other's would repeat them.
    """
    monkeypatch.setattr(run_state, "_LOOK_SECONDS", 0.0)
    place = new_place()
    turns = threading.Barrier(2, timeout=300.0)
    results: dict[int, ts.Result] = {}
    errors: list[BaseException] = []

    def run(which: int) -> None:
        def observe(progress: ts.Progress) -> None:
            try:
                turns.wait()
            except threading.BrokenBarrierError:
                return  # the other one has finished

        try:
            with ts.open_database(place) as database:
                if which:
                    turns.wait()
                results[which] = ts.tune(
                    TASK.func, TASK.target, measurer=FakeMeasurer(), database=database, quiet=True,
                    budget=ts.Budget(trials=96), strategy=ts.Random(), observers=[observe], seed=3,
                )  # fmt: skip
        except BaseException as error:
            errors.append(error)
        finally:
            turns.abort()

    threads = [threading.Thread(target=run, args=(which,)) for which in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(600.0)
    assert not errors
    with ts.open_database(place) as database:
        records = database.of(TASK)
    own = [r.trials for r in results.values()]
    assert min(own) > 0
    assert sum(own) < 2 * 96  # what the other has measured counts
    repeated = sum(n - 1 for n in Counter(m.candidate.key for m in records).values())
    assert repeated <= 32  # those that both had in their hands, and the best of the other
    # The one that ends last knows all; the other one lacks what was measured after its end.
    best = [r.best.cost for r in results.values()]
    assert min(best) == min(m.cost for m in records)
    assert max(best) <= min(m.cost for m in records[: len(records) // 2])
