"""Memory between guard pages, in which accesses outside of an array fault.

An array ends where the guard pages begin, so an access to the first element past it faults. The
bytes between the start of the first page and the array hold a canary pattern, which is compared
after a kernel has run.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import numpy as np

from tilesmith.codegen.artifact import Parameter

Array = np.ndarray[Any, Any]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
)  # fmt: skip
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

_PAGE = mmap.PAGESIZE
_NONE, _READ, _READ_WRITE = 0, mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE
_NORESERVE = 0x4000
_HUGE_NBYTES = 4 << 20  # huge pages are requested from this size on, as NumPy does
# Guard pages take no memory. There are enough to catch a kernel that is off by some rows.
_GUARD_NBYTES = 4 << 20
ALIGNMENT = 64
CANARY = 0xA5


class Region:
    """`nbytes` of memory between guard pages. If `tight`, it ends at the guard. Otherwise it begins
    on a cache line, and ends at most 63 bytes before the guard.
    """

    def __init__(self, name: str, nbytes: int, tight: bool = True) -> None:
        self.name, self.nbytes = name, nbytes
        room = -(-max(nbytes, 1) // _PAGE) * _PAGE
        self._total = room + 2 * _GUARD_NBYTES
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        base = _libc.mmap(None, self._total, _NONE, flags, -1, 0)
        if base is None or base == ctypes.c_void_p(-1).value:
            error = os.strerror(ctypes.get_errno())
            raise MemoryError(f"no {nbytes} bytes of memory for {name}: {error}")
        self.base: int = base
        self._inside, self._room = base + _GUARD_NBYTES, room
        if nbytes >= _HUGE_NBYTES:
            _libc.madvise(self._inside, room, 14)  # MADV_HUGEPAGE
        self._protect(_READ_WRITE)
        start = self._inside + room - nbytes
        self.address = start if tight else start - start % ALIGNMENT
        before = self.address - self._inside
        self._before: Array = _bytes(self._inside, before)
        after = self._inside + room - self.address - nbytes
        self._after: Array = _bytes(self.address + nbytes, after)
        self.repair()
        self.bytes: Array = _bytes(self.address, nbytes)

    def _protect(self, access: int) -> None:
        if _libc.mprotect(self._inside, self._room, access) != 0:
            raise MemoryError(f"no memory for {self.name}: {os.strerror(ctypes.get_errno())}")

    def make_read_only(self) -> None:
        self._protect(_READ)

    @property
    def is_intact(self) -> bool:
        """Whether the canary bytes on both sides of the array are unchanged."""
        return bool((self._before == CANARY).all() and (self._after == CANARY).all())

    def repair(self) -> None:
        """Writes the canary bytes again, so that the next kernel is not blamed for this one."""
        self._before[...] = CANARY
        self._after[...] = CANARY

    @property
    def span(self) -> tuple[str, int, int, int, int]:
        """The region as an Exit reports it: name, start of the guard before, start and end of the
        array, end of the guard after it.
        """
        end = self.address + self.nbytes
        return self.name, self.base, self.address, end, self.base + self._total

    def array(self, p: Parameter) -> Array:
        return self.bytes.view(p.dtype.numpy).reshape(p.shape)

    def free(self) -> None:
        """Its arrays must not be used afterwards."""
        if self.base:
            _libc.munmap(self.base, self._total)
            self.base = 0


def make_read_only(address: int, nbytes: int) -> None:
    _libc.mprotect(address, -(-nbytes // _PAGE) * _PAGE, _READ)


def _bytes(address: int, nbytes: int) -> Array:
    if nbytes == 0:
        return np.empty(0, np.uint8)
    memory: Any = (ctypes.c_uint8 * nbytes).from_address(address)
    array: Array = np.frombuffer(memory, np.uint8)
    return array
