"""The exceptions of offaxis, as one tree, and checks of numbers that raise them.

Every error that a user can cause is one of these, and its message says what was expected, what was given and what to do.
The command line prints the message alone and exits with code 2; ``assert`` is left for internal invariants.

::

    OffaxisError
    ├── ArgumentError            an argument has an invalid value (also a ValueError)
    ├── HeadError                a head does not support the requested output
    ├── AttachError              no output layer was found, or more than one matches
    ├── MissingPackageError      an optional package is not installed (also an ImportError)
    ├── StorageError             a file cannot be written: disk full or no permission (also an OSError)
    ├── ServerError              the service cannot listen on its address (also an OSError)
    ├── DataError                images or labels cannot be read or do not match
    ├── DetectorError            a detector cannot be used as requested
    │   ├── NotFittedError       the detector must see training images first: call fit()
    │   ├── MissingOutputError   the network gives no cosine, no scale or not the layers that the detector reads
    │   ├── BadOutputsError      outputs or images have a wrong shape or contain NaN
    │   └── DetectorFileError    a saved detector is damaged, not a detector or of a newer version
    ├── EvaluationError          the evaluation is not possible: no compatible detector, no dataset or no result
    │   └── StoreError           a results store is damaged, not a store or of a newer version
    ├── CalibrationError         p-values or a threshold cannot be computed from these images
    │   ├── TooFewImagesError    not enough calibration images for the level alpha
    │   └── OverlapError         calibration images were used for training, fitting or selection
    ├── BundleError              a bundle is damaged, not a bundle or of another version, or its network cannot be rebuilt
    ├── ExportError              a bundle cannot be written as an ONNX graph
    ├── RunError                 a folder is not a training run, or not the expected one
    │   └── CheckpointError      a checkpoint is damaged, not a checkpoint or belongs to other settings
    └── TrainingError            training cannot continue
        ├── NotFiniteError       the loss became NaN or infinite
        ├── ScaleCollapseError   the predicted scale fell to zero, and the gradient with it
        └── TrainingStopped      training was interrupted by a signal; its state is saved
"""

import math
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real
from typing import Any


class OffaxisError(Exception):
    """The base class: catch it to catch every error that offaxis raises on purpose."""


class ArgumentError(OffaxisError, ValueError):
    """An argument has an invalid value."""


class HeadError(OffaxisError):
    """A head does not support the requested output."""


class AttachError(OffaxisError):
    """No output layer was found, or more than one matches."""


class MissingPackageError(OffaxisError, ImportError):
    """An optional package is not installed."""


class StorageError(OffaxisError, OSError):
    """A file cannot be written: the disk is full, or the folder is not writable."""


class ServerError(OffaxisError, OSError):
    """The service cannot listen on its address: the port is in use or not permitted."""


class DataError(OffaxisError):
    """Images or labels cannot be read or do not match."""


class DetectorError(OffaxisError):
    """A detector cannot be used as requested."""


class NotFittedError(DetectorError):
    """A detector must see training images before it can score."""


class MissingOutputError(DetectorError):
    """A network gives no cosine, no scale or not the layers that the detector reads."""


class BadOutputsError(DetectorError):
    """Outputs or images have a wrong shape, or contain NaN or infinity."""


class DetectorFileError(DetectorError):
    """A saved detector is damaged, not a detector or of a newer version."""


class EvaluationError(OffaxisError):
    """The evaluation is not possible: no compatible detector, no dataset or no result."""


class StoreError(EvaluationError):
    """A results store is damaged, not a store or of a newer version."""


class CalibrationError(OffaxisError):
    """P-values or a threshold cannot be computed from these images."""


class TooFewImagesError(CalibrationError):
    """Not enough calibration images for the level alpha."""


class OverlapError(CalibrationError):
    """Calibration images were used for training, fitting or selection."""


class BundleError(OffaxisError):
    """A bundle is damaged, not a bundle or of another version, or its network cannot be rebuilt."""


class ExportError(OffaxisError):
    """A bundle cannot be written as an ONNX graph."""


class RunError(OffaxisError):
    """A folder is not a training run, or not the expected one."""


class CheckpointError(RunError):
    """A checkpoint is damaged, not a checkpoint or belongs to other settings."""


class TrainingError(OffaxisError):
    """Training cannot continue."""


class NotFiniteError(TrainingError):
    """The loss became NaN or infinite."""


class ScaleCollapseError(TrainingError):
    """The predicted scale fell to zero, and the gradient with it."""


class TrainingStopped(TrainingError):  # noqa: N818 - a state, not a fault
    """Training was interrupted by a signal; its state is saved.

    Attributes:
        exit_code: 128 plus the signal number, the convention of shells.
    """

    def __init__(self, message: str, signal_number: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = 128 + (signal_number or 15)


def _require_number(name: str, value: Any, holds: Callable[[Any], bool], wanted: str) -> float:
    """Return a number for which ``holds`` is true, one of Python's, which can be stored; or raise ArgumentError."""
    known: Any = Real  # a type checker holds no float for a Real
    if isinstance(value, bool) or not isinstance(value, known) or not holds(value):
        raise ArgumentError(f"Expected argument `{name}` to be {wanted} but got {value!r}.")
    return value if isinstance(value, (int, float)) else float(value)


def positive(name: str, value: float) -> float:
    """Return a finite number above zero, or raise ArgumentError."""
    return _require_number(name, value, lambda number: 0 < number < math.inf, "a positive number")


def not_negative(name: str, value: float) -> float:
    """Return a finite number, zero or above, or raise ArgumentError."""
    return _require_number(name, value, lambda number: 0 <= number < math.inf, "zero or a positive number")


def fraction(name: str, value: float) -> float:
    """Return a number in [0, 1), or raise ArgumentError."""
    return _require_number(name, value, lambda number: 0 <= number < 1, "a fraction in [0, 1)")


def true_or_false(name: str, value: bool) -> bool:
    """Return a value once it is a boolean.

    Raises:
        ArgumentError: it is something else, such as a word, which would count as True.
    """
    if not isinstance(value, bool):
        raise ArgumentError(f"Expected argument `{name}` to be True or False but got {value!r}.")
    return value


def at_least_one(name: str, value: int) -> int:
    """Return a whole number of at least one, or raise ArgumentError."""
    whole = isinstance(value, Integral)
    return int(_require_number(name, value, lambda number: whole and number >= 1, "a whole number of at least 1"))


def channel_std(value: Sequence[float] | None) -> tuple[float, ...] | None:
    """Return the positive standard deviation of each channel, or None where images were not divided; or raise."""
    return None if value is None else values_to_try("std", value, zero=False)


def values_to_try(name: str, values: Iterable[float], zero: bool = True) -> tuple[float, ...]:
    """Return one or more finite numbers above zero, or also zero, such as those that tuning tries; or raise ArgumentError."""
    given: Any = values  # from the command line it may be a number or a word
    try:
        numbers = () if isinstance(given, str) else tuple(float(value) for value in given)
    except (TypeError, ValueError, OverflowError):
        numbers = ()
    if not numbers or not all(0 < n < math.inf or (zero and n == 0) for n in numbers):
        kind = "zero or positive numbers" if zero else "positive numbers"
        raise ArgumentError(f"Expected argument `{name}` to list {kind}, at least one, but got {values!r}.")
    return numbers
