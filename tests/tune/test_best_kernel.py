"""ts.build: the best that is known, or else a draft, or else the plain nest; and which it was."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.runtime.build import build as build_plain
from tilesmith.runtime.build import compile_for
from tilesmith.testing.measurers import FakeMeasurer
from tilesmith.tune.build import best_kernel, is_plain

module = sys.modules["tilesmith.tune.build_request"]


def matmul(n: int = 64) -> ts.Function:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    return ts.function([a, b, ts.ops.matmul(a, b, name="C")], name="product")


X = np.random.default_rng(0).standard_normal((64, 64), dtype=np.float32)


def is_right(kernel: ts.Kernel) -> bool:
    return bool(np.allclose(kernel(X, X), X @ X, rtol=1e-3, atol=1e-3))


@pytest.fixture
def db(tmp_path: Path) -> Iterator[ts.Database]:
    with ts.open_database(tmp_path / "t.db") as made:
        yield made


def test_without_a_database_it_is_a_draft() -> None:
    func = matmul()
    kernel = ts.build(func, ts.cpu(1))
    assert kernel.origin.kind == "draft"
    assert "no database" in str(kernel.origin)
    assert " x float>" in kernel.source  # vectors
    assert " x float>" not in build_plain(func, ts.cpu(1)).source
    assert is_right(kernel)
    assert ts.build(func, ts.cpu(1)).source == kernel.source  # always the same


def test_with_an_empty_database_it_is_the_same_draft(db: ts.Database) -> None:
    func = matmul()
    kernel = ts.build(func, ts.cpu(1), database=db)
    assert kernel.origin.kind == "draft"
    assert "no record of this task is in the database" in kernel.origin.why
    assert kernel.source == ts.build(func, ts.cpu(1)).source


def test_a_record_is_used_and_named(db: ts.Database) -> None:
    func = matmul()
    result = ts.tune(
        func, ts.cpu(1), budget=ts.Budget(trials=8), database=db, measurer=FakeMeasurer(),
        quiet=True,
    )  # fmt: skip
    for strict in (False, True):
        kernel = ts.build(func, ts.cpu(1), database=db, strict=strict)
        assert kernel.origin.kind == "record"
        assert kernel.origin.seconds == result.best.cost
        assert f"{result.best.cost * 1e6:.4g} us" in str(kernel.origin)
        assert kernel.source == result.kernel.source
        assert is_right(kernel)


@pytest.mark.parametrize("seed", range(3))
def test_a_run_begins_with_the_draft(seed: int) -> None:
    """The shortest run does not end with a slower kernel than no run at all."""
    func = matmul()
    result = ts.tune(
        func, ts.cpu(1), budget=ts.Budget(trials=1), measurer=FakeMeasurer(), seed=seed, quiet=True
    )
    assert result.kernel.source == ts.build(func, ts.cpu(1)).source


def test_strict_refuses_a_draft(db: ts.Database) -> None:
    with pytest.raises(ts.BuildError, match=r"'product' .* no record of this task.*ts\.tune"):
        ts.build(matmul(), ts.cpu(1), database=db, strict=True)
    with pytest.raises(ts.BuildError, match="give a database"):
        ts.build(matmul(), ts.cpu(1), strict=True)
    sch = ts.Schedule(matmul())  # that is what was asked for
    assert ts.build(sch, ts.cpu(1), database=db, strict=True).origin.kind == "schedule"


def scheduled() -> Iterator[ts.Schedule]:
    for what in ("split", "reorder", "vectorize", "parallel", "cache_write", "annotate", "layout"):
        sch = ts.Schedule(matmul())
        i, j, k = sch.loops("C")
        match what:
            case "split":
                sch.split(i, [None, 8])
            case "reorder":
                sch.reorder(k, i, j)
            case "vectorize":
                sch.vectorize(sch.split(j, [None, 8])[1])
            case "parallel":
                sch.parallel(i)
            case "cache_write":
                sch.cache_write("C", "local")
            case "annotate":
                sch.annotate(i, "unroll_depth", 16)
            case "layout":
                sch.transform_layout("B", lambda i, j: [j // 8, i, j % 8])
        yield sch


def test_what_was_scheduled_by_hand_is_built_as_it_is() -> None:
    for sch in scheduled():
        for what in (sch, sch.func):
            kernel = ts.build(what, ts.cpu(1))
            assert kernel.origin.kind == "schedule"
            assert kernel.source == build_plain(sch.func, ts.cpu(1)).source


def test_plain_is_what_function_makes() -> None:
    x = ts.placeholder((4, 6), name="X")
    r = ts.reduce_axis(6, name="r")
    total = ts.compute((), lambda: ts.sum(x[0, r], axis=r), name="T")
    last = ts.compute((4, 6), lambda i, j: x[i, j] / total[()], name="Y")
    for func in (matmul(), ts.function([x, last], name="share")):
        assert is_plain(func)
    assert not any(is_plain(sch.func) for sch in scheduled())


def failing(monkeypatch: pytest.MonkeyPatch, times: int) -> list[ts.Function]:
    """The first builds of anything but the plain nest fail. What is built is put in the list."""
    calls: list[ts.Function] = []

    def compile_(task: ts.Task, what: ts.Function) -> ts.Artifact:
        calls.append(what)
        if not is_plain(what) and len(calls) <= times:
            raise ts.BuildError(f"number {len(calls)}\nand more")
        return compile_for(task, what)

    monkeypatch.setattr(module, "compile_for", compile_)
    return calls


def test_a_draft_that_does_not_build_gives_way_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = failing(monkeypatch, 1)
    kernel = best_kernel(matmul(), ts.cpu(1))
    assert kernel.origin.kind == "draft"
    assert "a draft does not build (BuildError: number 1)" in kernel.origin.why
    # Loops of one turn are left out, so that two schedules may become the same code.
    first, second = tried
    assert first != second
    assert is_right(kernel)


def test_where_no_program_of_the_best_sketch_builds_another_sketch_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    func, seen = matmul(), list[tuple[type, ...]]()
    original = module._try

    def try_(trace: ts.Trace, *rest: Any) -> Any:
        seen.append(tuple(map(type, trace.steps)))
        if seen[-1] == seen[0]:
            rest[-1].append("a draft does not build (its sketch)")
            return None
        return original(trace, *rest)

    monkeypatch.setattr(module, "_try", try_)
    kernel = best_kernel(func, ts.cpu(1))
    assert kernel.origin.kind == "draft"
    assert len(seen) == 2
    assert is_right(kernel)


def test_a_draft_that_was_wrong_when_it_was_measured_is_never_built(db: ts.Database) -> None:
    func = matmul()
    first = ts.build(func, ts.cpu(1))
    task = ts.Task(func, ts.cpu(1))
    (draft,) = module.drafts_of(task)
    wrong = ts.Measurement(ts.Candidate(task, draft), failure=ts.Failure("wrong", "C is off"))
    db.add([wrong])
    second = ts.build(func, ts.cpu(1), database=db)
    assert second.origin.kind == "draft"
    assert "wrong when it was measured" in second.origin.why
    assert second.source != first.source
    assert is_right(second)


def test_when_no_draft_builds_it_is_the_plain_nest_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing(monkeypatch, 99)
    with pytest.warns(UserWarning, match="'product' is built as the plain loop nest: .*number 1"):
        kernel = best_kernel(matmul(), ts.cpu(1))
    assert kernel.origin.kind == "naive"
    assert "number 3" in kernel.origin.why
    assert is_right(kernel)


def test_when_drafting_fails_it_is_the_plain_nest_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise ts.ScheduleError("no idea")

    monkeypatch.setattr(module, "drafts_of", fail)
    with pytest.warns(UserWarning, match="drafting failed: ScheduleError: no idea"):
        kernel = best_kernel(matmul(), ts.cpu(1))
    assert kernel.origin.kind == "naive"
    assert is_right(kernel)


def test_a_record_that_does_not_build_gives_way_to_the_next(
    monkeypatch: pytest.MonkeyPatch, db: ts.Database
) -> None:
    func = matmul()
    ts.tune(
        func, ts.cpu(1), budget=ts.Budget(trials=8), database=db, measurer=FakeMeasurer(),
        quiet=True,
    )  # fmt: skip
    costs = sorted(m.cost for m in db.of(ts.Task(func, ts.cpu(1))))
    failing(monkeypatch, 1)
    kernel = best_kernel(func, ts.cpu(1), database=db)
    assert kernel.origin.kind == "record"
    assert kernel.origin.seconds is not None
    assert kernel.origin.seconds > costs[0]
    failing(monkeypatch, 3)
    kernel = best_kernel(func, ts.cpu(1), database=db)
    assert kernel.origin.kind == "draft"
    assert "a record does not build" in kernel.origin.why
    failing(monkeypatch, 3)
    with pytest.raises(ts.BuildError, match="a record does not build"):
        best_kernel(func, ts.cpu(1), database=db, strict=True)


def test_open_sizes_cannot_be_strict_and_other_things_are_refused() -> None:
    n = ts.size("n")
    x = ts.placeholder((n,), name="X")
    func = ts.function([x, ts.compute((n,), lambda i: x[i] + 1, name="Y")], name="next")
    with pytest.raises(ts.BuildError, match="open sizes n: strict=True"):
        ts.build(func, strict=True)
    with pytest.raises(ts.BuildError, match="open sizes n"):
        ts.build(func, checked=True)
    with pytest.raises(ts.BuildError, match="cannot build a int"):
        ts.build(3)


def test_a_draft_for_another_machine_can_be_read() -> None:
    target = ts.Target.named("neoverse-n1" if ts.cpu().arch == "x86-64" else "haswell")
    kernel = ts.build(matmul(), target)
    assert kernel.origin.kind == "draft"
    assert f"{kernel.artifact.symbol}:" in kernel.assembly


def test_the_origin_travels_with_the_kernel() -> None:
    kernel = ts.build(matmul(), ts.cpu(1))
    assert pickle.loads(pickle.dumps(kernel)).origin == kernel.origin
