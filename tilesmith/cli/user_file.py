"""Loads the Function that a user's Python file defines."""

from __future__ import annotations

import traceback
from pathlib import Path

from tilesmith.base.errors import ArgumentError, TilesmithError
from tilesmith.cli.suggest import did_you_mean
from tilesmith.ir.function import Function


def is_file_name(what: str) -> bool:
    """FILE.py or FILE.py:NAME."""
    return what.partition(":")[0].endswith(".py")


def function_in(what: str) -> Function:
    """Runs the file; what goes wrong in it is said with its line."""
    path, _, name = what.partition(":")
    functions = {k: v for k, v in _run(path).items() if isinstance(v, Function)}
    if name in functions:
        return functions[name]
    names = ", ".join(functions)
    if not functions:
        raise ArgumentError(f"{path} defines no Function; make one at its top level by ts.function")
    if name:
        raise ArgumentError(
            f"{path} has no Function {name!r}{did_you_mean(name, functions)}; it has {names}"
        )
    if len(functions) > 1:
        raise ArgumentError(f"{path} has several Functions: {names}; name one as {path}:NAME")
    return next(iter(functions.values()))


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
