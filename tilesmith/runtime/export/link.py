"""Shared libraries: object files in, a file out, linked by the C compiler of the machine."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tilesmith.base.errors import BuildError
from tilesmith.base.machines.machine import CpuMachine
from tilesmith.base.target import cpu

_SECONDS = 300


def compilers_of(machine: CpuMachine) -> tuple[str, ...]:
    """The names under which a compiler for an architecture is looked for."""
    return ("cc", "gcc", "clang") if cpu().arch == machine.arch else (machine.cross_compiler,)


def compiler_for(machine: CpuMachine, wanted: str = "") -> list[str]:
    """The command that links for an architecture. An error says what to install, and that a static
    library needs none.
    """
    names = (wanted,) if wanted else compilers_of(machine)
    for name in names:
        words = shlex.split(name)
        if words and shutil.which(words[0]) is not None:
            return words
    package = "gcc" if cpu().arch == machine.arch else machine.compiler_package
    raise BuildError(
        f"a shared library for {machine.arch} is linked by a C compiler, and there is no "
        f"{' or '.join(names)} here; install one (Debian: {package}), name another with "
        "compiler=, or export with shared=False: a static library needs no compiler"
    )


def link_shared(
    path: Path, objects: Mapping[str, bytes], exported: Sequence[str], compiler: list[str]
) -> None:
    """Only the symbols in `exported` can be seen from outside, so that two libraries in one program
    keep apart.
    """
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name, code in objects.items():
            (folder / name).write_bytes(code)
        (folder / "symbols").write_text(f"{{ global: {'; '.join(exported)}; local: *; }};\n")
        options = [
            f"-Wl,-soname,{path.name}",
            "-Wl,--version-script=symbols",
            "-Wl,-z,defs",  # undefined symbols are errors now, not when the library is loaded
            "-Wl,-z,nodelete",  # threads of the pool outlive a dlclose
            "-Wl,-z,noexecstack",
            "-Wl,--as-needed",
            "-Wl,--build-id=none",
        ]
        words = [*compiler, "-shared", "-o", path.name, *objects, *options, "-lm", "-pthread"]
        try:
            done = subprocess.run(
                words, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildError(f"{compiler[0]} cannot link {path.name}: {error}") from None
        if done.returncode != 0:
            text = done.stderr.strip()[-1000:]
            raise BuildError(f"{compiler[0]} cannot link {path.name}: {text}")
        shutil.copyfile(folder / path.name, path)
        path.chmod(0o755)
