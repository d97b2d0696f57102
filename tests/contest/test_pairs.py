"""Pairing, ratios and means, on a clock that only moves when a call says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilesmith_contest.pairs import Sampler, Timing, Turns, contest, duel_of, geometric_mean


class Clock:
    """Contestants whose calls take as long as they are told; `log` is who was called."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def call(self, name: str, seconds: Callable[[int], float]) -> Sampler:
        def once() -> float:
            taken = seconds(self.log.count(name))
            self.log.append(name)
            return taken

        def sample(calls: int) -> Timing:
            once()
            return Timing(sum(once() for _ in range(calls)) / calls, 0.5)

        return sample


def test_a_ratio_is_the_peers_time_over_ours() -> None:
    duel = duel_of("peer", [(2.0, 1.0), (4.0, 2.0), (9.0, 3.0), (8.0, 2.0), (6.0, 3.0)])
    # ratios 2, 2, 3, 4, 2: the median of pairs, not the ratio of medians (6 / 2)
    assert (duel.ratio, duel.ours, duel.theirs) == (2.0, 2.0, 6.0)
    assert duel.spread == 0.5  # quartiles 2 and 3


def test_a_common_mood_of_the_machine_cancels() -> None:
    clock = Clock()
    ours = clock.call("ours", lambda k: 1.0 * (1 + k // 4))
    peer = clock.call("peer", lambda k: 1.5 * (1 + k // 4))
    result = contest(ours, {"peer": peer}, Turns(most_seconds=1e9))
    assert result.duels[0].ratio == pytest.approx(1.5, rel=0.05)


def test_turns_alternate_and_first_calls_do_not_count() -> None:
    clock = Clock()
    ours = clock.call("ours", lambda k: 100.0 if k == 0 else 1.0)
    peer = clock.call("peer", lambda k: 100.0 if k == 0 else 2.0)
    result = contest(ours, {"peer": peer}, Turns(rounds=7, most_seconds=1e9))
    assert (result.ours, result.duels[0].theirs, result.duels[0].ratio) == (1.0, 2.0, 2.0)
    # one call that is not timed and one that is; twice in every second round, to know them alone
    pairs = ["peer", "peer", "ours", "ours"]
    twice = ["peer"] * 4 + ["ours"] * 4
    assert clock.log[-(4 * 8 + 3 * 4) :] == [*twice, *pairs] * 3 + twice


def test_only_close_peers_are_paired_and_the_hardest_comes_first() -> None:
    clock = Clock()
    calls = {
        name: clock.call(name, lambda k, s=s: s)  # type: ignore[misc]
        for name, s in (("slow", 9.0), ("good", 2.2), ("best", 2.0))
    }
    result = contest(clock.call("ours", lambda k: 1.0), calls, Turns(most_seconds=1e9))
    assert [d.peer for d in result.duels] == ["best", "good"]
    assert result.times == {"slow": 9.0, "good": pytest.approx(2.2), "best": 2.0}


def test_a_slow_peer_is_paired_where_asked_for() -> None:
    clock = Clock()
    seconds = {"ours": 1.0, "near": 1.2, "far": 5.0, "main": 4.0}
    samplers = {n: clock.call(n, lambda _, s=s: s) for n, s in seconds.items()}  # type: ignore[misc]
    turns = Turns(most_seconds=1e9, paired=("main",))
    result = contest(samplers.pop("ours"), samplers, turns)
    assert [(d.peer, d.ratio) for d in result.duels] == [("near", 1.2), ("main", 4.0)]


def test_processor_time_does_not_count_what_others_took() -> None:
    """A sampler's share is 0.5 for ours, and 0.25 for a peer that was interrupted more."""
    ours = Clock().call("ours", lambda _: 1.0)
    turns = Turns(rounds=5, most_seconds=1e9, processor_time=True)
    result = contest(ours, {"peer": lambda _: Timing(4.0, 0.25)}, turns)
    assert (result.ours, result.duels[0].theirs, result.duels[0].ratio) == (0.5, 1.0, 2.0)


def test_short_calls_are_repeated_and_long_ones_take_few_rounds() -> None:
    clock = Clock()
    contest(clock.call("ours", lambda k: 1e-3), {"p": clock.call("p", lambda k: 1e-3)}, Turns())
    assert clock.log[-11:] == ["ours"] * 11  # one that is not timed, and ten
    clock = Clock()
    contest(clock.call("ours", lambda k: 9.0), {"p": clock.call("p", lambda k: 9.0)}, Turns())
    assert clock.log.count("p") < 20


def test_a_contestant_that_is_slower_in_turns_than_alone_is_noticed() -> None:
    def disturbed(k: int) -> float:
        """A call right after somebody else's takes twice as long, and so do the next four."""
        since = next((n for n, who in enumerate(reversed(clock.log)) if who != "peer"), 0)
        return 2.0 if since <= 4 else 1.0

    clock = Clock()
    turns = Turns(sample_seconds=8.0, rounds=8, most_seconds=1e9)
    ours = clock.call("ours", lambda k: 1.0)
    result = contest(ours, {"peer": clock.call("peer", disturbed)}, turns)
    assert result.disturbance["peer"] == pytest.approx(2.0)
    assert result.disturbance[""] == 1.0
    assert result.shares == {"": 0.5, "peer": 0.5}


def test_without_peers_there_is_a_time_and_no_ratio() -> None:
    clock = Clock()
    result = contest(clock.call("ours", lambda k: 0.5), {}, Turns())
    assert (result.ours, result.duels, result.times) == (0.5, (), {})


def test_geometric_mean() -> None:
    assert geometric_mean([2.0, 0.5]) == pytest.approx(1.0)
    assert geometric_mean([8.0, 1.0, 1.0]) == pytest.approx(2.0)
    assert geometric_mean([]) is None
