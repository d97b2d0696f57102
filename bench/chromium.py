"""A headless Chromium for tests and benchmarks, driven by the DevTools protocol over a pair of
pipes: no package and no port is needed. All but the files and servers of this machine are out of
its reach.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)

# Chromium reads commands from file 3 and writes answers to file 4.
_START = "import os, sys; r, w = map(int, sys.argv[1:3]); os.dup2(r, 93); os.dup2(w, 94); "
_START += "os.dup2(93, 3); os.dup2(94, 4); os.execv(sys.argv[3], sys.argv[3:])"
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe",
    "--hide-scrollbars", "--disable-dev-shm-usage", "--disable-background-networking",
    # Names do not resolve, and addresses other than this machine's go to a proxy that is not there.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--proxy-server=127.0.0.1:9",
    "--proxy-bypass-list=127.0.0.1",
)  # fmt: skip


class Chromium:
    """One browser with one tab. `errors` collects what the console and exceptions say, `requests`
    the addresses that were asked for, both since the last `open`.
    """

    def __init__(self, profile: Path, size: tuple[int, int] = (1280, 900)) -> None:
        assert BROWSER is not None
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        words = (str(theirs_in), str(theirs_out), BROWSER, *_FLAGS)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, *words, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer, self._count, self._session = b"", 0, ""
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        pages = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        target = pages[0]["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(*size)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=False,
        )  # fmt: skip

    def call(self, method: str, **params: Any) -> Any:
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        number = self._count
        while True:
            answer = self._next(120.0)
            if answer is None:
                raise TimeoutError(f"chromium does not answer {method}")
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _next(self, seconds: float) -> dict[str, Any] | None:
        """The next message, after events were noted; None if there is none in time."""
        while b"\0" not in self._buffer:
            if not select.select([self._from], [], [], seconds)[0]:
                return None
            part = os.read(self._from, 1 << 20)
            if not part:
                raise RuntimeError("chromium has ended")
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        p = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(p["exceptionDetails"])[:2000])
            case "Runtime.consoleAPICalled" if p["type"] in ("error", "warning", "assert"):
                self.errors.append(json.dumps(p["args"])[:2000])
            case "Log.entryAdded" if p["entry"]["level"] in ("error", "warning"):
                self.errors.append(json.dumps(p["entry"])[:2000])
            case "Network.requestWillBeSent" if not p["request"]["url"].startswith("data:"):
                self.requests.append(p["request"]["url"])
            case "Page.loadEventFired":
                self._loaded = True

    def open(self, address: str, seconds: float = 120.0) -> None:
        """Returns when the page is loaded and its script has run."""
        self.errors, self.requests, self._loaded = [], [], False
        error = self.call("Page.navigate", url=address).get("errorText")
        assert not error, f"{address}: {error}"
        end = time.monotonic() + seconds
        while not self._loaded:
            if self._next(max(0.0, end - time.monotonic())) is None:
                raise TimeoutError(f"{address} is not loaded after {seconds} s")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, as JSON has it."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    def wait_for(self, script: str, seconds: float = 120.0) -> Any:
        """The value as soon as it is true."""
        end = time.monotonic() + seconds
        while not (value := self.run(script)):
            if time.monotonic() > end:
                raise TimeoutError(f"not true after {seconds} s: {script}")
            time.sleep(0.05)
        return value

    def processor_seconds(self) -> float:
        """What the processes that show pages have used so far."""
        session, self._session = self._session, ""  # it is the browser that knows
        try:
            processes = self.call("SystemInfo.getProcessInfo")["processInfo"]
        finally:
            self._session = session
        return sum(float(p["cpuTime"]) for p in processes if p["type"] == "renderer")

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, file: Path, first: str = "", last: str = "") -> None:
        """Of the window, or of an element and those below it up to another one."""
        clip: dict[str, Any] = {}
        if first:
            box = self.run(
                f"(() => {{const a = document.querySelector('{first}').getBoundingClientRect(),"
                f"b = document.querySelector('{last or first}').getBoundingClientRect();"
                "return {x: a.x + scrollX, y: a.y + scrollY, width: a.width,"
                "height: b.bottom - a.y}})()"
            )
            clip = {"clip": {**box, "scale": 1}, "captureBeyondViewport": True}
        png = self.call("Page.captureScreenshot", format="png", **clip)["data"]
        file.write_bytes(base64.b64decode(png))

    def close(self) -> None:
        try:
            self._session = ""
            self.call("Browser.close")
            self._process.wait(10)
        except (OSError, RuntimeError, TimeoutError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)
