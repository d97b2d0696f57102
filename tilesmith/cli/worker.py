"""`tilesmith worker`: offers the devices of this machine to the tuners of a fleet.

It starts a node of a Ray cluster that has a resource for each device, and stays until it is ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Annotated

import typer

from tilesmith.base.errors import ArgumentError, MeasureError
from tilesmith.cli.arguments import count
from tilesmith.cli.databases import PartsOption, parts_named
from tilesmith.measure.fleet.offer import ACCEPTS_CODE, NAME, PARTS, Offer, devices_here, offer_of
from tilesmith.workers.pool import python_path

_END_SECONDS = 15.0  # for a node that is asked to end
_STORE_NBYTES = 100 << 20  # of the node's shared memory, which measuring hardly uses
WORKER_HELP = (
    "\b\nExamples:\n"
    "  ray start --head --port 6379              the fleet's head, once\n"
    "  tilesmith worker --address 10.0.0.1:6379  on each worker\n"
    "  tilesmith tune matmul 512 512 512 --fleet 10.0.0.1:6379"
)


def worker(
    address: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="the head of the Ray cluster to join, as `ray start --head` prints it; auto: the "
            "cluster that this machine belongs to",
        ),
    ],
    devices: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="what to offer, as cpu,cuda:0; if not given, the CPU and all NVIDIA GPUs",
        ),
    ] = "",
    cores: Annotated[
        int,
        typer.Option(
            metavar="N", parser=count,
            help="offer N cores instead of all; 0: all that this process may use",
        ),
    ] = 0,
    first_core: Annotated[
        int,
        typer.Option(
            metavar="N", parser=count, help="with --cores: how many cores to skip before these"
        ),
    ] = 0,
    name: Annotated[
        str, typer.Option(help="what records call this machine; its host name if not given")
    ] = "",
    accept_code: Annotated[
        bool,
        typer.Option(
            "--accept-code",
            help="also run kernels that a tuner has compiled, not only those compiled here",
        ),
    ] = False,
    node_ip: Annotated[
        str, typer.Option(metavar="IP", help="the address of this machine in the cluster")
    ] = "",
    parts: PartsOption = "",
) -> None:  # fmt: skip
    """Offer this machine's devices to tuners elsewhere, until Ctrl-C.

    Every kernel is checked and timed as in tuning on this machine. Whoever can reach the cluster
    can run programs on its machines: keep its ports inside of a network that you trust.
    """
    if find_spec("ray") is None:
        raise ArgumentError("a fleet needs the package ray; pip install 'tilesmith[fleet]'")
    _restrict(cores, first_core)
    parts_named(parts)  # raises, before the node is started; its path is handed on
    environment = {**os.environ, ACCEPTS_CODE: str(int(accept_code)), PARTS: parts, **_quiet_ray()}
    os.environ[ACCEPTS_CODE] = environment[ACCEPTS_CODE]
    if name:
        os.environ[NAME] = environment[NAME] = name
    offers = [offer_of(d) for d in (devices.split(",") if devices else devices_here())]
    for offer in offers:
        code = "its own and the tuners' code" if accept_code else "code that it compiles itself"
        print(f"offers {offer}; runs {code}")
    sys.stdout.flush()
    own = offers[0].machine
    with _folder() as folder:
        command = _command(address, node_ip, offers, folder)
        status = _run(command, environment, f"{own} has joined the fleet at {address}")
    if status:
        raise MeasureError(
            f"the node of worker {own} has ended; is a head of Ray running at {address}, of the "
            "same version of Ray and of Python?"
        )


def _restrict(cores: int, first: int) -> None:
    """Restricts this process, and so the node and all that it starts, to these cores."""
    usable = sorted(os.sched_getaffinity(0))
    taken = usable[first : first + cores if cores else None]
    if len(taken) < max(1, cores):
        raise ArgumentError(
            f"--cores {cores} --first-core {first}: this process may use {len(usable)} core"
            f"{'s' * (len(usable) > 1)} of this machine"
        )
    os.sched_setaffinity(0, taken)


def _quiet_ray() -> dict[str, str]:
    """Ray hides GPUs from processes that did not ask it for one; ours are asked for by name."""
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
        "PYTHONPATH": python_path(),
    }


def _command(address: str, node_ip: str, offers: list[Offer], folder: str) -> list[str]:
    """With a folder and ports of its own: nodes that start at the same moment on one machine would
    take the same names of sockets and the same ports, and all but one of them would end.
    """
    resources = json.dumps({offer.resource: 1 for offer in offers})
    own = ["--node-ip-address", node_ip] if node_ip else []
    return [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--address", address, *own),
        *("--num-cpus", "0", "--num-gpus", "0", "--resources", resources, "--block"),
        *("--object-store-memory", str(_STORE_NBYTES), "--include-log-monitor", "false"),
        *("--temp-dir", folder, "--min-worker-port", "0", "--max-worker-port", "0"),
        *("--disable-usage-stats", "--log-style", "record", "--log-color", "false"),
    ]


@contextmanager
def _folder() -> Iterator[str]:
    """For logs and sockets of the node. The names of sockets have a limit of about 100 characters,
    half of which Ray uses.
    """
    own = tempfile.gettempdir()
    with tempfile.TemporaryDirectory(
        prefix="tsw-", dir=own if len(own) < 30 else "/tmp", ignore_cleanup_errors=True
    ) as folder:
        yield folder


def _run(command: list[str], environment: dict[str, str], joined: str) -> int:
    """Runs the node until it ends, or this process is asked to end; says when it has joined. The
    node is in a session of its own, so that Ctrl-C reaches only this process, which ends it.
    """
    node = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    asked = False

    def end(*_: object) -> None:
        nonlocal asked
        asked = True
        node.terminate()

    def read() -> None:
        assert node.stdout is not None
        for line in node.stdout:
            if b"Ray runtime started" in line:
                print(joined, flush=True)

    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {s: signal.signal(s, end) for s in signals}
    threading.Thread(target=read, daemon=True).start()
    try:
        while not asked and node.poll() is None:
            time.sleep(0.1)
        with suppress(subprocess.TimeoutExpired):
            node.wait(_END_SECONDS)
    finally:
        with suppress(ProcessLookupError):  # what the node has started and not ended
            os.killpg(node.pid, signal.SIGKILL)
        status = node.wait()
        for s, handler in before.items():
            signal.signal(s, handler)
    return 0 if asked or status in (0, -signal.SIGTERM) else 1
