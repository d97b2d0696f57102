"""The two sides of measuring know each other by messages only, and no file imports itself through
others.
"""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import tilesmith.measure.local

ROOT = Path(tilesmith.measure.local.__file__).parent
NAMES = {
    ".".join(("tilesmith.measure", *p.relative_to(ROOT).with_suffix("").parts)): p
    for p in sorted(ROOT.rglob("*.py"))
    if p.name != "__init__.py"
}


def imports(path: Path) -> set[str]:
    """The files of measure/ that it imports."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            modules |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
        elif isinstance(node, ast.Import):
            modules |= {a.name for a in node.names}
    return modules & set(NAMES)


@pytest.mark.parametrize(("side", "other"), [("parent", "child"), ("child", "parent")])
def test_neither_side_imports_the_other(side: str, other: str) -> None:
    files = [p for p in NAMES.values() if p.parent.name == side]
    assert len(files) >= 4
    for path in files:
        assert not [m for m in imports(path) if f".{other}." in m], path


def test_there_is_no_import_circle() -> None:
    TopologicalSorter({name: imports(p) for name, p in NAMES.items()}).prepare()
