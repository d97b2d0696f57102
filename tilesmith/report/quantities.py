"""Large numbers with unit prefixes, and shapes, as short text."""

from __future__ import annotations

_UNITS = ("", "k", "M", "G", "T", "P")


def short_number(n: float) -> str:
    """Three digits and a letter for the power of 1000: 237633536 is `238 M`, 1806336 `1.81 M`. A
    unit may follow at once: below 1000 the letter is empty, and the space stays.
    """
    power = 0
    while abs(n) >= 999.5 and power < len(_UNITS) - 1:
        n /= 1000
        power += 1
    digits = 0 if power == 0 or abs(n) >= 99.95 else 1 if abs(n) >= 9.995 else 2
    return f"{n:.{digits}f} {_UNITS[power]}"


def dims_text(shape: tuple[int, ...]) -> str:
    """A shape in one word: `1x56x56x64`; `scalar` without dimensions."""
    return "x".join(map(str, shape)) or "scalar"
