"""Suggests known words that are close to a mistyped one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` (did you mean conv2d or conv1d?)`, or nothing if no known word is close, nor begins with
    the word or is a beginning of it.
    """
    by_form = {_form(k): k for k in known}
    own = _form(word)
    close = get_close_matches(own, by_form, n=2)
    if not close and own:
        close = [k for k in by_form if k and (k.startswith(own) or own.startswith(k))][:2]
    return f" (did you mean {' or '.join(by_form[c] for c in close)}?)" if close else ""


def _form(word: str) -> str:
    return word.lower().replace("_", "-")
