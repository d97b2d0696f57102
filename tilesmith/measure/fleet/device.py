"""A device of a fleet as a tuner sees it: what it was handed out, and what it has answered to."""

from __future__ import annotations

from dataclasses import dataclass, field
from secrets import token_hex

from tilesmith.codegen.artifact import Artifact
from tilesmith.measure.fleet.offer import Offer, why_not
from tilesmith.task.task import Candidate, Task

NO_CODE = "it runs only what it has compiled itself (see tilesmith worker --accept-code)"


@dataclass(slots=True)
class Job:
    candidate: Candidate
    losses: int = 0  # devices that were lost while they measured it
    artifact: Artifact | None = None  # if the tuner has compiled it
    is_building: bool = False  # on the tuner's machine


@dataclass(slots=True)
class Device:
    name: str
    offer: Offer
    # By which it knows this tuner. A device that comes back gets a new one, since it may still have
    # requests of the old one, which were handed out again.
    tuner: str = field(default_factory=lambda: token_hex(8))
    requests: dict[str, dict[str, Job]] = field(default_factory=dict)  # by number, then by key
    asked: float | None = None  # when the call of `collect` that it has not answered was sent
    submitted: dict[str, float] = field(default_factory=dict)  # when, without an answer, by number
    taken: dict[str, float] = field(default_factory=dict)  # when it has taken a request, by number
    refuses: dict[str, str] = field(default_factory=dict)  # why, by statement of the task

    @property
    def load(self) -> int:
        return sum(map(len, self.requests.values()))

    def waits_since(self, now: float) -> float:
        """Since when a call was not answered; now, if all were."""
        return min([*self.submitted.values(), now if self.asked is None else self.asked])

    def obstacle(self, task: Task, needs_code: bool) -> str | None:
        """Why it does not measure the task; None if it does."""
        if task.statement not in self.refuses:
            why = why_not(task.target, self.offer)
            if why is None and needs_code and not self.offer.accepts_code:
                why = NO_CODE
            if why is None:
                return None
            self.refuses[task.statement] = why
        return self.refuses[task.statement]


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds to wait for a first device, and for an answer of one; and how many devices may be
    lost with a candidate before it has failed.
    """

    first: float
    answer: float
    losses: int
