"""Golden files: a test's text is compared with a file, which `pytest --update-golden` writes. And a
cache folder for the whole run, so that no test writes to the user's.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files instead of comparing"
    )


def pytest_configure(config: pytest.Config) -> None:
    folder = tempfile.mkdtemp(prefix="tilesmith-tests-")
    os.environ["XDG_CACHE_HOME"] = folder
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    # A shell starts background jobs with Ctrl-C ignored; the tests of Ctrl-C need Python's handler.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[object], None]:
    """Compares the text of its argument with golden/<test name>.txt."""
    name = re.sub(r"[^\w.-]+", "-", request.node.name.removeprefix("test_")).strip("-")
    path = GOLDEN / f"{name}.txt"

    def check(value: object) -> None:
        text = str(value).rstrip() + "\n"
        if request.config.getoption("--update-golden"):
            GOLDEN.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is not there; write it with pytest --update-golden"
        assert text == path.read_text(), f"differs from {path}; pytest --update-golden accepts it"

    return check
