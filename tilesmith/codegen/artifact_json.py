"""Writes the description of a kernel, all of an `Entry`, as JSON values, and reads it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tilesmith.base.dtype import dtype
from tilesmith.codegen.artifact import Check, Entry, Launch, Parameter, Resources, TensorMap
from tilesmith.ir.deserialize import buffer_from_json
from tilesmith.ir.serialize import buffer_to_json


def entry_to_json(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "symbol": entry.symbol,
        "parameters": [_parameter_to_json(p) for p in entry.parameters],
        "workspace_nbytes": entry.workspace_nbytes,
        "uses_threads": entry.uses_threads,
        "checks": [asdict(c) for c in entry.checks],
        "launches": [asdict(launch) for launch in entry.launches],
        "scratch": entry.scratch,
    }


def entry_from_json(data: Mapping[str, Any]) -> Entry:
    """What is not the description of a kernel raises a TilesmithError, ValueError, TypeError,
    LookupError or AttributeError.
    """
    return Entry(
        name=str(data["name"]),
        symbol=str(data["symbol"]),
        parameters=tuple(map(_parameter, data["parameters"])),
        workspace_nbytes=int(data["workspace_nbytes"]),
        uses_threads=bool(data["uses_threads"]),
        checks=tuple(Check(**c) for c in data["checks"]),
        launches=tuple(map(_launch, data["launches"])),
        scratch=tuple((str(name), int(at)) for name, at in data["scratch"]),
    )


def _parameter_to_json(p: Parameter) -> list[Any]:
    packed = None if p.packed is None else buffer_to_json(p.packed)
    return [p.name, p.shape, p.dtype.name, p.output, packed]


def _parameter(data: Any) -> Parameter:
    name, shape, kind, output, packed = data
    return Parameter(
        str(name),
        tuple(map(int, shape)),
        dtype(str(kind)),
        bool(output),
        None if packed is None else buffer_from_json(packed),
    )


def _launch(data: Mapping[str, Any]) -> Launch:
    used = data["resources"]
    return Launch(
        **{
            **data,
            "arguments": tuple(map(str, data["arguments"])),
            "resources": None if used is None else Resources(**used),
            "maps": tuple(map(_tensor_map, data.get("maps", ()))),
        }
    )


def _tensor_map(data: Mapping[str, Any]) -> TensorMap:
    sizes = (tuple(map(int, data[name])) for name in ("shape", "strides", "box", "steps"))
    return TensorMap(str(data["buffer"]), str(data["dtype"]), *sizes)
