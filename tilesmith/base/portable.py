"""Packs objects for other processes of this machine, which import classes and functions by name."""

from __future__ import annotations

import io
import pickle
import sys
from functools import cache
from types import FunctionType


def packed(x: object) -> bytes | None:
    """The pickled object; None if other processes could not import all of it, because it is defined
    in a script, in a notebook or inside of a function.
    """
    file = io.BytesIO()
    try:
        _Pickler(file).dump(x)
    except (pickle.PicklingError, AttributeError, TypeError):
        return None
    return file.getvalue()


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: object) -> None:
        """Called for every object before it is written."""
        if isinstance(obj, type | FunctionType) and not _is_importable(
            obj.__module__, tuple(sys.path)
        ):
            raise pickle.PicklingError(f"{obj.__module__} cannot be imported elsewhere")


@cache
def _is_importable(module: str, path: tuple[str, ...]) -> bool:
    """Whether a fresh process with this path finds it by its name. That it is loaded here says
    nothing.
    """
    package = module.partition(".")[0]
    if package == "__main__":
        return False
    finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
    return any(find is not None and find(package, None) is not None for find in finders)
