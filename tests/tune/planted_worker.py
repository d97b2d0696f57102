"""In place of a process that builds: it dies, or answers with an error."""

from __future__ import annotations

import os

from tilesmith.workers.wire import Channel


def main(channel: Channel, what: str) -> None:
    channel.receive()
    if what == "dies":
        os._exit(3)
    channel.send("ValueError: no")
