"""Calls of cost models, feature extractors and mutators, which a user may have written. An invalid
result or an exception becomes an error that names the object and says what it must return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilesmith.base.errors import TilesmithError, TuneError
from tilesmith.base.given import a
from tilesmith.search.features.machine import Values
from tilesmith.search.protocol import (
    Corrector,
    CostModel,
    Experienced,
    FeatureExtractor,
    Mutator,
    Part,
    Predictor,
    Scores,
)
from tilesmith.space.domains import Matrix, Rng
from tilesmith.space.variant import Variant
from tilesmith.task.task import Candidate, Measurement


def require_counts(settings: object, least: int, *names: str) -> None:
    """Raises unless these settings of a strategy or model are at least so many."""
    for name in names:
        if (value := getattr(settings, name)) < least:
            who = type(settings).__name__
            raise TuneError(f"{who}({name}={value!r}): {name} is at least {least}")


def require_shares(settings: object, *names: str) -> None:
    for name in names:
        if not 0 <= (value := getattr(settings, name)) <= 1:
            who = type(settings).__name__
            raise TuneError(f"{who}({name}={value!r}): {name} is a share, from 0 to 1")


def fit(model: CostModel, measurements: Sequence[Measurement]) -> Predictor | None:
    if not callable(getattr(model, "fit", None)):
        raise TuneError(
            f"the cost model is {a(model)}; it must be an object with fit(measurements), such "
            "as ts.Gbdt(), or None"
        )
    predictor = _call(model, "fit", lambda: model.fit(measurements))
    if predictor is not None and not callable(getattr(predictor, "predict", None)):
        raise TuneError(
            f"{type(model).__name__}.fit returned {a(predictor)}; it must return an object "
            "with predict(variant, rows), or None if it cannot learn from so little"
        )
    return predictor  # type: ignore[no-any-return]


def predict(predictor: Predictor, variant: Variant, rows: Matrix) -> Scores:
    scores = _call(predictor, "predict", lambda: predictor.predict(variant, rows))
    return _scores(predictor, "predict", scores, len(rows))


def with_base(predictor: Corrector, parts: Sequence[Part]) -> tuple[Scores, Scores]:
    both = _call(predictor, "with_base", lambda: predictor.with_base(parts))
    if not isinstance(both, tuple) or len(both) != 2:
        raise TuneError(
            f"{type(predictor).__name__}.with_base returned {a(both)}; it must return two "
            "arrays, what it predicts and what its base does"
        )
    count = sum(len(rows) for _, rows in parts)
    own, base = (_scores(predictor, "with_base", x, count) for x in both)
    return own, base


def familiar(model: Experienced) -> Sequence[Candidate]:
    returned = _call(model, "familiar", model.familiar)
    candidates = list(returned) if isinstance(returned, Sequence) else [returned]
    for c in candidates:
        if not isinstance(c, Candidate):
            raise TuneError(
                f"{type(model).__name__}.familiar returned {a(c)}; it must return a sequence "
                "of candidates"
            )
    return candidates


def require_extractor(extractor: FeatureExtractor) -> None:
    if isinstance(extractor, type) or not callable(getattr(extractor, "extract", None)):
        raise TuneError(
            f"features is {a(extractor)}; it must be an object with extract(variant, rows), "
            "such as ts.StatementFeatures() or ts.RelationFeatures()"
        )


def features(extractor: FeatureExtractor, variant: Variant, rows: Matrix) -> Values:
    returned = _call(extractor, "extract", lambda: extractor.extract(variant, rows))
    name = f"{type(extractor).__name__}.extract"
    wanted = f"it must return finite numbers of shape ({len(rows)}, statements, width)"
    values: Values = _array(returned, np.float32, name, wanted)
    if values.ndim != 3 or len(values) != len(rows) or 0 in values.shape[1:]:
        what = a(returned) if values.ndim == 0 else f"an array of shape {values.shape}"
        raise TuneError(f"{name} returned {what}; {wanted}")
    if not np.isfinite(values).all():
        raise TuneError(f"{name} returned numbers that are not finite; {wanted}")
    return values


def require_width(extractor: FeatureExtractor, width: int, others: Sequence[Values]) -> None:
    """The features of all variants must have the same width, so that one model can be fitted."""
    if others and others[0].shape[1] != width:
        raise TuneError(
            f"{type(extractor).__name__}.extract returned features of different widths, "
            f"{others[0].shape[1]} and {width} with the base's score; the width must be the same "
            "for all variants"
        )


def require_mutators(mutators: Sequence[Mutator]) -> None:
    wanted = "give a tuple of objects with mutate(variant, rng, rows), such as ts.ChangeDecisions()"
    if not isinstance(mutators, tuple | list) or not mutators:
        raise TuneError(f"mutators is {a(mutators)}; {wanted}")
    for m in mutators:
        if isinstance(m, type) or not callable(getattr(m, "mutate", None)):
            raise TuneError(f"mutators has {a(m)}; {wanted}")


def mutate(mutator: Mutator, variant: Variant, rng: Rng, rows: Matrix) -> Matrix:
    """The mutated rows. Results that are not rows of the variant are replaced by the original."""
    returned = _call(mutator, "mutate", lambda: mutator.mutate(variant, rng, rows.copy()))
    shape, dtype = getattr(returned, "shape", None), getattr(returned, "dtype", None)
    if shape != rows.shape or dtype is None or not np.issubdtype(dtype, np.integer):
        raise TuneError(
            f"{type(mutator).__name__}.mutate returned {a(returned)}; it must return whole "
            f"numbers of shape {rows.shape}, as it is given"
        )
    return variant.rows_or(np.asarray(returned, np.int32), rows)


def _scores(who: object, method: str, returned: Any, count: int) -> Scores:
    """One finite number for each of `count` rows."""
    name = f"{type(who).__name__}.{method}"
    wanted = f"it must return an array of {count} finite numbers, one for each row"
    scores: Scores = _array(returned, np.float64, name, wanted)
    if returned is None or scores.shape != (count,):
        what = a(returned) if scores.ndim == 0 else f"an array of shape {scores.shape}"
        raise TuneError(f"{name} returned {what}; {wanted}")
    good = np.isfinite(scores)
    if not good.all():
        at = int(np.argmin(good))
        raise TuneError(f"{name} returned {scores[at]} for row {at}; {wanted}")
    return scores


def _array(returned: Any, dtype: type, name: str, wanted: str) -> Any:
    try:
        return np.asarray(returned, dtype)
    except (TypeError, ValueError) as error:
        raise TuneError(f"{name} returned {a(returned)} ({error}); {wanted}") from None


def _call(who: object, method: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except TilesmithError:
        raise
    except Exception as e:
        raise TuneError(
            f"{type(who).__name__}.{method} raised {type(e).__name__}: {e}; its traceback is above"
        ) from e
