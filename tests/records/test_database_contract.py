"""Our databases pass the suite that we ask everybody's to pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tilesmith as ts
from tilesmith.testing.databases import DatabaseContract


class TestSqlite(DatabaseContract):
    def open(self, place: Path) -> ts.Database:
        return ts.open_database(place / "records.db")


class TestMemory(DatabaseContract):
    lasting = False

    def open(self, place: Path) -> ts.Database:
        return ts.open_database(":memory:")


class TestPostgres(DatabaseContract):
    @pytest.fixture(autouse=True)
    def _places(self, new_postgres: Callable[[], str]) -> None:
        self.make = new_postgres
        self.urls: dict[Path, str] = {}

    def open(self, place: Path) -> ts.Database:
        if place not in self.urls:
            self.urls[place] = self.make()
        return ts.open_database(self.urls[place])
