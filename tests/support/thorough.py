"""How many random cases of a family a test draws. `make test` takes enough of them to reach every
branch in question; `make thorough`, which sets TILESMITH_THOROUGH=1, takes several times as many,
for nights and releases.
"""

from __future__ import annotations

import os

THOROUGH = os.environ.get("TILESMITH_THOROUGH", "0") not in ("", "0")


def drawn(count: int, thorough: int) -> int:
    """So many, and how many where there is time."""
    return thorough if THOROUGH else count
