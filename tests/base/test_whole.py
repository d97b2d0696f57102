"""Work that Ctrl-C does not cut in two."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tilesmith.base.process import whole, with_whole_ends


@pytest.fixture(autouse=True)
def handled() -> Iterator[None]:
    """As in a shell's foreground, whoever runs the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_waits_for_the_end() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), whole():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        done.append(1)
    assert done == [1]
    with pytest.raises(KeyboardInterrupt):  # as ever, afterwards
        signal.raise_signal(signal.SIGINT)


def test_a_second_one_does_not_wait() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), whole():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done.append(1)
    assert done == []


def test_without_one_nothing_happens() -> None:
    with whole():
        pass
    with pytest.raises(ValueError, match="mine"), whole():
        raise ValueError("mine")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_in_another_thread_it_does_nothing() -> None:
    seen = []

    def work() -> None:
        with whole():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def test_an_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with whole():
        signal.raise_signal(signal.SIGINT)


@contextmanager
def noted(seen: list[str], at: str) -> Iterator[None]:
    """A context in which Ctrl-C comes at its beginning or its end."""
    if at == "begin":
        signal.raise_signal(signal.SIGINT)
    seen.append("begun")
    try:
        yield
    finally:
        if at == "end":
            signal.raise_signal(signal.SIGINT)
        seen.append("ended")


@pytest.mark.parametrize("at", ["begin", "end"])
def test_the_ends_of_a_context_are_not_cut_in_two(at: str) -> None:
    seen: list[str] = []
    with pytest.raises(KeyboardInterrupt), with_whole_ends(noted(seen, at)):
        seen.append("inside")
    assert seen == (["begun", "ended"] if at == "begin" else ["begun", "inside", "ended"])


def test_the_inside_of_such_a_context_is_interrupted_and_errors_pass() -> None:
    seen: list[str] = []
    with pytest.raises(KeyboardInterrupt), with_whole_ends(noted(seen, "")):  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        seen.append("inside")
    assert seen == ["begun", "ended"]
    with pytest.raises(ValueError, match="mine"), with_whole_ends(noted(seen, "")):
        raise ValueError("mine")
