"""The rows that a benchmark of GPUs gives, and the time that it may take."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from bench.figures import save_figure
from tilesmith.base.whole_file import write_whole

FINISH_SECONDS = 5.0  # before the limit nothing new is begun


class Table:
    """Rows by name, written to the file after each one."""

    def __init__(self, path: str | None, limit: float) -> None:
        self._path = None if path is None else Path(path)
        self._end = time.monotonic() + limit
        self.rows: list[dict[str, Any]] = []
        if self._path is not None and self._path.exists():
            self.rows = json.loads(self._path.read_text())

    @property
    def left(self) -> float:
        return self._end - time.monotonic()

    @property
    def is_over(self) -> bool:
        return self.left < FINISH_SECONDS

    def has(self, name: str) -> bool:
        return any(r["name"] == name and "error" not in r for r in self.rows)

    def add(self, name: str, **values: Any) -> None:
        row = {"name": name, **values}
        self.rows = [*(r for r in self.rows if r["name"] != name), row]
        print(json.dumps(row), flush=True)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, json.dumps(self.rows, indent=1))

    def save_figure(self, path: str, machine: str) -> None:
        """The rows as a figure of the documentation."""
        header = list(dict.fromkeys(k for r in self.rows for k in r))
        save_figure(path, machine, header, [[str(r.get(k, "")) for k in header] for r in self.rows])
