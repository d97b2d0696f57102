"""Compiles candidates on the tuner's machine, for devices of a fleet that are slow or cannot
compile. The target may be of another architecture.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator

from tilesmith.codegen.artifact import Artifact
from tilesmith.measure.messages import Build
from tilesmith.measure.parent.builders import Builders
from tilesmith.measure.parent.cores import usable_cores
from tilesmith.measure.parent.fork_server_client import ForkServerClient
from tilesmith.runtime.build import compile_function
from tilesmith.task.task import Candidate, Failure


class TunerBuilds:
    """Builds on all cores that this process may use, in processes of their own."""

    def __init__(self, timeout: float, memory_nbytes: int) -> None:
        self._timeout, self._memory_nbytes = timeout, memory_nbytes
        self._fork_server = ForkServerClient()
        self._builders: Builders | None = None
        self._wanted: dict[str, Candidate] = {}
        self._builder = pickle.dumps(compile_function)

    def begin(self, candidate: Candidate) -> None:
        self._wanted[candidate.key] = candidate
        self._want()

    def clear(self) -> None:
        self._wanted.clear()
        self._want()

    def _want(self) -> None:
        if self._builders is None:
            cores = usable_cores()
            self._builders = Builders(self._fork_server, cores, self._timeout, self._memory_nbytes)
            self._builders.allow(cores, ())
        self._builders.want({
            c.key: Build(c.task.func, c.task.target, pickle.dumps(c.trace), self._builder)
            for c in self._wanted.values()
        })  # fmt: skip

    def finished(self) -> Iterator[tuple[Candidate, Artifact | Failure]]:
        """Those that are done since the last call. It does not wait."""
        if self._builders is None:
            return
        self._builders.serve()
        while (taken := self._builders.take(-1.0)) is not None:
            key, outcome = taken
            candidate = self._wanted.pop(key)
            yield candidate, outcome if isinstance(outcome, Failure) else outcome.artifact

    def close(self) -> None:
        self._fork_server.close()
