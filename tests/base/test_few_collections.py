"""Fewer collections of garbage while something is compiled, and as before afterwards."""

from __future__ import annotations

import gc
from threading import Barrier, Thread

import pytest

from tilesmith.base.process import few_collections


@pytest.fixture
def usual() -> tuple[int, int, int]:
    return gc.get_threshold()


def failing(usual: int) -> None:
    with few_collections():
        with few_collections():
            assert gc.get_threshold()[0] > usual
        assert gc.get_threshold()[0] > usual
        raise ValueError("x")


def test_thresholds_are_restored(usual: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="x"):
        failing(usual[0])
    assert gc.get_threshold() == usual


def test_the_last_of_several_threads_restores_them(usual: tuple[int, int, int]) -> None:
    first_in, second_in, first_out = (Barrier(2, timeout=60) for _ in range(3))

    def first() -> None:
        with few_collections():
            first_in.wait()
            second_in.wait()
        first_out.wait()

    thread = Thread(target=first)
    thread.start()
    first_in.wait()
    with few_collections():
        second_in.wait()
        first_out.wait()
        assert gc.get_threshold()[0] > usual[0]
    thread.join()
    assert gc.get_threshold() == usual
