"""Builds on all cores: BuildRequests in, BuildResults out. This process builds, and where there is
much to do also processes of its own, which run `main` of this file.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Condition, Thread

from tilesmith.base.errors import BuildError
from tilesmith.base.identity import packed
from tilesmith.base.process import few_collections
from tilesmith.measure.this_machine import usable_cores
from tilesmith.runtime.build import compile_for
from tilesmith.runtime.kernel import Origin
from tilesmith.schedule.trace import Trace
from tilesmith.task.task import Task
from tilesmith.tune.build_request import BuildRequest, BuildResult, fulfil, plain_schedule
from tilesmith.workers.child import serve
from tilesmith.workers.pool import Lost, Pool, Process
from tilesmith.workers.wire import Channel, ready

# Starting a process and loading LLVM in it takes about half a second of a core. So processes are
# started if what is left is expected to take longer than this, or if it has taken that long.
_ALONE_SECONDS = 1.0
_MIN_REQUESTS = 3  # left, for a process to be started
_SECONDS = 600.0  # after which a build is given up
_WAIT_SECONDS = 0.05  # between looks at whether there is anything to do

Report = Callable[[int, int], None]  # how many are built, of how many


class Early:
    """Processes that start before it is known what is to be built, so that they are ready then."""

    def __init__(self, count: int) -> None:
        self._started = [_start(k) for k in range(count)]

    def process(self, number: int) -> Process:
        """One of them; another one when all are taken. Threads may be here at once."""
        with suppress(IndexError):
            return self._started.pop()
        return _start(number)

    def close(self) -> None:
        """Ends those that nobody took."""
        with suppress(IndexError):
            while True:
                _stop(self._started.pop(), True)


def build_all(
    requests: Sequence[BuildRequest], report: Report, early: Early | None = None,
    num_workers: int | None = None, here: bool = True,
) -> list[BuildResult]:  # fmt: skip
    """In the order of the requests, built by as many workers as there are cores: this process is
    one of them, unless `here` is false. The others are taken from `early` as far as there are some.
    """
    wanted = len(usable_cores()) if num_workers is None else num_workers
    work = _Work(requests)
    others: _Processes | None = None
    since = time.monotonic()
    # Processes can import only what lies in a file.
    alone = wanted < 1 + here or any(packed(r.task.parts) is None for r in requests)
    try:
        while work.left:
            report(len(requests) - work.left, len(requests))
            if not alone and others is None and work.left >= _MIN_REQUESTS:
                taken = time.monotonic() - since
                if early is not None or max(taken, work.expected_seconds) >= _ALONE_SECONDS:
                    start = _start if early is None else early.process
                    others = _Processes(work, min(wanted - here, work.left), start)
            k = work.take() if here or others is None else None
            if k is None:
                work.wait(_WAIT_SECONDS)
            else:
                with few_collections():
                    work.put(k, fulfil(work.request(k)))
            if others is not None and others.error is not None:
                raise others.error
        report(len(requests), len(requests))
    finally:
        if others is not None:
            others.stop()
    return [work.results[k] for k in range(len(requests))]


class _Work:
    """What is left to build, for several threads. Those that are like another task wait for its
    structures.
    """

    def __init__(self, requests: Sequence[BuildRequest]) -> None:
        self.results: dict[int, BuildResult] = {}
        self._requests = requests
        self._changed = Condition()
        # The last is taken first. Those that others wait for come first, then the largest, so that
        # none of them is left to the end alone.
        awaited = {r.like for r in requests}

        def order(k: int) -> tuple[bool, float]:
            return requests[k].task in awaited, requests[k].task.func.flops

        self._waiting = sorted(range(len(requests)), key=order)
        self._drafted: dict[Task, int] = {
            r.task: k for k, r in enumerate(requests) if r.like is None and r.task in awaited
        }

    @property
    def left(self) -> int:
        return len(self._requests) - len(self.results)

    @property
    def expected_seconds(self) -> float:
        return sum(self._requests[k].expected_seconds for k in self._waiting)

    def take(self) -> int | None:
        """One that can be built now, if there is any."""
        with self._changed:
            for at in range(len(self._waiting) - 1, -1, -1):
                k = self._waiting[at]
                like = self._requests[k].like
                if like is None or self._drafted.get(like, k) in (k, *self.results):
                    return self._waiting.pop(at)
            return None

    def request(self, k: int) -> BuildRequest:
        """With the structures of the task that it is like."""
        request = self._requests[k]
        if request.like is None or request.like not in self._drafted:
            return request
        structures: tuple[Trace, ...] = self.results[self._drafted[request.like]].structures
        return replace(request, structures=structures)

    def put(self, k: int, result: BuildResult) -> None:
        with self._changed:
            self.results[k] = result
            self._changed.notify_all()

    def give_back(self, k: int) -> None:
        with self._changed:
            self._waiting.append(k)
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Until something changes."""
        with self._changed:
            if self.left:
                self._changed.wait(seconds)


class _Processes:
    """Processes that build, each one request at a time, and the thread that gives them work.
    `error` is that of a request that cannot be built.
    """

    def __init__(self, work: _Work, size: int, start: Callable[[int], Process]) -> None:
        self.error: BuildError | None = None
        self._work, self._size, self._start = work, size, start
        self._losses: Counter[int] = Counter()
        self._is_over = False
        self._thread = Thread(target=self._run, name="tilesmith-build", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._is_over = True
        self._thread.join()

    def _run(self) -> None:
        pool: Pool[int, None] = Pool(range(self._size), self._start, _stop)
        heard = time.monotonic()
        try:
            while not self._is_over and self.error is None:
                for place in pool.places:
                    if place.job is None and (k := self._work.take()) is not None:
                        pool.give(place, k, self._work.request(k))
                if not pool.busy:
                    heard = time.monotonic()
                    self._work.wait(_WAIT_SECONDS)
                elif ready(pool.channels, _WAIT_SECONDS):
                    heard = time.monotonic()
                elif time.monotonic() > heard + _SECONDS:
                    self.error = BuildError(
                        f"no kernel was built within {_SECONDS:.0f} s; is the machine overloaded?"
                    )
                for k, request, answer in pool.serve():
                    self._take(k, request, answer)
        finally:
            pool.close()

    def _take(self, k: int, request: BuildRequest, answer: object) -> None:
        if isinstance(answer, BuildResult):
            self._work.put(k, answer)
        elif not isinstance(answer, Lost):
            self.error = BuildError(f"{request.task.func.name!r} cannot be built: {answer}")
        else:  # tried once more, then built as the plain loop nest
            self._losses[k] += 1
            if self._losses[k] < 2:
                self._work.give_back(k)
            else:
                self._work.put(k, _plain(request))


def _plain(request: BuildRequest) -> BuildResult:
    why = "the process that built it ended"
    plain = compile_for(request.task, plain_schedule(request.built, request.task.target))
    return BuildResult(plain, Origin("naive", why=why), (why,))


def _start(_: int) -> Process:
    return Process(__name__, patience=0.0)


def _stop(process: Process, _: bool) -> None:
    process.close()


def main(channel: Channel) -> None:
    """In a process: BuildRequests in, BuildResults or the text of an error out."""
    gc.freeze()
    with few_collections():
        serve(channel, _answer)


def _answer(request: BuildRequest, _: list[int]) -> BuildResult | str:
    try:
        return fulfil(request)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
