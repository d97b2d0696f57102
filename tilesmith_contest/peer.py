"""The interface of a library that we compare with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from tilesmith.base.dataclass import dataclass
from tilesmith_contest.problems import Array, Problem


@dataclass(frozen=True)
class Start:
    """How long loading, compiling and the first call took. Processor time counts all threads, and
    processes that helped and have ended.
    """

    seconds: float
    processor_seconds: float


@dataclass(frozen=True)
class Contestant:
    """One way in which a peer solves a problem: `run` is timed, `answer` is run and read: one array
    of an operator, arrays by name of a model. Calls are made within `mode`, which is entered before
    the clock starts. `facts` measures further figures when it is called.
    """

    name: str
    run: Callable[[], object]
    answer: Callable[[], Array | Mapping[str, Array]]
    mode: Callable[[], AbstractContextManager[object]] = nullcontext
    facts: Callable[[], Mapping[str, float]] = dict
    start: Start | None = None


class Peer(Protocol):
    """A loaded library, in a process of its own."""

    def contestants(self, problem: Problem, threads: int) -> list[Contestant]:
        """Empty if the library cannot compute it. The process was started with so many threads;
        libraries with a setting of their own are told here.
        """
