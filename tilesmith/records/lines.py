"""Records as JSON lines. Each line holds everything about one measurement, including the
computation and the target, so that it means the same in any database. Files whose name ends in .xz
or .gz are compressed.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import zlib
from collections.abc import Iterable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import RecordsError
from tilesmith.base.given import checks_given
from tilesmith.base.whole_file import whole_file
from tilesmith.records.check import LINE_VERSION, read_line
from tilesmith.records.reader import reader_of
from tilesmith.records.rows import (
    UNREADABLE,
    Entry,
    RecordRow,
    RunRow,
    TaskRow,
    measurement,
    run_of,
)
from tilesmith.schedule.trace import Parts
from tilesmith.task.task import Measurement, Task, builder_of

_LONGEST = 1 << 24  # bytes of a line, far more than any record has


def line_of(task: TaskRow, row: RecordRow, run: RunRow | None = None) -> str:
    provenance: dict[str, Any] = {}
    if run is not None:
        own = {name: x for name, x in run._asdict().items() if name != "codegen"}  # the line's
        provenance = {"run": own, "run_seconds": row.run_seconds, "trial": row.trial}
    return json.dumps(
        {
            **provenance,
            "version": LINE_VERSION,
            "func": _parsed(task.func),
            "target": _parsed(task.target),
            "codegen": task.codegen,
            "trace": _parsed(row.trace),
            "seconds": _parsed(row.samples),
            "references": _parsed(row.reference_samples),
            "failure": None if row.failure is None else [row.failure, row.failure_text],
            "contended": bool(row.contended),
            "confirmed": bool(row.confirmed),
            "build_seconds": row.build_seconds,
            "when": row.at,
            "versions": _parsed(row.versions),
        },
        separators=(",", ":"),
    )


def _parsed(text: str) -> Any:
    """The JSON value of a text; the text itself if it is not JSON, so that an export keeps it."""
    try:
        return json.loads(text)
    except ValueError:
        return text


@dataclass(frozen=True, slots=True)
class Refused:
    """A line that is not a record: the reason, with file and line number."""

    text: str


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import: how many records were new, how many were known already, and how
    many lines were refused; `reasons` explains the first of these.
    """

    added: int
    present: int
    refused: int
    reasons: tuple[str, ...]


def entries(path: Path, apply: bool = True) -> Iterator[Entry | Refused]:
    """Raises a RecordsError if nothing of the file can be read."""
    number = 0
    try:
        with _open_bytes(path) as file:
            while line := file.readline(_LONGEST):
                number += 1
                if len(line) == _LONGEST and not line.endswith(b"\n"):
                    while (rest := file.readline(_LONGEST)) and not rest.endswith(b"\n"):
                        pass
                    yield Refused(f"{path}, line {number} has more than {_LONGEST} bytes")
                elif line.strip():
                    yield _entry(path, number, line, apply)
    except (OSError, EOFError, MemoryError, lzma.LZMAError, zlib.error) as e:
        if number == 0:
            raise RecordsError(f"{path} cannot be read: {e}") from None
        yield Refused(f"{path} cannot be read after line {number}: {e}")


def _entry(path: Path, number: int, line: bytes, apply: bool) -> Entry | Refused:
    try:
        return read_line(line.decode(), apply)
    except UNREADABLE as e:
        what = f"{e} is missing" if isinstance(e, KeyError) else str(e) or type(e).__name__
        return Refused(f"{path}, line {number} is not a record: {what}")


def write_lines(to: Path | TextIO, rows: Iterable[Entry]) -> int:
    """Returns the number of lines. A file appears when it is complete; a stream stays open."""
    if not isinstance(to, Path):
        return _write(to, rows)
    try:
        with whole_file(to) as raw, _text_in(raw, to) as file:
            return _write(file, rows)
    except OSError as e:
        raise RecordsError(
            f"{to} cannot be written: {e}; what was there before is unchanged"
        ) from None


def _write(file: TextIO, rows: Iterable[Entry]) -> int:
    count = 0
    for entry in rows:
        file.write(line_of(*entry) + "\n")
        count += 1
    return count


@checks_given(error=RecordsError)
def read_records(path: str | os.PathLike[str], parts: Parts | None = None) -> list[Measurement]:
    """The measurements in an exported file, without a database, read with `parts` of your own. Each
    task has the target it was recorded on, whatever machine this is, and the back end, if that is
    among the parts. Raises a RecordsError that names the first line that is not a record.
    """
    out: list[Measurement] = []
    tasks: dict[TaskRow, Task] = {}  # records of one task share it, so that its keys are found once
    for entry in entries(Path(path), apply=False):
        if isinstance(entry, Refused):
            raise RecordsError(entry.text)
        if (task := tasks.get(entry.task)) is None:
            reader = reader_of(entry.task, {0: entry.task}, parts)
            assert reader is not None  # `entries` has read it
            task = tasks[entry.task] = reader.task
        if (builder := builder_of(entry.task.codegen)) != builder_of(task.codegen):
            raise RecordsError(f"{path} has records of the back end {builder!r}; give it in parts=")
        runs = {} if entry.run is None else {entry.run.key: run_of(entry.run)}
        out.append(measurement(entry.record, task, runs))
    return out


def _open_bytes(path: Path) -> BinaryIO:
    match path.suffix:
        case ".xz":
            return cast(BinaryIO, lzma.open(path))
        case ".gz":
            return cast(BinaryIO, gzip.open(path))
    return path.open("rb")


def _text_in(file: BinaryIO, path: Path) -> TextIO:
    """Writes text to the file, compressed if its name says so."""
    match path.suffix:
        case ".xz":
            return TextIOWrapper(lzma.open(file, "wb"), encoding="utf-8")
        case ".gz":
            # Without the name, which is not the final one.
            return TextIOWrapper(gzip.GzipFile("", "wb", fileobj=file), encoding="utf-8")
    return TextIOWrapper(file, encoding="utf-8")
