"""How many random cases of a family a test draws. `make test` takes enough of them to reach every
branch in question; `make thorough`, which sets TILESMITH_THOROUGH=1, takes several times as many,
for nights and releases.

Of some families each day draws other cases of those that `make thorough` draws, and of a test with
many cases each day runs a part (conftest.py). TILESMITH_TURN, the number of the day by default,
says which; a run with a failure names its own. A test named by `file::test` runs all its cases.
"""

from __future__ import annotations

import os

THOROUGH = os.environ.get("TILESMITH_THOROUGH", "0") not in ("", "0")
TURN = int(os.environ.get("TILESMITH_TURN", "0"))


def drawn(count: int, thorough: int) -> int:
    """So many, and how many where there is time."""
    return thorough if THOROUGH else count


def by_turns(count: int, thorough: int) -> range:
    """The numbers of so many cases, by turns others of those that are drawn where there is time."""
    if THOROUGH:
        return range(thorough)
    first = TURN % (thorough // count) * count
    return range(first, first + count)
