"""Wishes of importers become checks of a graph: of an input, or of a hidden output."""

from __future__ import annotations

from collections.abc import Container, Iterable

from tilesmith.base.dataclass import dataclass
from tilesmith.graph.checks import Bound, Check
from tilesmith.graph.graph import Value


@dataclass(frozen=True, slots=True)
class Wish:
    """A check of a value: see graph/checks.py."""

    value: Value
    what: str
    low: Bound = 1
    high: Bound | None = None


def checks_of(
    wishes: Iterable[Wish], inputs: Container[str], outputs: dict[str, Value]
) -> list[Check]:
    """A value that is neither input nor output becomes an output that only its check reads."""
    names = {v.name: public for public, v in outputs.items()}
    found = []
    for w in dict.fromkeys(wishes):
        v = w.value
        if v.name in inputs:
            found.append(Check(v.name, w.what, w.low, w.high))
            continue
        hidden = v.name not in names
        if hidden:
            names[v.name] = f"{v.name} (checked)"
            outputs[names[v.name]] = v
        found.append(Check(names[v.name], w.what, w.low, w.high, hidden))
    return found
