"""The process that connects a tuner to a Ray cluster: it passes calls on to the devices' actors,
and answers back.

A node that `tilesmith worker` has started has a resource for each of its devices. A DeviceHost is
an actor that takes one of them, so there is one for each device, which all tuners share. It is
started by the tuner that needs it first, and lives as long as its node.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from concurrent.futures import Future
from functools import partial
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tilesmith.measure.fleet.host import DeviceHost
from tilesmith.measure.fleet.offer import PREFIX
from tilesmith.workers.wire import Channel, Gone

_LOOK_SECONDS = 1.0  # between two looks for new nodes
_HEAD_SECONDS = 20.0  # a head that has not answered for this long has ended
_REFUSED_SECONDS = 4.0  # the same for a head whose port refuses connections
_DEVICE_SECONDS = 60.0  # after which a device whose process has not started is reported
_RETRY_SECONDS = 10.0  # until a process that did not start is started again
_END_SECONDS = 10.0
_CALLS = 64  # calls of one device at the same time; most of them wait


class Bridge:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()  # of what follows, and of sending
        self._actors: dict[str, Any] = {}  # by device
        self._offers: dict[str, str] = {}
        self._starting: dict[str, float] = {}  # since when
        self._failed: dict[str, float] = {}  # when
        self._troubles: dict[str, str] = {}
        self._machines: dict[str, str] = {}  # names of nodes, by device
        self._told: tuple[dict[str, str], dict[str, str]] | None = None
        self._looked = time.monotonic()

    def run(self) -> None:
        """Until the tuner closes the channel."""
        threading.Thread(target=self._look, daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()
        while True:
            ticket, device, method, args = self._channel.receive()
            with self._lock:
                actor = self._actors.get(device)
            if actor is None:
                self._send((ticket, None, "it has left the fleet"))
                continue
            future: Future[Any] = getattr(actor, method).remote(*args).future()
            future.add_done_callback(partial(self._done, ticket, device))

    def _done(self, ticket: int, device: str, future: Future[Any]) -> None:
        try:
            self._send((ticket, future.result(), ""))
        except Exception as error:  # its process, its node or the network
            with self._lock:
                self._actors.pop(device, None)
                self._forget(device)
            self._send((ticket, None, _first_line(error)))

    def _send(self, message: tuple[int, Any, str]) -> None:
        with self._lock:
            try:
                self._channel.send(message)
            except Gone:
                return

    def _look(self) -> None:
        """Finds devices, and tells the tuner of every change."""
        while True:
            try:
                self._find()
            except Exception:  # the head does not answer now; see _watch
                time.sleep(_LOOK_SECONDS)
                continue
            self._looked = time.monotonic()
            time.sleep(_LOOK_SECONDS)

    def _watch(self) -> None:
        """Notices that the head has ended, or does not answer."""
        host, _, port = str(ray.get_runtime_context().gcs_address).rpartition(":")
        heard = time.monotonic()
        while True:
            time.sleep(_LOOK_SECONDS)
            try:
                socket.create_connection((host.strip("[]"), int(port)), _LOOK_SECONDS).close()
                heard = time.monotonic()
            except ConnectionRefusedError:
                if time.monotonic() - heard > _REFUSED_SECONDS:
                    return self._send((0, None, "its head has ended"))
            except (OSError, ValueError):
                heard = time.monotonic()  # that says nothing
            if time.monotonic() - self._looked > _HEAD_SECONDS:
                return self._send((0, None, "its head does not answer"))

    def _find(self) -> None:
        present: set[str] = set()
        for node in ray.nodes():
            for resource in node["Resources"] if node["Alive"] else ():
                if resource.startswith(PREFIX):
                    device = f"{node['NodeID']}/{resource}"
                    present.add(device)
                    name = node.get("NodeManagerHostname") or node.get("NodeManagerAddress")
                    self._machines[device] = f"{_kind(device)} of {name} (node {device[:8]})"
        now = time.monotonic()
        with self._lock:
            known = set(self._actors)
            late = {d for d, at in self._failed.items() if now - at < _RETRY_SECONDS}
        for device in present - known - late:
            self._start(device)
        with self._lock:
            for device in known - present:
                self._actors.pop(device, None)
                self._forget(device)
            for device, since in self._starting.items():
                if now - since > _DEVICE_SECONDS:
                    why = f"its process has not started for {_DEVICE_SECONDS:.0f} s"
                    self._troubles[device] = why
            for device in self._troubles.keys() - present:
                del self._troubles[device]
            troubles = {self._machines[d]: why for d, why in self._troubles.items()}
            found = dict(self._offers), troubles
        if found != self._told:
            self._told = found
            self._send((0, found, ""))

    def _forget(self, device: str) -> None:
        self._offers.pop(device, None)
        self._starting.pop(device, None)

    def _start(self, device: str) -> None:
        node, _, resource = device.partition("/")
        actor = (
            ray.remote(DeviceHost)
            .options(
                name=device, namespace="tilesmith", lifetime="detached", get_if_exists=True,
                num_cpus=0, resources={resource: 1}, max_concurrency=_CALLS, max_restarts=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            .remote(_kind(device))
        )  # fmt: skip
        with self._lock:
            self._actors[device] = actor
            self._starting[device] = time.monotonic()
        future: Future[str] = actor.describe.remote().future()
        future.add_done_callback(partial(self._described, device))

    def _described(self, device: str, future: Future[str]) -> None:
        try:
            offer = future.result()
        except Exception as error:  # it is tried again
            with self._lock:
                self._actors.pop(device, None)
                self._forget(device)
                self._failed[device] = time.monotonic()
                self._troubles[device] = _first_line(error)
            return
        with self._lock:
            self._starting.pop(device, None)
            self._troubles.pop(device, None)
            if device in self._actors:
                self._offers[device] = offer


def _kind(device: str) -> str:
    """As "cpu" or "cuda:0"."""
    return device.partition("/")[2].removeprefix(PREFIX).rpartition(":")[0]


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _connect(address: str) -> None:
    given = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    host = given.partition(":")[0]
    # Ray on a loopback address is found only if that is named.
    own = {"_node_ip_address": host} if host.startswith("127.") and host != "127.0.0.1" else {}
    ray.init(
        address=address, namespace="tilesmith", log_to_driver=False,
        logging_level=logging.ERROR, configure_logging=False, **own,
    )  # fmt: skip


def _end_with(owner: int) -> None:
    """Ends this process when the tuner has ended, also while Ray waits for a cluster."""
    while os.getppid() == owner:
        time.sleep(_LOOK_SECONDS)
    os._exit(0)


def main(channel: Channel, address: str) -> None:
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        _connect(address)
    except Exception as error:
        channel.send(_first_line(error))
        return
    # Ray's own handler waits for a cluster that may be gone.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    channel.send("")
    try:
        Bridge(channel).run()
    except Gone:
        pass
    finally:
        # A cluster that is gone must not keep this process.
        threading.Timer(_END_SECONDS, os._exit, (0,)).start()
        ray.shutdown()
        os._exit(0)
