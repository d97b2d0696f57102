"""Settings of a strategy as text for the database: class and fields."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from reprlib import Repr
from typing import Any

_SHORT = Repr()
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 8
_SHORT.maxstring = _SHORT.maxother = 200


def settings_text(x: Any) -> str:
    """Like `repr`, but long values are shortened: a cost model may hold thousands of records."""
    if not is_dataclass(x) or isinstance(x, type):
        return _SHORT.repr(x)
    own = [f"{f.name}={settings_text(getattr(x, f.name))}" for f in fields(x) if f.repr]
    return f"{type(x).__name__}({', '.join(own)})"
