"""Checks the arguments of tune and build before any work is done. Each error names the mistake and
what is right instead.
"""

from __future__ import annotations

import math
from typing import Any

from tilesmith.base.errors import BuildError, GraphError, TilesmithError, TuneError
from tilesmith.base.target import Target
from tilesmith.ir.function import Function
from tilesmith.records.database import Database, Explaining
from tilesmith.schedule.trace import Parts
from tilesmith.task.task import Budget, Candidate, Task


def _error(who: str) -> type[TilesmithError]:
    """What a mistake in the arguments of a function raises."""
    return {"tune": TuneError, "build": BuildError}.get(who, GraphError)


def require_function(func: Any) -> None:
    if isinstance(func, Function):
        func.require_closed("ts.tune", TuneError)
        return
    if isinstance(getattr(func, "func", None), Function):
        raise TuneError(
            f"tune takes what ts.function made, not a {type(func).__name__}; tuning makes "
            "schedules of its own, or takes a template: space=ts.TemplateSpace(...)"
        )
    raise TuneError(f"tune takes what ts.function made, not {_a(func)}")


def require_task(task: Any) -> None:
    if not isinstance(task, Task):
        raise TuneError(f"TaskTuner takes a task, as ts.Task(func, ts.cpu()), not {_a(task)}")
    task.func.require_closed("ts.TaskTuner", TuneError)


def require_budget(budget: Any) -> None:
    if not isinstance(budget, Budget):
        raise TuneError(
            f"budget={budget!r}: say of what, as ts.Budget(trials=500), ts.Budget(seconds=60) or "
            "both"
        )
    trials, seconds, patience = budget.trials, budget.seconds, budget.patience
    if trials is not None and (isinstance(trials, bool) or not _is_whole(trials) or trials < 1):
        raise TuneError(
            f"Budget(trials={trials!r}): how many candidates may be measured, from 1 on"
        )
    if patience is not None and (not _is_whole(patience) or patience < 1):
        raise TuneError(
            f"Budget(patience={patience!r}): after how many trials without a better one to stop"
        )
    if seconds is not None and (
        isinstance(seconds, bool | str) or not _is_number(seconds) or not 0 < seconds < math.inf
    ):
        raise TuneError(f"Budget(seconds={seconds!r}): a number of seconds above 0")


def require_finite(budget: Budget) -> None:
    if budget.trials is None and budget.seconds is None:
        raise TuneError("a budget without trials and without seconds never ends; give one of them")


def require_target(target: Any, who: str) -> None:
    if target is None or isinstance(target, Target):
        return
    if isinstance(target, str):
        what = "ts.cpu()" if target == "cpu" else f"ts.cpu() or ts.Target.named({target!r})"
        raise _error(who)(f"{who}(target={target!r}) is given a text; give a target, as {what}")
    raise _error(who)(f"{who}(target=...) is given {_a(target)}; it takes a target, as ts.cpu()")


def require_database(database: Any, who: str) -> None:
    if database is None or all(hasattr(database, n) for n in ("add", "of", "best")):
        return
    if isinstance(database, str) or hasattr(database, "__fspath__"):
        place = str(database)
        raise _error(who)(
            f"{who}(database={place!r}) is given a place; open it, as ts.open_database({place!r})"
        )
    raise _error(who)(
        f"{who}(database=...) is given {_a(database)}; it takes what ts.open_database opened"
    )


def with_parts(
    parts: Any, database: Database | None, who: str
) -> tuple[Parts | None, Database | None]:
    """The parts that were given, or else those that the database was opened with; and the database
    as if it had been opened with them.
    """
    if parts is not None and not isinstance(parts, Parts):
        raise _error(who)(f"{who}(parts=...) is given {_a(parts)}; it takes a ts.Parts")
    if not isinstance(database, Explaining):
        return parts, database
    return (database.parts, database) if parts is None else (parts, database.with_parts(parts))


def require_part(part: Any, method: str, who: str, example: str, protocol: str) -> None:
    """A strategy, a space or a measurer: an object with this method."""
    if part is None:
        return
    if isinstance(part, type):
        call = f"{who}={part.__name__}()"
        raise TuneError(f"{who} is given the class {part.__name__}; give an object of it: {call}")
    if isinstance(part, str):
        raise TuneError(f"{who}={part!r} is a text; give an object, as {example}")
    if not callable(getattr(part, method, None)):
        if who == "space" and callable(part):
            name = getattr(part, "__name__", "function")
            raise TuneError(f"space is given a function; say space=ts.TemplateSpace({name})")
        raise TuneError(
            f"{who} is given {_a(part)}, which has no method {method!r}; give {example}, or an "
            f"object of your own, see tilesmith/{protocol}"
        )


def require_seed(seed: Any) -> None:
    if isinstance(seed, bool) or not _is_whole(seed) or seed < 0:
        raise TuneError(f"seed={seed!r}: it takes a whole number from 0 on")


def require_batch_size(size: Any) -> None:
    if size is not None and (isinstance(size, bool) or not _is_whole(size) or size < 1):
        raise TuneError(f"batch_size={size!r}: how many candidates are in a batch, from 1 on")


def require_observers(observers: Any) -> None:
    if callable(observers):
        raise TuneError("observers is given one function; give a list of them: observers=[watch]")
    try:
        functions = list(observers)
    except TypeError:
        raise TuneError(
            f"observers is given {_a(observers)}; it takes a list of functions"
        ) from None
    for watch in functions:
        if not callable(watch):
            raise TuneError(f"observers has {_a(watch)}, which cannot be called with a ts.Progress")


def require_search(search: Any, strategy: Any) -> None:
    if not all(callable(getattr(search, name, None)) for name in ("ask", "tell")):
        raise TuneError(
            f"start(task, sketches, rng) of {type(strategy).__name__} gave {_a(search)}; it gives "
            "a search, which has the methods ask and tell"
        )


def require_candidates(candidates: Any, search: Any) -> None:
    is_list = isinstance(candidates, tuple | list)
    if not is_list or not all(isinstance(c, Candidate) for c in candidates):
        what = _a(candidates) if not is_list else "a list of something else"
        raise TuneError(
            f"ask(n) of {type(search).__name__} gave {what}; it gives a list of up to n candidates"
        )


def _is_whole(x: Any) -> bool:
    return hasattr(x, "__index__")


def _is_number(x: Any) -> bool:
    try:
        return not math.isnan(float(x))
    except (TypeError, ValueError):
        return False


def _a(what: Any) -> str:
    """An object of the wrong type, as an error message names it."""
    text = repr(what)
    if isinstance(what, type):
        return f"the class {what.__name__}"
    kind = type(what).__name__
    return f"a {kind}" if len(text) > 40 or text.startswith("<") else f"the {kind} {text}"
