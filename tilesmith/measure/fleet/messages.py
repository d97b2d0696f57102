"""What travels between a tuner and the workers of a fleet: JSON text and bytes, never objects.

A request has candidates of one task. The computation and the traces are JSON, and the worker checks
that their keys come out the same there. Code that was compiled elsewhere comes with its digest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from math import inf
from typing import Any

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import MeasureError, MissingPartError, TilesmithError
from tilesmith.base.target import Target
from tilesmith.codegen.artifact import (
    Artifact,
    Entry,
    entry_from_json,
    entry_to_json,
    parameters_of,
)
from tilesmith.ir.deserialize import function_from_json
from tilesmith.ir.function import Function
from tilesmith.ir.intrinsics import INTRINSICS
from tilesmith.ir.serialize import function_to_json
from tilesmith.measure.parent.timing import TimingRules
from tilesmith.schedule.trace import Parts, Trace
from tilesmith.task.task import (
    CODEGEN_VERSION,
    FAILURES,
    Candidate,
    Failure,
    Measurement,
    Task,
    builder_of,
    codegen_of,
    is_current,
)

VERSION = 2
# What reading a message may raise: it may come from anywhere.
UNREADABLE = (
    *(TilesmithError, ValueError, TypeError, LookupError),
    *(AttributeError, ArithmeticError, RecursionError),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of LocalMeasurer that a tuner chooses for its requests."""

    timeout: float
    cold: bool
    memory_nbytes: int
    confirm: bool
    seed: int
    rules: TimingRules


@dataclass(frozen=True, slots=True)
class Compiled:
    """Code that was compiled elsewhere, as a builder for the scheduled Function: the parameters are
    the Function's, the rest is what was sent.
    """

    target: Target
    entry: Entry  # without parameters
    code: bytes
    cpu: str
    features: str
    language: str

    def __call__(self, func: Function, target: Target) -> Artifact:
        entry = replace(self.entry, parameters=parameters_of(func))
        return Artifact(
            entry.name, target, (entry,), "", self.code, self.cpu, self.features, self.language
        )


@dataclass(frozen=True, slots=True)
class Request:
    tuner: str
    number: str  # of the request, unique
    settings: Settings
    candidates: tuple[Candidate, ...]
    compiled: Mapping[str, Compiled]  # by candidate key


def write_request(
    tuner: str, number: str, settings: Settings, candidates: Sequence[Candidate],
    artifacts: Mapping[str, Artifact],
) -> tuple[str, list[bytes]]:  # fmt: skip
    """The text of a request for candidates of one task, and the code of those already compiled."""
    task = candidates[0].task
    sent = [(c.key, artifacts[c.key]) for c in candidates if c.key in artifacts]
    text = json.dumps({
        "version": VERSION, "tuner": tuner, "number": number, "codegen": task.codegen,
        "settings": asdict(settings),
        "func": function_to_json(task.func), "target": task.target.to_json(),
        "statement": task.statement,
        "traces": {c.key: c.trace.to_json() for c in candidates},
        "code": {key: _described(a) for key, a in sent},
    })  # fmt: skip
    return text, [a.code for _, a in sent]


def read_request(text: str, code: Sequence[bytes], parts: Parts | None = None) -> Request:
    """Raises a MeasureError that says why this is no request, or not one for this version and these
    parts.
    """
    try:
        data = dict(json.loads(text))
        codegen = str(data["codegen"])
        if data["version"] != VERSION or not is_current(codegen):
            raise MeasureError(
                f"it is of version {data['version']} for code generator {codegen}; here "
                f"they are {VERSION} and {CODEGEN_VERSION}"
            )
        task = _task(data["func"], Target.from_json(data["target"]), codegen, parts)
        if task.statement != data["statement"]:
            raise MeasureError("the computation is not what its key says")
        candidates = []
        for key, trace in dict(data["traces"]).items():
            candidates.append(Candidate(task, Trace.from_json(trace, parts)))
            if candidates[-1].key != key:
                raise MeasureError("a schedule is not what its key says")
        described = dict(data["code"])
        if len(described) != len(code):
            raise MeasureError(f"it has {len(code)} of {len(described)} pieces of code")
        compiled = {
            key: _compiled(task, d, blob)
            for (key, d), blob in zip(described.items(), code, strict=True)
        }
        return Request(
            str(data["tuner"]), str(data["number"]), _settings(data["settings"]),
            tuple(candidates), compiled,
        )  # fmt: skip
    except MeasureError:
        raise
    except MissingPartError as error:
        raise MeasureError(f"it needs {error.part}; {_START}") from None
    except UNREADABLE as error:
        raise MeasureError(f"it cannot be read: {error}") from None


_START = "start the worker with --parts MODULE:OBJECT"


def _task(func: str, target: Target, codegen: str, parts: Parts | None) -> Task:
    """With the parts of this worker, whose back end must be that of the tuner, if it has one."""
    own = parts if builder_of(codegen) or parts is None else parts.without_backends
    here = codegen_of(target, own)
    if here != codegen:
        others = f", not {builder_of(here)}" if builder_of(here) else ""
        raise MeasureError(f"it needs the back end {builder_of(codegen)}{others}; {_START}")
    given = Parts() if parts is None else parts
    read = function_from_json(func, (*INTRINSICS, *given.intrinsics), given.all_notes)
    return Task(read, target, own)


def write_measurement(number: str, m: Measurement) -> dict[str, Any]:
    """Durations only: the clocks of two machines differ."""
    return {
        "number": number,
        "key": m.candidate.key,
        "seconds": m.seconds,
        "references": m.references,
        "failure": None if m.failure is None else [m.failure.kind, m.failure.text],
        "contended": m.contended,
        "confirmed": m.confirmed,
        "build_seconds": m.build_seconds,
    }


def read_measurement(data: Mapping[str, Any], candidate: Candidate, machine: str) -> Measurement:
    """May raise one of UNREADABLE."""
    failure = None
    if data["failure"] is not None:
        kind, text = data["failure"]
        failure = Failure(kind if kind in FAILURES else "error", str(text))
    return Measurement(
        candidate,
        _times(data["seconds"]),
        failure,
        bool(data["contended"]),
        bool(data["confirmed"]),
        float(data["build_seconds"]),
        references=_times(data["references"]),
        machine=machine,
    )


def _times(data: Any) -> tuple[float, ...]:
    times = tuple(map(float, data))
    if not all(0 < t < inf for t in times):
        raise ValueError(f"{list(times)[:8]} are no times")
    return times


def _settings(data: Mapping[str, Any]) -> Settings:
    rules: dict[str, Any] = dict(data["rules"])
    rules["cutoffs"] = tuple(rules["cutoffs"])
    return Settings(
        float(data["timeout"]), bool(data["cold"]), int(data["memory_nbytes"]),
        bool(data["confirm"]), int(data["seed"]), TimingRules(**rules),
    )  # fmt: skip


def _described(a: Artifact) -> dict[str, Any]:
    (entry,) = a.entries
    return {
        "sha256": sha256(a.code).hexdigest(), "target": a.target.to_json(), "cpu": a.cpu,
        "features": a.features, "language": a.language,
        # The worker takes the parameters from the Function.
        "entry": entry_to_json(replace(entry, parameters=())),
    }  # fmt: skip


def _compiled(task: Task, d: Mapping[str, Any], code: bytes) -> Compiled:
    if sha256(code).hexdigest() != d["sha256"]:
        raise MeasureError("code was damaged on its way: its digest differs")
    target = Target.from_json(d["target"])
    if target != task.target:
        raise MeasureError(f"code is for {target.name}, and its task for {task.target.name}")
    entry = entry_from_json(d["entry"])
    return Compiled(target, entry, code, str(d["cpu"]), str(d["features"]), str(d["language"]))
