"""What the processes of these tests run."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from tilesmith.workers.child import serve
from tilesmith.workers.wire import Channel


def main(channel: Channel, name: str = "") -> None:
    def answer(message: Any, _: list[int]) -> object:
        match message:
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "sleep":
                time.sleep(1000)
            case "spin", seconds:
                end = time.process_time() + seconds
                while time.process_time() < end:
                    pass
            case "who":
                return os.getpid(), name, sorted(os.sched_getaffinity(0))
        return message

    serve(channel, answer)
