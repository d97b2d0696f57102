"""Suggests known words that are close to a mistyped one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`, did you mean conv2d or conv1d?`, or nothing if no known word is close."""
    by_lower = {k.lower(): k for k in known}
    close = get_close_matches(word.lower().replace("_", "-"), by_lower, n=2)
    return f" (did you mean {' or '.join(by_lower[c] for c in close)}?)" if close else ""
