"""The kernels of a saved model as plain data, descriptions of JSON values and machine code; and
back, without compiling anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tilesmith.base.errors import BuildError
from tilesmith.base.process import version
from tilesmith.base.target import Target, cpu
from tilesmith.codegen.artifact import Artifact, entry_from_json, entry_to_json
from tilesmith.runtime.dispatch import Region
from tilesmith.runtime.kernel import Kernel, Origin
from tilesmith.runtime.open_kernel import OpenKernel, PortfolioKernel
from tilesmith.task.task import CODEGEN_VERSION


class SavedKernels:
    """The kernels of a plan, each once. Steps name them by numbers; those of portfolios are behind
    those of single kernels.
    """

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self.portfolios = {id(k): k for k in kernels if isinstance(k, PortfolioKernel)}
        single: list[Kernel] = [k for k in kernels if id(k) not in self.portfolios]
        single += [m for k in self.portfolios.values() for m in k.members]
        self.kernels = {k.artifact.symbol: k for k in single}  # symbols have a digest of the code
        self._numbers = {symbol: n for n, symbol in enumerate(self.kernels)}
        for k in single:
            if k.artifact.checks:
                raise BuildError(f"{k.name!r} is built with checked=True, for debugging")

    @property
    def objects(self) -> tuple[bytes, ...]:
        return tuple(k.artifact.code for k in self.kernels.values())

    def number(self, kernel: Kernel) -> int:
        if id(kernel) in self.portfolios:
            return len(self.kernels) + [*self.portfolios].index(id(kernel))
        return self._numbers[kernel.artifact.symbol]

    def described(self, name: str) -> dict[str, Any]:
        """What descriptions of all models have."""
        target = next((k.artifact.target for k in self.kernels.values()), cpu())
        portfolios = [self._portfolio_to_json(k) for k in self.portfolios.values()]
        return {
            "tilesmith": version(),
            "codegen": CODEGEN_VERSION,
            "target": json.loads(target.to_json()),
            "name": name,
            "kernels": [_kernel_to_json(k) for k in self.kernels.values()],
        } | ({"portfolios": portfolios} if portfolios else {})

    def _portfolio_to_json(self, k: PortfolioKernel) -> dict[str, Any]:
        return {
            "members": [self.number(m) for m in k.members],
            "regions": [[[*r.sizes], r.member, r.seconds, r.regret] for r in k.regions],
            "limits": k.limits,
        }


def _kernel_to_json(kernel: Kernel) -> dict[str, Any]:
    a = kernel.artifact
    return {
        "name": a.name,
        "entries": [entry_to_json(e) for e in a.entries],
        "cpu": a.cpu,
        "features": a.features,
        "language": a.language,
        "origin": asdict(kernel.origin),
    }


def loaded_kernels(
    d: Mapping[str, Any], codes: Sequence[bytes], target: Target, threads: int | None
) -> list[Kernel]:
    """By the numbers that `SavedKernels` gave."""
    single = [
        _kernel(k, code, target, threads) for k, code in zip(d["kernels"], codes, strict=True)
    ]
    return [*single, *(_portfolio(p, single) for p in d.get("portfolios", ()))]


def _kernel(d: Mapping[str, Any], code: bytes, target: Target, threads: int | None) -> Kernel:
    artifact = Artifact(
        str(d["name"]), target, tuple(map(entry_from_json, d["entries"])), "", code, str(d["cpu"]),
        str(d["features"]), str(d["language"]),
    )  # fmt: skip
    kind = Kernel if artifact.entries[0].open is None else OpenKernel
    return kind(artifact, Origin(**d["origin"]), threads=threads)


def _portfolio(d: Mapping[str, Any], single: Sequence[Kernel]) -> PortfolioKernel:
    members = [k for n in d["members"] if isinstance(k := single[n], OpenKernel)]
    regions = [
        Region(tuple((str(n), int(v)) for n, v in sizes), int(member), seconds, regret)
        for sizes, member, seconds, regret in d["regions"]
    ]
    limits = {str(n): (int(low), int(high)) for n, (low, high) in d["limits"].items()}
    if (
        not 0
        <= min((r.member for r in regions), default=0)
        <= max((r.member for r in regions), default=0)
        < len(members)
        == len(d["members"])
    ):
        raise ValueError("a portfolio names a kernel that it does not have")
    return PortfolioKernel(members, regions, limits)
