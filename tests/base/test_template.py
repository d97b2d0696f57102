"""Texts in other languages that are files beside the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tilesmith
from tilesmith.base.machines.x86_64 import X86_64
from tilesmith.base.template import filled, template
from tilesmith.runtime.export.pool import exported_pool_source


def test_names_are_replaced_also_in_front_of_others(tmp_path: Path) -> None:
    (tmp_path / "a.ll").write_text("define @f_$NAME_run(i64 $N) ; $NAME $OTHER")
    text = template(str(tmp_path / "module.py"), "a.ll", {"NAME": "net", "N": 3})
    assert text == "define @f_net_run(i64 3) ; net $OTHER"
    assert filled("$A$B", {"A": 1, "B": "two"}) == "1two"


def test_nothing_is_left_to_fill_in() -> None:
    assert re.findall(r"\$[A-Z]\w*", exported_pool_source(X86_64)) == []


@pytest.mark.parametrize(
    "path", sorted(Path(tilesmith.__file__).parent.rglob("*.ll")), ids=lambda p: p.name
)
def test_a_text_is_used_by_a_module_beside_it(path: Path) -> None:
    modules = [p.read_text() for p in path.parent.glob("*.py")]
    assert any(re.search(rf"""["']{re.escape(path.name)}["']""", text) for text in modules)
