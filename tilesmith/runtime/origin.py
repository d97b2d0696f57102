"""`Origin`: where the schedule of a kernel comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a kernel's schedule comes from: a "record" of a database, a "draft" by the analytic
    score, a "schedule" as given, or the "naive" loop nest if nothing else worked.
    """

    kind: str
    seconds: float | None = None  # the record's time
    why: str = ""

    def __str__(self) -> str:
        match self.kind:
            case "record":
                seconds = self.seconds or 0.0
                text = f"the best record, {seconds * 1e6:.4g} us"
            case "draft":
                text = "a draft by the analytic score"
            case "naive":
                text = "the plain loop nest"
            case _:
                text = "the schedule as given"
        return f"{text} ({self.why})" if self.why else text


AS_GIVEN = Origin("schedule")
