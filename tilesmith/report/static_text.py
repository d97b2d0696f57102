"""The styles, scripts and templates of pages, which are files of their own in static/."""

from __future__ import annotations

import re
from pathlib import Path

_FOLDER = Path(__file__).parent / "static"


def static_text(name: str, **values: str) -> str:
    """The text of a file, with `{{name}}` replaced by the value of that name."""
    text = (_FOLDER / name).read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda m: values[m[1]], text) if values else text
