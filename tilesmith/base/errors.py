"""The errors a user can meet. Every message names the thing, says why, and says what would be
right.
"""


class TilesmithError(Exception):
    """Root of all errors that are the caller's to mend."""


class ExpressionError(TilesmithError):
    """A computation that cannot be stated this way."""


class ScheduleError(TilesmithError):
    """A primitive that is illegal here, or names something that is not there."""


class TraceError(TilesmithError):
    """A trace that cannot be read."""


class VerifyError(TilesmithError):
    """A Function that breaks a rule of the loop IR."""


class TargetError(TilesmithError):
    """A target that is unknown, or cannot do what was asked."""


class BuildError(TilesmithError):
    """A Function that cannot be compiled for this target."""


class ArgumentError(TilesmithError, ValueError):
    """An array that does not fit the kernel's parameter."""


class RecordsError(TilesmithError):
    """A database that cannot be opened, read or written."""


class MeasureError(TilesmithError):
    """Measuring itself does not work; a candidate that fails is a Failure instead."""


class TuneError(TilesmithError):
    """A tuning run that could not do what was asked of it."""


class GraphError(TilesmithError):
    """A model that cannot be read, or that nothing here can run."""
