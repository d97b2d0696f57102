"""Schedules of packs where nothing else is known: they are built, raced once against the draft, and
tuning begins with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tests.support.command_line import run
from tilesmith.graph.builder import GraphBuilder
from tilesmith.ops.matmul import matmul
from tilesmith.runtime.kernel import Kernel
from tilesmith.testing.measurers import FakeMeasurer
from tilesmith.tune.build_request import drafts_of

HERE = ts.cpu(1)
arrival = import_module("tilesmith.tune.arrival")
pytestmark = pytest.mark.usefixtures("built_here")


def product(n: int, m: int = 40, k: int = 24) -> ts.Function:
    A, B = ts.placeholder((n, k), name="A"), ts.placeholder((k, m), name="B")
    return ts.function([A, B, ts.ops.matmul(A, B, name="C")], name=f"product{n}")


def arrays(n: int, m: int = 40, k: int = 24) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    return rng.random((n, k), np.float32), rng.random((k, m), np.float32)


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """With five schedules of one product, on a machine of this kind with two cores."""
    path = tmp_path / "some.pack"
    with ts.open_database(":memory:") as db:
        ts.tune(
            product(96), HERE.with_cores(2), budget=ts.Budget(trials=5), database=db, quiet=True,
            measurer=FakeMeasurer(), strategy=ts.Random(),
        )  # fmt: skip
        db.pack(path)
    return path


@pytest.fixture
def raced(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Instead of timing: the times of the next race, `[ours, theirs]`, or None if results differ.
    Appends the function of each race.
    """
    given: list[Any] = [[[1e-6] * 3, [2e-6] * 3]]

    def race(func: ts.Function, one: Kernel, other: Kernel) -> Any:
        given.append(func)
        return given[0]

    monkeypatch.setattr(arrival, "race", race)
    return given


def test_a_pack_wins_against_the_draft(pack: Path, raced: list[Any], tmp_path: Path) -> None:
    func, (a, b) = product(96), arrays(96)
    with ts.open_database(tmp_path / "t.db", packs=[pack]) as db:
        kernel = ts.build(func, HERE, database=db)
        assert kernel.origin.kind == "pack"
        assert kernel.origin.seconds == 1e-6
        assert f"in {pack}, measured on {HERE.with_cores(2).label}" in str(kernel.origin)
        assert "here 1 us, the draft 2 us" in str(kernel.origin)
        np.testing.assert_allclose(kernel(a, b), a @ b, rtol=1e-4)
        draft, best = drafts_of(ts.Task(func, HERE))[0], db.packed(ts.Task(func, HERE))[0].candidate
        assert {(m.candidate.trace, m.cost) for m in db.of(ts.Task(func, HERE))} == {
            (best.trace, 1e-6), (draft, 2e-6),
        }  # fmt: skip
    with ts.open_database(tmp_path / "t.db", packs=[pack]) as db:
        again = ts.build(func, HERE, database=db)  # and is not raced again
        assert (again.origin.kind, again.origin.record) == ("record", best.key)
        assert again.source == kernel.source
    assert len(raced) == 2


def test_the_draft_wins_against_a_pack(pack: Path, raced: list[Any]) -> None:
    raced[0] = [[3e-6] * 3, [2e-6] * 3]
    with ts.open_database(":memory:", packs=[pack]) as db:
        kernel = ts.build(product(96), HERE, database=db)
        assert kernel.origin.kind == "draft"
        assert "faster than the schedule in" in kernel.origin.why
        assert kernel.source == ts.build(product(96), HERE).source
        again = ts.build(product(96), HERE, database=db)
        assert (again.origin.kind, again.origin.seconds) == ("record", 2e-6)
        assert again.source == kernel.source


def test_a_schedule_that_computes_something_else_is_not_taken(pack: Path, raced: list[Any]) -> None:
    raced[0] = None
    with ts.open_database(":memory:", packs=[pack]) as db:
        kernel = ts.build(product(96), HERE, database=db)
        assert kernel.origin.kind == "draft"
        assert "does not compute the same here" in kernel.origin.why
        assert db.count() == 0


def test_results_and_times_of_a_race_are_real(pack: Path) -> None:
    one, other, wrong = (
        ts.build(ts.Schedule(f), HERE) for f in (product(96), product(96), scaled_product(96))
    )
    found = arrival.race(product(96), one, other)
    assert [len(times) for times in found] == [3, 3]
    assert all(0 < t < 1 for times in found for t in times)
    assert arrival.race(product(96), one, wrong) is None


def scaled_product(n: int) -> ts.Function:
    A, B = ts.placeholder((n, 24), name="A"), ts.placeholder((24, 40), name="B")
    k = ts.reduce_axis(24, name="k")
    wrong = ts.compute((n, 40), lambda i, j: ts.sum(A[i, k] * B[k, j] * 1.01, axis=k), name="C")
    return ts.function([A, B, wrong], name="wrong")


def test_records_come_before_packs(pack: Path, raced: list[Any]) -> None:
    func = product(96)
    with ts.open_database(":memory:", packs=[pack]) as db:
        plain = ts.Candidate(ts.Task(func, HERE), ts.Trace())
        db.add([ts.Measurement(plain, (1.0,))])
        assert ts.build(func, HERE, database=db).origin.record == plain.key
    assert len(raced) == 1


def test_a_failed_schedule_is_not_tried_again(pack: Path, raced: list[Any]) -> None:
    task = ts.Task(product(96), HERE)
    with ts.open_database(":memory:", packs=[pack]) as db:
        first, second, _ = db.packed(task)
        db.add([ts.Measurement(first.candidate, failure=ts.Failure("wrong", "not here"))])
        assert ts.build(task.func, HERE, database=db).origin.record == second.key


def test_strict_takes_what_was_measured_somewhere(pack: Path, raced: list[Any]) -> None:
    with ts.open_database(":memory:", packs=[pack]) as db:
        assert ts.build(product(96), HERE, database=db, strict=True).origin.kind == "pack"
        assert len(raced) == 1  # there is no draft to race against
        with pytest.raises(ts.BuildError, match="no record of this task"):
            ts.build(product(90), HERE, database=db, strict=True)
    with ts.open_database(":memory:", packs=()) as db:
        assert ts.build(product(96), HERE, database=db).origin.kind == "draft"


def test_a_database_for_reading_only(pack: Path, raced: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    ts.open_database(path).close()
    path.chmod(0o444)
    with ts.open_database(path, packs=[pack]) as db:
        assert ts.build(product(96), HERE, database=db).origin.kind == "pack"


def test_drafts_follow_near_sizes(pack: Path) -> None:
    func, (a, b) = product(112), arrays(112)
    with ts.open_database(":memory:", packs=[pack]) as db:
        kernel = ts.build(func, HERE, database=db)
        assert kernel.origin.kind == "draft"
        assert "similar to a pack's record of another size" in kernel.origin.why
        np.testing.assert_allclose(kernel(a, b), a @ b, rtol=1e-4)
        near = db.near(ts.Task(func, HERE))[0].candidate
        followed = drafts_of(ts.Task(func, HERE), 1, (near,))[0]
        assert kernel.source == ts.build(followed.apply(func), HERE).source
        far = ts.build(product(960), HERE, database=db)
        assert "similar" not in far.origin.why


def test_another_processor_gets_nothing(pack: Path) -> None:
    other = replace(HERE, features=frozenset(), vector_bits=128)
    with ts.open_database(":memory:", packs=[pack]) as db:
        assert ts.build(product(96), other, database=db).origin.kind == "draft"


def network(*sizes: int) -> ts.Graph:
    b = GraphBuilder("net")
    w = b.constant(np.random.default_rng(0).standard_normal((24, 40)).astype(np.float32))
    outputs = {}
    for n in sizes:
        outputs[f"y{n}"] = b.add(matmul, b.input(f"x{n}", (n, 24), "float32"), w)
    return b.finish(outputs)


def pack_of(graph: ts.Graph, path: Path) -> Path:
    with ts.open_database(":memory:") as db:
        ts.tune_model(
            graph, HERE, budget=ts.Budget(trials=12), database=db, measurer=FakeMeasurer(),
            strategy=ts.Random(), quiet=True, cache=None,
        )  # fmt: skip
        db.pack(path)
    return path


def kinds(model: ts.Model) -> list[str]:
    return sorted(k.origin.kind for e in model.executors for k in e.kernels)


def test_models_take_packs(tmp_path: Path, raced: list[Any]) -> None:
    known, more = network(96, 128), network(96, 128, 1000)
    path = pack_of(known, tmp_path / "net.pack")
    with ts.open_database(tmp_path / "t.db", packs=[path]) as db:
        model = ts.compile_model(more, HERE, database=db, cache=None)
        assert kinds(model) == ["draft", "pack", "pack"]
        assert len(raced) == 3
        again = ts.compile_model(more, HERE, database=db, cache=None)
        assert kinds(again) == ["draft", "record", "record"]
        assert len(raced) == 3
        feeds = {f"x{n}": arrays(n)[0] for n in (96, 128, 1000)}
        (w,) = more.constants.values()
        for n in (96, 128, 1000):
            want = feeds[f"x{n}"] @ w
            for m in (model, again):
                np.testing.assert_allclose(m(feeds)[f"y{n}"], want, rtol=1e-3, atol=1e-3)


def test_only_so_many_kernels_of_a_model_are_raced(
    tmp_path: Path, raced: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pack_of(network(96, 128), tmp_path / "net.pack")
    monkeypatch.setattr(arrival, "_RACE_SECONDS", 0.6)
    monkeypatch.setattr(arrival, "usable_cores", lambda: (0,))
    with ts.open_database(":memory:", packs=[path]) as db:
        model = ts.compile_model(network(96, 128), HERE, database=db, cache=None)
    assert kinds(model) == ["pack", "pack"]
    assert len(raced) == 2


def test_a_model_keeps_the_faster_draft(tmp_path: Path, raced: list[Any]) -> None:
    raced[0] = [[3e-6] * 3, [2e-6] * 3]
    path = pack_of(network(96), tmp_path / "net.pack")
    with ts.open_database(":memory:", packs=[path]) as db:
        model = ts.compile_model(network(96), HERE, database=db, cache=tmp_path / "cache")
        assert kinds(model) == ["draft"]
        again = ts.compile_model(network(96), HERE, database=db, cache=tmp_path / "cache")
        assert kinds(again) == ["record"]


@pytest.mark.parametrize("strategy", [None, ts.Random()])
def test_tuning_begins_with_the_schedules_of_a_pack(pack: Path, strategy: Any) -> None:
    seen: list[ts.Candidate] = []

    def cost(c: ts.Candidate) -> float:
        seen.append(c)
        return 1e-3

    with ts.open_database(":memory:", packs=[pack]) as db:
        task = ts.Task(product(96), HERE)
        packed = [p.candidate for p in db.packed(task)]
        ts.tune(
            task.func, HERE, budget=ts.Budget(trials=8), database=db, quiet=True,
            measurer=FakeMeasurer(cost), strategy=strategy,
        )  # fmt: skip
    assert seen[:3] == packed
    assert len(set(seen)) == 8


def test_a_search_is_told_of_near_sizes(pack: Path) -> None:
    heard: list[ts.Candidate] = []

    class Listening:
        def start(self, task: ts.Task, sketches: Any, rng: Any) -> Any:
            search: Any = ts.Random().start(task, sketches, rng)
            search.suggest = heard.extend
            return search

    with ts.open_database(":memory:", packs=[pack]) as db:
        ts.tune(
            product(112), HERE, budget=ts.Budget(trials=2), database=db, quiet=True,
            measurer=FakeMeasurer(), strategy=Listening(),
        )  # fmt: skip
    assert [c.task.func.name for c in heard] == ["product96"]


@pytest.fixture
def shipped(pack: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """As if the library came with this pack."""
    monkeypatch.setattr(import_module("tilesmith.records.pack"), "FOLDER", pack.parent)
    return lambda: None


def test_packs_that_come_with_the_library_are_found(shipped: Any, raced: list[Any]) -> None:
    with ts.open_database(":memory:") as db:
        assert ts.build(product(96), HERE, database=db).origin.kind == "pack"
        named = ts.Target.named("neoverse-n1" if HERE.arch == "x86-64" else "skylake-avx512")
        assert db.packed(ts.Task(product(96), named)) == []
    assert ts.build(product(96), HERE).origin.kind == "draft"  # without a database nothing is known


def test_the_command_line_writes_and_takes_packs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, file = tmp_path / "t.db", tmp_path / "some.pack"
    words = "matmul 32 40 24 --cores 1 --strategy random --quiet --time 30m".split()  # noqa: SIM905
    status, _, err = run(capsys, "tune", *words, "--trials", "4", "--db", db)
    assert status == 0, err
    status, said, err = run(capsys, "pack", db, "-o", file, "--keep", "2")
    assert status == 0, err
    lines = said.splitlines()
    assert lines[0] == f"{file}  {file.stat().st_size} bytes, 2 schedules of 1 tasks"
    assert lines[1] == f"  of {HERE.label}"
    assert lines[2].startswith("  sha256 ")
    other = tmp_path / "other.db"
    status, _, err = run(capsys, "tune", *words, "--trials", 3, "--db", other, "--pack", file)
    assert status == 0, err
    with ts.open_database(db) as one, ts.open_database(other) as two:
        (task,) = (s.task for s in two.tasks())
        packed = {m.candidate for m in one.of(task)} & {m.candidate for m in two.of(task)}
        assert len(packed) >= 2
    for words, text in (
        (["run", "x.onnx", "--random", "--pack", "none.pack"], "no file x.onnx"),
        (["tune", "matmul", "8", "8", "8", "--pack", "none.pack"], "none.pack cannot be read"),
        (["pack", db, "-o", tmp_path], "is a folder"),
        (["pack", file, "-o", tmp_path / "x"], "not a database"),
        (["pack", db, "-o", tmp_path / "x", "--keep", "0"], "--keep"),
    ):
        status, said, err = run(capsys, *words)
        assert status == 2
        assert text in err
