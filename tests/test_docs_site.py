"""The site and what it is made of: the how-tos run, the reference has every public name with a
docstring, the examples in docstrings run, and mkdocs builds it all without a warning.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx.parser
import pytest

import tilesmith as ts
from tilesmith.testing.measurers import FakeMeasurer

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
MODEL = """<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 8] x) => (float[batch, 8] y)
    {p = Mul(x, x) y = Softmax(p)}"""


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_site", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


site = _loaded(DOCS / "site.py")
HOWTOS = ["howto_operator", "howto_several", "howto_template", "howto_model", "howto_gpu"]
# Pages whose Python other tests run: test_documents.py, test_export_page.py, test_fleet_ray.py.
ELSEWHERE = {"tour", "howto_torch", "export", "howto_fleet"}
# Everything that a user of these types calls is explained.
EXPLAINED = (
    ts.Schedule, ts.TemplateSchedule, ts.Trace, ts.Result, ts.Kernel, ts.Model, ts.Database,
    ts.Target, ts.Task, ts.Candidate, ts.Measurement, ts.Function, ts.LocalMeasurer,
    ts.FleetMeasurer, ts.TemplateSpace, ts.SketchSpace, ts.UnionSpace, ts.Evolution, ts.Gbdt,
)  # fmt: skip
WITH_EXAMPLES = (
    "placeholder", "reduce_axis", "compute", "sum", "function", "evaluate", "tune", "build",
    "Budget", "Schedule", "Trace", "open_database", "Database", "load_onnx", "from_torch",
    "compile_model", "tune_model", "extract_tasks", "Model", "Kernel", "LocalMeasurer",
    "FleetMeasurer", "cpu", "cuda", "opencl", "Target", "TemplateSpace", "SketchSpace", "Variant",
    "tune_tasks",
)  # fmt: skip
EXAMPLES = {name: site.examples_of(getattr(ts, name)) for name in WITH_EXAMPLES}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Few trials, and files of its own."""
    for maker, trials in (("tune", 2), ("tune_tasks", 4), ("tune_model", 2)):
        made = getattr(ts, maker)
        few: dict[str, Any] = {"budget": ts.Budget(trials=trials), "quiet": True}
        monkeypatch.setattr(ts, maker, lambda *a, made=made, few=few, **k: made(*a, **{**k, **few}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def code_of(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def unmeasured(short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuning without kernels: that a tuner measures is tested elsewhere, and takes seconds."""
    fake = {"measurer": FakeMeasurer()}
    for maker in ("tune", "tune_tasks", "tune_model"):
        made = getattr(ts, maker)
        monkeypatch.setattr(ts, maker, lambda *a, made=made, **k: made(*a, **{**k, **fake}))


def inline_of(page: Path) -> list[str]:
    """Expressions of `ts` in the text, whole calls; of an argument as in `space=ts.Space()` what
    is given.
    """
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`(?:\w+=)?(ts\.[^`]*\))`", text)
    return [s.replace("\n", " ") for s in spans if "..." not in s and not s.endswith("()")]


def run_page(page: Path) -> None:
    scope: dict[str, Any] = {"__name__": "__main__"}  # dataclasses look up their module
    for number, block in enumerate(code_of(page), 1):
        exec(compile(block, f"{page.name}, block {number}", "exec"), scope)
    for code in inline_of(page):
        names = {n.id for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Name)}
        if names <= scope.keys() and "ts.cuda" not in code:
            eval(compile(code, f"{page.name}, in the text", "eval"), scope)
    if "db" in scope:
        scope["db"].close()


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=str)
def test_calls_in_the_text_are_of_functions_that_take_them(page: Path) -> None:
    for code in inline_of(page):
        for node in ast.walk(ast.parse(code, mode="eval")):
            if not isinstance(node, ast.Call) or not ast.unparse(node.func).startswith("ts."):
                continue
            function = eval(ast.unparse(node.func), {"ts": ts})
            given = dict.fromkeys(k.arg for k in node.keywords if k.arg)
            if not any(isinstance(a, ast.Starred) for a in node.args):
                inspect.signature(function).bind_partial(*node.args, **given)


def pages() -> list[str]:
    """All that have Python code."""
    return sorted(p.stem for p in DOCS.glob("*.md") if code_of(p))


@pytest.mark.parametrize("name", [n for n in pages() if n not in ELSEWHERE])
def test_a_page_runs_from_top_to_bottom(name: str, short: None) -> None:
    if name == "howto_gpu":
        _require_gpu()
    run_page(DOCS / f"{name}.md")


def test_the_code_of_the_reference_of_search_runs(unmeasured: None) -> None:
    run_page(DOCS / "api" / "search.md")


def _require_gpu() -> None:
    try:
        ts.opencl()
    except ts.TargetError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", [*HOWTOS, "howto_report", "howto_fleet", "howto_torch"])
def test_a_howto_is_short(name: str) -> None:
    text = (DOCS / f"{name}.md").read_text()
    assert len(text.splitlines()) < 100
    assert len(text.split()) < 650


def names() -> list[str]:
    return [n for n in ts.__all__ if n != "ops"]


def test_the_reference_lists_every_public_name_once() -> None:
    listed = [n for p in (DOCS / "api").glob("*.md") for n in site.names_on(p.read_text())]
    assert sorted(listed) == sorted(ts.__all__)


@pytest.mark.parametrize("name", names())
def test_a_public_name_has_a_docstring(name: str) -> None:
    thing = getattr(ts, name)
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        pages = "".join(p.read_text() for p in (DOCS / "api").glob("*.md"))
        prose = site.MARK.sub("", pages)
        kind = isinstance(thing, ts.Intrinsic) or name == "__version__"
        assert kind or f"`ts.{name}`" in prose or "These tuples" in prose
        return
    text = thing.__doc__ or ""
    assert text.strip()
    assert not text.startswith(f"{thing.__name__}("), "what a dataclass writes by itself"


@pytest.mark.parametrize("name", ts.ops.__all__)
def test_an_operator_has_a_docstring(name: str) -> None:
    assert (getattr(ts.ops, name).__doc__ or "").strip()


@pytest.mark.parametrize("thing", EXPLAINED, ids=lambda t: t.__name__)
def test_every_method_is_explained(thing: type) -> None:
    kinds = property | cached_property | staticmethod | classmethod
    for name, member in vars(thing).items():
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, kinds)):
            assert inspect.getdoc(member), f"{thing.__name__}.{name}"


@pytest.mark.parametrize("name", ["tune", "build", "compute", "compile_model", "tune_model"])
def test_every_parameter_is_explained(name: str) -> None:
    thing = getattr(ts, name)
    text = thing.__doc__ or ""
    for parameter in inspect.signature(thing).parameters:
        assert f"`{parameter}`" in text, parameter


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_an_example_in_a_docstring_runs(
    name: str, unmeasured: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in ("cuda", "opencl"):
        _require_gpu()
        monkeypatch.setattr(ts, "cuda", ts.opencl)
    onnx.save(onnx.parser.parse_model(MODEL), "model.onnx")
    A, B = ts.placeholder((16, 12), name="A"), ts.placeholder((12, 32), name="B")
    func = ts.function([A, B, ts.ops.matmul(A, B, name="C")], name="product")
    a, b = np.ones((16, 12), np.float32), np.ones((12, 32), np.float32)
    scope: dict[str, Any] = {"ts": ts, "np": np, "func": func, "a": a, "b": b}
    assert EXAMPLES[name]
    for code in EXAMPLES[name]:
        program = compile(code, f"example of ts.{name}", "exec")
        if name != "from_torch":  # howto_torch.md has the same, and PyTorch takes seconds to load
            exec(program, scope)


def test_mkdocs_builds_the_site_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    reference = (tmp_path / "api" / "tuning.html").read_text()
    assert 'id="tune"' in reference
    home = (tmp_path / "index.html").read_text()
    assert "howto_operator.html" in home
    for page in tmp_path.rglob("*.html"):
        outside = re.findall(
            r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]*)"', page.read_text()
        )
        assert not outside, "the site loads nothing from elsewhere"
