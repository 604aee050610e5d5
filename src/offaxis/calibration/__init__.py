"""ID scores -> p-values, thresholds and their guarantees; drift of a stream."""

from typing import TYPE_CHECKING

from offaxis.names import lazy

if TYPE_CHECKING:
    from offaxis.calibration.calibration import Calibration as Calibration
    from offaxis.calibration.calibration import calibrate as calibrate
    from offaxis.calibration.drift import DriftMonitor as DriftMonitor

_HOMES = {
    "Calibration": "offaxis.calibration.calibration",
    "DriftMonitor": "offaxis.calibration.drift",
    "calibrate": "offaxis.calibration.calibration",
}
__all__ = [*_HOMES]
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(__name__, _HOMES)
