"""What a person sees of a run: lines with all figures, one line written over on a terminal."""

from __future__ import annotations

import io

import pytest

import tilesmith as ts
from tilesmith.measure.peak import peak_of
from tilesmith.testing.measurers import FakeMeasurer
from tilesmith.tune.events import Progress
from tilesmith.tune.terminal import Terminal


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def progress(trials: int, seconds: float, cost: float, finished: bool = False) -> Progress:
    a, b = ts.placeholder((64, 64), name="A"), ts.placeholder((64, 64), name="B")
    func = ts.function([a, b, ts.ops.matmul(a, b, name="C")], name="product")
    task = ts.Task(func, ts.cpu(1))
    best = ts.Measurement(ts.Candidate(task, ts.Trace()), (cost,))
    failures = {"wrong": 2, "timeout": 1}
    return Progress(task, ts.Budget(seconds=20), seconds, trials, 7, failures, best, (), finished)


def test_a_line_has_everything() -> None:
    said = io.StringIO()
    Terminal(said)(progress(40, 4.0, 1e-5))
    peak = peak_of(ts.dtype("float32"), 1)
    assert peak is not None
    rate = 2 * 64**3 / 1e-5
    assert said.getvalue() == (
        f"product  40 trials  7 known  best 10.0 us {rate / 1e9:.1f} GFLOP/s "
        f"({100 * rate / peak:.0f} % of peak)  10.0 trials/s  2 wrong, 1 timeout failed  "
        "16 s left\n"
    )


def test_lines_come_now_and_then_where_there_is_no_terminal() -> None:
    said = io.StringIO()
    show = Terminal(said)
    for second in range(20):
        show(progress(second, float(second), 1e-3 / (1 + second)))
    show(progress(20, 20.0, 1e-6, finished=True))
    text = said.getvalue()
    assert text.count("trials/s") == 5
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
