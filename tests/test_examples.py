"""Every example runs, with small sizes where it takes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ARGUMENTS = {"matmul": ("64",), "tune_matmul": ("64", "3")}


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_example_runs(path: Path) -> None:
    command = [sys.executable, str(path), *ARGUMENTS.get(path.stem, ())]
    out = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}
    )
    assert out.returncode == 0, out.stderr


@pytest.mark.parametrize(
    "name", ["custom_rule", "custom_primitive", "custom_strategy", "custom_cost_model"]
)
def test_an_extension_is_short(name: str) -> None:
    text = (ROOT / "examples" / f"{name}.py").read_text().split('"""', 2)[2]
    code = [line for line in text.splitlines() if line.strip()]
    assert len(code) < 45
