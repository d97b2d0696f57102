"""Records why a worker dies: a signal handler in machine code writes the signal and the address of
a fault into a page that the worker shares with the fork server, which reads it as an Exit.

The handler is machine code because Python runs its own handlers between bytecodes, and a fault in a
kernel never returns there.
"""

from __future__ import annotations

import ctypes
import mmap
import pickle
import resource
import signal
import struct
from pathlib import Path

from tilesmith.base.template import template
from tilesmith.measure.messages import FAULTED, STACK, Exit
from tilesmith.workers.pool import NO_MEMORY

FAULT, ALLOCATE = "tilesmith_on_fault", "tilesmith_malloc"
ALLOCATE_ZEROED, ALLOCATE_ALIGNED = "tilesmith_calloc", "tilesmith_aligned_alloc"
REPORT_TO = "tilesmith_report_to"
EXPORTS = (FAULT, ALLOCATE, ALLOCATE_ZEROED, ALLOCATE_ALIGNED, REPORT_TO)

# The handler reads siginfo_t of 64-bit Linux: number, errno, code, padding, address. An allocation
# that fails ends the process with NO_MEMORY: kernels do not check for null, and would crash.
# Longer names first, because some begin with others.
SOURCE = template(__file__, "fault_handler.ll", {
    "FAULTED": FAULTED, "FAULT": FAULT, "NO_MEMORY": NO_MEMORY, "REPORT_TO": REPORT_TO,
    "ALLOCATE_ZEROED": ALLOCATE_ZEROED, "ALLOCATE_ALIGNED": ALLOCATE_ALIGNED, "ALLOCATE": ALLOCATE,
})  # fmt: skip

_REPORT_NBYTES = 1 << 16
_HEAD = struct.Struct("<iiQiI")  # signal, code, address; slot, length of the table of regions


class Report:
    """Memory that a worker shares with the fork server, which reads it when the worker ended."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, _REPORT_NBYTES)

    def set_slot(self, slot: int) -> None:
        struct.pack_into("<i", self.memory, 16, slot)

    def describe(self, regions: list[tuple[str, int, int, int, int]]) -> None:
        """Stores the addresses of arrays, as many as fit."""
        data = pickle.dumps(tuple(regions))
        while len(data) > _REPORT_NBYTES - _HEAD.size:
            regions = regions[: len(regions) // 2]
            data = pickle.dumps(tuple(regions))
        struct.pack_into("<I", self.memory, 20, len(data))
        self.memory[_HEAD.size : _HEAD.size + len(data)] = data

    def ended(self, status: int, killed: bool, stderr: str) -> Exit:
        """What it says of a worker that has ended; the memory is freed."""
        number, code, address, slot, length = _HEAD.unpack_from(self.memory, 0)
        data = self.memory[_HEAD.size : _HEAD.size + length]
        try:
            regions = pickle.loads(data) if length else ()
        except Exception:  # the worker may have died while it wrote
            regions = ()
        self.memory.close()
        return Exit(status, killed, (number, code, address), slot, regions, stderr)

    @property
    def address(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self.memory))


class _SigAction(ctypes.Structure):
    """struct sigaction of glibc and musl on 64-bit Linux."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint64 * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class _Stack(ctypes.Structure):
    _fields_ = (("at", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


_SA_SIGINFO, _SA_ONSTACK = 4, 0x08000000
_held: list[object] = []  # objects that the kernel refers to, kept alive with the process


def install(handler: int) -> None:
    """Makes faults in this process call `handler`. It runs on a stack of its own, because the fault
    may be an overflow of the thread's stack.
    """
    libc = ctypes.CDLL(None)
    memory = ctypes.create_string_buffer(64 << 10)
    stack = _Stack(ctypes.addressof(memory), 0, len(memory))
    libc.sigaltstack(ctypes.byref(stack), None)
    action = _SigAction(handler=handler, flags=_SA_SIGINFO | _SA_ONSTACK)
    for number in (signal.SIGSEGV, signal.SIGBUS):
        libc.sigaction(int(number), ctypes.byref(action), None)
    _held.extend((memory, stack, action))


def stack_span() -> tuple[str, int, int, int, int]:
    """The addresses near the limit of the main thread's stack; a fault there is an overflow."""
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith("[stack]"):
            end = int(line.split()[0].split("-")[1], 16)
            low = end - min(max(soft, 0), 64 << 20)
            return STACK, low - (16 << 20), low, low, low + (1 << 20)
    return STACK, 0, 0, 0, 0
