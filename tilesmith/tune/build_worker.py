"""A process that builds: BuildRequests in, BuildResults or the text of an error out, until the
parent closes the channel. Run as `python -m tilesmith.tune.build_worker FD`.
"""

from __future__ import annotations

import socket
import sys

from tilesmith.measure.wire import Channel, Gone
from tilesmith.tune.build_request import fulfil


def main() -> None:
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    while True:
        try:
            request = channel.receive()
        except Gone:
            return
        try:
            answer: object = fulfil(request)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        channel.send(answer)


if __name__ == "__main__":
    main()
