"""Every example runs, with small sizes where it takes them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tilesmith as ts

ROOT = Path(__file__).parent.parent
# What a back end or a pass reads, programs and their expressions, has files of its own.
# Models come from the onnx package, which is an optional install.
PUBLIC = (
    "tilesmith", "tilesmith.expr", "tilesmith.ir", "numpy", "beside_numpy", "onnx.parser",
    "onnx.reference",
)  # fmt: skip
ARGUMENTS = {"matmul": ("64",), "two_tasks": ("4",)}
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
DEMO = "tune_matmul"  # it has a test of its own


@pytest.mark.parametrize("path", [p for p in EXAMPLES if p.stem != DEMO], ids=lambda p: p.stem)
def test_example_runs(path: Path) -> None:
    command = [sys.executable, str(path), *ARGUMENTS.get(path.stem, ())]
    out = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}
    )
    assert out.returncode == 0, out.stderr
    if path.stem != "beside_numpy":  # a helper of others
        assert out.stdout.strip(), "an example shows something"
    widest = (
        140 if path.stem == "run_model" else 80
    )  # a profile shows shapes and where they are from
    assert max(map(len, out.stdout.splitlines()), default=0) <= widest


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples_need_public_names_and_run_time_packages_only(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "ts":
            assert node.attr in ts.__all__, f"ts.{node.attr} is not public"
        for name in names:
            allowed = name in PUBLIC
            assert allowed or name.split(".")[0] in sys.stdlib_module_names, name


EXTENSION_POINTS = (
    "primitive", "rule", "strategy", "cost model", "feature extractor", "mutator", "operator",
    "pass", "intrinsic", "back end", "measurer", "scheduler-driven tuner",
)  # fmt: skip


@pytest.mark.parametrize("point", EXTENSION_POINTS)
def test_the_tour_shows_each_extension_point_by_an_example(point: str) -> None:
    lines = (ROOT / "docs" / "tour.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith(f"| {point} |")]
    examples = re.findall(r"\(\.\./(examples/\w+\.py)\)", " ".join(rows))
    assert examples
    assert all((ROOT / example).exists() for example in examples)


# SciPy is not among them: it comes with XGBoost.
WITHOUT_OPTIONAL_PACKAGES = """
import sys

class Absent:
    names = {"torch", "onnxruntime", "onnx", "psycopg", "matplotlib"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def test_the_demo_works_without_optional_packages(tmp_path: Path) -> None:
    """As `make demo` runs it after a plain install: others must not even be tried."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_OPTIONAL_PACKAGES)
    out = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{DEMO}.py"), "64", "3"],
        capture_output=True, text=True, cwd=ROOT, env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )  # fmt: skip
    assert out.returncode == 0, out.stderr
    assert "times the speed of NumPy; the results agree." in out.stdout
    assert max(map(len, out.stdout.splitlines())) <= 80
    assert "trials" in out.stderr, "progress is shown"


@pytest.mark.parametrize(
    "name",
    [
        "custom_rule", "custom_primitive", "custom_strategy", "custom_cost_model",
        "custom_features", "custom_mutator", "custom_measurer", "custom_pass", "custom_intrinsic",
        "custom_operator", "custom_onnx_operator",
    ],
)  # fmt: skip
def test_an_extension_is_short(name: str) -> None:
    text = (ROOT / "examples" / f"{name}.py").read_text().split('"""', 2)[2]
    code = [line for line in text.splitlines() if line.strip()]
    assert len(code) < 45
