"""Loads the Functions that a user's Python file defines."""

from __future__ import annotations

import traceback
from pathlib import Path

from tilesmith.base.errors import ArgumentError, TilesmithError
from tilesmith.base.suggest import did_you_mean
from tilesmith.ir.function import Function


def is_file_name(what: str) -> bool:
    """FILE.py or FILE.py:NAME."""
    return what.partition(":")[0].endswith(".py")


def function_in(what: str) -> Function:
    """Runs the file; what goes wrong in it is said with its line."""
    found = functions_in(what)
    if len(found) > 1:
        names = ", ".join(func.name for func, _ in found)
        raise ArgumentError(f"{what} has several Functions: {names}; here it takes one of them")
    return found[0][0]


def functions_in(what: str) -> list[tuple[Function, float]]:
    """The Function that a file has, or that it has under a name, with the weight 1; or those of a
    list of Functions, or of pairs of a Function and its weight, under that name.
    """
    path, _, name = what.partition(":")
    scope = _run(path)
    functions = {k: v for k, v in scope.items() if isinstance(v, Function)}
    lists = {k: found for k, v in scope.items() if (found := _listed(v))}
    if name in functions:
        return [(functions[name], 1)]
    if name in lists:
        return lists[name]
    if not functions and not lists:
        raise ArgumentError(f"{path} defines no Function; make one at its top level by ts.function")
    names = ", ".join([*functions, *lists])
    if name:
        raise ArgumentError(
            f"{path} has no Function {name!r}{did_you_mean(name, [*functions, *lists])}; it has "
            f"{names}"
        )
    if len(functions) + len(lists) > 1:
        raise ArgumentError(f"{path} has several Functions: {names}; name one as {path}:NAME")
    return [(func, 1) for func in functions.values()] or next(iter(lists.values()))


def _listed(value: object) -> list[tuple[Function, float]]:
    """The Functions of a list, with their weights; none if it holds something else."""
    if not isinstance(value, list | tuple):
        return []
    out: list[tuple[Function, float]] = []
    for each in value:
        match each:
            case Function():
                out.append((each, 1))
            case (Function() as func, int() | float() as weight):
                out.append((func, weight))
            case _:
                return []
    return out


def _run(path: str) -> dict[str, object]:
    try:
        text = Path(path).read_text()
    except FileNotFoundError:
        raise ArgumentError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError) as e:
        raise ArgumentError(f"{path} cannot be read: {e}") from None
    scope: dict[str, object] = {"__name__": "tilesmith_input", "__file__": path}
    try:
        exec(compile(text, path, "exec"), scope)
    except SyntaxError as e:
        raise ArgumentError(f"{path}, line {e.lineno}: {e.msg}") from None
    except (Exception, SystemExit) as e:
        lines = [f.lineno for f in traceback.extract_tb(e.__traceback__) if f.filename == path]
        kind = "" if isinstance(e, TilesmithError) else f"{type(e).__name__}: "
        raise ArgumentError(f"{path}, line {lines[-1] if lines else 1}: {kind}{e}") from None
    return scope
