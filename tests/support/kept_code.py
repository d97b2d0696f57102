"""Machine code that an earlier test, process or run compiled from the same text: LLVM and NVRTC
take a fifth of the tests' time, over texts that seldom change between two runs.

The key holds all that the code depends on: the text, the target, the compiler's version, and the
file of this project that calls it. Only processes of pytest look here; what is measured, and the
tests of the compilers themselves, compile. TILESMITH_TEST_CACHE moves the folder, and turns it off
if it is empty.
"""

from __future__ import annotations

import os
import pickle
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from tilesmith.codegen.c import nvrtc
from tilesmith.codegen.llvm import compiler

_DAYS = 30  # code that no run wanted for so long is removed


class KeptCode:
    """Results of a function, in files named after their keys. Processes may share the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: bytes, make: Callable[[], Any]) -> Any:
        path = self._path(key)
        try:
            kept = path.read_bytes()
            if time.time() - path.stat().st_mtime > 86_400:
                os.utime(path)
            return pickle.loads(kept)
        except (OSError, EOFError, pickle.UnpicklingError):
            made = make()
        with suppress(OSError):  # a full disk, or a folder that is closed to this user
            path.parent.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=path.parent, delete=False) as file:
                file.write(pickle.dumps(made))
            os.replace(file.name, path)  # a reader sees all of it or nothing
        return made

    def _path(self, key: bytes) -> Path:
        name = sha256(key).hexdigest()
        return self.folder / name[:2] / name[2:]

    def prune(self) -> None:
        """Removes what no run has wanted for a long time, and what PoCL compiled as long ago."""
        oldest = time.time() - _DAYS * 86_400
        for path in self.folder.glob("[0-9a-f][0-9a-f]/*"):
            if path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)
        for program in self.folder.glob("pocl/*/*"):
            if program.stat().st_mtime < oldest:
                shutil.rmtree(program, ignore_errors=True)


def keep(kept: KeptCode) -> None:
    """From now on, what this process compiles is kept. A child that it forks does as it does."""
    llvm_is = f"{llvmlite.__version__} {llvm.llvm_version_info}\n{_text(compiler)}"
    nvrtc_is = _text(nvrtc)
    compile_llvm, compile_nvrtc = compiler.object_code, nvrtc._compile

    def object_code(machine: compiler.Machine, name: str, text: str) -> bytes:
        key = "\n".join(("llvm", llvm_is, machine.cpu, machine.features, name, text))
        make = partial(compile_llvm, machine, name, text)
        code: bytes = kept.get(key.encode(), make)
        return code

    def compile_cuda(name: str, source: str, arch: str, lines: bool) -> nvrtc.Compiled:
        _, *version = nvrtc._nvrtc().nvrtcVersion()
        options = nvrtc.options_of(arch, (version[0], version[1]))
        key = "\n".join(("nvrtc", nvrtc_is, f"{version} {options} {lines}", name, source))
        compiled: nvrtc.Compiled = kept.get(
            key.encode(), partial(compile_nvrtc, name, source, arch, lines)
        )
        return compiled

    compiler.object_code = object_code
    nvrtc._compile = compile_cuda


COMPILE_LLVM = compiler.object_code  # the compiler itself, also where code is kept


def _text(module: Any) -> str:
    return Path(module.__file__).read_text()
