"""Detectors as an evaluation runs them: with a digest of their arguments and of what they are fitted on."""

from dataclasses import dataclass

from offaxis.detectors import Detector
from offaxis.files import digest


@dataclass(frozen=True)
class DetectorRun:
    """A detector that takes part in an evaluation.

    Attributes:
        detector: fitted or not; the evaluation fits what needs it.
        setup: a digest of the arguments that it was made with.
        tuned: whether it is reported tuned on OOD images too, beside the values that it was given.
        fitted_on: the training images that it is fitted on; empty where it needs none.
    """

    detector: Detector
    setup: str
    tuned: bool
    fitted_on: str = ""

    @property
    def name(self) -> str:
        """Names its files in a store."""
        return f"{self.detector.name}-{self.setup[:8]}"


def detector_run(detector: Detector, tune: bool = True, fitted_on: str = "") -> DetectorRun:
    """A detector as it is before it is fitted, and what it will be fitted on."""
    learned = fitted_on if detector.needs_fit else ""
    setup = digest([detector.name, detector.arguments, learned])
    return DetectorRun(detector, setup, tune and bool(detector.grid), learned)
