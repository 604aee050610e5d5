"""What can go wrong, as one tree.

Every error that a user can cause is one of these, and its message says what was expected, what came and what to do.
The command line prints the message alone and exits with code 2; ``assert`` is left for our own invariants.

::

    OffaxisError
    ├── ArgumentError            a value that the function does not take (also a ValueError)
    ├── HeadError                a head cannot give what is asked of it
    ├── AttachError              no output layer can be found, or more than one could be meant
    ├── MissingPackageError      an optional package is not installed (also an ImportError)
    ├── StorageError             a file cannot be written: the disk is full or the folder is not ours
    ├── DataError                images or labels that cannot be read or do not fit
    ├── DetectorError            a detector cannot do what is asked of it
    │   ├── NotFittedError       it must see training images first: call fit()
    │   ├── MissingOutputError   the network gives no cosine, no scale or not the layers that the detector reads
    │   ├── BadOutputsError      outputs or images of a wrong shape, or with NaN in them
    │   └── DetectorFileError    a saved detector is damaged, foreign or of a newer version
    ├── EvaluationError          nothing can be compared as asked: no detector fits, no set is left, no result is there
    │   └── StoreError           a results store is damaged, foreign or of a newer version
    ├── CalibrationError         p-values or a threshold cannot be had from these images
    │   ├── TooFewImagesError    not enough calibration images for the level alpha
    │   └── OverlapError         calibration images were used for training, fitting or selection
    ├── BundleError              a bundle is damaged, foreign or of a newer version, or its network cannot be rebuilt
    ├── ExportError              a bundle cannot be written as an ONNX graph
    ├── RunError                 a folder that is not a training run, or not this one
    │   └── CheckpointError      a checkpoint is damaged, foreign or belongs to other settings
    └── TrainingError            training cannot go on
        ├── NotFiniteError       the loss became NaN or infinite
        ├── ScaleCollapseError   the predicted scale fell to zero, and the gradient with it
        └── TrainingStopped      somebody asked the training to stop; its state is saved
"""


class OffaxisError(Exception):
    """The root of the tree: catch this to catch everything that offaxis raises on purpose."""


class ArgumentError(OffaxisError, ValueError):
    """A value that the function does not take."""


class HeadError(OffaxisError):
    """A head cannot give what is asked of it."""


class AttachError(OffaxisError):
    """No output layer can be found, or more than one could be meant."""


class MissingPackageError(OffaxisError, ImportError):
    """An optional package is not installed."""


class StorageError(OffaxisError, OSError):
    """A file cannot be written."""


class DataError(OffaxisError):
    """Images or labels that cannot be read or do not fit."""


class DetectorError(OffaxisError):
    """A detector cannot do what is asked of it."""


class NotFittedError(DetectorError):
    """A detector must see training images before it can score."""


class MissingOutputError(DetectorError):
    """A network does not give what the detector reads: no cosine, no scale, or not its layers."""


class BadOutputsError(DetectorError):
    """Outputs or images of a wrong shape, or with NaN or infinity in them."""


class DetectorFileError(DetectorError):
    """A saved detector is damaged, foreign or of a newer version."""


class EvaluationError(OffaxisError):
    """Nothing can be compared as asked: no detector fits the network, no set is left, or no result is there."""


class StoreError(EvaluationError):
    """A results store is damaged, foreign or of a newer version."""


class CalibrationError(OffaxisError):
    """P-values or a threshold cannot be had from these images."""


class TooFewImagesError(CalibrationError):
    """Not enough calibration images for the level alpha."""


class OverlapError(CalibrationError):
    """Calibration images were used for training, fitting or selection."""


class BundleError(OffaxisError):
    """A bundle is damaged, foreign or of a newer version, or its network cannot be rebuilt."""


class ExportError(OffaxisError):
    """A bundle cannot be written as an ONNX graph."""


class RunError(OffaxisError):
    """A folder that is not a training run, or not the one meant."""


class CheckpointError(RunError):
    """A checkpoint is damaged, foreign or belongs to other settings."""


class TrainingError(OffaxisError):
    """Training cannot go on."""


class NotFiniteError(TrainingError):
    """The loss became NaN or infinite."""


class ScaleCollapseError(TrainingError):
    """The predicted scale fell to zero, and the gradient with it."""


class TrainingStopped(TrainingError):  # noqa: N818 - a state, not a fault
    """Somebody asked the training to stop; its state is saved.

    Attributes:
        exit_code: 128 and the number of the signal, as shells count.
    """

    def __init__(self, message: str, signal_number: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = 128 + (signal_number or 15)
