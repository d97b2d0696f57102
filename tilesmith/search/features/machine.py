"""A vectorised interpreter of arithmetic programs over integer rows, with a line of floats per row
as the result. It is a single native function, compiled once by LLVM.

An instruction is four numbers: opcode, two arguments, destination. Rows are processed in blocks. A
slot holds one value per row of the block, and an instruction processes whole slots. So decoding
costs little, and all slots stay in L1.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tilesmith.base.process import LLVM_LOCK
from tilesmith.search.features.machine_code import BLOCK, LANES, source
from tilesmith.space.domains import Matrix

Values = np.ndarray[Any, np.dtype[np.float32]]


@cache
def _load() -> tuple[Callable[..., None], Any]:
    """The native function, and the objects that own its code."""
    # Imported here because llvmlite takes 60 MB, which only scoring needs.
    from llvmlite import binding as llvm

    with LLVM_LOCK:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        processor = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
            cpu=llvm.get_host_cpu_name(),
            features=llvm.get_host_cpu_features().flatten(),
            opt=2,
            reloc="pic",
            jit=True,
        )
        linker = llvm.create_lljit_compiler(processor, use_jit_link=True)
        builder = llvm.JITLibraryBuilder().add_ir(source()).add_current_process()
        library = builder.export_symbol("evaluate").link(linker, "rows")
    n, pointer = ctypes.c_int64, ctypes.c_void_p
    signature = ctypes.CFUNCTYPE(None, pointer, n, pointer, n, n, n, pointer, pointer, pointer, n)
    return signature(library["evaluate"]), (linker, library)


@dataclass(frozen=True, eq=False)
class Compiled:
    """A program. `words` holds the instructions, then the points of curves. `line` initialises each
    line of the output: it holds the constants.
    """

    words: np.ndarray[Any, np.dtype[np.int32]]
    steps: int
    slots: int
    line: Values

    def __call__(self, rows: Matrix) -> Values:
        evaluate, _ = _load()
        rows = np.asarray(rows, np.int32)
        down, across = (s // rows.itemsize for s in rows.strides)
        out = np.empty((len(rows), len(self.line)), np.float32)
        slots = np.empty(self.slots * BLOCK + LANES, np.float32)
        start = slots.ctypes.data
        start += -start % 64  # slots are aligned for vectors
        evaluate(
            self.words.ctypes.data, self.steps, rows.ctypes.data, len(rows), down, across,
            start, self.line.ctypes.data, out.ctypes.data, out.shape[1],
        )  # fmt: skip
        return out


def bits_of(x: float) -> int:
    """The bits of a float32, as a signed integer."""
    return int(np.float32(x).view(np.int32))
