"""Writes an exported library: a Library in, a folder with all its files out."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ArgumentError, BuildError
from tilesmith.base.machines.machine import CpuMachine
from tilesmith.base.target import cpu
from tilesmith.runtime.export.c_files import cmake, example, header
from tilesmith.runtime.export.entry import entry_source, functions, library_digest
from tilesmith.runtime.export.launcher import launcher_source
from tilesmith.runtime.export.library import Library
from tilesmith.runtime.export.pool import SYMBOLS, exported_pool_source
from tilesmith.runtime.export.weights import write_weights

# Shared libraries: object files in, a file out, linked by the C compiler of the machine.
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
    path: Path, objects: Mapping[str, bytes], exported: Sequence[str], compiler: list[str],
    *libraries: str,
) -> None:  # fmt: skip
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
        ends = [*libraries, "-lm", "-pthread"]
        _compile([*compiler, "-shared", "-o", path.name, *objects, *options, *ends], folder)
        shutil.copyfile(folder / path.name, path)
        path.chmod(0o755)


def _compile(words: list[str], folder: Path) -> None:
    """Runs a compiler in a folder; what it makes follows "-o"."""
    verb = "compile" if "-c" in words else "link"
    what = f"{words[0]} cannot {verb} {words[words.index('-o') + 1]}"
    try:
        done = subprocess.run(
            words, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{what}: {error}") from None
    if done.returncode != 0:
        raise BuildError(f"{what}: {done.stderr.strip()[-1000:]}")


# A static library: object files in, the bytes of an `ar` archive with its index of symbols out.
#
# Written here, because that takes no tool: a static library can be exported on a machine without
# a compiler.
_MAGIC = b"!<arch>\n"


def archive(objects: Mapping[str, bytes], symbols: Mapping[str, Sequence[str]]) -> bytes:
    """`objects` and the symbols that each defines, by its file's name. Nothing depends on the time
    or the user, so equal objects make equal archives.
    """
    long_names = b"".join(f"{name}/\n".encode() for name in objects)
    names = [s for name in objects for s in symbols[name]]
    text = b"".join(s.encode() + b"\0" for s in names)
    index_nbytes = 4 + 4 * len(names) + len(text)
    at = len(_MAGIC) + 60 + _even(index_nbytes) + 60 + _even(len(long_names))
    offsets: list[int] = []
    members: list[bytes] = []
    long_at = 0
    for name, code in objects.items():
        offsets += [at] * len(symbols[name])
        member = _member(f"/{long_at}", code)
        members.append(member)
        at += len(member)
        long_at += len(name) + 2
    index = struct.pack(f">{1 + len(names)}I", len(names), *offsets) + text
    return b"".join([_MAGIC, _member("/", index), _member("//", long_names), *members])


def _even(nbytes: int) -> int:
    return nbytes + nbytes % 2


def _member(name: str, data: bytes) -> bytes:
    # name, time, user, group, mode, size
    head = f"{name:<16}{0:<12}{0:<6}{0:<6}{'644':<8}{len(data):<10}`\n".encode()
    return head + data + b"\n" * (len(data) % 2)


@dataclass(frozen=True, slots=True)
class Exported:
    """The files of an exported model or kernel."""

    header: Path
    shared: Path | None  # None with shared=False
    static: Path | None  # None with shared=False for a GPU
    weights: Path
    example: Path
    cmake: Path
    source: Path | None = None  # for a GPU: the C program that launches the kernels

    def __str__(self) -> str:
        libraries = self.source, self.shared, self.static
        paths = (self.header, *libraries, self.weights, self.example, self.cmake)
        lines = (f"{p}  {p.stat().st_size} bytes" for p in paths if p is not None)
        return "\n".join(lines)


def write_library(
    library: Library, folder: str | os.PathLike[str], shared: bool = True, compiler: str = ""
) -> Exported:
    """Files are made beside their place and then moved there: programs that have the old ones open
    keep those.
    """
    _require_exportable(library)
    if library.target.kind == "cuda":
        return _write_launcher(library, Path(folder), shared, compiler)
    link = compiler_for(library.target.machine, compiler) if shared else []
    objects, symbols = _objects(library)
    files = _files(library.name, shared)
    with _unfinished(Path(folder)) as made:
        if files.shared is not None:
            link_shared(made / files.shared, objects, symbols[f"{library.name}.o"], link)
        assert files.static is not None
        (made / files.static).write_bytes(archive(objects, symbols))
        _write_texts(library, made, files, library_digest(library))
    return _files(library.name, shared, Path(folder))


def _write_launcher(library: Library, folder: Path, shared: bool, compiler: str) -> Exported:
    """A library for NVIDIA GPUs, which is a C program. With `shared` it is compiled for the
    processor of this machine.
    """
    files = _files(library.name, shared, source=True)
    text, digest = launcher_source(library)
    words = compiler_for(cpu().machine, compiler) if shared else []
    with _unfinished(folder) as made:
        assert files.source is not None
        (made / files.source).write_text(text)
        _write_texts(library, made, files, digest)
        if files.shared is not None and files.static is not None:
            name, exported = f"{library.name}.o", functions(library)
            options = ["-O2", "-fPIC", "-fvisibility=default"]
            _compile([*words, *options, "-c", files.source.name, "-o", name], made)
            code = (made / name).read_bytes()
            link_shared(made / files.shared, {name: code}, exported, words, "-ldl")
            (made / files.static).write_bytes(archive({name: code}, {name: exported}))
            (made / name).unlink()
    return _files(library.name, shared, folder, source=True)


@contextmanager
def _unfinished(out: Path) -> Iterator[Path]:
    """A folder whose files are moved to another one at the end."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out, prefix=".") as unfinished:
            yield Path(unfinished)
            for path in Path(unfinished).iterdir():
                path.replace(out / path.name)
    except OSError as e:
        raise ArgumentError(f"the folder {out} cannot be written: {e.strerror}") from None


def _write_texts(library: Library, made: Path, files: Exported, digest: str) -> None:
    write_weights(made / files.weights, library.weights, digest)
    (made / files.header).write_text(header(library))
    (made / files.example).write_text(example(library))
    (made / files.cmake).write_text(cmake(library, files.shared is not None))


def _files(name: str, shared: bool, folder: Path = Path(), source: bool = False) -> Exported:
    return Exported(
        header=folder / f"{name}.h",
        shared=folder / f"lib{name}.so" if shared else None,
        static=folder / f"lib{name}.a" if shared or not source else None,
        weights=folder / f"{name}.weights",
        example=folder / "example.c",
        cmake=folder / f"{name}.cmake",
        source=folder / f"{name}.c" if source else None,
    )


def _require_exportable(library: Library) -> None:
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", library.name):
        raise ArgumentError(
            f"the name {library.name!r} cannot be part of the names of C functions; take letters, "
            "digits and _, such as my_model"
        )
    for a in library.artifacts:
        if (a.target.kind, a.language) not in (("cpu", "llvm"), ("cuda", "cuda")):
            raise BuildError(
                f"{a.name!r} is built for {a.target.kind} ({a.language}); only kernels for CPUs "
                "and for CUDA that Tilesmith's own code generators made can be exported"
            )
        if library.open is not None and library.target.kind != "cpu":
            raise BuildError(
                f"{a.name!r} has open sizes, and libraries with these are for CPUs; put in "
                "numbers with ts.instantiate"
            )
        if a.checks:
            raise BuildError(
                f"{a.name!r} is built with checked=True, for debugging; build it without to export"
            )
    if any(a.target != library.target for a in library.artifacts):
        raise BuildError(f"{library.title} has kernels for different targets")


def _objects(library: Library) -> tuple[dict[str, bytes], dict[str, list[str]]]:
    """The object files, and the symbols that each defines. Each kernel is one of its own, so that
    two static libraries may contain the same kernel: the linker takes it once.
    """
    # Imported late: `import tilesmith` must not load LLVM.
    from tilesmith.codegen.llvm.compiler import compile_ir

    name, target = library.name, library.target
    # The functions around the kernels run before the processor is known to fit, so they are
    # compiled for what every processor of the architecture has.
    made = compile_ir(name, entry_source(library), target.oldest(), ())
    objects = {f"{name}.o": made.code}
    symbols = {f"{name}.o": functions(library)}
    for a in library.artifacts:
        objects[f"{a.symbol}.o"] = a.code
        symbols[f"{a.symbol}.o"] = [e.symbol for e in a.entries]
    if library.uses_threads:
        pool = compile_ir("threads", exported_pool_source(target.machine), target, ())
        objects["tilesmith_threads.o"] = pool.code
        symbols["tilesmith_threads.o"] = [*SYMBOLS]
    return objects, symbols
