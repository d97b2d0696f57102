"""Strategies ask and tell: nothing twice, the same seed the same proposals, an end when the space
ends.
"""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.search.protocol import Strategy
from tilesmith.search.score_by_target import ScoreByTarget
from tilesmith.testing.measurers import FakeMeasurer


def matmul(n: int = 64) -> ts.Task:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    return ts.Task(ts.function([a, b, ts.ops.matmul(a, b, name="C")], name="matmul"), ts.cpu(1))


def only_a_few(sch: object) -> None:
    (loop, *_) = sch.loops("C")  # type: ignore[attr-defined]
    sch.split(loop, sch.sample_tile(loop, parts=2, policy="divisors", max_innermost=8))  # type: ignore[attr-defined]


def start(strategy: Strategy, task: ts.Task, seed: int = 0, space: object = None) -> object:
    sketches = (space or ts.SketchSpace()).sketches(task)  # type: ignore[attr-defined]
    return strategy.start(task, sketches, np.random.default_rng(seed))


STRATEGIES = [ts.Random(), ts.Evolution(population=256, variants=8)]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_nothing_is_proposed_twice(strategy: Strategy) -> None:
    task = matmul()
    search = start(strategy, task)
    seen: list[str] = []
    with FakeMeasurer().open(task) as run:
        for _ in range(6):
            asked = search.ask(12)  # type: ignore[attr-defined]
            assert len(asked) == 12
            seen += [c.key for c in asked]
            search.tell(run.measure(asked))  # type: ignore[attr-defined]
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_the_same_seed_gives_the_same_proposals(strategy: Strategy) -> None:
    task = matmul()
    runs = []
    for seed in (3, 3, 4):
        search = start(strategy, task, seed)
        with FakeMeasurer().open(task) as run:
            first = search.ask(8)  # type: ignore[attr-defined]
            search.tell(run.measure(first))  # type: ignore[attr-defined]
            runs.append([c.key for c in (*first, *search.ask(8))])  # type: ignore[attr-defined]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_an_exhausted_space_ends_the_search(strategy: Strategy) -> None:
    task = matmul()
    search = start(strategy, task, space=ts.TemplateSpace(only_a_few))
    keys: set[str] = set()
    while asked := search.ask(3):  # type: ignore[attr-defined]
        assert len(asked) <= 3
        keys |= {c.key for c in asked}
        with FakeMeasurer().open(task) as run:
            search.tell(run.measure(asked))  # type: ignore[attr-defined]
    assert len(keys) == 4  # 1, 2, 4 and 8


def test_evolution_improves_on_its_draft() -> None:
    """The cost is a distance to a tile that the draft does not know of."""
    task = matmul()

    def cost(c: ts.Candidate) -> float:
        tiles = [s.decision for s in c.trace if s.name == "sample_tile"]
        return 1e-6 * (1 + sum(abs(t[-1] - 5) + abs(t[1] - 3) for t in tiles if t))

    search = start(ts.Evolution(population=256, variants=8), task)
    best = []
    with FakeMeasurer(cost=cost).open(task) as run:
        for _ in range(15):
            measured = run.measure(search.ask(16))  # type: ignore[attr-defined]
            search.tell(measured)  # type: ignore[attr-defined]
            best.append(min(m.cost for m in measured))
    assert min(best[5:]) < 0.7 * best[0]


def test_records_of_another_run_are_adopted() -> None:
    task = matmul()
    first = start(ts.Evolution(population=256, variants=8), task)
    with FakeMeasurer().open(task) as run:
        measured = run.measure(first.ask(16))  # type: ignore[attr-defined]
    second = start(ts.Evolution(population=256, variants=8), task, seed=9)
    second.tell(measured)  # type: ignore[attr-defined]
    known = {m.candidate.key for m in measured}
    again = [c for _ in range(4) for c in second.ask(16)]  # type: ignore[attr-defined]
    assert known.isdisjoint(c.key for c in again)
    assert second._best  # type: ignore[attr-defined]
    for (_, cost), who in second._best:  # type: ignore[attr-defined]
        v = second.catalogue.variant(who.variant)  # type: ignore[attr-defined]
        c = v.candidate(np.array(who.row, np.int32))
        assert any(m.candidate.key == c.key and m.cost == cost for m in measured)


def test_draft_prefers_a_register_tile_that_fills_the_machine() -> None:
    task = matmul(512)
    sketch = ts.SketchSpace().sketches(task)[0]
    v = next(ts.variants(task, sketch))
    lanes = task.target.lanes(32)
    at = {c: k for k, c in enumerate(v.columns)}
    good = v.sample(np.random.default_rng(0), 1)[0].copy()
    values = {"i": (2, 2, 22, 6), "j": (512 // (4 * lanes), 1, 1, 4 * lanes), "k": (1, 256, 2)}
    for axis, factors in values.items():
        for part, f in enumerate(factors):
            good[at[f"#C.{axis}.{part}"]] = f
    poor = good.copy()
    poor[at["#C.i.2"]], poor[at["#C.i.3"]] = 132, 1
    scores = ScoreByTarget().score(v, np.stack([good, poor]))
    assert scores[0] > 1.5 * scores[1]


def test_the_draft_sees_that_overlapping_windows_take_registers() -> None:
    """With the steps of a window written out, what they share stays in registers: beside half of
    the sums that there is room for that saves loads, beside all of them it is too much.
    """
    x, w = ts.placeholder((1, 58, 64), name="X"), ts.placeholder((3, 64, 32), name="W")
    func = ts.function([x, w, ts.ops.conv1d(x, w, layout="NWC", name="Y")], name="conv")
    task = ts.Task(func, ts.cpu(1))
    v = next(ts.variants(task, ts.SketchSpace().sketches(task)[0]))
    lanes, registers = task.target.lanes(32), task.target.num_vector_registers
    at = {c: k for k, c in enumerate(v.columns)}

    def score(sums: int, steps: int) -> float:
        row = np.ones(len(v.columns), np.int32)
        row[at["#Y.w.0"]], row[at["#Y.w.3"]] = -(-56 // sums), sums
        row[at["#Y.f.0"]], row[at["#Y.f.3"]] = 32 // lanes, lanes
        row[at["#Y.rw.1"]], row[at["#Y.rw.2"]] = 3 // steps, steps
        row[at["#Y.rc.1"]] = 64
        return float(ScoreByTarget().score(v, row[None])[0])

    half, full = registers // 2 - 2, registers - 4
    assert score(half, 3) >= score(half, 1)
    assert score(full, 3) < 0.8 * score(full, 1)
