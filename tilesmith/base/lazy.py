"""Public names of a package that are imported when they are first used.

The package states its names as imports under `if TYPE_CHECKING:`, where type checkers and editors
find them. At run time the same statements are read as a table. A process that needs a part of the
package, such as one that measures kernels, then loads that part only.
"""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple


class Home(NamedTuple):
    module: str
    name: str


def homes_of(source: str) -> dict[str, Home]:
    """Where the imports under `if TYPE_CHECKING:` find each name."""
    blocks = (
        s for s in ast.parse(source).body
        if isinstance(s, ast.If) and isinstance(s.test, ast.Name) and s.test.id == "TYPE_CHECKING"
    )  # fmt: skip
    return {
        a.asname or a.name: Home(s.module or "", a.name)
        for block in blocks
        for s in block.body
        if isinstance(s, ast.ImportFrom)
        for a in s.names
    }


class LazyPackage(ModuleType):
    """A package whose public names are found by their homes."""

    homes: dict[str, Home]

    def __getattr__(self, name: str) -> Any:
        home = self.homes.get(name)
        if home is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if home.module == self.__name__:  # a folder of the package
            return import_module(f"{home.module}.{home.name}")
        value = getattr(import_module(home.module), home.name)
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: object) -> None:
        """Importing a folder sets an attribute of its name, which a public name (`tune`) keeps."""
        home = self.homes.get(name)
        if home is None or home.module == self.__name__ or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self.homes})


def make_lazy(package: str) -> None:
    """Called by the package itself while it is imported."""
    module = sys.modules[package]
    spec = module.__spec__
    source = spec.loader.get_source(package)  # type: ignore[union-attr]
    module.__dict__["homes"] = homes_of(source)
    module.__class__ = LazyPackage
