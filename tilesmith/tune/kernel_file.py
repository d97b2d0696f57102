"""A built kernel as bytes for the cache: its description as JSON, then its source and its code."""

from __future__ import annotations

import json
from dataclasses import asdict
from struct import Struct
from struct import error as BadStruct
from typing import Any

from tilesmith.base.errors import TilesmithError
from tilesmith.base.target import Target
from tilesmith.codegen.artifact import Artifact
from tilesmith.codegen.artifact_json import entry_from_json, entry_to_json
from tilesmith.runtime.origin import Origin

_LENGTHS = Struct("<QQ")  # bytes of the description and of the source
# What reading bytes of another version may raise.
_UNREADABLE = (
    *(TilesmithError, BadStruct, ValueError, TypeError, LookupError),
    *(AttributeError, ArithmeticError, RecursionError),
)


def kernel_to_bytes(artifact: Artifact, origin: Origin) -> bytes:
    description = {
        "name": artifact.name,
        "target": artifact.target.fingerprint,
        "entries": [entry_to_json(e) for e in artifact.entries],
        "cpu": artifact.cpu,
        "features": artifact.features,
        "language": artifact.language,
        "origin": asdict(origin),
    }
    head = json.dumps(description, separators=(",", ":")).encode()
    source = artifact.source.encode()
    return b"".join((_LENGTHS.pack(len(head), len(source)), head, source, artifact.code))


def kernel_from_bytes(data: bytes, target: Target) -> tuple[Artifact, Origin] | None:
    """None if these are not the bytes of a kernel for the target."""
    try:
        head, source = _LENGTHS.unpack_from(data)
        at = _LENGTHS.size + head
        d: dict[str, Any] = json.loads(data[_LENGTHS.size : at])
        if d["target"] != target.fingerprint:
            return None
        artifact = Artifact(
            str(d["name"]), target, tuple(map(entry_from_json, d["entries"])),
            data[at : at + source].decode(), data[at + source :], str(d["cpu"]),
            str(d["features"]), str(d["language"]),
        )  # fmt: skip
        return artifact, Origin(**d["origin"])
    except _UNREADABLE:
        return None
