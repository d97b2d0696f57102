"""What is known of a model in narrow numbers: the type of each layer, its time, what it loses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isnan, nan

from tilesmith.base.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class LayerNote:
    """A layer of the model, by the name of its node there. `error` is the root of the mean square
    of what it alone loses, over that of its results, on calibration inputs. `share` is its part of
    the square of the network's error, and `seconds` its time in the chosen type; NaN where that is
    not known. `why` says what kept it from narrower numbers.
    """

    name: str
    precision: str
    error: float
    share: float = nan
    seconds: float = nan
    why: str = ""

    def __str__(self) -> str:
        text = f"{self.name}: {self.precision}, error {self.error:.2g}"
        return f"{text}; {self.why}" if self.why else text


@dataclass(frozen=True, slots=True)
class PrecisionReport:
    """The layers of a compiled model, and the error of its outputs against float32 on the
    calibration inputs: the largest over the largest value. `accuracy` is its bound, if one was
    asked for.
    """

    layers: tuple[LayerNote, ...] = ()
    error: float = nan
    accuracy: float | None = None

    @staticmethod
    def of(stated: PrecisionReport, made: Iterable[PrecisionReport]) -> PrecisionReport:
        """What was stated of a model, or else what passes say of its parts."""
        if stated.layers:
            return stated
        notes = {n.name: n for r in made for n in r.layers}
        return PrecisionReport(tuple(notes.values())) if notes else stated

    def table(self, seconds: Mapping[str, float], match: str = "") -> list[str]:
        """Lines of text, of the layers in whose name all words of a text occur. `seconds` has times
        by the names of layers that the notes have not.
        """
        if not self.layers:
            return []
        counts: dict[str, int] = {}
        for n in self.layers:
            counts[n.precision] = counts.get(n.precision, 0) + 1
        lines = [
            f"layers: {', '.join(f'{count} in {kind}' for kind, count in counts.items())}"
            + self._whole(),
            f"{'us':>10} {'error':>8} {'share':>6}  {'type':8}  layer",
        ]
        for n in self.layers:
            if not all(word in n.name for word in match.split()):
                continue
            time = seconds.get(n.name, nan) if isnan(n.seconds) else n.seconds
            why = f" ({n.why})" if n.why else ""
            lines.append(
                f"{_number(1e6 * time, '.1f'):>10} {_number(n.error, '.2g'):>8} "
                f"{_number(100 * n.share, '.1f', '%'):>6}  {n.precision:8}  {n.name}{why}"
            )
        return lines

    def _whole(self) -> str:
        if isnan(self.error):
            return ""
        bound = "" if self.accuracy is None else f", at most {self.accuracy:g} was asked for"
        return f"; the outputs differ from float32 by {self.error:.2g} of the largest{bound}"


WHOLE = PrecisionReport()  # of a model in float32


def _number(x: float, form: str, unit: str = "") -> str:
    return "-" if isnan(x) else f"{x:{form}}{unit}"
