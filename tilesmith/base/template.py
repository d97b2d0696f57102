"""Texts in other languages (LLVM, C, CUDA, CMake): files beside the code that uses them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path


def filled(text: str, values: Mapping[str, object]) -> str:
    """The text with `$NAME` replaced by the value of that name."""
    for name in sorted(values, key=len, reverse=True):  # $FROM_ROW before $FROM
        text = text.replace(f"${name}", str(values[name]))
    return text


def template(module: str, name: str, values: Mapping[str, object] | None = None) -> str:
    """The text of a file beside a module, which gives its `__file__`, with values filled in."""
    return filled(_text(Path(module).with_name(name)), values or {})


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
