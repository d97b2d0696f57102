"""A network of the catalogue in, files out: ONNX by either of PyTorch's exporters, and PyTorch's
own program format.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from tilesmith.base.errors import ArgumentError
from tilesmith_contest.networks.catalogue import Network, network, use_fused_kernels

Exporter = Literal["torchscript", "dynamo"]
_OPSET: dict[Exporter, int] = {"torchscript": 17, "dynamo": 20}


def export(
    name: str,
    path: Path,
    batch: int = 1,
    dynamic: Sequence[str] = (),
    *,
    small: bool = False,
    exporter: Exporter = "torchscript",
    opset: int | None = None,
    seed: int = 0,
) -> None:
    """Writes the network as one ONNX file. `dynamic` names dimensions that stay open: "batch", and
    those that the catalogue lists for the network. The dynamo exporter needs onnxscript.
    """
    net = network(name, small)
    _require_open(net, name, dynamic)
    module = net.module(seed)
    arguments = _example(net, 2 if "batch" in dynamic else batch)
    sizes = {"opset_version": opset or _OPSET[exporter]}
    names = {"input_names": [net.input], "output_names": list(net.outputs)}
    with in_place_of(path) as part, quiet():
        if exporter == "torchscript":
            torch.onnx.export(
                module, arguments, part, dynamo=False, dynamic_axes=_axes(net, dynamic),
                **names, **sizes,
            )  # fmt: skip
        else:
            torch.onnx.export(
                module, arguments, part, dynamo=True, external_data=False, verbose=False,
                dynamic_shapes=_shapes(net, dynamic), **names, **sizes,
            )  # fmt: skip


def save_program(
    name: str, path: Path, batch: int = 1, *, small: bool = False, seed: int = 0
) -> None:
    """The same network for PyTorch itself (`torch.export.load`), with its fused kernels."""
    net = network(name, small)
    module = use_fused_kernels(net.module(seed))
    with in_place_of(path) as part, quiet():
        torch.export.save(torch.export.export(module, _example(net, batch)), part)


def _require_open(net: Network, name: str, dynamic: Sequence[str]) -> None:
    for dim in dynamic:
        if dim not in net.can_be_open:
            known = ", ".join(net.can_be_open)
            raise ArgumentError(f"{name} has no open dimension {dim!r}; it can have {known}")


def _example(net: Network, batch: int) -> tuple[Any, ...]:
    return tuple(torch.from_numpy(a) for a in net.inputs(batch).values())


def _open_axes(net: Network, dynamic: Sequence[str]) -> dict[int, str]:
    return {k: dim for k, dim in enumerate(("batch", *net.dims)) if dim in dynamic}


def _axes(net: Network, dynamic: Sequence[str]) -> dict[str, dict[int, str]]:
    """For the TorchScript exporter, which has to be told about outputs too. Only token dimensions
    reach an output, where they keep their place.
    """
    taken = _open_axes(net, dynamic)
    given = {k: dim for k, dim in taken.items() if dim in ("batch", "sequence")}
    whole = {net.input: taken, net.outputs[0]: given}
    pooled = {k: dim for k, dim in given.items() if dim == "batch"}
    return {**whole, **dict.fromkeys(net.outputs[1:], pooled)}


def _shapes(net: Network, dynamic: Sequence[str]) -> tuple[dict[int, Any], ...] | None:
    opened = {k: torch.export.Dim(dim) for k, dim in _open_axes(net, dynamic).items()}
    return (opened,) if opened else None


@contextlib.contextmanager
def in_place_of(path: Path) -> Iterator[str]:
    """A file beside `path` that replaces it when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.stem}.part{os.getpid()}{path.suffix}")
    try:
        yield str(part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The exporters report their progress and each other's deprecation."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
