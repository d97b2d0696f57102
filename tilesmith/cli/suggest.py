"""Suggests options that are close to a mistyped one, or mean the same."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

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
