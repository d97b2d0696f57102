"""Parts of a user's own: what is tuned with them is read, built and resumed with them, and what one
back end has made is never taken for what another one makes.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from own_parts import (
    CHANGED,
    MINE,
    ROW_BY_MATRIX,
    ROWS,
    SQUARES,
    YOURS,
    Signed,
    Square,
    by_squares,
    plain_tiles,
)

import tilesmith as ts
from tilesmith.graph.builder import GraphBuilder
from tilesmith.measure.messages import Build
from tilesmith.measure.parent.build_and_run import job_of
from tilesmith.ops.matmul import matmul
from tilesmith.records.database import MissingPartsWarning
from tilesmith.records.networks import network_uses
from tilesmith.task.task import CODEGEN_VERSION
from tilesmith.testing.measurers import FakeMeasurer
from tilesmith.tune.network_tasks import merged, similar_tasks
from tilesmith.tune.torch_backend import options_of

ONE = ts.cpu(1)
X = ts.placeholder((12, 12), name="X")
FUNC = ts.function([X, ts.compute((12, 12), lambda i, j: X[j, i] + 1, name="Y")], name="turn")
DATA = np.random.default_rng(0).standard_normal((12, 12), dtype=np.float32)


def product(n: int = 24, name: str = "product") -> ts.Function:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    return ts.function([a, b, ts.ops.matmul(a, b, name="C")], name=name)


def tune(func: ts.Function = FUNC, trials: int = 3, **settings: Any) -> ts.Result:
    given = {"measurer": FakeMeasurer(), "quiet": True, **settings}
    return ts.tune(func, ONE, budget=ts.Budget(trials=trials), **given)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "t.db"


def test_an_own_primitive_is_read_built_and_not_measured_again(place: Path) -> None:
    space = ts.TemplateSpace(by_squares)
    with ts.open_database(place) as db:
        first = tune(space=space, database=db, parts=SQUARES, measurer=ts.LocalMeasurer())
    assert first.trials == 3
    with ts.open_database(place, parts=SQUARES) as db:
        best = db.best(ts.Task(FUNC, ONE))
        assert best is not None
        traces = [m.candidate.trace for m in db.of(ts.Task(FUNC, ONE))]
        assert len(traces) == 3
        # Of times this short a race and the medians that are stored may prefer different ones.
        assert best.candidate.trace in traces
        assert first.best.candidate.trace in traces
        assert tune(space=space, database=db).trials == 0  # its parts are the database's
        kernel = ts.build(FUNC, ONE, database=db, strict=True)
        assert kernel.origin.kind == "record"
        np.testing.assert_array_equal(kernel(DATA), DATA.T + 1)
        assert not db.missing()


def test_a_killed_run_goes_on_with_its_parts(place: Path) -> None:
    space = ts.TemplateSpace(by_squares)
    with ts.open_database(place, parts=SQUARES) as db:
        assert tune(trials=2, space=space, database=db).trials == 2
    with ts.open_database(place, parts=SQUARES) as db:
        assert tune(trials=3, space=space, database=db).trials == 1
        assert len({m.candidate.key for m in db.of(ts.Task(FUNC, ONE))}) == 3


def test_who_reads_without_the_part_is_told_which(place: Path) -> None:
    task = ts.Task(FUNC, ONE)
    with ts.open_database(place) as db:
        tune(space=ts.TemplateSpace(by_squares), database=db, parts=SQUARES)
    with ts.open_database(place) as db:
        with pytest.warns(MissingPartsWarning, match="3 records need the primitive 'square'"):
            assert db.best(task) is None
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it is said once
            assert db.of(task) == []
        assert db.missing(task) == db.missing() == {"the primitive 'square'": 3}
        with pytest.raises(
            ts.BuildError, match=r"3 records need the primitive 'square'; .*parts=ts\.Parts"
        ):
            ts.build(FUNC, ONE, database=db, strict=True)
        tune(space=ts.TemplateSpace(plain_tiles), trials=1, database=db)
        assert len(db.of(task)) == 1  # what can be read counts


def test_an_own_instruction_is_searched_and_read_again(place: Path) -> None:
    func = product()
    with ts.open_database(place, parts=ROWS) as db:
        result = tune(func, 24, database=db, strategy=ts.Random(), measurer=ts.LocalMeasurer())
        used = [m for m in db.of(result.task) if "row_by_matrix" in str(m.candidate.trace)]
        assert any(m.seconds for m in used)
        known = len(db.of(result.task))
        assert tune(func, known, database=db).trials == 0
    with ts.open_database(place, parts=ts.Parts(intrinsics=(CHANGED,))) as db:
        with pytest.warns(MissingPartsWarning, match="'row_by_matrix' as it was: it computes"):
            left = db.of(ts.Task(func, ONE))
        assert len(left) == known - len(used)
        (part,) = db.missing()
        assert "other code" in part


def test_an_instruction_is_named_with_a_digest_and_read_without_one() -> None:
    steps = '[["tensorize", {"loop": "C.j", "intrinsic": "row_by_matrix"}]]'
    old = f'{{"version": 1, "steps": {steps}}}'
    read = ts.Trace.from_json(old, ROWS)
    again = read.to_json()
    assert "row_by_matrix@" in again
    assert ts.Trace.from_json(again, ROWS) == read
    with pytest.raises(ts.TraceError, match="unknown intrinsic 'row_by_matrix'"):
        ts.Trace.from_json(again)
    with pytest.raises(ts.TraceError, match="as it was"):
        ts.Trace.from_json(again, ts.Parts(intrinsics=(CHANGED,)))


def test_the_kernel_of_a_result_is_the_one_that_was_measured(place: Path) -> None:
    space = ts.TemplateSpace(plain_tiles)
    with ts.open_database(place) as db:
        result = tune(space=space, database=db, parts=MINE, measurer=ts.LocalMeasurer())
        assert result.kernel.source.startswith("; mine")
        assert result.best is not None
        # Of equally fast programs, the fastest record may be another one than the run's winner.
        key = result.best.candidate.key
        kernel = ts.build(FUNC, ONE, database=db, parts=MINE, strict=True, record=key)
        assert kernel.artifact.code == result.kernel.artifact.code
        assert kernel.source == result.kernel.source
        np.testing.assert_array_equal(kernel(DATA), DATA.T + 1)


def test_two_back_ends_in_one_database_do_not_mix(place: Path) -> None:
    space = ts.TemplateSpace(plain_tiles)
    built_in, mine, yours = (ts.Task(FUNC, ONE, p) for p in (None, MINE, YOURS))
    assert len({t.key for t in (built_in, mine, yours)}) == 3
    assert built_in.codegen == CODEGEN_VERSION
    with ts.open_database(place) as db:
        slow = FakeMeasurer(lambda c: 1.0 + len(str(c.trace)) / 1e6)
        assert tune(space=space, database=db, parts=MINE).trials == 3
        assert tune(space=space, database=db, measurer=slow).trials == 3
        assert tune(space=space, database=db, parts=MINE).trials == 0
        assert [len(db.of(t)) for t in (built_in, mine, yours)] == [3, 3, 0]
        best = db.best(built_in)
        assert best is not None
        assert best.cost >= 1.0
        assert len(db.earlier(yours)) == 3  # another version of `Signed`: to be measured again
        assert db.earlier(built_in) == []
        assert {m.candidate.task.codegen for m in db.of(mine)} == {mine.codegen}
        assert [t.codegen for t in db.tasks()] == [mine.codegen, CODEGEN_VERSION]
        run, other = db.runs(mine)[0].run, db.runs(built_in)[0].run
        assert (run.codegen, other.codegen) == (mine.codegen, CODEGEN_VERSION)
        with pytest.raises(ts.BuildError, match=r"3 records need the back end 'Signed:.*parts="):
            ts.build(FUNC, ONE, database=db, parts=YOURS, strict=True)
        db.save_state(mine, "mark", b"mine")
        assert db.load_state(built_in, "mark") is None
        assert db.prune(outdated=True) == 0
    with ts.open_database(place, parts=MINE) as db:
        plain = ts.Task(FUNC, ONE)
        assert {m.candidate.task.codegen for m in db.of(plain)} == {mine.codegen}
        assert db.load_state(plain, "mark") == b"mine"
        current = [t.task for t in db.tasks() if t.key == t.task.key]
        assert [t.codegen for t in current] == [mine.codegen, CODEGEN_VERSION]
        assert [len(db.of(t)) for t in current] == [3, 3]
        own, others = db.best(current[0]), db.best(current[1])
        assert own is not None
        assert others is not None
        assert own.cost < 1.0 <= others.cost
        kernel = ts.build(FUNC, ONE, database=db, parts=ts.Parts(), strict=True)
        assert not kernel.source.startswith("; mine")


def test_the_built_in_back_end_has_the_key_that_it_always_had() -> None:
    given = ts.Parts(backends=(ts.LlvmBackend(),))
    assert ts.Task(FUNC, ONE, given).key == ts.Task(FUNC, ONE).key
    shorter = ts.Parts(backends=(ts.LlvmBackend(passes=ts.PLAIN_PASSES),))
    assert ts.Task(FUNC, ONE, shorter).key != ts.Task(FUNC, ONE).key
    gpu = ts.Target.named("nvidia-h100")
    assert ts.Task(FUNC, gpu, shorter).key == ts.Task(FUNC, gpu).key  # it builds nothing for it


def test_a_cost_model_learns_nothing_from_another_back_end(place: Path) -> None:
    with ts.open_database(place) as db:
        tune(product(16), 6, database=db, parts=MINE, strategy=ts.Random())
        for parts, found in ((MINE, 1), (None, 0), (YOURS, 0)):
            tasks = merged([[(ts.Task(product(24), ONE, parts), 1)]])
            with ts.open_database(place, parts=parts) as seen:
                assert len(similar_tasks(seen, tasks)) == found


def test_a_tuner_takes_the_parts_of_its_database(place: Path) -> None:
    with ts.open_database(place, parts=MINE) as db:
        tuner = ts.TaskTuner(
            ts.Task(FUNC, ONE), budget=ts.Budget(trials=1), database=db,
            space=ts.TemplateSpace(plain_tiles),
        )  # fmt: skip
        assert tuner.task.parts is MINE
        with FakeMeasurer().open(tuner.task) as measuring:
            tuner.step(measuring)
        assert len(db.of(ts.Task(FUNC, ONE, MINE))) == 1
        assert db.of(ts.Task(FUNC, ONE, ts.Parts())) == []


def dense(*widths: int) -> ts.Graph:
    rng = np.random.default_rng(0)
    b = GraphBuilder("net")
    x = b.input("x", (16, widths[0]), "float32")
    for m, n in pairwise(widths):
        x = b.add(matmul, x, b.constant(rng.standard_normal((m, n)).astype(np.float32)))
    return b.finish({"y": x})


def test_a_model_is_tuned_with_an_own_instruction(place: Path) -> None:
    graph, feeds = dense(32, 48, 32), {"x": np.ones((16, 32), np.float32)}
    settings: dict[str, Any] = {"quiet": True, "cache": None, "strategy": ts.Random()}
    plain = ts.compile_model(graph, ONE, cache=None)(feeds)["y"]
    with ts.open_database(place, parts=ROWS) as db:
        budget = ts.Budget(trials=30)
        model = ts.tune_model(graph, ONE, budget=budget, database=db, **settings)
        np.testing.assert_allclose(model(feeds)["y"], plain, rtol=1e-3)
        every = [m for t in db.tasks() for m in db.of(t.task)]
        assert any("row_by_matrix" in str(m.candidate.trace) for m in every)
        again = ts.tune_model(graph, ONE, budget=budget, database=db, **settings)
        assert again.tuning is not None
        assert again.tuning.trials == 0
        strict = ts.compile_model(graph, ONE, database=db, cache=None, strict=True)
        np.testing.assert_allclose(strict(feeds)["y"], plain, rtol=1e-3)


def test_parts_that_only_the_tuner_was_given_count_for_its_database(place: Path) -> None:
    settings: dict[str, Any] = {"budget": ts.Budget(trials=4), "quiet": True, "cache": None}
    with ts.open_database(place) as db:
        for _ in range(2):
            ts.tune_model(
                dense(16, 24), ONE, database=db, parts=MINE, measurer=FakeMeasurer(), **settings
            )
        (summary,) = db.tasks()  # no row of the built-in back end
        assert "+Signed:" in summary.codegen
        uses = network_uses(db, replace(summary.task, parts=MINE))
        assert [u.network for u in uses] == ["net", "net"]


def test_a_model_is_built_and_cached_by_its_back_end(tmp_path: Path) -> None:
    graph, feeds = dense(16, 24), {"x": np.ones((16, 16), np.float32)}
    cache = ts.Cache(tmp_path / "cache")

    def source(parts: ts.Parts | None) -> str:
        model = ts.compile_model(graph, ONE, cache=cache, parts=parts)
        model(feeds)
        return model.executors[0].kernels[0].source.splitlines()[0]

    for _ in range(2):
        assert source(MINE) == "; mine"
        assert source(YOURS) == "; yours"
        assert not source(None).startswith(("; mine", "; yours"))
    with ts.open_database(":memory:", parts=MINE) as db:
        model = ts.tune_model(
            graph, ONE, budget=ts.Budget(trials=2), database=db, quiet=True, cache=cache
        )
        model(feeds)
        assert model.executors[0].kernels[0].source.startswith("; mine")
        with pytest.raises(ts.BuildError, match="2 records need the back end 'Signed:"):
            ts.compile_model(
                graph, ONE, database=db, parts=YOURS, strict=True, cache=None
            )(feeds)  # fmt: skip


def test_parts_that_other_processes_cannot_import_are_used_here() -> None:
    calls = []

    @dataclass(frozen=True)
    class Local:
        kind: ClassVar[str] = "cpu"

        def compile(self, func: Any, target: Any, *, checked: bool = False) -> Any:
            calls.append(func.name)
            return ts.LlvmBackend().compile(func, target, checked=checked)

    @dataclass(frozen=True, slots=True)
    class Nothing(ts.Step):
        name: ClassVar[str] = "nothing"

        def apply(self, func: ts.Function) -> ts.Function:
            return func

    parts = ts.Parts(primitives=(Nothing,), backends=(Local(),))
    candidate = ts.Candidate(ts.Task(FUNC, ONE, parts), ts.Trace((Nothing(),)))
    with ts.LocalMeasurer().open(candidate.task) as run:
        (m,) = run.measure([candidate])
    assert m.failure is None, m
    assert calls == ["turn"]
    importable = job_of(ts.Candidate(ts.Task(FUNC, ONE, MINE), ts.Trace((Square("Y", 2),))))
    assert isinstance(importable, Build)
    assert importable.trace is not None


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"primitives": Square}, "primitives of Parts is"),
        ({"primitives": (Square("Y", 2),)}, "is no primitive"),
        ({"primitives": (Square, Square)}, "two parts for the primitive 'square'"),
        ({"intrinsics": (ts.INTRINSICS[0],)}, "is a built-in one"),
        ({"intrinsics": ("dot",)}, "is no intrinsic"),
        ({"backends": (Signed,)}, "is no back end"),
        ({"backends": (Signed("a"), Signed("b"))}, "two parts for the back end"),
    ],
)
def test_what_is_no_part_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ts.ArgumentError, match=text):
        ts.Parts(**given)


def test_a_list_of_parts_is_refused_by_name() -> None:
    with pytest.raises(ts.TuneError, match=r"tune\(parts=...\) is given"):
        tune(parts=(Square,))
    with pytest.raises(ts.BuildError, match=r"build\(parts=...\) is given"):
        ts.build(FUNC, ONE, parts=[Square])  # type: ignore[arg-type]
    with pytest.raises(ts.RecordsError, match=r"it takes a ts\.Parts"):
        ts.open_database(":memory:", parts=[Square])  # type: ignore[arg-type]


def test_torch_takes_parts() -> None:
    assert options_of({"parts": MINE}).parts is MINE


def test_parts_change_by_replace() -> None:
    assert replace(MINE, primitives=(Square,)).builder("cpu") == MINE.builder("cpu")
    assert ROWS.intrinsics == (ROW_BY_MATRIX,)


def test_a_mistake_in_the_target_of_a_model_is_told() -> None:
    with pytest.raises(
        ts.GraphError,
        match=r"compile_model\(target='cpu'\) is given .*; it takes a target, as ts\.cpu\(\)",
    ):
        ts.compile_model(dense(8, 8), "cpu")  # type: ignore[arg-type]
    with pytest.raises(ts.GraphError, match=r"tune_model\(parts=...\) is given"):
        ts.tune_model(dense(8, 8), ONE, parts=[Square])  # type: ignore[call-overload]
