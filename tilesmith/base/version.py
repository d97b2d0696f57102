"""The version, whose one source is `version` in pyproject.toml: read from that file in a source
tree, and from the metadata that was made of it in an installed package.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path


@cache
def version() -> str:
    """Of the code that is running: a source tree counts before another copy that is installed."""
    root = Path(__file__).parents[2]
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
        if project["name"] == "tilesmith":
            return str(project["version"])
    except (OSError, ValueError, KeyError):
        pass
    try:
        return metadata.version("tilesmith")
    except metadata.PackageNotFoundError:
        return "unknown"
