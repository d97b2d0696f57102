"""A data set that nothing was fitted to: programs of operators that a seed drew from the families
of `bench.everyday`, on one core, measured here.

    python -m bench.drawn_dataset --seed 1234 --minutes 5

The first run on a machine draws the operators and writes them down; each further one goes on. For
each operator there are programs drawn evenly from the whole space, as `ts.Random` draws them, and
some that the analytic score likes best; these lie in files of their own (`liked`). Families whose
number is in `NEVER_FITTED` are for judging only: no model, constant or default is fitted to them.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tilesmith as ts
from bench.dataset import DATA, QUICK, condensed
from bench.everyday_cases import FAMILIES, Limits, draw
from tilesmith.base.whole_file import write_whole
from tilesmith.ir.deserialize import function_from_json
from tilesmith.ir.serialize import function_to_json
from tilesmith.records.lines import write_lines
from tilesmith.records.rows import Entry, record_row, task_row
from tilesmith.search.cpu_score import CpuScore

DRAWN = DATA / "drawn"
VERSION = 1
LIMITS = Limits(work=6e7, elements=4e6, dtypes=("float32",))
LEAST_WORK = 4e4  # operations of a case; below, calls take as long as kernels
FEWEST = 100  # programs that the space of an operator has at least
# Every third family, by the order of `FAMILIES`, which is older than this data.
NEVER_FITTED = tuple(name for k, name in enumerate(FAMILIES) if k % 3 == 2)
EVEN, LIKED = "even", "liked"
TURN = 32  # programs of an operator that are measured at a time
MOST_PER_SECOND = 12.0  # programs that are chosen ahead


@dataclass(frozen=True)
class Operator:
    number: int
    family: str
    case: str
    task: ts.Task

    @property
    def is_fitted(self) -> bool:
        return self.family not in NEVER_FITTED


def operators(seed: int, count: int, families: tuple[str, ...] = ()) -> Iterator[Operator]:
    """Of each case the task with most arithmetic. Small cases, those without a task and those whose
    space has only a few programs are left out.
    """
    from bench.everyday_modules import module_of
    from bench.module_contestants import graph_of

    found = 0
    for case in draw(seed, 8 * count, LIMITS, families):
        if case.work < LEAST_WORK:
            continue
        tasks = [t for t, _ in ts.extract_tasks(graph_of(*module_of(case)), ts.cpu(1))]
        if not tasks:
            continue
        task = max(tasks, key=CpuScore().least_cycles)
        programs = sum(
            v.size for s in ts.SketchSpace().sketches(task) for v in ts.variants(task, s)
        )
        if programs < FEWEST:
            continue
        yield Operator(found, case.family, case.name, task)
        found += 1
        if found == count:
            return


class DrawnSet:
    """The operators of one machine, with what was measured of each, in files by family."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        manifest = json.loads((folder / "operators.json").read_text())
        if manifest["version"] != VERSION:
            raise SystemExit(f"{folder} is of version {manifest['version']}, not {VERSION}")
        self.seed: int = manifest["seed"]
        target = ts.Target.from_json(json.dumps(manifest["target"]))
        self.operators = [
            Operator(
                k, row["family"], row["case"],
                ts.Task(function_from_json(json.dumps(row["func"])), target),
            )
            for k, row in enumerate(manifest["operators"])
        ]  # fmt: skip
        self._by_key = {o.task.key: o for o in self.operators}
        self.found: dict[str, dict[int, list[ts.Measurement]]] = {EVEN: {}, LIKED: {}}
        for way, found in self.found.items():
            for family in {o.family for o in self.operators}:
                path = self._path(way, family)
                for m in ts.read_records(path) if path.exists() else ():
                    found.setdefault(self._by_key[m.candidate.task.key].number, []).append(m)

    @classmethod
    def draw(cls, folder: Path, seed: int, count: int) -> None:
        """Writes down the operators of this machine."""
        rows: list[dict[str, Any]] = [
            {"family": o.family, "case": o.case, "func": json.loads(function_to_json(o.task.func))}
            for o in operators(seed, count)
        ]
        folder.mkdir(parents=True, exist_ok=True)
        target = json.loads(ts.cpu(1).to_json())
        whole = {"version": VERSION, "seed": seed, "target": target, "operators": rows}
        write_whole(folder / "operators.json", json.dumps(whole, separators=(",", ":")))

    def _path(self, way: str, family: str) -> Path:
        return self.folder / f"{family.replace(' ', '_')}.{way}.jsonl.xz"

    def of(self, way: str, number: int) -> list[ts.Measurement]:
        return self.found[way].get(number, [])

    def collect(self, seconds: float, even: int, liked: int, lock: Path | None) -> None:
        """Measures so many seconds, or until each operator has so many programs; all grow alike.
        What is measured is chosen before the lock is taken.
        """
        asked = list(self._ask(even, liked, most=round(seconds * MOST_PER_SECOND)))
        if not asked:
            return
        with ExitStack() as stack:
            if lock is not None:
                fcntl.flock(stack.enter_context(lock.open("w")), fcntl.LOCK_EX)
            until = time.time() + seconds
            run = stack.enter_context(
                ts.LocalMeasurer(rules=QUICK, confirm=False).open(asked[0][1].task)
            )
            for way, o, candidates in asked:
                if time.time() >= until:
                    break
                began = time.time()
                self.found[way].setdefault(o.number, []).extend(run.measure(candidates))
                took, count = time.time() - began, len(self.of(way, o.number))
                print(f"{took:6.1f} s  {o.number} {o.case}: {count} {way}", flush=True)
        self.save()

    def _ask(
        self, even: int, liked: int, most: int
    ) -> Iterator[tuple[str, Operator, list[ts.Candidate]]]:
        """What is to be measured next, in turns of the operators."""
        searches: dict[tuple[str, int], Any] = {}
        counts = {
            (w, o.number): len(self.of(w, o.number)) for w in self.found for o in self.operators
        }
        for way, until in self._rounds(even, liked):
            for o in self.operators:
                key = way, o.number
                n = until - counts[key]
                if n <= 0 or most <= 0:
                    continue
                if key not in searches:
                    searches[key] = self._search(way, o)
                asked = searches[key].ask(n)
                counts[key] += n  # also if the space has no more
                most -= len(asked)
                if asked:
                    yield way, o, asked

    @staticmethod
    def _rounds(even: int, liked: int) -> Iterator[tuple[str, int]]:
        for k in range(1, -(-max(even, 2 * liked) // TURN) + 1):
            yield EVEN, min(k * TURN, even)
            yield LIKED, min(k * TURN // 2, liked)

    def _search(self, way: str, o: Operator) -> Any:
        """Goes on behind what was measured; favourites are what an unlearned search proposes."""
        known = self.of(way, o.number)
        rng = np.random.default_rng([self.seed, o.number, len(known)])
        strategy = ts.Random() if way == EVEN else ts.Evolution(cost_model=None, epsilon=0, local=0)
        search = strategy.start(o.task, ts.SketchSpace().sketches(o.task), rng)
        search.tell(known)
        return search

    def save(self) -> None:
        for way, found in self.found.items():
            for family in {o.family for o in self.operators}:
                rows = [
                    Entry(task_row(o.task), record_row(m))
                    for o in self.operators if o.family == family
                    for m in condensed(found.get(o.number, []))
                ]  # fmt: skip
                if rows:
                    write_lines(self._path(way, family), rows)


def machines(folder: Path = DRAWN) -> Sequence[Path]:
    """The folders of the machines of the data set."""
    return sorted(path.parent for path in folder.glob("*/operators.json"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="draws the operators, in the first run")
    parser.add_argument("--operators", type=int, default=46)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--even", type=int, default=96, help="programs of each operator")
    parser.add_argument("--liked", type=int, default=32, help="those that the score likes best")
    parser.add_argument("--to", type=Path, help="a folder for this machine, by default of its name")
    parser.add_argument("--lock", type=Path, help="a file that is locked while programs are timed")
    args = parser.parse_args()
    name = re.sub(r"[^a-z0-9]+", "-", ts.cpu(1).name.lower()).strip("-")
    folder: Path = args.to or DRAWN / name
    if not (folder / "operators.json").exists():
        if args.seed is None:
            parser.error("the first run on a machine draws operators: give a --seed")
        DrawnSet.draw(folder, args.seed, args.operators)
    known = DrawnSet(folder)
    known.collect(60 * args.minutes, args.even, args.liked, args.lock)
    for way in (EVEN, LIKED):
        counts = [len(known.of(way, o.number)) for o in known.operators]
        print(f"{way}: {sum(counts)} programs of {len(counts)} operators, {min(counts)} at least")
    total = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {total / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
