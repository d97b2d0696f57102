"""Public names are imported when they are first used, and mean the same in any order of imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tilesmith as ts
from tilesmith.base.process import Home, homes_of

ROOT = Path(__file__).parent.parent.parent
PUBLIC = (ROOT / "tilesmith" / "__init__.py").read_text()


def output_of(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_every_public_name_is_found() -> None:
    assert {*homes_of(PUBLIC), "__version__"} == set(ts.__all__)
    for name in ts.__all__:
        assert getattr(ts, name) is not None
    assert set(ts.__all__) - {"__version__"} <= set(dir(ts))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'tilesmith' has no attribute 'tuna'"):
        getattr(ts, "tuna")  # noqa: B009


def test_homes_are_read_from_imports_for_the_type_checker() -> None:
    source = "import os\nif TYPE_CHECKING:\n    from a import b\n    from a.c import d as e, f\n"
    assert homes_of(source) == {"b": Home("a", "b"), "e": Home("a.c", "d"), "f": Home("a.c", "f")}


def test_import_loads_no_stage_and_a_name_loads_its_own() -> None:
    code = (
        "import sys, tilesmith as ts\n"
        "stages = lambda: sorted({m.split('.')[1] for m in sys.modules if 'tilesmith.' in m})\n"
        "print(*stages()); ts.dtype; print(*stages()); ts.placeholder; print(*stages())"
    )
    assert output_of(code).splitlines() == ["base", "base", "base expr"]


@pytest.mark.parametrize("first", ["tilesmith.tune.build", "tilesmith.tune.tune", "tilesmith.ops"])
def test_a_folder_does_not_take_the_place_of_a_public_name(first: str) -> None:
    code = (
        f"import {first}, tilesmith as ts; from tilesmith.tune.result import Result\n"
        "from tilesmith import tune, ops\n"
        "print(callable(tune), ts.tune is tune, ts.ops is ops, ops.__name__, ts.Result is Result)"
    )
    assert output_of(code) == "True True True tilesmith.ops True"
