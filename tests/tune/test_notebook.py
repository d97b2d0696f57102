"""Notebooks: progress is one output that is replaced, and objects show themselves as HTML."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tilesmith as ts
from tilesmith.testing.measurers import FakeMeasurer
from tilesmith.tune import progress as module
from tilesmith.tune.progress import NotebookOutput, notebook_output, progress_bar

ROOT = Path(__file__).parents[2]


class Cell:
    """Stands in for IPython.display: keeps what a cell would show."""

    def __init__(self) -> None:
        self.outputs: list[dict[str, str]] = []
        self.updates = 0

    def display(self, forms: dict[str, str], raw: bool, display_id: bool) -> Cell:
        assert raw
        assert display_id
        self.outputs.append(forms)
        return self

    def update(self, forms: dict[str, str], raw: bool) -> None:
        self.updates += 1
        self.outputs[-1] = forms


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    cell = Cell()
    ipython: Any = SimpleNamespace(
        get_ipython=lambda: SimpleNamespace(kernel=object()),
        display=SimpleNamespace(display=cell.display),
    )
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    return cell


def product() -> ts.Function:
    A, B = ts.placeholder((8, 8), name="A"), ts.placeholder((8, 8), name="B")
    return ts.function([A, B, ts.ops.matmul(A, B, name="C")], name="a_product")


def test_tuning_shows_one_output(cell: Cell, capsys: pytest.CaptureFixture[str]) -> None:
    ts.tune(
        product(), ts.cpu(1), budget=ts.Budget(trials=40), strategy=ts.Random(),
        measurer=FakeMeasurer(),
    )  # fmt: skip
    (shown,) = cell.outputs
    assert shown["text/plain"].startswith("a_product")
    assert " s in all" in shown["text/plain"]
    assert "<pre" in shown["text/html"]
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")


def test_a_network_shows_one_table(cell: Cell, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnx")
    from onnx.parser import parse_model

    graph = ts.load_onnx(
        parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[4, 8] x, float[8, 8] w) => (float[4, 8] y) {p = MatMul(x, w) y = Softmax(p)}""")
    )
    ts.tune_model(
        graph, ts.cpu(1), budget=ts.Budget(trials=12), measurer=FakeMeasurer(), cache=None
    )
    texts = [shown["text/plain"] for shown in cell.outputs]
    # Drafts are built before the run, and what no measurer has kept after it.
    (table,) = (text for text in texts if not text.startswith("building kernels"))
    assert len(texts) <= 3
    assert "weight" in table
    assert " s in all" in table
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")


def test_updates_are_bounded_and_the_last_one_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    cell = Cell()
    output = NotebookOutput(cell.display)
    for k in range(1000):
        now[0] += 0.01
        output.write(str(k))
    assert 25 < cell.updates < 40
    output.write("<the end>", last=True)
    assert cell.outputs == [{"text/plain": "<the end>", "text/html": cell.outputs[0]["text/html"]}]
    assert "&lt;the end&gt;" in cell.outputs[0]["text/html"]


def test_counted_work_shows_one_output(cell: Cell) -> None:
    with progress_bar("building kernels") as report:
        for k in range(6):
            report(k, 5)
    assert [o["text/plain"] for o in cell.outputs] == ["building kernels: 5 of 5"]
    with progress_bar("nothing", show=False) as report:
        report(1, 1)
    assert len(cell.outputs) == 1


def test_ipython_in_a_terminal_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    for shell in (None, SimpleNamespace()):
        ipython: Any = SimpleNamespace(get_ipython=lambda shell=shell: shell)
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        assert notebook_output() is None
    monkeypatch.delitem(sys.modules, "IPython")
    assert notebook_output() is None


def test_objects_show_themselves() -> None:
    func = product()
    sch = ts.Schedule(func)
    sch.vectorize("C.j")
    task = ts.Task(func, ts.cpu(1))
    done = ts.Measurement(ts.Candidate(task, sch.trace), (2e-6, 3e-6, 4e-6))
    failed = ts.Measurement(
        ts.Candidate(task, ts.Trace()), failure=ts.Failure("build", "a < b & c")
    )
    result = ts.tune(
        func, ts.cpu(1), budget=ts.Budget(trials=3), strategy=ts.Random(),
        measurer=FakeMeasurer(), quiet=True,
    )  # fmt: skip
    texts = {type(x).__name__: x._repr_html_() for x in (sch, sch.trace, done, result)}
    assert "for C.j in 8:  # vectorize" in texts["Schedule"]
    assert "1 steps" in texts["Schedule"]
    assert "vectorize(" in texts["Trace"]
    assert "3 us of 3 samples" in texts["Measurement"]
    assert "a_product for" in texts["Result"]
    assert "3 in " in texts["Result"]
    assert "a &lt; b &amp; c" in failed._repr_html_()
    for text in (*texts.values(), failed._repr_html_()):
        assert len(text) < 8000
    assert repr(sch) == "<Schedule of a_product, 1 steps>"


def test_the_first_notebook_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By a real kernel: every cell has few outputs, and the one that tunes ends with its result."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(ROOT / "examples" / "first_steps.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not any(c.get("outputs") for c in notebook.cells), "it is stored without outputs"
    for c in notebook.cells:
        c.source = c.source.replace("seconds=3", "trials=8").replace("128", "32")
    run = {"metadata": {"path": str(tmp_path)}, "iopub_timeout": 60}
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3", resources=run).execute()
    cells = {c.source.split("(")[0]: c.outputs for c in notebook.cells if c.cell_type == "code"}
    assert all(1 <= len(outputs) <= 2 for outputs in cells.values()), cells
    progress, result = cells["result = ts.tune"]
    assert progress.output_type == "display_data"
    assert "8 trials" in progress.data["text/plain"]
    assert " s in all" in progress.data["text/plain"]
    assert result.output_type == "execute_result"
    assert "<table>" in result.data["text/html"]
    assert "<Result matmul_relu" in result.data["text/plain"]
    assert "vectorize" in cells["sch = ts.Schedule"][-1].data["text/html"]
