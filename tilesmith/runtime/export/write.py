"""Writes an exported library: a Library in, a folder with all its files out."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tilesmith.base.errors import ArgumentError, BuildError
from tilesmith.runtime.export.archive import archive
from tilesmith.runtime.export.c_files import cmake, example, header
from tilesmith.runtime.export.entry import FUNCTIONS, entry_source, library_digest
from tilesmith.runtime.export.library import Library
from tilesmith.runtime.export.link import compiler_for, link_shared
from tilesmith.runtime.export.pool import SYMBOLS, exported_pool_source
from tilesmith.runtime.export.weights import write_weights


@dataclass(frozen=True, slots=True)
class Exported:
    """The files of an exported model or kernel."""

    header: Path
    shared: Path | None  # None with shared=False
    static: Path
    weights: Path
    example: Path
    cmake: Path

    def __str__(self) -> str:
        paths = (self.header, self.shared, self.static, self.weights, self.example, self.cmake)
        lines = (f"{p}  {p.stat().st_size} bytes" for p in paths if p is not None)
        return "\n".join(lines)


def write_library(
    library: Library, folder: str | os.PathLike[str], shared: bool = True, compiler: str = ""
) -> Exported:
    """Files are made beside their place and then moved there: programs that have the old ones open
    keep those.
    """
    _require_exportable(library)
    link = compiler_for(library.target.machine, compiler) if shared else []
    objects, symbols = _objects(library)
    out = Path(folder)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out, prefix=".") as unfinished:
            files = _files(Path(unfinished), library.name, shared)
            if files.shared is not None:
                link_shared(files.shared, objects, symbols[f"{library.name}.o"], link)
            files.static.write_bytes(archive(objects, symbols))
            write_weights(files.weights, library.weights, library_digest(library))
            files.header.write_text(header(library))
            files.example.write_text(example(library))
            files.cmake.write_text(cmake(library, shared))
            for path in Path(unfinished).iterdir():
                path.replace(out / path.name)
    except OSError as e:
        raise ArgumentError(f"the folder {out} cannot be written: {e.strerror}") from None
    return _files(out, library.name, shared)


def _files(folder: Path, name: str, shared: bool) -> Exported:
    return Exported(
        header=folder / f"{name}.h",
        shared=folder / f"lib{name}.so" if shared else None,
        static=folder / f"lib{name}.a",
        weights=folder / f"{name}.weights",
        example=folder / "example.c",
        cmake=folder / f"{name}.cmake",
    )


def _require_exportable(library: Library) -> None:
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", library.name):
        raise ArgumentError(
            f"the name {library.name!r} cannot be part of the names of C functions; take letters, "
            "digits and _, such as my_model"
        )
    for a in library.artifacts:
        if a.target.kind != "cpu" or a.language != "llvm":
            raise BuildError(
                f"{a.name!r} is built for {a.target.kind} ({a.language}); only kernels for "
                "processors that Tilesmith's own code generator made can be exported"
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
    symbols = {f"{name}.o": [f"tilesmith_{name}_{f}" for f in FUNCTIONS]}
    for a in library.artifacts:
        objects[f"{a.symbol}.o"] = a.code
        symbols[f"{a.symbol}.o"] = [e.symbol for e in a.entries]
    if library.uses_threads:
        pool = compile_ir("threads", exported_pool_source(target.machine), target, ())
        objects["tilesmith_threads.o"] = pool.code
        symbols["tilesmith_threads.o"] = [*SYMBOLS]
    return objects, symbols
