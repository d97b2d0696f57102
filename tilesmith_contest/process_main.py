"""The child's side of a contestant's process: answers the messages of `process.py`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tilesmith.workers.child import end_with_parent, serve
from tilesmith.workers.wire import Channel
from tilesmith_contest.pairs import Timing
from tilesmith_contest.peer import Contestant
from tilesmith_contest.process import Answer, BusyThreads, Facts, Make, Sample, StartOf

_BUSY = 0.1  # share of the busiest thread's time below which a thread only waits


def main(channel: Channel) -> None:
    """Answers until the parent has ended: stopped as it may be, it cannot see that itself."""
    end_with_parent()
    serve(channel, _State().answer)


class _State:
    def __init__(self) -> None:
        self._contestants: dict[str, Contestant] = {}
        self._ticks: dict[str, int] = {}

    def answer(self, message: Any, _: list[int]) -> Any:
        try:
            return self._answer(message)
        except Exception as e:
            return RuntimeError(f"{type(e).__name__}: {e}")

    def _answer(self, message: Any) -> Any:
        match message:
            case Make(make, args):
                self._contestants = {c.name: c for c in make(*args)}
                self._ticks = _ticks()
                return list(self._contestants)
            case Sample(name, calls):
                return _sample(self._contestants[name], calls)
            case Answer(name):
                contestant = self._contestants[name]
                with contestant.mode():
                    return contestant.answer()
            case Facts(name):
                contestant = self._contestants[name]
                with contestant.mode():
                    return dict(contestant.facts())
            case StartOf(name):
                return self._contestants[name].start
            case BusyThreads():
                return self._busy()
        raise TypeError(f"no answer to a {type(message).__name__}")

    def _busy(self) -> int:
        spent = [n - self._ticks.get(thread, 0) for thread, n in _ticks().items()]
        return sum(n > _BUSY * max(spent) for n in spent)


def _sample(contestant: Contestant, calls: int) -> Timing:
    run = contestant.run
    with contestant.mode():
        run()
        processor, start = time.process_time(), time.perf_counter()
        for _ in range(calls):
            run()
        wall = time.perf_counter() - start
        processor = time.process_time() - processor
    return Timing(wall / calls, processor / max(wall, 1e-9))


def _ticks() -> dict[str, int]:
    """The processor time of each thread of this process, in clock ticks."""
    ticks = {}
    for path in Path("/proc/self/task").glob("*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # the thread has ended
            continue
        ticks[path.parent.name] = int(fields[11]) + int(fields[12])
    return ticks
