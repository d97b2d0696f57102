"""What a worker of a fleet offers: one device, as plain data that other machines read."""

from __future__ import annotations

import json
import os
import platform
import re
import time
from dataclasses import replace
from typing import Any

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import MeasureError, TargetError, TilesmithError
from tilesmith.base.process import version
from tilesmith.base.target import Target, cpu
from tilesmith.expr.dsl import compute, placeholder
from tilesmith.ir.lower import function
from tilesmith.measure.this_machine import difference, usable_cores
from tilesmith.runtime.build import compile_function
from tilesmith.runtime.devices.open import target_of
from tilesmith.task.task import CODEGEN_VERSION

# `tilesmith worker` sets these for the processes that serve its devices.
ACCEPTS_CODE = "TILESMITH_WORKER_ACCEPTS_CODE"
NAME = "TILESMITH_WORKER_NAME"
PARTS = "TILESMITH_WORKER_PARTS"  # MODULE:OBJECT
PREFIX = "tilesmith:"  # of the resources of a Ray cluster that stand for devices


@dataclass(frozen=True, slots=True)
class Offer:
    """A device, and what its worker runs: `codegen` is the version of its code generator, and with
    `accepts_code` it also runs kernels that were compiled elsewhere. `build_rate` is how many small
    kernels its machine compiles in a second, on all cores that it may use; 0 if that is not known.
    `processor` is what LLVM calls a CPU, which targets that were named are compared with.
    """

    machine: str  # its name
    device: str  # "cpu", or as "cuda:1"
    target: Target
    codegen: str
    version: str
    accepts_code: bool
    build_rate: float = 0.0
    processor: str = ""

    def to_json(self) -> str:
        values: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps({**values, "target": self.target.to_json()})

    @staticmethod
    def from_json(text: str) -> Offer:
        try:
            values = dict(json.loads(text))
            offer = Offer(**{**values, "target": Target.from_json(values["target"])})
        except (ValueError, KeyError, TypeError, TilesmithError) as error:
            raise MeasureError(f"this is not the offer of a worker: {error}") from None
        return offer

    def __str__(self) -> str:
        t = self.target
        size = f", {t.num_cores} core{'s' * (t.num_cores != 1)}" if t.kind == "cpu" else ""
        return f"{self.device} of {self.machine} ({t.arch} {t.model or t.cpu}{size})"

    @property
    def resource(self) -> str:
        """The name of this device as a resource of a Ray cluster: by the fingerprint of its model,
        whatever the number of cores.
        """
        return f"{PREFIX}{self.device}:{self.target.with_cores(1).fingerprint[:16]}"


def offer_of(device: str) -> Offer:
    """The offer of a device of this machine: "cpu", or a GPU as "cuda:1"."""
    return Offer(
        machine=os.environ.get(NAME) or platform.node(),
        device=device,
        target=_target(device),
        codegen=CODEGEN_VERSION,
        version=version(),
        accepts_code=os.environ.get(ACCEPTS_CODE) == "1",
    )


def build_rate() -> float:
    """How many small kernels this machine compiles in a second: by the processor time of one, so
    that it does not depend on what else runs now.
    """
    x = placeholder((256,), name="X")
    func = function([x, compute((256,), lambda i: x[i] * 2 + 1, name="Y")], name="small")
    seconds = []
    for _ in range(3):  # the first one loads LLVM
        began = time.process_time()
        compile_function(func, cpu(1))
        seconds.append(time.process_time() - began)
    return len(usable_cores()) / max(min(seconds), 1e-6)


def _target(device: str) -> Target:
    if device == "cpu":
        return cpu()
    if match := re.fullmatch(r"(cuda|opencl):([0-9]{1,3})", device):
        return target_of(match.group(1), int(match.group(2)))
    raise TargetError(f"{device!r} is no device; devices are cpu, and as cuda:0 or opencl:0")


def devices_here() -> list[str]:
    """The CPU and the NVIDIA GPUs of this machine."""
    found = ["cpu"]
    try:
        while len(found) < 100:
            target_of("cuda", len(found) - 1)
            found.append(f"cuda:{len(found) - 1}")
    except TilesmithError:
        pass
    return found


def local_target(target: Target, device: str) -> Target:
    """The target with the number of the GPU that the device is on its machine."""
    return target if device == "cpu" else replace(target, device=int(device.partition(":")[2]))


def why_not(target: Target, offer: Offer) -> str | None:
    """Why the device does not measure for the target; None if it does."""
    if offer.codegen != CODEGEN_VERSION:
        return (
            f"its tilesmith {offer.version} has code generator {offer.codegen}, not "
            f"{CODEGEN_VERSION}"
        )
    if target.kind != offer.target.kind:
        return f"it is of kind {offer.target.kind}, not {target.kind}"
    if target.kind == "cpu":
        return difference(target, offer.target, offer.processor)
    if target != offer.target:
        return f"it is {offer.target.model or offer.target.arch}, not {target.model or target.arch}"
    return None
