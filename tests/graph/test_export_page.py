"""docs/export.md is true: its Python runs, then its commands; the C functions are those of the
header.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from exported import needs

import tilesmith as ts

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "export.md").read_text()
MODEL = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, 8] x) => (float[batch, 8] y) {r = Relu(x) y = Softmax(r)}"""


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def plain(c: str) -> str:
    """C without comments and breaks."""
    return " ".join(re.sub(r"/\*.*?\*/", "", c, flags=re.DOTALL).split())


@needs("cc")
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx = pytest.importorskip("onnx")
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    exec(compile(block("python"), "docs/export.md", "exec"), {})
    for path in (tmp_path / "out").iterdir():
        path.rename(path.with_name(f"first_{path.name}"))
    command = f"{sys.executable} -m tilesmith"
    script = block("sh").replace("tilesmith", command, 1)
    shell = ["bash", "-euc", f"export PYTHONPATH={ROOT}\n{script}"]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    header = plain((tmp_path / "out" / "model.h").read_text())
    for line in block("c").splitlines():
        assert plain(line) in header, line
    for name in ("model.h", "libmodel.so", "libmodel.a", "model.weights", "model.cmake"):
        made = tmp_path / "out" / name
        assert made.read_bytes() == made.with_name(f"first_{name}").read_bytes(), name


def test_the_page_is_one_screen() -> None:
    assert len(PAGE.splitlines()) <= 60
    for name in re.findall(r"\bts\.([A-Za-z_]+)", PAGE):
        assert name in ts.__all__
