"""Channels between two processes: send Python objects over a socket, with file descriptors if
needed.

A message is its length followed by a pickle; both sides are Tilesmith's own and trust each other. A
process that ends in the middle of a message counts as gone.
"""

from __future__ import annotations

import os
import pickle
import selectors
import socket
import struct
import time
from collections.abc import Iterable
from typing import Any

_HEAD = struct.Struct("<QB")  # length of the pickle, number of file descriptors


class Gone(Exception):
    """The process at the other end has ended, or sent something that is not a message."""


class Channel:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: object, fds: Iterable[int] = ()) -> None:
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        descriptors = list(fds)
        try:
            if descriptors:
                socket.send_fds(self.sock, [_HEAD.pack(len(data), len(descriptors))], descriptors)
                self.sock.sendall(data)
            else:
                self.sock.sendall(_HEAD.pack(len(data), 0) + data)
        except OSError as error:
            raise Gone(str(error)) from None

    def receive(self) -> Any:
        return self.receive_with_fds()[0]

    def receive_with_fds(self) -> tuple[Any, list[int]]:
        try:
            head, fds, _, _ = socket.recv_fds(self.sock, _HEAD.size, 1)
            head += self._exactly(_HEAD.size - len(head)) if head else b""
        except TimeoutError:
            raise
        except OSError as error:
            raise Gone(str(error)) from None
        if not head:
            raise Gone("closed")
        length, _ = _HEAD.unpack(head)
        data = self._exactly(length)
        try:
            return pickle.loads(data), fds
        except Exception as error:
            raise Gone(f"a message cannot be unpickled: {error}") from None

    def _exactly(self, length: int) -> bytes:
        parts, left = [], length
        try:
            while left:
                part = self.sock.recv(min(left, 1 << 20))
                if not part:
                    raise Gone("closed in the middle of a message")
                parts.append(part)
                left -= len(part)
        except OSError as error:
            raise Gone(str(error)) from None
        return b"".join(parts)

    def close(self) -> None:
        self.sock.close()


def pair() -> tuple[Channel, socket.socket]:
    """A channel, and the socket at its other end, to be passed to another process."""
    own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Channel(own), theirs


def adopt(fd: int) -> Channel:
    """A channel on a descriptor that was inherited or received."""
    os.set_inheritable(fd, False)
    return Channel(socket.socket(fileno=fd))


def ready(channels: Iterable[Channel], seconds: float) -> list[Channel]:
    """The channels that have a message or whose other end is gone; waits up to `seconds`."""
    with selectors.DefaultSelector() as selector:
        for c in channels:
            selector.register(c.sock, selectors.EVENT_READ, c)
        return [key.data for key, _ in selector.select(max(0.0, seconds))]


def time_left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
