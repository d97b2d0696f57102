"""Work that Ctrl-C does not cut in two."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from tilesmith.base.process import whole


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
