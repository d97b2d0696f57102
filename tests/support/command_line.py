"""Runs the command line in this process, as a terminal would."""

from __future__ import annotations

from typing import Any

import pytest

from tilesmith.cli.main import app


def run(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str, str]:
    """The status, and what was printed to stdout and stderr."""
    with pytest.raises(SystemExit) as left:
        app([str(w) for w in words])
    said = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return left.value.code, said.out, said.err
