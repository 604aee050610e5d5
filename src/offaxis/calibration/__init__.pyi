from offaxis.calibration.calibration import Calibration as Calibration
from offaxis.calibration.calibration import calibrate as calibrate
from offaxis.calibration.drift import DriftMonitor as DriftMonitor
