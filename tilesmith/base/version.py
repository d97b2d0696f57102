"""The version. Its only source is `version` in pyproject.toml: read from that file in a source
tree, or from the metadata of an installed package.
"""

from __future__ import annotations

from functools import cache
from importlib import metadata
from pathlib import Path


@cache
def version() -> str:
    """The version of the running code: a source tree takes precedence over an installed copy."""
    import tomllib  # only when somebody asks: `import tilesmith` loads little

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
