"""Checks the arguments of tune and build before any work is done. Each error names the mistake and
what is right instead.
"""

from __future__ import annotations

from typing import Any

from tilesmith.base.errors import TuneError
from tilesmith.base.given import a
from tilesmith.records.database import Database, Explaining
from tilesmith.schedule.trace import Parts
from tilesmith.task.task import Budget, Candidate


def require_finite(budget: Budget) -> None:
    if budget.trials is None and budget.seconds is None:
        raise TuneError("a budget without trials and without seconds never ends; give one of them")


def with_parts(
    parts: Parts | None, database: Database | None
) -> tuple[Parts | None, Database | None]:
    """The parts that were given, or else those that the database was opened with; and the database
    as if it had been opened with them.
    """
    if not isinstance(database, Explaining):
        return parts, database
    return (database.parts, database) if parts is None else (parts, database.with_parts(parts))


def require_seed(seed: int) -> None:
    if seed < 0:
        raise TuneError(f"seed={seed!r}: it takes a whole number from 0 on")


def require_batch_size(size: int | None) -> None:
    if size is not None and size < 1:
        raise TuneError(f"batch_size={size!r}: how many candidates are in a batch, from 1 on")


def require_search(search: Any, strategy: Any) -> None:
    if not all(callable(getattr(search, name, None)) for name in ("ask", "tell")):
        raise TuneError(
            f"start(task, sketches, rng) of {type(strategy).__name__} gave {a(search)}; it gives "
            "a search, which has the methods ask and tell"
        )


def require_candidates(candidates: Any, search: Any) -> None:
    is_list = isinstance(candidates, tuple | list)
    if not is_list or not all(isinstance(c, Candidate) for c in candidates):
        what = a(candidates) if not is_list else "a list of something else"
        raise TuneError(
            f"ask(n) of {type(search).__name__} gave {what}; it gives a list of up to n candidates"
        )
