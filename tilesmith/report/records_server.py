"""Serves the page of a database to browsers on this machine, made anew while a run goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from html import escape
from http.server import BaseHTTPRequestHandler, HTTPServer

from tilesmith.base.errors import TilesmithError

_LOCAL = "127.0.0.1"
_SECONDS = 5.0  # between two pages, and at least four times what it takes to make one


class PageServer(HTTPServer):
    """`page` makes the text; an error, such as an empty database, is shown instead of it. Port 0 is
    any free one. Only this machine can connect.
    """

    def __init__(self, page: Callable[[], str], port: int = 0, seconds: float = _SECONDS) -> None:
        super().__init__((_LOCAL, port), _Handler)
        self.page, self.seconds = page, seconds
        self._text, self._until = "", 0.0

    @property
    def url(self) -> str:
        return f"http://{_LOCAL}:{self.server_port}/"

    def text(self) -> str:
        """The page, at most some seconds old, which loads itself again."""
        began = time.monotonic()
        if began >= self._until:
            try:
                page = self.page()
            except TilesmithError as e:
                page = f"<!DOCTYPE html>\n<title>Tilesmith</title>\n<p>{escape(str(e))}</p>\n"
            took = time.monotonic() - began
            wait = max(self.seconds, 4 * took)
            again = f"<script>setTimeout(() => location.reload(), {1000 * wait:.0f})</script>\n"
            self._text, self._until = page + again, time.monotonic() + wait
        return self._text


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        # Another name for this machine may be a foreign page's, which must not read the records.
        host = self.headers.get("Host", "").rsplit(":", 1)[0]
        if host not in (_LOCAL, "localhost"):
            self.send_error(403)
        elif self.path != "/":
            self.send_error(404)
        else:
            body = self.server.text().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed for a request."""
