"""The libraries we compare with: a problem and a number of threads in, calls to time out. Each is
an optional install in a file of its own, and one that is missing is named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import metadata
from typing import Protocol

from tilesmith.base.errors import ArgumentError
from tilesmith.report.problems import Array, Problem


@dataclass(frozen=True)
class Contestant:
    """One way in which a peer solves a problem: `run` is timed, `answer` is run and read."""

    name: str
    run: Callable[[], object]
    answer: Callable[[], Array]


class Peer(Protocol):
    name: str

    def limit(self, threads: int) -> AbstractContextManager[object]:
        """Within it, the library uses so many threads."""

    def contestants(self, problem: Problem, threads: int) -> list[Contestant]:
        """Empty where the library has no way to compute it."""


def _torch() -> Peer:
    # Imported late, here and below: each loads hundreds of megabytes and may be missing.
    from tilesmith.report.peer_torch import TorchPeer

    return TorchPeer()


def _onnxruntime() -> Peer:
    from tilesmith.report.peer_onnx import OnnxPeer

    return OnnxPeer()


def _numpy() -> Peer:
    from tilesmith.report.peer_numpy import NumpyPeer

    return NumpyPeer()


PEERS: dict[str, Callable[[], Peer]] = {
    "torch": _torch,
    "onnxruntime": _onnxruntime,
    "numpy": _numpy,
}


def peers_named(names: Sequence[str]) -> tuple[list[Peer], list[str]]:
    """The installed ones, and why each of the others is absent."""
    found, absent = [], []
    for name in names:
        if name not in PEERS:
            raise ArgumentError(f"unknown peer {name!r}; known are {', '.join(PEERS)}")
        try:
            found.append(PEERS[name]())
        except ImportError as e:
            absent.append(f"{name} ({e})")
    return found, absent


def versions(peers: Sequence[Peer]) -> str:
    return ", ".join(f"{p.name} {metadata.version(p.name)}" for p in peers)
