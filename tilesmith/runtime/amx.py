"""Asks Linux for the tile registers of AMX. A process that uses them without permission is killed.

The permission holds for all threads of the process, and for processes that it forks.
"""

from __future__ import annotations

import ctypes
from functools import cache

from tilesmith.base.target import cpu


@cache
def allow_tiles() -> bool:
    """Whether this process may use tile registers; False on processors without them."""
    tiles = cpu().machine.tiles
    if tiles is None or tiles.feature not in cpu().features:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.syscall(*tiles.permission) == 0)
