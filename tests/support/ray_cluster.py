"""A real Ray cluster on this machine, on a loopback address: a head, and workers as `tilesmith
worker` starts them. Every process inherits a mark in its environment, by which it is found and
ended, whatever became of its parents.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from tilesmith.measure.fleet.offer import NAME

HOST = "127.0.0.2"  # Ray takes 127.0.0.1 for the machine's own address in its network
_MARK = "TILESMITH_TEST_CLUSTER"
_TRIES = 4


class Cluster:
    def __init__(self) -> None:
        self.token = token_hex(8)
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}  # by name
        self._workers: dict[str, tuple[str, ...]] = {}  # their arguments
        self._tries: Counter[str] = Counter()
        self.folder = tempfile.mkdtemp(prefix="tsr-")  # short, because sockets are in it
        self.log = Path(self.folder) / "log.txt"
        for _ in range(_TRIES):
            if self._has_head():
                return
        raise TimeoutError(f"Ray's head did not start: {self.log.read_text()[-2000:]}")

    def _has_head(self) -> bool:
        """Starts one. Ray gives up after half a minute, which a busy machine may need."""
        with socket.socket() as s:
            s.bind((HOST, 0))
            self.address = f"{HOST}:{s.getsockname()[1]}"
        config = '{"health_check_period_ms": 1000, "health_check_failure_threshold": 5}'
        seen = self.log.stat().st_size if self.log.exists() else 0
        head = self.start(
            "head",
            *("-m", "ray.scripts.scripts", "start", "--head", "--block", "--system-config", config),
            *("--node-ip-address", HOST, "--port", self.address.partition(":")[2]),
            *("--num-cpus", "0", "--include-dashboard", "false", "--disable-usage-stats"),
            *("--temp-dir", self.folder, "--object-store-memory", "80000000"),
            *("--include-log-monitor", "false", "--no-monitor"),
        )
        while head.poll() is None:
            if b"Ray runtime started" in self.log.read_bytes()[seen:]:
                return True
            time.sleep(0.2)
        self.kill("head")
        return False

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts Python as a node, or as whatever else belongs to this cluster."""
        path = os.pathsep.join(p or os.getcwd() for p in sys.path)
        own = {
            _MARK: self.token, NAME: name, "PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0",
            "TMPDIR": self.folder,
        }  # fmt: skip
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments], env={**os.environ, **own}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            self.nodes[name] = process
        return process

    def worker(
        self, name: str, *options: str, cores: Sequence[int] = ()
    ) -> subprocess.Popen[bytes]:
        """Starts `tilesmith worker` on these cores, by default on one."""
        own = cores or sorted(os.sched_getaffinity(0))[:1]
        code = (
            f"import os; os.sched_setaffinity(0, {list(own)}); "
            "from tilesmith.cli.main import app; app()"
        )
        devices = () if "--devices" in options else ("--devices", "cpu")
        self._workers[name] = (
            "-c", code, "worker", "--address", self.address, "--node-ip", HOST, "--name", name,
            *devices, *options,
        )  # fmt: skip
        return self.start(name, *self._workers[name])

    def join(self, limit: float) -> None:
        """Returns when all workers have joined; starts one if there is none."""
        if not self.nodes.keys() & self._workers.keys():
            self.worker("another")
        until = time.monotonic() + limit
        while missing := self._not_joined():
            self.keep_running()
            if time.monotonic() > until:
                raise TimeoutError(f"{missing} did not join: {self.log.read_text()[-2000:]}")
            time.sleep(0.1)

    def _not_joined(self) -> list[str]:
        text = self.log.read_text()
        return [
            name
            for name in self.nodes
            if name in self._workers and f"{name} has joined the fleet" not in text
        ]

    def keep_running(self) -> None:
        """Starts workers again that have ended though nobody has killed them, as they do where Ray
        took longer to start than it waits; raises if that goes on.
        """
        for name, process in list(self.nodes.items()):
            if process.poll() is not None:
                again = self._workers.get(name)
                if again is not None and self._tries[name] < _TRIES:
                    self._tries[name] += 1
                    self.start(name, *again)
                    continue
                text = self.log.read_text()[-2000:]
                raise RuntimeError(f"{name} has ended with status {process.returncode}: {text}")

    def processes(self, name: str | None = None) -> list[int]:
        """The processes of one node, or of the whole cluster."""
        marks = [f"{_MARK}={self.token}".encode()]
        marks += [f"{NAME}={name}".encode()] if name is not None else []
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                own = (path / "environ").read_bytes().split(b"\0")
                if int(path.name) != os.getpid() and all(m in own for m in marks):
                    found.append(int(path.name))
        return found

    def send(self, which: signal.Signals, name: str | None = None) -> int:
        """Sends a signal to all processes of a node, or of the cluster; returns their number."""
        found = self.processes(name)
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, which)
        return len(found)

    def kill(self, name: str | None = None) -> None:
        """Ends the processes of one node at once, or of the whole cluster."""
        for known in [*self.nodes] if name is None else [name]:
            if (process := self.nodes.pop(known, None)) is not None:
                process.kill()
        while self.send(signal.SIGKILL, name):  # some may just have been started
            time.sleep(0.05)

    def close(self) -> None:
        started = list(self.nodes.values())
        self.kill()
        for process in started:
            process.wait(120.0)
        shutil.rmtree(self.folder, ignore_errors=True)
