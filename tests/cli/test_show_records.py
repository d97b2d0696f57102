"""`tilesmith show tasks | records | runs | trace | source`, on a database with known content."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import tilesmith as ts
from tests.support.command_line import run
from tilesmith.testing.measurers import FakeMeasurer


def task_of(n: int, name: str) -> ts.Task:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    return ts.Task(ts.function([a, b, ts.ops.matmul(a, b, name="C")], name=name), ts.cpu(1))


def candidate(task: ts.Task, rows: int) -> ts.Candidate:
    sch = ts.Schedule(task.func)
    i, j, _ = sch.loops("C")
    sch.split(i, [None, rows])
    sch.vectorize(sch.split(j, [None, 8])[1])
    return ts.Candidate(task, sch.trace)


@pytest.fixture
def db(tmp_path: Path) -> str:
    place = str(tmp_path / "t.db")
    small, large = task_of(16, "small"), task_of(32, "large")
    with ts.open_database(place) as d:
        d.add(
            [
                ts.Measurement(candidate(small, 2), (2e-6, 2e-6, 2e-6), confirmed=True),
                ts.Measurement(candidate(small, 3), (1e-6, 1e-6, 1e-6)),
                ts.Measurement(candidate(small, 4), (5e-7, 5e-7, 5e-7), contended=True),
                ts.Measurement(candidate(small, 5), failure=ts.Failure("wrong", "first words")),
                ts.Measurement(candidate(small, 6), failure=ts.Failure("wrong", "later words")),
                ts.Measurement(candidate(small, 7), failure=ts.Failure("crash", "signal 11")),
                ts.Measurement(candidate(large, 2), failure=ts.Failure("crash", "signal 4")),
            ]
        )
    return place


def test_tasks(capsys: pytest.CaptureFixture[str], db: str) -> None:
    status, out, _ = run(capsys, "show", "tasks", "--db", db)
    _, small, shapes, large, _, target = out.splitlines()
    assert shapes.split() == ["16x16,", "16x16", "->", "16x16", "float32"]
    assert target.endswith("1 core")
    assert status == 0
    key = task_of(16, "small").key
    flops = 2 * 16**3 / 2e-6 / 1e9
    assert small.split()[:7] == [key[:12], "small", "6", "3", "2.00", "us", f"{flops:.1f}"]
    assert large.split()[1:6] == ["large", "1", "1", "-", "-"]


def test_records_come_best_first_and_failures_by_kind(
    capsys: pytest.CaptureFixture[str], db: str
) -> None:
    _, out, _ = run(capsys, "show", "records", "small", "--db", db)
    lines = out.splitlines()
    task = task_of(16, "small")
    keys = [candidate(task, rows).key[:12] for rows in (3, 2, 4)]
    assert [line.split()[1] for line in lines[2:5]] == keys
    assert lines[3].endswith("used")
    assert lines[4].endswith("contended")
    assert lines[5:] == [
        "3 measured, 3 failed",
        "  2 failed (wrong); the first: first words",
        "  1 failed (crash); the first: signal 11",
    ]
    _, short, _ = run(capsys, "show", "records", task.key[:6], "--db", db, "--top", "1")
    assert keys[0] in short
    assert keys[1] not in short


def test_the_trace_is_the_schedule_and_goes_back_through_json(
    capsys: pytest.CaptureFixture[str], db: str
) -> None:
    task = task_of(16, "small")
    _, out, _ = run(capsys, "show", "trace", "small", "--db", db, "--record", "1")
    assert out.strip() == str(candidate(task, 3).trace)
    _, text, _ = run(capsys, "show", "trace", "small", "--db", db, "--json")
    assert ts.Trace.from_json(text) == candidate(task, 2).trace
    key = candidate(task, 7).key[:9]  # a failure has no place, but a key
    _, out, _ = run(capsys, "show", "trace", "small", "--db", db, "--record", key, "--program")
    assert "factors=[None, 7]" in out
    assert "# vectorize" in out


def test_decisions_stand_in_the_trace_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    place = str(tmp_path / "d.db")
    task = task_of(16, "drawn")
    search = ts.Random().start(task, ts.SketchSpace().sketches(task), np.random.default_rng(0))
    (drawn,) = search.ask(1)
    assert "sample_tile" in str(drawn.trace)
    with ts.open_database(place) as d:
        d.add([ts.Measurement(drawn, (1e-6,))])
    _, out, _ = run(capsys, "show", "trace", "--db", place)
    assert "sample_tile" not in out
    assert "#" not in out  # numbers, not names
    assert out.splitlines() == [
        str(s) for s in drawn.trace.resolved if s.name not in ("sample_tile", "sample_choice")
    ]


def test_the_source_by_option(capsys: pytest.CaptureFixture[str], db: str) -> None:
    _, ir, _ = run(capsys, "show", "source", "small", "--db", db)
    assert "define" in ir
    assert re.search(r"<\d+ x float>", ir)  # as many as the machine's vectors hold
    _, assembly, _ = run(capsys, "show", "source", "small", "--db", db, "--assembly")
    assert "define" not in assembly
    assert "ret" in assembly


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("show records --db DB", "holds 2 tasks; name one of"),
        ("show records tiny --db DB", "holds no task 'tiny'; it has"),
        ("show trace small --db DB --record 4", "give a number from 1 to 3, or a candidate's key"),
        ("show trace large --db DB", "'1' names no record of large"),
        ("show tasks --db missing.db", "there is no database missing.db"),
        ("show tasks", "--db"),
        ("db stats missing.db", "there is no database missing.db"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], db: str, words: str, said: str
) -> None:
    status, out, err = run(capsys, *words.replace("DB", db).split())
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert said in err
    assert not Path("missing.db").exists()


def test_the_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("tasks", "records", "trace", "source"):
        status, out, _ = run(capsys, "show", command, "--help")
        assert status == 0
        assert f"Example: tilesmith show {command}" in " ".join(out.split())


def test_a_task_is_named_by_the_beginning_of_its_function(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    place = str(tmp_path / "t.db")
    names = {16: "matmul_16_16_16", 24: "matmul_relu", 32: "conv2d_7_3_NHWC", 40: "conv2d_8_3"}
    with ts.open_database(place) as d:
        for n, name in names.items():
            d.add([ts.Measurement(candidate(task_of(n, name), 2), (1e-6,))])
    for word, name in (
        ("matmul", "matmul_16_16_16"),
        ("matmul_16", "matmul_16_16_16"),
        ("matmul-relu", "matmul_relu"),
        ("conv2d_7", "conv2d_7_3_NHWC"),
        ("conv2d_8_3", "conv2d_8_3"),
    ):
        status, out, _ = run(capsys, "show", "records", word, "--db", place)
        assert (status, out.split()[0]) == (0, name)
    status, _, err = run(capsys, "show", "records", "conv2d", "--db", place)
    assert status == 2
    assert "names 2 tasks" in err
    assert run(capsys, "show", "records", "mat", "--db", place)[0] == 2


def test_tables_fit_80_columns_unless_wide(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    place = str(tmp_path / "t.db")
    name = "a_function_with_a_name_that_takes_more_than_half_of_a_line_of_80_letters"
    with ts.open_database(place) as d:
        d.add([ts.Measurement(candidate(task_of(16, name), 2), (12.5,) * 3, confirmed=True)])
    _, out, _ = run(capsys, "show", "tasks", "--db", place)
    table = out.splitlines()[:2]
    assert max(map(len, table)) <= 80
    assert "12 500 000.0 us" in table[1]
    assert name[:10] in table[1]
    assert name not in out
    _, records, _ = run(capsys, "show", "records", "--db", place)
    assert max(map(len, records.splitlines()[1:])) <= 80
    _, wide, _ = run(capsys, "show", "tasks", "--db", place, "--wide")
    assert name in wide
    assert "target" in wide.splitlines()[0]


def test_runs_are_listed_with_their_best(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    place, task = str(tmp_path / "runs.db"), task_of(16, "small")
    with ts.open_database(place) as d:
        results = [
            ts.tune(
                task.func, task.target, budget=ts.Budget(trials=trials), database=d, quiet=True,
                strategy=ts.Random(), measurer=FakeMeasurer(), seed=trials,
            )
            for trials in (6, 10)
        ]  # fmt: skip
    status, out, _ = run(capsys, "show", "runs", "--db", place)
    assert status == 0
    first, second = (line.split() for line in out.splitlines()[2:])
    assert (first[2:4], second[2:4]) == (["Random", "6"], ["Random", "10"])
    assert (first[5], second[5]) == ("6", "4")
    assert float(first[6]) == pytest.approx(results[0].curve[-1][2] * 1e6, abs=0.01)


def test_records_without_a_run(capsys: pytest.CaptureFixture[str], db: str) -> None:
    status, out, _ = run(capsys, "show", "runs", "small", "--db", db)
    assert status == 0
    assert out.splitlines()[-1].endswith("holds no run of it")


def test_records_are_in_the_order_of_their_median_and_equal_programs_are_marked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    place, task = str(tmp_path / "r.db"), task_of(16, "mixed")
    times = {2: 5e-6, 3: 3e-6, 4: 4e-6, 5: 3e-6, 6: 9e-6}
    slow = {2}  # measured while the machine was slow: by its reference, this one is the fastest
    with ts.open_database(place) as d:
        d.add([
            ts.Measurement(candidate(task, rows), (seconds,) * 3, confirmed=rows in (2, 3),
                           references=(1e-3 if rows in slow else 1e-4,) * 3)
            for rows, seconds in times.items()
        ])  # fmt: skip
    _, out, _ = run(capsys, "show", "records", "mixed", "--db", place)
    lines = out.splitlines()[2:7]
    medians = [float(line.split()[2]) for line in lines]
    assert medians == sorted(medians) == [3.0, 3.0, 4.0, 5.0, 9.0]
    assert [line for line in lines if line.endswith("used")] == [lines[3]]
    assert "same as" not in lines[0]
    assert lines[1].endswith("same as 1")
    assert not any("same as" in line for line in lines[2:])
    _, used, _ = run(capsys, "show", "trace", "mixed", "--db", place)
    assert used.strip() == str(candidate(task, 2).trace)
    _, first, _ = run(capsys, "show", "trace", "mixed", "--db", place, "--record", "4")
    assert first == used


def test_a_schedule_is_explained_step_by_step(capsys: pytest.CaptureFixture[str], db: str) -> None:
    status, out, err = run(capsys, "explain", "small", "--db", db)
    assert status == 0, err
    lines = out.splitlines()
    assert lines[0] == "small 16x16, 16x16 -> 16x16 float32"
    task = task_of(16, "small")
    steps = [str(s) for s in candidate(task, 2).trace]
    assert [line for line in lines if line in steps] == steps
    first = next(k for k, line in enumerate(lines) if line.startswith("split("))
    assert lines[first + 1].startswith("    # Replaces one loop by several nested ones")
    assert out.count("# Replaces one loop by several nested ones") == 1  # said once
    assert out.rstrip().endswith(str(candidate(task, 2).trace.apply(task.func)).rstrip())


def test_every_primitive_is_explained_by_a_sentence() -> None:
    for primitive in ts.PRIMITIVES:
        assert (primitive.__doc__ or "").strip()[0].isupper(), primitive
