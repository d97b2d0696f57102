"""What a person sees of a run: lines with all figures, one line written over on a terminal."""

from __future__ import annotations

import io
import os

import pytest

import tilesmith as ts
from tilesmith.measure.this_machine import peak_of
from tilesmith.testing.measurers import FakeMeasurer
from tilesmith.tune.progress import Progress, Terminal


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def progress(
    trials: int,
    seconds: float,
    cost: float,
    finished: bool = False,
    name: str = "product",
    failures: dict[str, int] | None = None,
    known: int = 7,
) -> Progress:
    a, b = ts.placeholder((64, 64), name="A"), ts.placeholder((64, 64), name="B")
    func = ts.function([a, b, ts.ops.matmul(a, b, name="C")], name=name)
    task = ts.Task(func, ts.cpu(1))
    best = ts.Measurement(ts.Candidate(task, ts.Trace()), (cost,))
    failures = {"wrong": 2, "timeout": 1} if failures is None else failures
    budget = ts.Budget(seconds=20)
    return Progress(task, budget, seconds, trials, known, failures, best, (), finished)


def test_a_wide_line_has_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Terminal, "_width", 120)
    said = io.StringIO()
    Terminal(said)(progress(40, 4.0, 1e-5))
    peak = peak_of(ts.dtype("float32"), 1)
    assert peak is not None
    rate = 2 * 64**3 / 1e-5
    assert said.getvalue() == (
        f"product  40 trials  10.0/s  7 known  best 10.0 us  {rate / 1e9:.1f} GFLOP/s  "
        f"{100 * rate / peak:.0f} % of peak  2 wrong, 1 timeout failed  16 s left\n"
    )


MANY = dict.fromkeys(("schedule", "build", "crash", "timeout", "memory", "bounds", "wrong"), 1234)


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("cost", [1e-7, 1e-3, 12.5])
@pytest.mark.parametrize("name", ["f", "transposed_depthwise_convolution_" * 4])
@pytest.mark.parametrize("failures", [{}, {"wrong": 2, "timeout": 1}, MANY])
def test_a_line_fits_eighty_columns(
    finished: bool, cost: float, name: str, failures: dict[str, int]
) -> None:
    said = io.StringIO()
    Terminal(said)(progress(123456, 9876.5, cost, finished, name, failures, known=99999))
    line = said.getvalue().splitlines()[0]
    assert len(line) <= 79
    assert line.startswith(name[:8].rstrip("."))
    for needed in ("123456 trials", "best ", " s in all" if finished else " s left"):
        assert needed in line
    if failures:
        assert f"{sum(failures.values())} failed" in line or "2 wrong, 1 timeout failed" in line


@pytest.mark.parametrize("columns", [30, 60, 80, 200])
def test_a_terminal_that_is_narrow_or_wide(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    size = os.terminal_size((columns, 24))
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: size)
    monkeypatch.setattr(Screen, "fileno", lambda self: 2)
    said = Screen()
    Terminal(said)(progress(40, 4.0, 1e-5, name="n" * 300))
    line = said.getvalue().removeprefix("\r\x1b[K")
    assert len(line) < max(columns, 45)
    assert (len(line) > 120) == (columns == 200)


def test_lines_come_now_and_then_where_there_is_no_terminal() -> None:
    said = io.StringIO()
    show = Terminal(said)
    for second in range(20):
        show(progress(second, float(second), 1e-3 / (1 + second)))
    show(progress(20, 20.0, 1e-6, finished=True))
    text = said.getvalue()
    assert text.count(" trials  ") == 5
    assert "\r" not in text
    assert "\x1b" not in text
    assert "20.0 s in all" in text
    assert "GFLOP/s 0 s" in text  # the curve's axis


def test_a_terminal_has_one_line_that_is_written_over() -> None:
    said = Screen()
    show = Terminal(said)
    for second in range(5):
        show(progress(second, float(second), 1e-3))
    assert "\n" not in said.getvalue()
    assert said.getvalue().count("\r\x1b[K") == 5
    show(progress(5, 5.0, 1e-3, finished=True))
    assert said.getvalue().endswith("\n")


def test_the_peak_is_measured_once_and_is_plausible() -> None:
    one, two = (peak_of(ts.dtype("float32"), n) for n in (1, 2))
    assert one is not None
    assert two is not None
    assert 1e9 < one < 1e12
    assert peak_of(ts.dtype("float32"), 1) is one
    assert peak_of(ts.dtype("int8"), 1) is None


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    x = ts.placeholder((8,), name="X")
    func = ts.function([x, ts.compute((8,), lambda i: x[i] + 1, name="Y")], name="next")
    ts.tune(
        func, ts.cpu(1), budget=ts.Budget(trials=3), strategy=ts.Random(),
        measurer=FakeMeasurer(), quiet=True,
    )  # fmt: skip
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")
