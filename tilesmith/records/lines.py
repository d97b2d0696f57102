"""Records as JSON lines: each line holds all there is to say about one measurement, the computation
and the target included, so that a line means the same in any database. A file whose name ends in
.xz or .gz is compressed.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO, cast

from tilesmith.base.digest import digest
from tilesmith.base.errors import RecordsError, TilesmithError
from tilesmith.base.target import Target
from tilesmith.ir.deserialize import function_from_json
from tilesmith.ir.intrinsics import INTRINSICS
from tilesmith.ir.nodes import Intrinsic
from tilesmith.ir.serialize import compact
from tilesmith.records.rows import RecordRow, TaskRow, measurement, row_of
from tilesmith.schedule.step import Step
from tilesmith.schedule.trace import PRIMITIVES, Trace
from tilesmith.task.task import (
    Candidate,
    Failure,
    Measurement,
    Task,
    statement_key,
    task_key,
)

VERSION = 1


def line_of(task: TaskRow, row: RecordRow) -> str:
    return json.dumps(
        {
            "version": VERSION,
            "func": json.loads(task.func),
            "target": json.loads(task.target),
            "codegen": task.codegen,
            "trace": json.loads(row.trace),
            "seconds": json.loads(row.samples),
            "references": json.loads(row.reference_samples),
            "failure": None if row.failure is None else [row.failure, row.failure_text],
            "contended": bool(row.contended),
            "confirmed": bool(row.confirmed),
            "build_seconds": row.build_seconds,
            "when": row.at,
            "versions": json.loads(row.versions),
        },
        separators=(",", ":"),
    )


def rows_of(path: Path) -> Iterator[tuple[TaskRow, RecordRow]]:
    """Raises a RecordsError that names the file and the line where one is not a record."""
    try:
        with _open(path, path, "rt") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    try:
                        yield _read(line)
                    except (ValueError, KeyError, TypeError, TilesmithError) as e:
                        what = f"{e} is missing" if isinstance(e, KeyError) else str(e)
                        raise RecordsError(
                            f"{path}, line {number} is not a record: {what}. The lines before it "
                            "may have been taken; to import the mended file again is safe"
                        ) from None
    except (OSError, EOFError, UnicodeDecodeError, lzma.LZMAError) as e:
        raise RecordsError(f"{path} cannot be read: {e}") from None


def write_lines(path: Path, rows: Iterable[tuple[TaskRow, RecordRow]]) -> int:
    """How many were written. The file appears when it is whole."""
    part = path.with_name(f"{path.name}.part")
    count = 0
    try:
        with _open(part, path, "wt") as file:
            for task, row in rows:
                file.write(line_of(task, row) + "\n")
                count += 1
        part.replace(path)
    except OSError as e:
        raise RecordsError(f"{path} cannot be written: {e}") from None
    finally:
        part.unlink(missing_ok=True)
    return count


def read_records(
    path: str | os.PathLike[str],
    primitives: Sequence[type[Step]] = PRIMITIVES,
    intrinsics: Sequence[Intrinsic] = INTRINSICS,
) -> list[Measurement]:
    """What an exported file says, without a database: each task is rebuilt with the target it was
    recorded on, whatever machine this is.
    """
    return [
        measurement(row, _task(task.func, task.target, task.codegen)[0], primitives, intrinsics)
        for task, row in rows_of(Path(path))
    ]


def _open(path: Path, named: Path, mode: str) -> TextIO:
    match named.suffix:
        case ".xz":
            return cast(TextIO, lzma.open(path, mode, encoding="utf-8"))
        case ".gz":
            return cast(TextIO, gzip.open(path, mode, encoding="utf-8"))
    return cast(TextIO, path.open(mode, encoding="utf-8"))


def _read(line: str) -> tuple[TaskRow, RecordRow]:
    data = json.loads(line)
    if data["version"] != VERSION:
        raise ValueError(f"it is of version {data['version']!r}, this library reads {VERSION}")
    func, target, codegen = compact(data["func"]), compact(data["target"]), data["codegen"]
    if not isinstance(codegen, str):
        raise ValueError(f"codegen is {codegen!r}")
    task, statement, key = _task(func, target, codegen)
    trace = json.dumps(data["trace"])
    if not isinstance(data["trace"]["steps"], list):
        raise ValueError("its trace has no steps")
    m = Measurement(
        # Not the real trace: its steps may be a user's, and are not needed here.
        candidate=Candidate(task, Trace()),
        seconds=tuple(_float(s) for s in data["seconds"]),
        failure=None if data["failure"] is None else _failure(data["failure"]),
        contended=bool(data["contended"]),
        confirmed=bool(data["confirmed"]),
        build_seconds=_float(data["build_seconds"]),
        when=_float(data["when"]),
        references=tuple(_float(s) for s in data.get("references", ())),  # older lines have none
    )
    made_by = json.dumps(data["versions"], sort_keys=True)
    row = row_of(m, digest(statement, trace), trace, made_by)
    fingerprint = task.target.fingerprint
    return TaskRow(statement, task.func.name, func, target, fingerprint, codegen, key), row


@lru_cache(256)  # lines of one task stand together
def _task(func: str, target: str, codegen: str) -> tuple[Task, str, str]:
    """With its statement and its key under that code generator."""
    task = Task(function_from_json(func), Target.from_json(target))
    parts = task.func, task.target, codegen
    return task, statement_key(*parts), task_key(*parts)


def _float(data: Any) -> float:
    if isinstance(data, bool) or not isinstance(data, int | float):
        raise ValueError(f"{data!r} is no number of seconds")
    return float(data)


def _failure(data: Any) -> Failure:
    kind, text = data
    if not isinstance(kind, str) or not isinstance(text, str):
        raise ValueError(f"{data!r} is no failure")
    return Failure(kind, text)
