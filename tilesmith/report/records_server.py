"""Serves the page of a database to browsers on this machine, and new data while a run goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock

from tilesmith.base.errors import TilesmithError
from tilesmith.records.networks import NetworkStep
from tilesmith.report.records_page import records_json, records_page
from tilesmith.report.records_view import RecordsView

_LOCAL = "127.0.0.1"
_SECONDS = 3.0  # between two looks at the database, and at least four times what one takes


class PageServer(ThreadingHTTPServer):
    """`view` reads the database; an error, such as an empty one, is shown instead of the page.
    `step` reads what a run does next, which takes much less time. Port 0 is any free one. Only this
    machine can connect. Every connection has a thread, because browsers open some that they do not
    use.
    """

    daemon_threads = True

    def __init__(
        self,
        view: Callable[[], RecordsView],
        step: Callable[[], NetworkStep | None],
        port: int = 0,
        seconds: float = _SECONDS,
    ) -> None:
        super().__init__((_LOCAL, port), _Handler)
        self.view, self.step, self.seconds = view, step, seconds
        self._lock = Lock()
        self._last: RecordsView | TilesmithError | None = None
        self._until = 0.0

    @property
    def url(self) -> str:
        return f"http://{_LOCAL}:{self.server_port}/"

    def page(self) -> str:
        """The page, which asks for `data` every few seconds."""
        match self._latest():
            case RecordsView() as view:
                return records_page(view, max(0.1, self.seconds))
            case error:
                again = f'<meta http-equiv="refresh" content="{max(1, round(self.seconds))}">'
                return (
                    f'<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8">{again}\n'
                    f"<title>Tilesmith</title>\n<p>{escape(str(error))}</p>\n"
                    "<p>This page shows the records as soon as there are some.</p>\n</html>\n"
                )

    def data(self) -> str:
        match self._latest():
            case RecordsView() as view:
                return records_json(view)
            case error:
                return json.dumps({"error": str(error)})

    def step_data(self) -> str:
        try:
            return records_json(self.step())
        except TilesmithError:  # a database that is locked for a moment; the page asks again
            return "null"

    def _latest(self) -> RecordsView | TilesmithError:
        with self._lock:
            began = time.monotonic()
            if self._last is None or began >= self._until:
                try:
                    self._last = self.view()
                except TilesmithError as e:
                    self._last = e
                now = time.monotonic()
                self._until = now + max(self.seconds, 4 * (now - began))
            return self._last


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        # Another name for this machine may be a foreign page's, which must not read the records.
        host = self.headers.get("Host", "").rsplit(":", 1)[0]
        if host not in (_LOCAL, "localhost"):
            self.send_error(403)
        elif self.path == "/":
            self._answer("text/html", self.server.page())
        elif self.path == "/data":
            self._answer("application/json", self.server.data())
        elif self.path == "/step":
            self._answer("application/json", self.server.step_data())
        else:
            self.send_error(404)

    def _answer(self, kind: str, text: str) -> None:
        body = text.encode(errors="replace")
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed for a request."""

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:  # the browser has gone
            self.close_connection = True
