"""The log of the benchmark of networks: what was done is read back, and what was cut off is not."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tilesmith_contest.model_rows import EngineResult, ModelRow

BENCH = Path(__file__).parents[2] / "bench"


def module(name: str) -> ModuleType:
    """A file of bench/, which is not installed."""
    full = f"bench.{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, BENCH / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        sys.modules[full] = made
        spec.loader.exec_module(made)
    return sys.modules[full]


def test_steps_are_read_back_and_the_last_one_counts(tmp_path: Path) -> None:
    m = module("network_log")
    path = tmp_path / "log.jsonl"
    log = m.NetworkLog(path)
    case = m.Case("resnet50", 1, 600.0)
    log.add(m.Tuned(case, 10.0, 40, 23, ((5.0, 0.3), (9.0, 0.25)), False))
    log.add(m.Tuned(case, 600.0, 900, 23, ((5.0, 0.3), (70.0, 0.2)), True))
    engine = EngineResult("openvino", ms=184.0, ratio=0.98, spread=0.01)
    row = ModelRow("resnet50, 1 thread", 188.0, peer="openvino", ratio=0.98, engines=(engine,))
    log.add(m.Compared(case, row))
    with open(path, "a") as f:
        f.write('{"step": "tuned", "case": {"netw')  # ended in the midst of a line
    again = m.NetworkLog(path)
    assert again.steps == log.steps
    tuned = again.tuned(case)
    assert tuned.done
    assert (tuned.at(60.0), tuned.at(1.0), tuned.estimate) == (0.3, None, 0.2)
    assert again.compared(case).row == row
    assert [r.case for r in again.results] == [case]
    assert again.tuned(m.Case("resnet50", 2, 600.0)) is None


def test_the_figure_and_the_page_come_from_the_log(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    module("network_log")
    figures, m = module("network_figures"), module("network_log")
    log = m.NetworkLog(tmp_path / "log.jsonl")
    with pytest.raises(SystemExit, match="has no comparison yet"):
        figures.draw(log, tmp_path / "f.svg")
    for threads in (1, 2):
        case = m.Case("dcgan", threads, 600.0)
        log.add(m.Tuned(case, 600.0, 900, 5, ((5.0, 0.03), (70.0, 0.02)), True, 0.015))
        engines = (EngineResult("mnn", ms=25.0, ratio=1.25), EngineResult("torch", failed="no"))
        row = ModelRow("dcgan", 20.0, peer="mnn", peer_value=25.0, ratio=1.25, engines=engines)
        log.add(m.Compared(case, row))
    figures.draw(log, tmp_path / "f.svg")
    first = (tmp_path / "f.svg").read_text()
    assert "best so far, 2 threads" in first
    figures.draw(log, tmp_path / "f.svg")
    assert (tmp_path / "f.svg").read_text() == first
    page = tmp_path / "page.md"
    page.write_text(f"before\n{figures.BEGIN}\nold\n{figures.END}\nafter\n")
    figures.write_page(log, page, tmp_path / "f.svg")
    text = page.read_text()
    assert "old" not in text
    assert text.startswith("before")
    assert text.endswith("after\n")
    assert "| dcgan | 20.00 | 25.00 | - | 1.25 | - | - |" in text
    assert "| dcgan | 1 | 5 | 900 | 30.00 | 30.00 | 20.00 | 1.50 | 15.00 | 600 |" in text
