"""Builds on all cores: BuildRequests in, BuildResults out, large numbers of them by processes of
their own, which run `main` of this file.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from tilesmith.base.errors import BuildError
from tilesmith.base.identity import packed
from tilesmith.measure.this_machine import usable_cores
from tilesmith.runtime.build import compile_for
from tilesmith.runtime.kernel import Origin
from tilesmith.tune.build_request import BuildRequest, BuildResult, fulfil, plain_schedule
from tilesmith.workers.child import serve
from tilesmith.workers.pool import Lost, Pool, Process
from tilesmith.workers.wire import Channel, ready

# Starting a process and loading LLVM in it takes about half a second; small builds a hundredth. So
# the first ones are built here, until so much time has passed that the rest is worth processes.
_ALONE_SECONDS = 1.0
_MIN_REQUESTS = 3
_SECONDS = 600.0  # after which a build is given up

Report = Callable[[int, int], None]  # how many are built, of how many


def build_all(
    requests: Sequence[BuildRequest], report: Report, num_workers: int | None = None
) -> list[BuildResult]:
    """In the order of the requests. The first are built here; if that takes long, the rest are
    built by one process per core.
    """
    wanted = len(usable_cores()) if num_workers is None else num_workers
    results: list[BuildResult] = []
    until = time.monotonic() + _ALONE_SECONDS
    for k, request in enumerate(requests):
        report(k, len(requests))
        left = len(requests) - k
        alone = wanted < 2 or left < _MIN_REQUESTS or time.monotonic() < until
        if not alone and packed(request.task.parts) is not None:  # processes can import them
            return results + _beside(requests[k:], partial(_shifted, report, k), min(wanted, left))
        results.append(fulfil(request))
    report(len(requests), len(requests))
    return results


def _shifted(report: Report, before: int, done: int, total: int) -> None:
    report(before + done, before + total)


def _beside(requests: Sequence[BuildRequest], report: Report, size: int) -> list[BuildResult]:
    # The largest first, so that none of them is left to the end alone.
    waiting = sorted(range(len(requests)), key=lambda k: requests[k].task.func.flops)
    results: dict[int, BuildResult] = {}
    losses: Counter[int] = Counter()
    pool: Pool[int, None] = Pool(range(size), _start, _stop)
    try:
        while len(results) < len(requests):
            report(len(results), len(requests))
            for place in pool.places:
                if place.job is None and waiting:
                    k = waiting.pop()
                    pool.give(place, k, requests[k])
            if not ready(pool.channels, _SECONDS):
                raise BuildError(
                    f"no kernel was built within {_SECONDS:.0f} s; is the machine overloaded?"
                )
            for k, request, answer in pool.serve():
                if isinstance(answer, BuildResult):
                    results[k] = answer
                elif not isinstance(answer, Lost):
                    name = request.task.func.name
                    raise BuildError(f"{name!r} cannot be built: {answer}")
                else:  # tried once more, then built as the plain loop nest
                    losses[k] += 1
                    if losses[k] < 2:
                        waiting.append(k)
                    else:
                        results[k] = _plain(request)
        report(len(requests), len(requests))
    finally:
        pool.close()
    return [results[k] for k in range(len(requests))]


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
    serve(channel, _answer)


def _answer(request: BuildRequest, _: list[int]) -> BuildResult | str:
    try:
        return fulfil(request)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
