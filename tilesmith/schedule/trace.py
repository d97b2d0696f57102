"""`Trace`: the steps of a schedule, as a value. It prints like the code one would write, converts
to and from JSON, and replays on a Function.

`PRIMITIVES` are the built-in steps. `Parts` adds the primitives, intrinsics, notes and back ends of
a user's own, as one object that everything takes which builds candidates or reads records.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from importlib import import_module
from typing import Any, Protocol

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ArgumentError, MissingPartError, ScheduleError, TraceError
from tilesmith.base.given import checks_given
from tilesmith.base.html import html_text
from tilesmith.base.identity import digest, identity
from tilesmith.base.target import Target
from tilesmith.ir.function import Function
from tilesmith.ir.intrinsics import INTRINSICS, label_of
from tilesmith.ir.nodes import Intrinsic
from tilesmith.ir.notes import NOTES, RETIRED, Note, PassNote
from tilesmith.schedule.cache import CacheRead, CacheWrite, SetScope, StorageAlign
from tilesmith.schedule.chunks import ChunkSums, NarrowSums
from tilesmith.schedule.groups import Ungroup
from tilesmith.schedule.inline import Inline, ReverseInline
from tilesmith.schedule.iterators import MergeIterators, SplitIterator
from tilesmith.schedule.kinds import (
    Annotate,
    AutoParallel,
    AutoPrefetch,
    AutoUnroll,
    AutoVectorize,
    Bind,
    Parallel,
    Pipeline,
    PrefetchStreams,
    Unroll,
    Vectorize,
)
from tilesmith.schedule.layout import Pad, TransformLayout
from tilesmith.schedule.location import ComputeAt, ReverseComputeAt
from tilesmith.schedule.loops import Fuse, Reorder, Split
from tilesmith.schedule.reduction import DecomposeReduction, Rfactor, WriteOut
from tilesmith.schedule.roll import Roll
from tilesmith.schedule.roll_parts import RollParts
from tilesmith.schedule.sample import (
    NumericSample,
    Require,
    SampleChoice,
    SampleLocation,
    SamplePermutation,
    SampleTile,
)
from tilesmith.schedule.sharing import ShareLoop
from tilesmith.schedule.shift import ShiftOperand
from tilesmith.schedule.step import Step
from tilesmith.schedule.unfold import MergeTiles, Unfold
from tilesmith.schedule.unit import Blockize, Tensorize
from tilesmith.schedule.winograd import Winograd
from tilesmith.schedule.zeros import InlinePadding, SkipZeros

PRIMITIVES: tuple[type[Step], ...] = (
    Split, Fuse, Reorder, SplitIterator, MergeIterators, Parallel, Vectorize, Unroll, Bind,
    Annotate, Pipeline, ComputeAt, ReverseComputeAt, ShareLoop, Inline, ReverseInline, CacheRead,
    CacheWrite, SetScope, StorageAlign, Rfactor, ChunkSums, NarrowSums, DecomposeReduction,
    Winograd, SkipZeros, InlinePadding, WriteOut, TransformLayout, Pad, ShiftOperand, Unfold,
    MergeTiles, Ungroup, Blockize, Tensorize, SampleTile, SampleChoice, SampleLocation,
    SamplePermutation, AutoParallel, AutoPrefetch, AutoVectorize, AutoUnroll, PrefetchStreams,
    Require, Roll, RollParts,
)  # fmt: skip


class CodeGenerator(Protocol):
    """What `codegen/artifact.py` calls a Backend, without the type of its result, which belongs to
    a later stage.
    """

    @property
    def kind(self) -> str: ...

    def compile(self, func: Function, target: Target, *, checked: bool = False) -> Any: ...


@dataclass(frozen=True)
class Parts:
    """Parts of your own, in addition to the built-in ones. Give the same object to whatever tunes,
    builds or reads records: `ts.tune`, `ts.build`, `ts.tune_model`, `ts.compile_model`,
    `ts.open_database`, `ts.Task`, `ts.Trace.from_json`, and, by its name, to the command line
    (`--parts module:object`).

    - `primitives`: classes of steps that traces may name.
    - `intrinsics`: instructions that traces may name. `ts.tune` and `ts.tune_model` search with
      them, unless a space is given.
    - `notes`: classes of notes on loops that traces and Functions may have, for rules and back ends
      that write and read them.
    - `backends`: code generators, at most one for each kind of target. They build every kernel
      in place of the built-in ones.

    Records name what they need: primitives by name, intrinsics by name with a digest of what they
    compute and of their code, and the back end by name with a digest of its settings and its code.
    Measurements of one back end are never used for another.

    Worker processes import the classes and functions by their modules. Those that are defined in a
    script or a notebook are used in its own process, which takes longer.

    Example:

        backend = ts.LlvmBackend(passes=ts.PLAIN_PASSES)
        parts = ts.Parts(backends=(backend,))
        with ts.open_database("tune.db", parts=parts) as db:
            result = ts.tune(func, budget=ts.Budget(trials=8), database=db, parts=parts)
            kernel = ts.build(func, database=db, parts=parts)    # that of result.kernel
    """

    primitives: tuple[type[Step], ...] = ()
    intrinsics: tuple[Intrinsic, ...] = ()
    backends: tuple[CodeGenerator, ...] = ()
    notes: tuple[type[Note], ...] = ()

    def __post_init__(self) -> None:
        for name in ("primitives", "intrinsics", "backends", "notes"):
            given = getattr(self, name)
            if not isinstance(given, tuple | list):
                raise ArgumentError(f"{name} of Parts is {given!r}; it is a tuple")
            object.__setattr__(self, name, tuple(given))
        for p in self.primitives:
            if not (isinstance(p, type) and issubclass(p, Step) and hasattr(p, "name")):
                raise ArgumentError(
                    f"{p!r} is no primitive; it is a class derived from ts.Step, with a name"
                )
        for i in self.intrinsics:
            if not isinstance(i, Intrinsic):
                raise ArgumentError(f"{i!r} is no intrinsic; it is a ts.Intrinsic")
        for n in self.notes:
            if not (isinstance(n, type) and issubclass(n, Note) and hasattr(n, "key")):
                raise ArgumentError(
                    f"{n!r} is no note; it is a class derived from ts.Note, with a key"
                )
        for b in self.backends:
            if isinstance(b, type) or not callable(getattr(b, "compile", None)):
                raise ArgumentError(f"{b!r} is no back end; it is an object with kind and compile")
        _require_new("primitive", [p.name for p in self.primitives], [p.name for p in PRIMITIVES])
        _require_new("intrinsic", [i.name for i in self.intrinsics], [i.name for i in INTRINSICS])
        _require_new("note", [n.key for n in self.notes], [n.key for n in (*NOTES, *RETIRED)])
        _require_new("back end for targets of kind", [b.kind for b in self.backends], [])

    @cached_property
    def primitives_by_name(self) -> Mapping[str, type[Step]]:
        """With the built-in ones."""
        return {p.name: p for p in (*PRIMITIVES, *self.primitives)}

    @cached_property
    def intrinsics_by_label(self) -> Mapping[str, Intrinsic]:
        """With the built-in ones. Traces of older versions have their names without a digest."""
        own = {i.name: i for i in self.intrinsics} | {label_of(i): i for i in self.intrinsics}
        return {i.name: i for i in INTRINSICS} | own

    @property
    def all_notes(self) -> tuple[type[Note], ...]:
        """With the built-in ones."""
        return (*NOTES, *self.notes)

    @cached_property
    def notes_by_key(self) -> Mapping[str, type[Note]]:
        """Those that a trace may name, with the built-in ones."""
        return {n.key: n for n in (*self.all_notes, *RETIRED) if not issubclass(n, PassNote)}

    @checks_given
    def backend(self, kind: str) -> CodeGenerator | None:
        """The back end for targets of a kind; None for the built-in one."""
        return next((b for b in self.backends if b.kind == kind), None)

    @checks_given
    def builder(self, kind: str) -> str:
        """What records call the back end for targets of a kind: its class and a digest of its
        settings and its code. Empty for the built-in one, also if that is given.
        """
        return self._builders.get(kind, "")

    @cached_property
    def _builders(self) -> Mapping[str, str]:
        return {b.kind: _name(b) for b in self.backends if not _is_default(b)}

    @cached_property
    def digest(self) -> str:
        """Of all that can change a kernel, the code of primitives included."""
        notes = [identity(self.notes)] if self.notes else []
        return digest(identity(self.primitives), *map(label_of, self.intrinsics),
                      *self._builders.values(), *notes)  # fmt: skip

    @cached_property
    def without_backends(self) -> Parts:
        return replace(self, backends=()) if self.backends else self


def _name(backend: CodeGenerator) -> str:
    return f"{type(backend).__name__}:{digest(identity(backend))[:16]}"


def _is_default(backend: CodeGenerator) -> bool:
    """Whether it is a built-in back end as it is."""
    kind = type(backend)
    return kind.__module__.startswith("tilesmith.") and backend == kind()


def _require_new(what: str, names: list[str], built_in: list[str]) -> None:
    for at, name in enumerate(names):
        if name in built_in:
            raise ArgumentError(f"the {what} {name!r} is a built-in one; give yours another name")
        if name in names[:at]:
            raise ArgumentError(f"there are two parts for the {what} {name!r}; give one")


def named_parts(name: str) -> Parts:
    """The Parts that `module:object` names. Modules in the current folder are found, too."""
    module, _, path = name.partition(":")
    if not module or not path:
        raise ArgumentError(f"{name!r} names no parts; write MODULE:OBJECT, as mine:PARTS")
    if os.getcwd() not in map(os.path.abspath, sys.path):
        sys.path.append(os.getcwd())
    try:
        found: Any = import_module(module)
    except ImportError as error:
        raise ArgumentError(f"the parts {name!r} cannot be imported: {error}") from None
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            raise ArgumentError(f"the module {module} has no {path!r}")
        found = getattr(found, attribute)
    if not isinstance(found, Parts):
        raise ArgumentError(f"{name} is a {type(found).__name__}; it is a ts.Parts")
    return found


VERSION = 1
_NONE = Parts()


@lru_cache(256)  # a record is checked first, and its trace read again when the others are known
def _of_text(text: str) -> Trace:
    return Trace._read(text, _NONE)


@checks_given(error=ScheduleError)
@dataclass(frozen=True, slots=True)
class Trace:
    """The steps of a schedule as a value: it prints like the code one would write, converts to and
    from JSON, and replays on a Function.

    Example:

        sch = ts.Schedule(func)
        sch.vectorize(sch.loops("C")[1])
        text = sch.trace.to_json()
        assert ts.Trace.from_json(text).apply(func) == sch.func
    """

    steps: tuple[Step, ...] = ()

    def apply(self, func: Function) -> Function:
        """The Function after all steps."""
        for step in self.resolved:
            func = step.apply(func)
        return func

    def decide(self, sizes: Mapping[str, int]) -> Trace:
        """Decides size variables, by name. Steps after a sample keep using its size variables by
        name, so that the decision can be changed later.
        """
        own = {c for s in self.steps if isinstance(s, NumericSample) for c in s.columns}
        others = {n: v for n, v in sizes.items() if n not in own}
        steps = []
        for s in self.steps:
            decided = sizes if isinstance(s, NumericSample) else others
            steps.append(s.decide(decided) if decided else s)
        return Trace(tuple(steps))

    @property
    def decisions(self) -> dict[str, int]:
        """The chosen numbers by size variable."""
        out: dict[str, int] = {}
        for s in self.steps:
            if isinstance(s, NumericSample):
                out |= zip(s.columns, s.decided, strict=False)
        return out

    @property
    def resolved(self) -> Trace:
        """The same steps with the chosen numbers in place of size variables."""
        decided = self.decisions
        return Trace(tuple(s.decide(decided) for s in self.steps)) if decided else self

    def to_json(self) -> str:
        """The text that `from_json` reads."""
        return json.dumps({"version": VERSION, "steps": [s.to_json() for s in self.steps]})

    @staticmethod
    def from_json(text: str, parts: Parts | None = None) -> Trace:
        """`parts` are the primitives and intrinsics of your own that names in the text may refer
        to, besides the built-in ones.
        """
        if parts is None and isinstance(text, str):
            return _of_text(text)
        return Trace._read(text, _NONE if parts is None else parts)

    @staticmethod
    def _read(text: str, own: Parts) -> Trace:
        try:
            data = json.loads(text)
            version, items = data["version"], data["steps"]
            pairs = [(str(name), dict(values)) for name, values in items]
        except (ValueError, KeyError, TypeError) as e:
            raise TraceError(f"this is not a trace: {e}") from None
        if version != VERSION:
            raise TraceError(
                f"this trace is of version {version}; this library reads version {VERSION}"
            )
        steps = []
        for name, values in pairs:
            primitive = own.primitives_by_name.get(name)
            if primitive is None:
                raise _missing("primitive", name, own.primitives_by_name)
            if "intrinsic" in values:
                unit = own.intrinsics_by_label.get(values["intrinsic"])
                if unit is None:
                    raise _missing("intrinsic", values["intrinsic"], own.intrinsics_by_label)
                values["intrinsic"] = unit
            if primitive is Annotate:
                values = _with_note(values, own)
            steps.append(primitive.from_json(values))
        return Trace(tuple(steps))

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __str__(self) -> str:
        return "\n".join(map(str, self.resolved.steps))

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return html_text(str(self) or "no steps")


def _with_note(values: dict[str, Any], own: Parts) -> dict[str, Any]:
    """The fields of an Annotate step; stored are the key and the value of its note."""
    rest = {name: v for name, v in values.items() if name not in ("key", "value")}
    key, value = str(values.get("key")), values.get("value")
    if key not in own.notes_by_key:
        raise _missing("note", key, own.notes_by_key)
    try:
        return {**rest, "note": own.notes_by_key[key].of(value)}
    except ScheduleError as e:
        raise TraceError(f"annotate: {e}") from None


def _missing(kind: str, label: object, known: Mapping[str, object]) -> MissingPartError:
    name = str(label).partition("@")[0]
    if name in known:  # with another digest
        part = f"the {kind} {name!r} as it was: it computes something else now, or has other code"
        return MissingPartError(f"this trace is of {part}", part)
    names = ", ".join(sorted(n for n in known if "@" not in n))
    return MissingPartError(
        f"unknown {kind} {name!r}; known are {names}: pass your own in parts=ts.Parts({kind}s=...)",
        f"the {kind} {name!r}",
    )
