"""ID scores -> p-values, thresholds and their guarantees; drift of a stream."""

from offaxis.calibration import conformal
from offaxis.calibration.calibrate import Calibration, calibrate
from offaxis.calibration.drift import DriftMonitor

__all__ = ["Calibration", "DriftMonitor", "calibrate", "conformal"]
