"""Checks: what must hold of values that a graph reads or computes, and that no kernel can say. They
are made on the host when a call is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilesmith.base.errors import AssertionFailedError, RangeError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Check:
    """All elements of an input, or of an output, are at least `low` and less than `high`. Without
    `high` it is an assertion of the model, which must not be 0.
    """

    name: str  # of the input, or the one that a caller sees of the output
    what: str  # for the message
    low: int = 1
    high: int | None = None
    hidden: bool = False  # an output that only this check reads

    def verify(self, a: Array) -> None:
        if not a.size:
            return
        if self.high is None:
            if not a.all():
                raise AssertionFailedError(self.what)
            return
        least, most = int(a.min()), int(a.max())
        if least < self.low or most >= self.high:
            wrong = least if least < self.low else most
            raise RangeError(
                f"{self.what}: index {wrong} is out of range; it must be at least {self.low} and "
                f"less than {self.high}"
            )


def verified(
    checks: Sequence[Check], feeds: Mapping[str, Array], results: dict[str, Array]
) -> dict[str, Array]:
    """The results without those that only checks read; raises where a check fails."""
    for c in checks:
        c.verify(results[c.name] if c.name in results else feeds[c.name])
    return without_hidden(checks, results)


def without_hidden(checks: Sequence[Check], results: dict[str, Any]) -> dict[str, Any]:
    hidden = {c.name for c in checks if c.hidden}
    return {n: a for n, a in results.items() if n not in hidden} if hidden else results
