"""Calls of a cost model that a user may have written: what it returns comes out, or one error that
names the model and says what is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilesmith.base.errors import TilesmithError, TuneError
from tilesmith.search.protocol import Corrector, CostModel, Experienced, Part, Predictor, Scores
from tilesmith.space.domains import Matrix
from tilesmith.space.variant import Variant
from tilesmith.task.task import Candidate, Measurement


def fit(model: CostModel, measurements: Sequence[Measurement]) -> Predictor | None:
    if not callable(getattr(model, "fit", None)):
        raise TuneError(
            f"the cost model is {_words(model)}; it must be an object with fit(measurements), such "
            "as ts.Gbdt(), or None"
        )
    found = _call(model, "fit", lambda: model.fit(measurements))
    if found is not None and not callable(getattr(found, "predict", None)):
        raise TuneError(
            f"{type(model).__name__}.fit returned {_words(found)}; it must return an object with "
            "predict(variant, rows), or None if it cannot learn from so little"
        )
    return found  # type: ignore[no-any-return]


def predict(predictor: Predictor, variant: Variant, rows: Matrix) -> Scores:
    found = _call(predictor, "predict", lambda: predictor.predict(variant, rows))
    return _scores(predictor, "predict", found, len(rows))


def with_base(predictor: Corrector, parts: Sequence[Part]) -> tuple[Scores, Scores]:
    found = _call(predictor, "with_base", lambda: predictor.with_base(parts))
    if not isinstance(found, tuple) or len(found) != 2:
        raise TuneError(
            f"{type(predictor).__name__}.with_base returned {_words(found)}; it must return two "
            "arrays, what it predicts and what its base does"
        )
    count = sum(len(rows) for _, rows in parts)
    own, base = (_scores(predictor, "with_base", x, count) for x in found)
    return own, base


def familiar(model: Experienced) -> Sequence[Candidate]:
    found = _call(model, "familiar", model.familiar)
    known = list(found) if isinstance(found, Sequence) else [found]
    for c in known:
        if not isinstance(c, Candidate):
            raise TuneError(
                f"{type(model).__name__}.familiar returned {_words(c)}; it must return a sequence "
                "of candidates"
            )
    return known


def _scores(who: object, method: str, found: Any, count: int) -> Scores:
    """One finite number for each of `count` rows."""
    name = f"{type(who).__name__}.{method}"
    wanted = f"it must return an array of {count} finite numbers, one for each row"
    try:
        scores: Scores = np.asarray(found, np.float64)
    except (TypeError, ValueError):
        raise TuneError(f"{name} returned {_words(found)}; {wanted}") from None
    if found is None or scores.shape != (count,):
        what = _words(found) if scores.ndim == 0 else f"an array of shape {scores.shape}"
        raise TuneError(f"{name} returned {what}; {wanted}")
    good = np.isfinite(scores)
    if not good.all():
        at = int(np.argmin(good))
        raise TuneError(f"{name} returned {scores[at]} for row {at}; {wanted}")
    return scores


def _call(who: object, method: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except TilesmithError:
        raise
    except Exception as e:
        raise TuneError(
            f"{type(who).__name__}.{method} raised {type(e).__name__}: {e}; the traceback of the "
            "cost model is above"
        ) from e


def _words(x: object) -> str:
    text = repr(x)
    return f"{text[:60]}{'...' if len(text) > 60 else ''} (a {type(x).__name__})"
