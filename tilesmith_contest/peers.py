"""The libraries we compare with, each in a file of its own. All but NumPy are optional installs;
missing ones are named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata
from importlib.util import find_spec

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ArgumentError
from tilesmith_contest.peer import Contestant, Peer
from tilesmith_contest.peer_numpy import NumpyPeer
from tilesmith_contest.problems import Problem


def _torch() -> Peer:
    # Imported late, here and below: it loads hundreds of megabytes and may be missing.
    from tilesmith_contest.peer_torch import TorchPeer

    return TorchPeer()


def _onnxruntime() -> Peer:
    from tilesmith_contest.peer_onnx import OnnxPeer

    return OnnxPeer()


@dataclass(frozen=True)
class PeerLibrary:
    """How to load a peer, and the modules that it needs."""

    load: Callable[[], Peer]
    modules: tuple[str, ...]


PEERS: dict[str, PeerLibrary] = {
    "torch": PeerLibrary(_torch, ("torch",)),
    "onnxruntime": PeerLibrary(_onnxruntime, ("onnxruntime", "onnx")),
    "numpy": PeerLibrary(NumpyPeer, ("numpy",)),
}


def installed_peers(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The installed ones, and why each other one is absent. Nothing is imported."""
    installed, absent = [], []
    for name in names:
        if name not in PEERS:
            raise ArgumentError(f"unknown peer {name!r}; known are {', '.join(PEERS)}")
        missing = [m for m in PEERS[name].modules if find_spec(m) is None]
        if missing:
            why = f"no module named {missing[0]!r}; pip install 'tilesmith[peers]'"
            absent.append(f"{name} ({why})")
        else:
            installed.append(name)
    return installed, absent


def contestants_of(name: str, problem: Problem, threads: int) -> list[Contestant]:
    """Runs in the process of that peer."""
    return PEERS[name].load().contestants(problem, threads)


def versions(names: Sequence[str]) -> str:
    return ", ".join(f"{name} {metadata.version(name)}" for name in names)
