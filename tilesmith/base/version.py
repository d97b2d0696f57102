"""The version. Its only source is `version` in pyproject.toml: read from that file in a source
tree, or from the metadata of an installed package.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import metadata
from pathlib import Path


@cache
def version() -> str:
    """The version of the running code: a source tree takes precedence over an installed copy."""
    root = Path(__file__).parents[2]
    try:
        text = (root / "pyproject.toml").read_text()
        # Two lines of it: a parser of TOML would be loaded with `import tilesmith`.
        project = dict(re.findall(r'^(name|version) = "([^"]*)"$', text, re.MULTILINE))
        if project["name"] == "tilesmith":
            return str(project["version"])
    except (OSError, ValueError, KeyError):
        pass
    try:
        return metadata.version("tilesmith")
    except metadata.PackageNotFoundError:
        return "unknown"
