"""Record packs: the best schedules of many tasks as one file, to be given away. What a pack says
is where to begin on another machine, never how fast a kernel is there.

The first line of the file is its header, as JSON: the version of the format, the SHA-256 of all
that follows, and the machines whose records it has. What follows is compressed by xz: a line of
JSON that says what each task is, and a line for each record, as in an export.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from math import log2
from pathlib import Path
from typing import Protocol, runtime_checkable

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import RecordsError
from tilesmith.base.target import Target
from tilesmith.ir.forms import digest_of_form, extents_of
from tilesmith.ir.rename import structure_of
from tilesmith.records.check import read_line
from tilesmith.records.database import Recorded
from tilesmith.records.reader import reader_of
from tilesmith.records.rows import UNREADABLE, Entry
from tilesmith.schedule.trace import Parts
from tilesmith.schedule.translate import Translation
from tilesmith.task.task import Candidate, Task

VERSION = 1
MARK = "tilesmith pack"
SUFFIX = ".pack"
_HEADER_NBYTES = 1 << 20  # the longest first line
_MOST_NBYTES = 1 << 30  # of a pack once it is decompressed
# Packs that come with the library, one for each kind of processor.
FOLDER = Path(__file__).parents[2] / "tilesmith_packs"
NEAR = 1.0  # the largest log2 of a ratio of two extents that are near each other
_MOST_NEAR = 3  # tasks of near sizes


@dataclass(frozen=True, slots=True)
class Packed:
    """A record of a pack that may do for a task. `candidate` is of the task itself if the sizes
    are the same, and of another one if they are near. `seconds` are those on the machine `where`.
    """

    candidate: Candidate
    seconds: float
    place: str
    where: Target
    key: str  # of the record: the digest of its task and trace, as they were recorded

    @property
    def origin(self) -> str:
        return f"in {self.place}, measured on {self.where.label}"


@runtime_checkable
class WithPacks(Protocol):
    """A database that was opened with packs."""

    def packed(self, task: Task) -> list[Packed]:
        """Schedules that packs have for exactly this computation, those of the machine that is
        most like the task's first.
        """

    def near(self, task: Task) -> list[Packed]:
        """Schedules of the same structure and near sizes, the nearest first."""


@dataclass(frozen=True, slots=True)
class _About:
    """What the index says of a task: the digests of its structure and form, the extents of its
    loops, the number of its machine, the first line of its records, and the key of each.
    """

    structure: str
    form: str
    extents: tuple[int, ...]
    target: int
    first: int
    keys: tuple[str, ...]


class Pack:
    """A pack in a file. The header is read when it is opened, the rest when something is looked
    up.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                line = file.readline(_HEADER_NBYTES)
        except OSError as error:
            raise RecordsError(f"the pack {self.path} cannot be read: {error}") from None
        try:
            header = json.loads(line)
            self.version = header[MARK]
        except (ValueError, KeyError, TypeError):
            raise RecordsError(
                f"{self.path} is no pack of records; `tilesmith pack DB -o FILE` writes one"
            ) from None
        if self.version != VERSION:
            raise RecordsError(
                f"the pack {self.path} is of version {self.version!r}, this library reads {VERSION}"
            )
        try:
            self.sha256 = str(header["sha256"])
            self.targets = tuple(Target.from_json(json.dumps(t)) for t in header["targets"])
            self.num_tasks, self.num_records = int(header["tasks"]), int(header["records"])
            self.made = float(header["made"])
        except UNREADABLE as error:
            raise RecordsError(f"the header of the pack {self.path} is damaged: {error}") from None
        self._start = len(line)

    def __repr__(self) -> str:
        machines = ", ".join(dict.fromkeys(t.label for t in self.targets))
        return f"<Pack {self.path.name}: {self.num_tasks} tasks for {machines}>"

    @cached_property
    def _content(self) -> tuple[list[bytes], list[_About]]:
        """The lines of the records, and what the tasks are."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._start)
                data = file.read()
        except OSError as error:
            raise RecordsError(f"the pack {self.path} cannot be read: {error}") from None
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise RecordsError(
                f"the pack {self.path} is damaged or was changed: its content does not have the "
                "hash that its header states"
            )
        try:
            text = lzma.LZMADecompressor(memlimit=_MOST_NBYTES).decompress(data, _MOST_NBYTES)
            first, *lines = text.splitlines()
            about = [
                _About(str(s), str(f), tuple(map(int, e)), int(t), int(at), tuple(map(str, keys)))
                for s, f, e, t, at, keys in json.loads(first)
            ]
        except (lzma.LZMAError, *UNREADABLE) as error:
            raise RecordsError(f"the pack {self.path} cannot be read: {error}") from None
        return lines, about

    def exact(self, task: Task) -> Iterator[tuple[int, Packed]]:
        """Schedules of this computation, each with the distance of its machine."""
        structure = structure_of(task.func)
        for about, distance in self._of(task, lambda a: a.structure == structure):
            yield from ((distance, p) for p in self._read(about, task, same=True))

    def near(self, task: Task) -> Iterator[tuple[float, Packed]]:
        """The best schedule of tasks of near sizes, each with the largest log2 of a ratio of two
        extents.
        """
        form, extents = digest_of_form(task.func), tuple(extents_of(task.func))
        for about, _ in self._of(task, lambda a: a.form == form):
            far = _distance(about.extents, extents)
            if 0 < far <= NEAR:
                yield from ((far, p) for p in self._read(about, task, same=False)[:1])

    def _of(self, task: Task, wanted: Callable[[_About], bool]) -> Iterator[tuple[_About, int]]:
        kinship = [distance(task.target, t) for t in self.targets]
        if all(k is None for k in kinship):
            return
        for about in self._content[1]:
            far = kinship[about.target] if 0 <= about.target < len(kinship) else None
            if far is not None and wanted(about):
                yield about, far

    def _read(self, about: _About, task: Task, same: bool) -> list[Packed]:
        """The records of a task, best first; those that cannot be read here are left out."""
        found = []
        for line in self._content[0][about.first : about.first + len(about.keys)]:
            try:
                entry = read_line(line.decode(), apply=False)
                if (packed := self._packed(entry, task, same)) is not None:
                    found.append(packed)
            except UNREADABLE:
                continue
        return found

    def _packed(self, entry: Entry, task: Task, same: bool) -> Packed | None:
        reader = reader_of(entry.task, {0: entry.task}, task.parts)
        m = None if reader is None else reader.read(0, entry.record)
        if m is None:
            return None
        candidate = m.candidate
        if same:
            trace = Translation(candidate.task.func, task.func).trace(candidate.trace)
            candidate = Candidate(task, trace)
        where = m.candidate.task.target
        return Packed(candidate, m.cost, str(self.path), where, entry.record.candidate)

    def find(self, key: str, parts: Parts | None) -> Iterator[Recorded]:
        """Records whose key begins with this text."""
        for about in self._content[1]:
            for k, own in enumerate(about.keys):
                if not own.startswith(key):
                    continue
                entry = read_line(self._content[0][about.first + k].decode(), apply=False)
                reader = reader_of(entry.task, {0: entry.task}, parts)
                m = None if reader is None else reader.read(0, entry.record)
                if m is not None:
                    codegen = entry.task.codegen
                    yield Recorded(entry.record.candidate, m.candidate, m.cost, codegen)

    def records(self) -> Iterator[Entry]:
        """All of them, checked as those of an export are."""
        for number, line in enumerate(self._content[0], 3):
            try:
                yield read_line(line.decode())
            except UNREADABLE as error:
                raise RecordsError(f"{self.path}, line {number}: {error}") from None


def distance(wanted: Target, other: Target) -> int | None:
    """How far a machine is from another: 0 for an equal one, 1 if it has another number of cores,
    2 for the same instructions, as of a sibling; None if its schedules are no guide.
    """
    if wanted.fingerprint == other.fingerprint:
        return 0
    if wanted.kind == "cpu" and wanted.with_cores(other.num_cores).fingerprint == other.fingerprint:
        return 1
    same = (wanted.kind, wanted.arch, wanted.features, wanted.vector_bits) == (
        other.kind, other.arch, other.features, other.vector_bits,
    )  # fmt: skip
    return 2 if same else None


def _distance(one: Sequence[int], other: Sequence[int]) -> float:
    if len(one) != len(other) or min(*one, *other, 1) < 1:
        return float("inf")
    return max((abs(log2(a / b)) for a, b in zip(one, other, strict=True)), default=0.0)


class Packs:
    """Several packs, searched as one."""

    def __init__(self, packs: Sequence[Pack]) -> None:
        self.packs = tuple(packs)

    def suit(self, target: Target) -> bool:
        """Whether one has records of a machine like this."""
        return any(distance(target, t) is not None for p in self.packs for t in p.targets)

    def packed(self, task: Task) -> list[Packed]:
        found = [each for pack in self.packs for each in pack.exact(task)]
        found.sort(key=lambda pair: pair[0])
        return [p for _, p in found]

    def find(self, key: str, parts: Parts | None) -> list[Recorded]:
        return [r for pack in self.packs for r in pack.find(key, parts)]

    def near(self, task: Task) -> list[Packed]:
        found = [each for pack in self.packs for each in pack.near(task)]
        found.sort(key=lambda pair: pair[0])
        return [p for _, p in found[:_MOST_NEAR]]


def open_packs(paths: Sequence[str | os.PathLike[str]] | None) -> Packs:
    """The packs in these files; None: those that come with the library."""
    return Packs([Pack(p) for p in (_supplied() if paths is None else paths)])


def _supplied() -> list[Path]:
    """The packs that come with the library, where this user may read them."""
    try:
        return sorted(p for p in FOLDER.iterdir() if p.suffix == SUFFIX)
    except OSError:
        return []
