"""A log of TVM becomes a pack of seeds, which are measured again before anything is believed."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import RecordsError, TilesmithError
from tilesmith.base.given import checks_given
from tilesmith.base.target import Target
from tilesmith.frontends.tvm.logs import TvmLog, TvmRecord
from tilesmith.frontends.tvm.seeds import seeds
from tilesmith.frontends.tvm.workloads import Unmapped, Workload
from tilesmith.ir.function import Function
from tilesmith.records.pack_write import PackWritten, write_pack
from tilesmith.task.task import Measurement, Task

CODEGEN = "tvm"  # of the records, whose times are TVM's


@checks_given(error=RecordsError)
@dataclass(frozen=True, slots=True)
class Imported:
    """What was read of a log: how many lines it has, the operators that were found, and how many
    records were left out, by reason. `pack` is what was written.
    """

    lines: int
    functions: tuple[Function, ...]
    left_out: dict[str, int]
    pack: PackWritten


def import_log(
    path: str | os.PathLike[str], target: Target, to: str | os.PathLike[str], keep: int = 3
) -> Imported:
    """Writes a pack with candidates that have about the tiles of the `keep` fastest records of each
    workload; of each operator with a second input that is constant, and with one that is not.
    """
    log = TvmLog(Path(path))
    best: dict[Workload, list[TvmRecord]] = {}
    for record in log.records():
        own = best.setdefault(record.workload, [])
        own.append(record)
        own.sort(key=lambda r: r.seconds)
        if len(own) > keep:
            own.pop()
            log.left_out["slower than others of their workload"] += 1
    left_out = Counter(log.left_out)
    found: list[tuple[Task, list[Measurement]]] = []
    functions: list[Function] = []
    for workload, records in best.items():
        try:
            tasks = [Task(workload.function(c), target) for c in (False, True)]
        except Unmapped as why:
            left_out[str(why)] += len(records)
            continue
        functions.append(tasks[0].func)
        seeded = [(t, _measurements(t, records)) for t in tasks]
        if not any(own for _, own in seeded):
            left_out["tiles that no structure of ours has"] += len(records)
        found += [(t, own) for t, own in seeded if own]
    return Imported(log.lines, tuple(functions), dict(left_out), write_pack(
        found, to, left_out, CODEGEN
    ))  # fmt: skip


def _measurements(task: Task, records: list[TvmRecord]) -> list[Measurement]:
    """In the order of TVM's times, each candidate once."""
    out: dict[str, Measurement] = {}
    for r in records:
        try:
            for c in seeds(task, r.tiles, 1):
                out.setdefault(c.key, Measurement(c, (r.seconds,), when=0.0))
        except TilesmithError:
            continue
    return list(out.values())
