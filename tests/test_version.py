"""The version has one source, pyproject.toml, and is found without loading anything for it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import tilesmith as ts
from tilesmith.base import process as module
from tilesmith.cli.main import app

ROOT = Path(__file__).parent.parent


def declared() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def test_of_a_source_tree(capsys: pytest.CaptureFixture[str]) -> None:
    assert ts.__version__ == declared()
    assert "__version__" in ts.__all__
    with pytest.raises(SystemExit) as left:
        app(["--version"])
    assert (left.value.code, capsys.readouterr().out) == (0, f"tilesmith {declared()}\n")


def test_of_an_installed_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "__file__", str(tmp_path / "tilesmith" / "base" / "process.py"))
    monkeypatch.setattr(metadata, "version", {"tilesmith": "7.8.9"}.__getitem__)
    assert module.version.__wrapped__() == "7.8.9"
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "another"\nversion = "1"\n')
    assert module.version.__wrapped__() == "7.8.9"


def test_nothing_is_loaded_for_it_before_it_is_asked_for() -> None:
    code = "import sys, tilesmith as ts; ts.compile_model, ts.open_database; "
    code += "print({'tomllib', 'importlib.metadata'} & {*sys.modules} or None, ts.__version__)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert out.stdout.split() == ["None", declared()]


def test_other_names_are_still_missing() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ts.nothing


def test_the_versions_of_python_are_stated_from_the_oldest_on() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = [c.rpartition(" ")[2] for c in project["classifiers"] if "Python :: 3." in c]
    assert project["requires-python"] == f">={versions[0]}"
    assert versions == [f"3.{n}" for n in range(11, 15)]
