"""What the tests of exported libraries share: C programs that use them, and the tools for that."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.base.target import MACHINES
from tilesmith.graph.executor import Executor
from tilesmith.graph.model import Model
from tilesmith.graph.partition import partition
from tilesmith.graph.pipeline import PASSES, run_passes
from tilesmith.graph.plan import plan
from tilesmith.runtime.build import compile_function
from tilesmith.runtime.export.write import Exported
from tilesmith.runtime.kernel import Kernel

Array = np.ndarray[Any, Any]

STRICT = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror")


class Tools(NamedTuple):
    compiler: str
    emulator: str
    libraries: str


OTHER = {
    arch: Tools(m.cross_compiler, m.emulator, f"/usr/{m.cross_compiler.removesuffix('-gcc')}")
    for arch, m in MACHINES.items()
}
# Processors of each architecture that every emulator and valgrind can stand in for.
PLAIN = {arch: m.oldest for arch, m in MACHINES.items()}


def needs(*tools: str) -> pytest.MarkDecorator:
    missing = [t for t in tools if shutil.which(t) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def call(*words: Any, given: bytes = b"", cwd: Path | None = None) -> bytes:
    done = subprocess.run(
        [*map(str, words)], input=given, capture_output=True, cwd=cwd, timeout=300
    )
    assert done.returncode == 0, f"{words} ended with {done.returncode}: {done.stderr.decode()}"
    return done.stdout


def example_of(files: Exported, compiler: str = "cc", static: bool = False) -> Path:
    """The exported example, compiled."""
    folder = files.header.parent
    program = folder / ("static_example" if static else "example")
    linked = [files.static, "-lm", "-pthread"] if static else [files.shared, "-Wl,-rpath,$ORIGIN"]
    call(compiler, *STRICT, "-I", folder, files.example, *linked, "-o", program)
    return program


def as_bytes(arrays: Mapping[str, Array] | Sequence[Array]) -> bytes:
    several = arrays.values() if isinstance(arrays, Mapping) else arrays
    return b"".join(np.ascontiguousarray(a).tobytes() for a in several)


def arrays_of(data: bytes, like: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of an example, as arrays."""
    found, at = {}, 0
    for name, a in like.items():
        found[name] = np.frombuffer(data[at : at + a.nbytes], a.dtype).reshape(a.shape)
        at += a.nbytes
    assert at == len(data)
    return found


class Loaded:
    """A shared library in this process."""

    def __init__(self, files: Exported, name: str = "model") -> None:
        pointer = ctypes.c_void_p
        library = ctypes.CDLL(str(files.shared))
        self.open = getattr(library, f"tilesmith_{name}_open")
        self.open.argtypes, self.open.restype = [ctypes.c_char_p], pointer
        self.run = getattr(library, f"tilesmith_{name}_run")
        self.run.argtypes = [pointer, pointer, pointer]
        self._error = getattr(library, f"tilesmith_{name}_error")
        self._error.restype = ctypes.c_char_p
        self.close = getattr(library, f"tilesmith_{name}_close")
        self.close.argtypes, self.close.restype = [pointer], None
        self.set_threads = getattr(library, f"tilesmith_{name}_set_threads")
        self.set_threads.argtypes, self.set_threads.restype = [ctypes.c_int], None

    @property
    def error(self) -> str:
        return str(self._error().decode())

    def handle(self, weights: Path | str | None) -> int:
        found: int | None = self.open(None if weights is None else str(weights).encode())
        assert found is not None, self.error
        return found

    def __call__(self, handle: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> int:
        status: int = self.run(handle, pointers(inputs), pointers(outputs))
        return status


def pointers(arrays: Sequence[Array]) -> Any:
    return (ctypes.c_void_p * max(1, len(arrays)))(*(a.ctypes.data for a in arrays))


def compiled(graph: ts.Graph, target: ts.Target | None = None) -> Model:
    """With plain loop nests whose outer loops run in threads: quick to build."""

    def compile_graph(one: ts.Graph) -> Executor:
        lowered = run_passes(one, PASSES)
        made = plan(lowered, partition(lowered))
        kernels = []
        for step in made.steps:
            sch = ts.Schedule(step.stored)
            for block in sch.blocks:
                sch.parallel(sch.loops(block)[0])
            kernels.append(Kernel(compile_function(sch, target)))
        return Executor(made, kernels)

    return Model(graph, compile_graph)
