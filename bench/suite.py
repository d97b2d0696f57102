"""The operator suite against the libraries: `tilesmith bench suite` as a module."""

from __future__ import annotations

import sys

from tilesmith.cli.main import app

if __name__ == "__main__":
    app(["bench", "suite", *sys.argv[1:]])
