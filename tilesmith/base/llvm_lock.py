"""The lock that every use of LLVM in this process holds, in a file that does not load LLVM."""

from __future__ import annotations

import os
import threading

# A fork holds it, too: a child must never inherit LLVM in the middle of a compilation.
LLVM_LOCK = threading.RLock()
os.register_at_fork(
    before=LLVM_LOCK.acquire,
    after_in_parent=LLVM_LOCK.release,
    after_in_child=LLVM_LOCK.release,
)
