"""Parses and checks arguments that several commands share. An error names the option and says what
would be right.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import typer

from tilesmith.base.errors import ArgumentError
from tilesmith.base.suggest import did_you_mean
from tilesmith.base.target import NAMED, Target, cpu
from tilesmith.cli.open_sizes import largest
from tilesmith.cli.operators import nbytes
from tilesmith.ir.function import Function
from tilesmith.runtime.devices.open import target_of

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_LONGEST = 10_000 * 3600.0  # seconds; the system's timers have a limit


def seconds(text: str | float) -> float:
    """90, 90s, 10m or 1h; for `typer.Option(parser=...)`, which names the option in its error."""
    if isinstance(text, float | int):  # the default
        return float(text)
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([smh]?)", text.strip())
    if not match:
        raise typer.BadParameter(f"{text!r} is not a time; write 90, 90s, 10m or 1h")
    value = float(match.group(1)) * _UNITS[match.group(2)]
    if value > _LONGEST:
        raise typer.BadParameter(f"{text!r} is too long; at most 10000h")
    return value


def positive_seconds(text: str | float) -> float:
    value = seconds(text)
    if value == 0:
        raise typer.BadParameter(f"{text!r} is no time at all; write 90, 90s, 10m or 1h")
    return value


def count(text: str | int) -> int:
    """A whole number from 0."""
    return _at_least(0, text)


def positive_count(text: str | int) -> int:
    return _at_least(1, text)


def _at_least(least: int, text: str | int) -> int:
    if isinstance(text, int):  # the default
        return text
    if not re.fullmatch(r"[0-9]{1,18}", text.strip()) or int(text) < least:
        raise typer.BadParameter(f"{text[:40]!r} is not a whole number from {least} to 10^18")
    return int(text)


def whole_numbers(option: str, text: str) -> list[int]:
    """The numbers in a text such as 1,2,4."""
    words = [w.strip() for w in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,9}", w) and int(w) for w in words):
        raise ArgumentError(f"{option} {text!r}: write whole numbers from 1, such as 1,2")
    return [int(w) for w in words]


def machine(target: str, cores: int = 0) -> Target:
    """`cpu` is this machine, `cuda` and `opencl` are its GPUs, with a number as `cuda:1` if there
    are several; other names are those of Target.named. 0 cores: all it has.
    """
    if target == "cpu":
        require_cores("--cores", cores)
        return cpu(cores or None)
    if gpu := re.fullmatch(r"(cuda|opencl)(?::([0-9]{1,3}))?", target):
        if cores:
            raise ArgumentError(f"--cores {cores}: a GPU is used as a whole; leave it out")
        return target_of(gpu.group(1), int(gpu.group(2) or 0))
    if target not in NAMED:
        known = ("cpu", "cuda", "opencl", *NAMED)
        raise ArgumentError(
            f"--target {target!r} is unknown{did_you_mean(target, known)}; it is cpu for this "
            "machine, cuda or opencl for its GPU (cuda:1 for the second), or one of "
            f"{', '.join(sorted(NAMED))}"
        )
    named = Target.named(target)
    return named.with_cores(cores) if cores else named


def require_cores(option: str, cores: int) -> None:
    have = cpu().num_cores
    if cores > have:
        raise ArgumentError(
            f"{option} {cores}: this process may use {have} core{'s' * (have > 1)} of this machine"
        )


def require_memory(func: Function) -> None:
    """Raises if the arrays, and the expected output to compare with, exceed the memory."""
    func = largest(func)
    needed = sum(nbytes(b) for b in (*func.params, *func.outputs))
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > have:
        raise ArgumentError(
            f"{func.name} needs {needed / 2**30:,.0f} GiB for its arrays; this machine has "
            f"{have / 2**30:.0f} GiB of memory"
        )


def require_folder(option: str, path: Path) -> None:
    """Creates the folder if it is missing, and tries to write to it now rather than after an hour
    of tuning.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as e:
        raise ArgumentError(f"{option} {path} cannot be written: {e.strerror}") from None


def require_file(option: str, path: Path) -> None:
    """Raises unless the file can be written; creates its folder if it is missing."""
    try:
        if path.is_dir():
            raise ArgumentError(f"{option} {path} is a folder; name a file, such as {path}/out")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            with path.open("ab"):
                return
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as e:
        raise ArgumentError(f"{option} {path} cannot be written: {e.strerror}") from None
