"""Kernels that compute the same bits after a restart and on every machine of the kind: of a record
that is named by its key, or of a lock file, which has the schedule of every kernel of a model.

Bits depend on the computation, the schedule, the version of the code generator and the instructions
of the processor; not on the number of cores or the sizes of caches.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import BuildError, GraphError
from tilesmith.base.identity import digest
from tilesmith.base.target import Target
from tilesmith.expr.sizes import OpenSize
from tilesmith.graph.alternatives import parts_of
from tilesmith.graph.graph import Graph
from tilesmith.graph.model_lock import (
    Lock,
    LockedKernel,
    instructions_of,
    lock_key,
    other_instructions,
    read_lock,
)
from tilesmith.graph.partition import Group, Partition
from tilesmith.ir.deserialize import function_from_json
from tilesmith.ir.function import Function
from tilesmith.ir.intrinsics import INTRINSICS
from tilesmith.ir.rename import structure_of
from tilesmith.ir.serialize import function_to_json
from tilesmith.records.database import Database, find_records
from tilesmith.records.rows import UNREADABLE
from tilesmith.runtime.device_kernel import portfolio_kernel
from tilesmith.runtime.kernel import Kernel, Origin
from tilesmith.runtime.open_kernel import OpenKernel
from tilesmith.schedule.trace import Parts, Trace
from tilesmith.schedule.translate import Translation
from tilesmith.task.describe import shapes_text
from tilesmith.task.task import Task, codegen_of
from tilesmith.tune.build_request import BuildRequest
from tilesmith.tune.partition_choice import rivals_of

_SHORTEST = 8  # digits of a record's key that are enough
_EVERY_POINT = 1 << 62  # so that any nest counts as small enough for the plain one


def pinned_request(
    func: Function, target: Target, key: str, database: Database | None, parts: Parts | None
) -> BuildRequest:
    """The build of one record, whose key begins with `key`. Raises a BuildError that says why it
    would not be the same kernel.
    """
    if database is None:
        raise BuildError(f"build(record={key!r}) takes a kernel of a database; give one")
    if len(key) < _SHORTEST or not {*key} <= {*"0123456789abcdef"}:
        raise BuildError(
            f"build(record={key!r}): it takes the key of a record, as kernel.origin.record: at "
            f"least its first {_SHORTEST} hexadecimal digits"
        )
    found = find_records(database, key)
    place = str(getattr(database, "place", "this database"))
    if not found:
        raise BuildError(f"there is no record {key} in {place}")
    if len({r.key for r in found}) > 1:
        raise BuildError(f"several records in {place} begin with {key}; give more of the key")
    recorded = found[0]
    there = recorded.candidate.task
    if structure_of(there.func) != structure_of(func):
        raise BuildError(
            f"the record {key} is of {there.func.name} {shapes_text(there.func)}, not of "
            f"{func.name} {shapes_text(func)}"
        )
    if why := _other_bits(recorded.codegen, instructions_of(there.target), target, parts):
        raise BuildError(f"the record {key} cannot give the same bits here: {why}")
    trace = _translated(recorded.candidate.trace, there.func, func)
    origin = Origin("record", recorded.seconds, f"pinned, in {place}", recorded.key)
    return BuildRequest(Task(func, target, parts), ((trace, origin),), drafts=False)


def _other_bits(
    codegen: str, instructions: dict[str, object], target: Target, parts: Parts | None
) -> str:
    """Why a schedule that was recorded like that would compute other bits; empty if it does not."""
    here = codegen_of(target, parts)
    if codegen != here:
        return (
            f"it is of version {codegen} of the code generator, this is {here}, which may round in "
            "another way"
        )
    return other_instructions(instructions, target)


def _translated(trace: Trace, old: Function, new: Function) -> Trace:
    if function_to_json(old) == function_to_json(new):
        return trace
    return Translation(old, new).trace(trace)


class LockedKernels:
    """The builds of a model's kernels by a lock file. Raises a GraphError that says why they would
    not be the same ones.
    """

    def __init__(
        self, path: str | os.PathLike[str], target: Target, parts: Parts | None = None
    ) -> None:
        self.lock: Lock = read_lock(path)
        self.target, self.parts = target, parts
        if why := _other_bits(self.lock.codegen, self.lock.instructions, target, parts):
            raise GraphError(f"{self.lock.place} cannot give the same bits here: {why}")

    def request(self, task: Task, stored: Function) -> BuildRequest:
        found = self._found(task.func, task)
        own = Parts() if task.parts is None else task.parts
        try:
            units = (*INTRINSICS, *own.intrinsics)
            old = function_from_json(found.function, units, own.all_notes)
        except UNREADABLE as error:
            raise GraphError(f"{self.lock.place}: {task.func.name}: {error}") from None
        return self._request(task, found.schedules[0], old, stored)

    def open_requests(self, task: Task, func: Function) -> tuple[BuildRequest, ...]:
        """The kernels of a function with open sizes, of which `task` is one with numbers."""
        found = self._found(func, task)
        return tuple(self._request(task, schedule, task.func, func) for schedule in found.schedules)

    def joined(self, func: Function, kernels: Sequence[Kernel]) -> Kernel:
        """The one kernel that `open_requests` makes."""
        regions = self.lock.kernels[lock_key(func)].regions
        if not regions:
            return kernels[0]
        members = [k for k in kernels if isinstance(k, OpenKernel)]
        return portfolio_kernel(members, regions, {s.name: s.limits for s in func.declared})

    def _found(self, func: Function, task: Task) -> LockedKernel:
        found = self.lock.kernels.get(lock_key(func))
        if found is None:
            raise GraphError(
                f"{self.lock.place} has no kernel of {task.func.name} {shapes_text(task.func)}: it "
                "was written for another model, or for other sizes, passes, groups or precision, "
                "or by another version of them; compile without lock= and write it anew"
            )
        return found

    def _request(self, task: Task, schedule: str, old: Function, stored: Function) -> BuildRequest:
        """`old` is the function that the schedule was written for."""
        if not schedule:
            return BuildRequest(task, stored=stored, plain_points=_EVERY_POINT)
        try:
            trace = _translated(Trace.from_json(schedule, task.parts), old, task.func)
        except UNREADABLE as error:
            raise GraphError(f"{self.lock.place}: {task.func.name}: {error}") from None
        origin = Origin("record", None, f"pinned by {self.lock.place}", digest(schedule))
        return BuildRequest(task, ((trace, origin),), drafts=False, stored=stored)

    def require_sizes(self, given: Mapping[str, OpenSize], model: str) -> None:
        """Raises where a model would be compiled for other sizes than the lock file is for. None
        are given where it is compiled for certain sizes.
        """
        own = self.lock.sizes
        for name in [*own, *(n for n in given if n not in own)]:
            one, other = own.get(name), given.get(name)
            if one is None:
                raise GraphError(
                    f"{self.lock.place} has schedules of fixed sizes, and {name!r} of {model} is "
                    "open here; give its size when the model is loaded, and no sizes="
                )
            if other is None:
                has = f"has no open dimension {name!r}" if given else "is compiled for fixed sizes"
                raise GraphError(
                    f"{self.lock.place} is for all of {_range(one)}, and {model} {has} here"
                )
            if (one.limits, one.weights) != (other.limits, other.weights):
                raise GraphError(
                    f"{self.lock.place} is for {_range(one)}, and sizes= has {_range(other)}; "
                    "leave sizes= out, or write it anew"
                )

    def does_not_build(self, task: Task, obstacles: Sequence[str]) -> GraphError:
        why = "; ".join(obstacles)
        return GraphError(f"{self.lock.place}: {task.func.name} cannot be built as locked: {why}")

    def has(self, func: Function) -> bool:
        return lock_key(func) in self.lock.kernels


def _range(s: OpenSize) -> str:
    low, high = s.limits
    samples = ", ".join(f"{v} ({w:g})" for v, w in s.samples)
    return f"{s.name} from {low} to {high}" + (f" with the samples {samples}" if samples else "")


@dataclass(frozen=True)
class LockedPartition:
    """The groups of `base`, each divided where the lock has its parts and not the whole."""

    base: Partition
    locked: LockedKernels

    def __call__(self, graph: Graph) -> tuple[Group, ...]:
        out: list[Group] = []
        for group in self.base(graph):
            parts = parts_of(graph, group)
            if parts is not None:
                rivals = rivals_of(graph, group, parts, self.locked.target, self.locked.parts)
                if self.divides(rivals.whole.func, [p.func for p in rivals.parts]):
                    out += parts
                    continue
            out.append(group)
        return tuple(out)

    def divides(self, whole: Function, parts: Sequence[Function]) -> bool:
        """The same for Functions, also with open sizes."""
        return not self.locked.has(whole) and all(map(self.locked.has, parts))
