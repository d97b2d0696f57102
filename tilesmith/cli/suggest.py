"""Suggests known words that are close to a mistyped one, and options that mean the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`, did you mean conv2d or conv1d?`, or nothing if no known word is close."""
    by_lower = {k.lower(): k for k in known}
    close = get_close_matches(word.lower().replace("_", "-"), by_lower, n=2)
    return f" (did you mean {' or '.join(by_lower[c] for c in close)}?)" if close else ""


# What other programs call an option, and what it may be called here.
_SYNONYMS = {
    "--time": ("budget", "duration", "minutes", "time-limit", "max-time"),
    "--trials": ("budget", "num-trials", "n-trials", "max-trials", "iterations", "iters"),
    "--db": ("database", "records"),
    "--out": ("output", "o"),
    "--output": ("out",),
    "--cores": ("num-cores", "threads", "num-threads", "jobs", "j"),
    "--threads": ("num-threads", "jobs", "j"),
    "--target": ("device", "backend"),
    "--dim": ("batch", "batch-size", "shape"),
    "--dtype": ("type", "precision"),
    "--precision": ("dtype", "type"),
}


def options_like(name: str, known: Sequence[str]) -> list[str]:
    """The options of a command that a user may have meant by an unknown one."""
    word = name.lstrip("-").replace("_", "-").lower()
    same = [o for o, words in _SYNONYMS.items() if word in words and o in known]
    return same or get_close_matches(name, [o for o in known if o.startswith("--")], n=2)
