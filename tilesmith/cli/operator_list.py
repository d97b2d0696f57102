"""Several operators at once: on the command line one behind the other, as in `matmul 8 8 8 x3
conv2d 56 64 64 3 1 1`, or one a line in a text file.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from tilesmith.base.errors import ArgumentError, TilesmithError
from tilesmith.cli.model_arguments import is_model
from tilesmith.cli.operator_arguments import Dtype, Layout, function_of, require_file_alone
from tilesmith.cli.operator_table import OPERATORS
from tilesmith.cli.operators import layouts
from tilesmith.cli.user_file import functions_in, is_file_name
from tilesmith.ir.function import Function

_WEIGHT = re.compile(r"x([0-9]+(?:\.[0-9]*)?)")
Weighted = tuple[Function, float]


def is_list_file(what: str) -> bool:
    return what.lower().endswith(".txt")


def functions_of(
    words: Sequence[str], layout: str | None = None, constant_weights: bool = False,
    dtype: str = "float32",
) -> list[Weighted]:  # fmt: skip
    """The Functions of operators with their sizes, of Python files and of text files, each with its
    weight. Options are for all operators; the layout for those that have one.
    """
    groups = _groups(words)
    if layout is not None and len(groups) > 1 and not any(_takes_layout(g[0]) for g in groups):
        raise ArgumentError(f"--layout {layout}: none of these operators has a layout")
    out: list[Weighted] = []
    for group in groups:
        own = layout if _takes_layout(group[0]) or len(groups) == 1 else None
        if is_list_file(group[0]):
            out += _of_file(group, own, constant_weights, dtype)
        else:
            out += _of_group(group, own, constant_weights, dtype)
    return out


def _of_group(
    group: Sequence[str], layout: str | None, constant_weights: bool, dtype: str
) -> list[Weighted]:
    what, sizes, weight = group[0], *_sizes_and_weight(group)
    if not is_file_name(what):
        return [(function_of(what, sizes, layout, constant_weights, dtype), weight)]
    require_file_alone(what, sizes, layout, constant_weights, dtype)
    return [(func, each * weight) for func, each in functions_in(what)]


def _groups(words: Sequence[str]) -> list[list[str]]:
    """Each begins with the name of an operator or of a file."""
    groups: list[list[str]] = []
    for word in words:
        if not groups or word in OPERATORS or is_file_name(word) or is_list_file(word):
            groups.append([word])
        elif is_model(word):
            raise ArgumentError(f"{word}: models and operators are tuned by commands of their own")
        else:
            groups[-1].append(word)
    return groups


def _sizes_and_weight(group: Sequence[str]) -> tuple[list[str], float]:
    """The words behind a name. The last one may be a weight, as x3."""
    sizes = list(group[1:])
    match = _WEIGHT.fullmatch(sizes[-1]) if sizes else None
    if match is None:
        return sizes, 1
    weight = float(match.group(1))
    if not weight:
        raise ArgumentError(f"{' '.join(group)}: a weight is above 0, as x3")
    return sizes[:-1], int(weight) if weight.is_integer() else weight


def _takes_layout(name: str) -> bool:
    return is_list_file(name) or (name in OPERATORS and bool(layouts(name)))


def _of_file(
    group: Sequence[str], layout: str | None, constant_weights: bool, dtype: str
) -> list[Weighted]:
    """The Functions of a text file: an operator a line, with options of its own behind it."""
    path = group[0]
    if len(group) > 1:
        raise ArgumentError(f"{path} takes no sizes, but got {' '.join(group[1:])}")
    try:
        lines = Path(path).read_text().splitlines()
    except FileNotFoundError:
        raise ArgumentError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path} cannot be read: {error}") from None
    out: list[Weighted] = []
    for k, line in enumerate(lines, 1):
        try:
            out += _of_line(line, layout, constant_weights, dtype)
        except (TilesmithError, ValueError) as error:
            raise ArgumentError(f"{path}, line {k}: {error}") from None
    if not out:
        raise ArgumentError(f"{path} names no operator; write one a line, as matmul 64 64 64 x2")
    return out


def _of_line(
    line: str, layout: str | None, constant_weights: bool, dtype: str
) -> list[Weighted]:  # fmt: skip
    words, own = _options(shlex.split(line, comments=True))
    if not words:
        return []
    groups = _groups(words)
    if len(groups) > 1 or is_list_file(words[0]):
        raise ArgumentError("write one operator a line")
    given = own.get("--layout") or (layout if _takes_layout(words[0]) else None)
    constant = constant_weights or "--constant-weights" in own
    return _of_group(groups[0], given, constant, own.get("--dtype", dtype))


_VALUES: dict[str, Sequence[str] | None] = {
    "--layout": [*Layout], "--dtype": [*Dtype], "--constant-weights": None,
}  # fmt: skip


def _options(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The words of a line without its options, and these."""
    rest, found = [], {}
    it = iter(words)
    for word in it:
        if not word.startswith("--"):
            rest.append(word)
            continue
        name, equals, value = word.partition("=")
        if name not in _VALUES:
            raise ArgumentError(f"{name} is not for one operator; these are: {', '.join(_VALUES)}")
        values = _VALUES[name]
        if values is not None:
            value = value if equals else next(it, "")
            if value not in values:
                raise ArgumentError(f"{name} {value!r}: it is one of {', '.join(values)}")
        found[name] = value
    if found and not rest:
        raise ArgumentError(f"{' '.join(words)}: name an operator first")
    return rest, found
