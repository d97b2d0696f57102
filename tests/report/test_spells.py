"""Contestants of a bench take turns, each for a spell."""

from __future__ import annotations

from itertools import groupby

from bench.spells import Spells


def test_contestants_take_turns() -> None:
    ran: list[str] = []
    found = Spells(rounds=3, seconds=0.0).of([lambda: ran.append("a"), lambda: ran.append("b")])
    assert "".join(name for name, _ in groupby(ran)) == "ababab"
    assert [len(rounds) for rounds in found] == [3, 3]
    assert all(s >= 0 for rounds in found for s in rounds)
