"""A single kernel as an exported Library: its inputs are those that no weights are given for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilesmith.base.errors import ArgumentError
from tilesmith.codegen.artifact import Artifact, Parameter
from tilesmith.ir.pack import packed
from tilesmith.runtime.arrays import Array, convert, reject
from tilesmith.runtime.export.library import Address, Call, Library, Port, Weights


def kernel_library(artifact: Artifact, name: str, weights: Mapping[str, Any]) -> Library:
    """`weights` are arrays by the names of inputs. They go to the weights file, packed as the
    kernel wants them, and a caller does not pass them.
    """
    names = [p.name for p in artifact.inputs]
    if unknown := [n for n in weights if n not in names]:
        raise ArgumentError(
            f"{artifact.name!r} has no input {unknown[0]!r} to take weights for; it has "
            f"{', '.join(names) or 'none'}"
        )
    held = Weights()
    inputs: list[Port] = []
    outputs: list[Port] = []
    addresses = []
    for p in artifact.parameters:
        if p.output:
            addresses.append(Address("output", number=len(outputs)))
            outputs.append(_port(p))
        elif p.name in weights:
            addresses.append(Address("weights", held.add(_as_read(artifact, p, weights[p.name]))))
        else:
            addresses.append(Address("input", number=len(inputs)))
            inputs.append(_port(p))
    call = Call(artifact.symbol, tuple(addresses))
    return Library(
        name, f"kernel {artifact.name}", artifact.target, tuple(inputs), tuple(outputs), (call,),
        (artifact,), held,
    )  # fmt: skip


def _port(p: Parameter) -> Port:
    note = "" if p.packed is None else "Packed as kernel.pack does; or export it among weights="
    return Port(p.name, p.shape, p.dtype, note)


def _as_read(artifact: Artifact, p: Parameter, value: Any) -> Array:
    a = convert(value, p)
    if p.packed is not None and a.dtype == p.dtype.numpy and a.shape != p.shape:
        a = packed(p.packed, a, repr(artifact.name))
    if a.dtype != p.dtype.numpy or a.shape != p.shape:
        reject(a, p)
    return a
