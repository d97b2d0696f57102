"""In place of a process that builds: it dies, or answers with an error."""

from __future__ import annotations

import os

from tilesmith.workers.wire import Channel


def main(channel: Channel, what: str) -> None:
    if what == "dies":
        os._exit(3)
    channel.receive()
    channel.send("ValueError: no")
