"""What an object is, as text that is the same in every process and on every machine: the identity
of an object of a user's (its settings and its code), stable digests of text, and objects packed for
other processes of this machine.

Code is its source. It includes the functions, classes and constants of its own package that it
refers to; what it takes from other packages counts by name.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import pickle
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, cached_property, partial
from textwrap import dedent
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from tilesmith.base.errors import ArgumentError

_OWN = "tilesmith"  # the code of this package counts by name: keys have its version beside it


def digest(*parts: str) -> str:
    """A short hash in hexadecimal digits."""
    h = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode()
        h.update(len(data).to_bytes(8, "little"))  # so that ("ab", "c") differs from ("a", "bc")
        h.update(data)
    return h.hexdigest()


def identity(x: object) -> str:
    """Raises an ArgumentError for an object whose settings cannot be told from its address."""
    return _Identity().of(x)


class _Identity:
    def __init__(self) -> None:
        self._seen: set[int] = set()  # functions and classes whose code is written already

    def of(self, x: Any, lenient: bool = False) -> str:
        """`lenient`: an object that cannot be told apart from others counts by its class."""
        match x:
            case None | bool() | int() | float() | complex() | str() | bytes():
                return repr(x)
            case Enum():
                return f"{type(x).__qualname__}.{x.name}"
            case tuple() | list():
                return f"({', '.join(self.of(v, lenient) for v in x)})"
            case set() | frozenset():
                return f"{{{', '.join(sorted(self.of(v, lenient) for v in x))}}}"
            case Mapping():
                pairs = ((self.of(k, lenient), self.of(v, lenient)) for k, v in x.items())
                return f"{{{', '.join(f'{k}: {v}' for k, v in sorted(pairs))}}}"
            case partial():
                return f"partial{self.of((x.func, x.args, x.keywords), lenient)}"
            case MethodType():
                return f"{self.of(x.__self__, lenient)}.{x.__name__}"
            case ModuleType():
                return x.__name__
            case FunctionType() | type():
                return self._code(x)
        if isinstance(known := getattr(x, "digest", None), str):
            return known
        if isinstance(wrapped := getattr(x, "__wrapped__", None), FunctionType):  # as by `cache`
            return self._code(wrapped)
        return self._settings(x, lenient)

    def _settings(self, x: Any, lenient: bool) -> str:
        if is_dataclass(x):
            values = {f.name: getattr(x, f.name) for f in fields(x) if f.compare}
        elif hasattr(x, "__dict__") and not lenient:
            values = vars(x)
        elif " at 0x" not in (text := repr(x)):
            return text
        elif lenient:
            return type(x).__qualname__
        else:
            raise ArgumentError(
                f"{text} has settings that cannot be told in another process; make its class a "
                "frozen dataclass of numbers, text and functions"
            )
        return f"{self._code(type(x))}{self.of(values, lenient)}"

    def _code(self, x: Any) -> str:
        """Of a function or a class: its name, and its code where it is the user's."""
        package = _package(x)
        if package in (_OWN, "builtins"):
            return f"{x.__module__}.{x.__qualname__}"
        if id(x) in self._seen:
            return str(x.__qualname__)
        self._seen.add(id(x))
        parts = [x.__qualname__]
        if isinstance(x, type):
            parts += [self._code(b) if _package(b) == package else b.__name__ for b in x.__bases__]
            for name, value in sorted(vars(x).items()):
                if isinstance(value, classmethod | staticmethod | property | cached_property):
                    value = _method(value)
                if isinstance(value, FunctionType) and not _is_generated(name, value):
                    parts.append(self._code(value))
                elif not name.startswith("_"):
                    parts.append(f"{name}={self.of(value, lenient=True)}")
            return "\n".join(parts)
        parts.append(_source(x))
        for name, value in _named_in(x):
            is_code = isinstance(value, FunctionType | type)
            if is_code and _package(value) != package:
                parts.append(f"{name}={value.__module__}.{value.__qualname__}")
            else:
                parts.append(f"{name}={self.of(value, lenient=True)}")
        return "\n".join(parts)


def _package(x: Any) -> str:
    return str(x.__module__ or "").partition(".")[0]


def _method(x: Any) -> Any:
    """The function of a class method, a static method or a property."""
    names = ("__func__", "fget", "func")
    return next(getattr(x, name) for name in names if hasattr(x, name))


def _is_generated(name: str, function: FunctionType) -> bool:
    """Whether it is a method that `dataclass` has written, or one of Python itself, from 3.14 on,
    which evaluates annotations.
    """
    code: CodeType = inspect.unwrap(function).__code__
    return name.startswith("__annotate") or (
        name.startswith("__") and code.co_filename == "<string>"
    )


def _source(function: FunctionType) -> str:
    try:
        return dedent(inspect.getsource(function)).strip()
    except (OSError, TypeError):  # typed into an interpreter
        return "\n".join(f"{c.co_code.hex()} {c.co_names}" for c in _codes(function.__code__))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _named_in(function: FunctionType) -> list[tuple[str, Any]]:
    """The variables of its module, and of the functions around it, that a function refers to."""
    names = sorted({name for c in _codes(function.__code__) for name in c.co_names})
    found = [(n, function.__globals__[n]) for n in names if n in function.__globals__]
    around = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return found + [(n, cell.cell_contents) for n, cell in around]


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
    def reducer_override(self, obj: object) -> Any:
        """Called for every class and function before it is written, and for few other objects."""
        if isinstance(obj, type | FunctionType) and not _is_importable(
            obj.__module__, tuple(sys.path)
        ):
            raise pickle.PicklingError(f"{obj.__module__} cannot be imported elsewhere")
        return NotImplemented


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
