"""Writes the best schedules of a database as a record pack, see records/pack.py."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import RecordsError
from tilesmith.base.given import checks_given
from tilesmith.base.identity import digest
from tilesmith.base.process import version
from tilesmith.base.whole_file import write_whole
from tilesmith.ir.forms import digest_of_form, extents_of
from tilesmith.ir.rename import structure_of
from tilesmith.ir.verify import verify
from tilesmith.records.database import TaskSummary
from tilesmith.records.lines import line_of
from tilesmith.records.pack import MARK, VERSION
from tilesmith.records.rows import UNREADABLE, record_row, task_row
from tilesmith.schedule.trace import Trace
from tilesmith.task.task import (
    CODEGEN_VERSION,
    Measurement,
    Ranking,
    Task,
    builder_of,
    is_current,
    statement_key,
)


@checks_given(error=RecordsError)
@dataclass(frozen=True, slots=True)
class PackWritten:
    """What went into a pack, and why other tasks of the database did not, counted by reason."""

    path: Path
    tasks: int
    records: int
    nbytes: int
    sha256: str
    left_out: dict[str, int]


def pack_database(
    summaries: Iterable[TaskSummary], records_of: Callable[[Task], list[Measurement]],
    path: str | os.PathLike[str], keep: int = 3,
) -> PackWritten:  # fmt: skip
    """Writes the `keep` best schedules of each task. Only what was timed by this version of the
    code generator, without parts of a user's own, and can be applied again is taken.
    """
    if keep < 1:
        raise RecordsError(f"keep is {keep}; a pack has at least the best schedule of each task")
    left_out: Counter[str] = Counter()
    found: list[tuple[Task, list[Measurement]]] = []
    for summary in summaries:
        if (why := _unfit(summary)) is not None:
            left_out[why] += 1
            continue
        best = [m for m in Ranking(records_of(summary.task)).ranked if _applies(m)][:keep]
        if best:
            found.append((summary.task, best))
        else:
            left_out["no schedule of them could be timed"] += 1
    return write_pack(found, path, left_out)


def write_pack(
    found: Iterable[tuple[Task, Sequence[Measurement]]], path: str | os.PathLike[str],
    left_out: Mapping[str, int], codegen: str | None = None,
) -> PackWritten:  # fmt: skip
    """Writes schedules of tasks, best first. `codegen` is what they were measured with, if that is
    not this library's code generator.
    """
    targets: dict[str, int] = {}
    about: list[list[object]] = []
    lines: list[str] = []
    for task, best in found:
        row = task_row(task)
        rows = [record_row(replace(m, moment=None)) for m in best]
        if codegen is not None:
            statement = statement_key(task.func, task.target, codegen)
            row = row._replace(codegen=codegen)
            rows = [r._replace(candidate=digest(statement, r.trace)) for r in rows]
        number = targets.setdefault(task.target.to_json(), len(targets))
        index = [structure_of(task.func), digest_of_form(task.func), extents_of(task.func)]
        about.append([*index, number, len(lines), [r.candidate for r in rows]])
        lines += [line_of(row, r) for r in rows]
    if not lines:
        reasons = "; ".join(f"{n}: {why}" for why, n in left_out.items())
        raise RecordsError(f"there is nothing to pack{f' ({reasons})' if reasons else ''}")
    text = "\n".join([json.dumps(about, separators=(",", ":")), *lines]) + "\n"
    data = lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)
    sha256 = hashlib.sha256(data).hexdigest()
    header = {
        MARK: VERSION, "sha256": sha256, "made": time.time(), "library": version(),
        "codegen": codegen or CODEGEN_VERSION, "tasks": len(about), "records": len(lines),
        "targets": [json.loads(t) for t in targets],
    }  # fmt: skip
    whole = json.dumps(header, separators=(",", ":")).encode() + b"\n" + data
    write_whole(Path(path), whole)
    return PackWritten(Path(path), len(about), len(lines), len(whole), sha256, dict(left_out))


def _unfit(summary: TaskSummary) -> str | None:
    """Why the records of a task are of no use elsewhere."""
    if not is_current(summary.codegen):
        return "of another version of the code generator"
    if builder_of(summary.codegen) or summary.task.target.described is not None:
        return "of a back end or a processor of your own"
    return None


def _applies(m: Measurement) -> bool:
    """Whether the schedule is made of built-in steps, and gives a program."""
    try:
        func = Trace.from_json(m.candidate.trace.to_json()).apply(m.candidate.task.func)
        verify(func)
    except UNREADABLE:
        return False
    return m.failure is None
