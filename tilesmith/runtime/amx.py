"""Asks Linux for the tile registers of AMX. A process that uses them without permission is killed.

The permission holds for all threads of the process, and for processes that it forks.
"""

from __future__ import annotations

import ctypes
from functools import cache

from tilesmith.base.target import cpu

ARCH_PRCTL = 158  # the number of the system call on x86-64
ARCH_REQ_XCOMP_PERM = 0x1023
XFEATURE_XTILEDATA = 18


@cache
def allow_tiles() -> bool:
    """Whether this process may use tile registers; False on processors without them."""
    if "amx" not in cpu().features:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0)
