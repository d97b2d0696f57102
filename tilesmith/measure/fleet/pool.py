"""The devices of a fleet as a tuner sees them: it calls methods of DeviceHost on other machines and
waits for the answers. RayPool is the one that is used; tests have one in their own process.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Protocol

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import MeasureError
from tilesmith.workers.pool import Process
from tilesmith.workers.wire import Gone, ready

_MODULE = "tilesmith.measure.fleet.bridge"
_START_SECONDS = 120.0
_SEND_SECONDS = 30.0
_REACH_SECONDS = 4.0  # within which the port of a head accepts a connection


@dataclass(frozen=True, slots=True)
class Lost:
    """In place of an answer: the device is gone."""

    why: str


@dataclass(frozen=True, slots=True)
class Answer:
    ticket: int  # of the call
    value: Any


class Pool(Protocol):
    def devices(self) -> Mapping[str, str] | None:
        """The offers of all devices, as JSON, by the ids of the devices; None if nothing changed
        since the last call.
        """

    def troubles(self) -> Mapping[str, str]:
        """Why devices that are there cannot be used, by their names."""

    def call(self, device: str, method: str, *args: Any) -> int:
        """Calls a method of a DeviceHost, without waiting; returns a ticket."""

    def wait(self, seconds: float) -> list[Answer]:
        """Answers to calls, as soon as there are any, and after `seconds` at the latest. Raises a
        MeasureError if the fleet as a whole is gone.
        """

    def close(self) -> None: ...


def _require_answer(address: str) -> None:
    """Ray itself waits for minutes for a head that is not there."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise MeasureError(
            f"nothing answers at {address} ({error}), where the head of the fleet should be; start "
            f"it there with: ray start --head --port {port}"
        ) from None


class RayPool:
    """Ray runs in a process beside this one (`bridge.py`): when a cluster goes away, Ray may end
    the process that uses it, and must not end the user's.
    """

    def __init__(self, address: str) -> None:
        if find_spec("ray") is None:
            raise MeasureError("a fleet needs the package ray; pip install 'tilesmith[fleet]'")
        _require_answer(address)
        self._address = address
        self._process = Process(
            _MODULE, address, environment={"RAY_USAGE_STATS_ENABLED": "0"},
            errors=subprocess.DEVNULL, patience=2.0,
        )  # fmt: skip
        self._channel = self._process.channel
        self._channel.sock.settimeout(_SEND_SECONDS)  # of one message, either way
        self._tickets = 0
        self._devices: Mapping[str, str] | None = None
        self._troubles: Mapping[str, str] = {}
        self._is_up = False
        self._started = time.monotonic()

    def _connect(self, seconds: float) -> None:
        """Waits up to `seconds` for the connection, which takes some seconds."""
        if not ready([self._channel], seconds):
            if time.monotonic() - self._started > _START_SECONDS:
                raise MeasureError(
                    f"no answer from the Ray cluster at {self._address!r} within "
                    f"{_START_SECONDS:.0f} s; is its head running there?"
                )
            return
        try:
            why = self._channel.receive()
        except Gone:
            why = "the process that connects to it ended"
        if why:
            raise MeasureError(
                f"the Ray cluster at {self._address!r} cannot be used: {why}. Is its head running, "
                "and is this machine a node of it (ray start --address)?"
            )
        self._is_up = True

    def devices(self) -> Mapping[str, str] | None:
        found, self._devices = self._devices, None
        return found

    def troubles(self) -> Mapping[str, str]:
        return self._troubles

    def call(self, device: str, method: str, *args: Any) -> int:
        self._tickets += 1
        self._send((self._tickets, device, method, args))
        return self._tickets

    def wait(self, seconds: float) -> list[Answer]:
        until = time.monotonic() + seconds
        answers: list[Answer] = []
        if not self._is_up:
            self._connect(seconds)
            return answers
        while ready([self._channel], 0.0 if answers else until - time.monotonic()):
            try:
                ticket, value, why = self._channel.receive()
            except (Gone, TimeoutError):
                raise self._gone() from None
            if ticket:
                answers.append(Answer(ticket, Lost(why) if why else value))
            elif why:
                raise MeasureError(f"the Ray cluster at {self._address!r} is gone: {why}")
            else:
                self._devices, self._troubles = value
        return answers

    def _send(self, message: object) -> None:
        try:
            self._channel.send(message)
        except Gone:
            raise self._gone() from None

    def _gone(self) -> MeasureError:
        return MeasureError(
            f"the connection to the Ray cluster at {self._address!r} has ended; did its head stop?"
        )

    def close(self) -> None:
        self._process.close()
