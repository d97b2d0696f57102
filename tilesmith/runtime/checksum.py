"""Checksums of large arrays at the speed of memory: weights are compared with those of an earlier
start by them, and files are checked for damage. A cryptographic hash takes a second for the weights
of a network on processors without instructions for it.

Equal checksums mean equal bytes unless somebody constructs others on purpose, who would have to
write to the folders of this user. The words of the data are multiplied by halves and summed in 2048
bits (checksum.ll), whose SHA-256 is the result.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from tilesmith.base.process import LLVM_LOCK
from tilesmith.base.target import cpu
from tilesmith.base.template import template

NBYTES = 256  # of a block
_SMALL = 1 << 18  # bytes of which SHA-256 itself takes less than a millisecond
_NAME = "tilesmith_checksum"
# Any numbers without a pattern.
KEYS = np.frombuffer(hashlib.shake_128(b"tilesmith checksum").digest(NBYTES), "<u8")


def checksum(data: memoryview) -> bytes:
    """32 bytes, for contiguous data."""
    if data.nbytes < _SMALL:
        return hashlib.sha256(data).digest()
    flat = np.frombuffer(data, np.uint8)
    blocks = flat.size // NBYTES
    state = np.concatenate([KEYS, np.zeros_like(KEYS)])
    _native()(flat.ctypes.data, blocks, state.ctypes.data)
    return finished(state[len(KEYS) :], flat[blocks * NBYTES :], flat.size)


def finished(sums: np.ndarray[Any, Any], rest: np.ndarray[Any, Any], nbytes: int) -> bytes:
    """From the sums of all blocks, what is left behind the last, and the size of all."""
    whole = hashlib.sha256(sums.astype("<u8").tobytes())
    whole.update(rest.tobytes())
    whole.update(nbytes.to_bytes(8, "little"))
    return whole.digest()


def _native() -> Callable[[int, int, int], None]:
    with LLVM_LOCK:
        return _load()[0]


@cache
def _load() -> tuple[Callable[[int, int, int], None], Any]:
    """The function, and what owns its code."""
    # Not at the top of the file: `import tilesmith` must not load LLVM.
    from tilesmith.codegen.llvm.compiler import compile_ir
    from tilesmith.runtime.loader import Library

    artifact = compile_ir("checksum", template(__file__, "checksum.ll"), cpu(), ())
    library = Library("checksum", artifact.code, (_NAME,), {})
    pointer = ctypes.c_void_p
    signature = ctypes.CFUNCTYPE(None, pointer, ctypes.c_int64, pointer)
    return signature(library.addresses[_NAME]), library
