"""Every benchmark says what it takes."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"
COMMANDS = sorted(
    p.stem
    for p in BENCH.glob("*.py")
    if "def main(" in (text := p.read_text())
    and ("ArgumentParser(" in text or "arguments(" in text)
)


@pytest.mark.parametrize("name", COMMANDS)
def test_help(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCH.parent))
    try:
        module = importlib.import_module(f"bench.{name}")
    except ModuleNotFoundError as error:
        pytest.skip(f"it needs {error.name}")
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 0
    assert "usage:" in capsys.readouterr().out
