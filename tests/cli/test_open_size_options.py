"""Open sizes on the command line: how they are written, tuned and shown."""

from __future__ import annotations

from pathlib import Path

import pytest

import tilesmith as ts
from tests.support.command_line import run
from tilesmith.cli.operator_arguments import function_of


def test_an_open_size_has_a_name_a_range_and_samples() -> None:
    func = function_of("matmul", ["n:1..512@16,128x4", "768", "64"])
    assert func.name == "matmul_n_768_64"
    (size,) = func.declared
    assert (size.name, size.range, size.samples) == ("n", (1, 512), ((16, 1.0), (128, 4.0)))
    assert [str(b.shape) for b in func.params] == ["(#n, 64)", "(64, 768)", "(#n, 768)"]
    square = function_of("softmax", ["n:1..8", "n:1..8"])
    assert square.open_sizes == ("n",)
    image = function_of("conv2d", ["56", "8", "8", "3", "1", "1", "batch:1..64"])
    assert image.open_sizes == ("batch",)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("matmul n:1..", "matmul: N is 'n:1..'; an open size is NAME:LOW..HIGH"),
        ("matmul n:9..1 8 8", "the range of size n is (9, 1)"),
        ("matmul 3:1..9 8 8", "an open size is NAME:LOW..HIGH"),
        ("matmul n:1..9@x 8 8", "matmul: N has the sample 'x'"),
        ("matmul n:1..9@99 8 8", "sample 99 of size n is outside of its range"),
        ("matmul n:0..9 8 8", "matmul: N is 0; it must be at least 1"),
        ("matmul n:1..9 8 8 1 m:1..2", "matmul takes the sizes matmul N M K"),
        ("matmul n:1..9 8", "matmul takes the sizes"),
        ("matmul n:1..9 n:1..5 8", "two sizes 'n' with range"),
        ("matmul n:1..9 8 k:1..99999999999999 --db x.db", "would take"),
        ("conv2d 8 8 8 k:1..3 1 1", "is the open size #k; it must be a number here"),
        ("matmul n:1..9 8 8 --out folder", "--out is for fixed sizes"),
    ],
)
def test_nonsense_is_one_line(
    words: str, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    status, _, error = run(capsys, "tune", *words.split(), "--trials", "1")
    assert status == 2
    assert said in " ".join(error.split()), error
    assert "defect" not in error


def test_a_portfolio_is_tuned_stored_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = str(tmp_path / "open.db")
    words = ("matmul", "n:1..8@2,8", "16", "16")
    status, _, error = run(capsys, "show", "portfolio", "--db", db)
    assert (status, "does not exist" in error or "no database" in error) == (2, True), error
    status, out, error = run(
        capsys, "tune", *words, "--trials", "2", "--cores", "1", "--db", db, "--quiet"
    )
    assert status == 0, error
    assert "matmul_n_16_16, n 1 to 8" in out
    assert "2 trials" in out
    status, out, _ = run(capsys, "show", "portfolio", "matmul", "--db", db)
    assert status == 0
    assert out.startswith("matmul_n_16_16 (n 1 to 8) on")
    assert [line.split()[2] for line in out.splitlines()[2:4]] == ["2", "8"]
    assert "kernel 0 where n >= 9" in out or "kernel 0 where anything" in out
    status, _, error = run(capsys, "show", "portfolio", "conv2d", "--db", db)
    assert status == 2
    assert "no portfolio of 'conv2d'; it has those of matmul_n_16_16" in error
    with ts.open_database(db) as d:
        kernel = ts.build(function_of("matmul", [*words[1:]]), ts.cpu(1), database=d)
    assert "PortfolioKernel" in type(kernel).__name__
    status, _, error = run(capsys, "tune", *words, "--trials", "2", "--cores", "1", "--db", db,
                           "--resume", "--quiet")  # fmt: skip
    assert status == 0, error
