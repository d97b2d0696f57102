"""Builds that take long are not waited for while the next batch has work for the other cores."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tilesmith.measure.messages import Exit, SpawnBuilder
from tilesmith.measure.parent.build_and_run import Builders
from tilesmith.workers.pool import Worker
from tilesmith.workers.wire import Channel, pair


@dataclass
class Workers:
    """A fork server whose workers answer when the test says so."""

    ends: list[Channel] = field(default_factory=list)

    def start(self, message: Any) -> Worker:
        assert isinstance(message, SpawnBuilder)
        ours, theirs = pair()
        self.ends.append(Channel(theirs))
        return Worker(len(self.ends), ours)

    def reap(self, worker: Worker, kill: bool) -> Exit:
        raise AssertionError(f"worker {worker.pid} was ended")

    def answer(self, number: int) -> str:
        """Lets a worker finish what it builds, which is its own result here."""
        job: str = self.ends[number].receive()
        self.ends[number].send(job)
        return job


def jobs(*names: str) -> dict[str, Any]:
    return {name: name for name in names}


def test_the_last_builds_of_a_batch_are_left_to_the_next_one() -> None:
    server = Workers()
    builders = Builders(server, (0, 1), 60.0, 0)  # type: ignore[arg-type]
    builders.want(jobs("a", "b", "slow", "c"), may_leave=1)
    builders.allow((0, 1), (0, 1))
    assert server.answer(0) == "a"
    assert server.answer(1) == "b"
    assert {builders.take(9)[0], builders.take(9)[0]} == {"a", "b"}  # type: ignore[index]
    assert server.answer(1) == "c"
    assert builders.take(9) == ("c", "c")
    # The second worker is idle and nobody knows of a next batch, so the rest is waited for.
    assert builders.take(0.01) is None
    assert builders.left == frozenset()
    builders.begin(jobs("d", "e", "f", "g"))
    # One of them is begun and three wait: no core is about to be idle.
    assert builders.take(0.01) is None
    assert builders.left == frozenset()
    assert server.answer(1) == "d"
    builders.serve()
    assert server.answer(1) == "e"
    builders.serve()
    assert builders.take(60) is None
    assert builders.left == {"slow"}
    # In the next batch it goes on, on the worker that has begun it.
    builders.want(jobs("slow", "d", "e", "f", "g"), may_leave=1)
    assert builders.left == frozenset()
    taken = [builders.take(9)[0] for _ in range(2)]  # type: ignore[index]
    assert taken == ["d", "e"]
    assert server.answer(0) == "slow"
    assert builders.take(9) == ("slow", "slow")


def test_what_is_left_goes_on_beside_batches_of_other_tasks() -> None:
    server = Workers()
    builders = Builders(server, (0, 1), 60.0, 0)  # type: ignore[arg-type]
    builders.want(jobs("slow", "a"), may_leave=1)
    builders.allow((0, 1), (0, 1))
    assert server.answer(1) == "a"
    assert builders.take(9) == ("a", "a")
    builders.begin(jobs("b"))
    assert builders.take(60) is None
    assert builders.left == {"slow"}
    # The next batch is of another task: the worker that builds is not ended.
    builders.want(jobs("b", "c"))
    assert server.answer(1) == "b"
    assert builders.take(9) == ("b", "b")
    assert server.answer(1) == "c"
    assert builders.take(9) == ("c", "c")
    assert server.answer(0) == "slow"
    builders.serve()
    assert builders.take(0.01) is None
    # When its task is measured again, it is there, and once.
    builders.want(jobs("slow", "d"))
    builders.allow((0, 1), (0, 1))
    assert builders.take(9) == ("slow", "slow")
    assert server.answer(0) == "d"
    assert builders.take(9) == ("d", "d")
    builders.want(jobs("e"))
    assert builders.take(0.01) is None


def test_idle_workers_begin_what_is_proposed_while_others_build() -> None:
    server = Workers()
    builders = Builders(server, (0, 1), 60.0, 0)  # type: ignore[arg-type]
    builders.want(jobs("slow"))
    builders.allow((0, 1), (0, 1))

    def propose() -> None:
        time.sleep(0.05)  # `take` waits by now
        builders.begin(jobs("next"))
        assert server.answer(1) == "next"
        assert server.answer(0) == "slow"

    with ThreadPoolExecutor(1) as thread:
        proposing = thread.submit(propose)
        assert builders.take(30) == ("slow", "slow")
        proposing.result(30)


def test_of_what_is_built_the_first_proposed_comes_first() -> None:
    """The draft, as a rule: it must not come last only because it took longest to build."""
    server = Workers()
    builders = Builders(server, (0, 1), 60.0, 0)  # type: ignore[arg-type]
    builders.want(jobs("draft", "a"))
    builders.allow((0, 1), ())
    assert server.answer(1) == "a"
    builders.serve()
    assert server.answer(0) == "draft"
    builders.serve()
    assert [builders.take(9)[0] for _ in range(2)] == ["draft", "a"]  # type: ignore[index]
