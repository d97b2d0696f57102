"""Calls of cost models, feature extractors and mutators, which a user may have written. A call
returns what the object returned, or raises an error that names the object and says what is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilesmith.base.errors import TilesmithError, TuneError
from tilesmith.search.features.machine import Values
from tilesmith.search.mutators import ChangeDecisions
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


def require_extractor(extractor: FeatureExtractor) -> None:
    if isinstance(extractor, type) or not callable(getattr(extractor, "extract", None)):
        raise TuneError(
            f"features is {_words(extractor)}; it must be an object with extract(variant, rows), "
            "such as ts.StatementFeatures() or ts.RelationFeatures()"
        )


def features(extractor: FeatureExtractor, variant: Variant, rows: Matrix) -> Values:
    found = _call(extractor, "extract", lambda: extractor.extract(variant, rows))
    name = f"{type(extractor).__name__}.extract"
    wanted = f"it must return finite numbers of shape ({len(rows)}, statements, width)"
    values: Values = _array(found, np.float32, name, wanted)
    if values.ndim != 3 or len(values) != len(rows) or 0 in values.shape[1:]:
        what = _words(found) if values.ndim == 0 else f"an array of shape {values.shape}"
        raise TuneError(f"{name} returned {what}; {wanted}")
    if not np.isfinite(values).all():
        raise TuneError(f"{name} returned numbers that are not finite; {wanted}")
    return values


def require_width(extractor: FeatureExtractor, width: int, others: Sequence[Values]) -> None:
    """Features of all variants have the same width, or no model could be fitted to them."""
    if others and others[0].shape[1] != width:
        raise TuneError(
            f"{type(extractor).__name__}.extract returned features of different widths, "
            f"{others[0].shape[1]} and {width} with the base's score; the width must be the same "
            "for all variants"
        )


def require_mutators(mutators: Sequence[Mutator]) -> None:
    wanted = "give a tuple of objects with mutate(variant, rng, rows), such as ts.ChangeDecisions()"
    if not isinstance(mutators, tuple | list) or not mutators:
        raise TuneError(f"mutators is {_words(mutators)}; {wanted}")
    for m in mutators:
        if isinstance(m, type) or not callable(getattr(m, "mutate", None)):
            raise TuneError(f"mutators has {_words(m)}; {wanted}")


def mutate(mutator: Mutator, variant: Variant, rng: Rng, rows: Matrix) -> Matrix:
    """The mutated rows; those that are not rows of the variant stay as they were."""
    if isinstance(mutator, ChangeDecisions):  # its rows are valid
        return mutator.mutate(variant, rng, rows)
    found = _call(mutator, "mutate", lambda: mutator.mutate(variant, rng, rows.copy()))
    shape, dtype = getattr(found, "shape", None), getattr(found, "dtype", None)
    if shape != rows.shape or dtype is None or not np.issubdtype(dtype, np.integer):
        raise TuneError(
            f"{type(mutator).__name__}.mutate returned {_words(found)}; it must return whole "
            f"numbers of shape {rows.shape}, as it is given"
        )
    return variant.rows_or(np.asarray(found, np.int32), rows)


def _scores(who: object, method: str, found: Any, count: int) -> Scores:
    """One finite number for each of `count` rows."""
    name = f"{type(who).__name__}.{method}"
    wanted = f"it must return an array of {count} finite numbers, one for each row"
    scores: Scores = _array(found, np.float64, name, wanted)
    if found is None or scores.shape != (count,):
        what = _words(found) if scores.ndim == 0 else f"an array of shape {scores.shape}"
        raise TuneError(f"{name} returned {what}; {wanted}")
    good = np.isfinite(scores)
    if not good.all():
        at = int(np.argmin(good))
        raise TuneError(f"{name} returned {scores[at]} for row {at}; {wanted}")
    return scores


def _array(found: Any, dtype: type, name: str, wanted: str) -> Any:
    try:
        return np.asarray(found, dtype)
    except (TypeError, ValueError):
        raise TuneError(f"{name} returned {_words(found)}; {wanted}") from None


def _call(who: object, method: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except TilesmithError:
        raise
    except Exception as e:
        raise TuneError(
            f"{type(who).__name__}.{method} raised {type(e).__name__}: {e}; its traceback is above"
        ) from e


def _words(x: object) -> str:
    text = repr(x)
    return f"{text[:60]}{'...' if len(text) > 60 else ''} (a {type(x).__name__})"
