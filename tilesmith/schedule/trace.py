"""`Trace`: the steps of a schedule, as a value.

It prints like the code one would write, converts to and from JSON, and replays on a Function.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tilesmith.base.errors import MissingPartError, ScheduleError, TraceError
from tilesmith.base.html import html_text
from tilesmith.ir.function import Function
from tilesmith.schedule.kinds import Annotate
from tilesmith.schedule.parts import Parts
from tilesmith.schedule.sample import NumericSample
from tilesmith.schedule.step import Step

VERSION = 1
_NONE = Parts()


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
        own = _NONE if parts is None else parts
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
