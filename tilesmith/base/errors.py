"""The errors a user can cause. Every message names the thing, says why it is wrong, and what would
be right.
"""


class TilesmithError(Exception):
    """The base class of all errors that the caller can fix."""


class ExpressionError(TilesmithError):
    """A computation is not stated correctly."""


class ScheduleError(TilesmithError):
    """A primitive is illegal here, or refers to something that does not exist."""


class TraceError(TilesmithError):
    """A trace cannot be read."""


class MissingPartError(TraceError):
    """A trace needs a part that was not given: `part` says which, as "the primitive 'square'"."""

    def __init__(self, text: str, part: str = "") -> None:
        super().__init__(text)
        self.part = part


class VerifyError(TilesmithError):
    """A Function violates an invariant of the loop IR."""


class TargetError(TilesmithError):
    """A target is unknown, or lacks what was requested."""


class BuildError(TilesmithError):
    """A Function cannot be compiled for this target."""


class DeviceError(TilesmithError):
    """A GPU refused a kernel, or failed while it ran one.

    `kind` is "refused" (the device is as usable as before), "memory" (it has not enough), or
    "fault": nothing runs on the device any more in this process.
    """

    def __init__(self, text: str, kind: str = "refused") -> None:
        super().__init__(text)
        self.kind = kind


class ArgumentError(TilesmithError, ValueError):
    """An argument is invalid, such as an array that does not fit the kernel's parameter."""


class RecordsError(TilesmithError):
    """A database cannot be opened, read or written."""


class MeasureError(TilesmithError):
    """Measuring itself does not work. A candidate that fails is a Failure instead."""


class TuneError(TilesmithError):
    """A tuning run that could not do what was asked of it."""


class GraphError(TilesmithError):
    """A model that cannot be read, or that nothing here can run."""


class AssertionFailedError(GraphError, RuntimeError):
    """An assertion of a model does not hold."""


class RangeError(GraphError, IndexError):
    """A model is given, or computes, an index that is outside of what it reads or writes."""
