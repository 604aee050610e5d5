"""Deploy a trained network: open and combine networks, calibrated models, bundles, ONNX graphs, batch scoring."""

from offaxis.deploy.bundle import load, save_bundle
from offaxis.deploy.model import Model, Prediction, Verdict
from offaxis.deploy.preprocessing import Preprocessing

__all__ = ["Model", "Prediction", "Preprocessing", "Verdict", "load", "save_bundle"]
