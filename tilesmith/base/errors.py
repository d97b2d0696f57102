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


class VerifyError(TilesmithError):
    """A Function violates an invariant of the loop IR."""


class TargetError(TilesmithError):
    """A target is unknown, or lacks what was requested."""


class BuildError(TilesmithError):
    """A Function cannot be compiled for this target."""


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
