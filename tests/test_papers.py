"""The experiments of the papers: every figure is listed and on its page, runs are counted, tables
and pictures are made.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tilesmith as ts
from bench import papers
from bench.papers_outcome import Outcome, draw
from bench.papers_tuning import Contestant as Tuner
from bench.papers_tuning import FirstStructures, Options, Run, contest, matching, outcome, task_of
from tilesmith.testing.measurers import FakeMeasurer

PAGE = Path(__file__).parents[1] / "docs" / "papers.md"


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates cost what a rule says, and nothing is built."""
    monkeypatch.setattr(ts, "LocalMeasurer", FakeMeasurer)


def test_a_newcomer_sees_what_each_figure_is(capsys: pytest.CaptureFixture[str]) -> None:
    papers.main(["--list"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(papers.FIGURES)
    text = PAGE.read_text()
    for name, figure in papers.FIGURES.items():
        assert f"`{name}`" in text, f"{name} is not on the page"
        assert figure.theirs.split(",")[0] in ("AutoTVM", "Ansor", "MetaSchedule")


def test_an_unknown_figure_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        papers.main(["autotvm-40"])
    assert "unknown figure 'autotvm-40'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        papers.main(["ansor-7", "--seeds", "0"])


def test_a_figure_prints_a_table_and_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.json"
    words = [
        "autotvm-6",
        "--trials",
        "12",
        "--seeds",
        "2",
        "--seed",
        "5",
        "--operator",
        "matmul",
        "16",
        "16",
        "16",
    ]
    papers.main([*words, "--json", str(path)])
    table = capsys.readouterr().out
    assert "diversity 0.02" in table
    told = json.loads(path.read_text())
    assert told["seeds"] == "5, 6"
    assert told["command"].startswith("python -m bench.papers autotvm-6")
    (figure,) = told["figures"].values()
    assert [len(runs) for runs in figure["curves"].values()] == [2] * 4
    best = min(1 / y for runs in figure["curves"].values() for run in runs for _, y in run)
    assert best == pytest.approx(1.0)


def test_rules_are_added_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "composition",
        "--trials",
        "4",
        "--seeds",
        "1",
        "--operator",
        "matmul-relu",
        "32",
        "32",
        "32",
    ]
    papers.main(words)
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.startswith(("loops as", "+ ", "all "))]
    assert len(rows) == 7


def test_speeds_are_shares_of_the_best_after_so_many_trials() -> None:
    task = ts.Task(papers.tuning.operator("matmul", (16, 16, 16)), ts.cpu(1))
    runs = {
        "a": [Run([(0.1, 1, 4.0), (0.5, 20, 2.0)], 1.0, 40)],
        "b": [Run([(0.1, 8, 8.0), (0.2, 30, 1.0)], 1.0, 40)],
    }
    made = outcome("t", task, runs)
    assert made.header == ["speed after trials", "8", "16", "32", "40", "seconds"]
    assert made.rows == [
        ["a", "0.25", "0.25", "0.50", "0.50", "1"], ["b", "0.12", "0.12", "1.00", "1.00", "1"]
    ]  # fmt: skip
    assert runs["a"][0].until(2.0) == (0.5, 20.0)
    assert runs["a"][0].until(1.0)[1] == float("inf")
    assert runs["b"][0].at(4) == float("inf")


def test_matching_counts_trials_until_the_others_end() -> None:
    (made,) = matching(Options(trials=10, seeds=(0,), operator=("matmul", "16", "16", "16")))
    ((name, theirs, _, *_),) = made.rows
    assert name == "matmul 16 16 16"
    assert 1 <= int(theirs) <= 10


def test_contestants_take_turns_seed_by_seed() -> None:
    options = Options(trials=6, seeds=(1, 2), operator=("matmul", "16", "16", "16"))
    task = task_of(options, "")
    runs = contest(task, {"a": Tuner(ts.Random()), "b": Tuner(ts.Random())}, options)
    assert [r.end for r in runs["a"]] == [r.end for r in runs["b"]]
    assert all(r.trials == 6 for each in runs.values() for r in each)
    assert len(FirstStructures().sketches(task)) == 1


def test_pictures_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    bars = Outcome("t", ["case", "ratio"], [["a", "1.5x"], ["b", "not tuned"]], across="x")
    lines = Outcome("t", ["n", "v"], [["a", "1"]], {"a": [[(0.0, 1.0), (1.0, 2.0)]]})
    for name, made in (("bars", bars), ("lines", lines)):
        assert draw(name, made, tmp_path).stat().st_size > 1000
    assert "not tuned" in bars.text
