"""A verdict for one image: bundle, batch scoring, ONNX graph, HTTP service with its page."""

from offaxis.deploy.bundle import read, save
from offaxis.deploy.model import Model, Prediction, Verdict
from offaxis.deploy.preprocessing import Preprocessing

__all__ = ["Model", "Prediction", "Preprocessing", "Verdict", "read", "save"]
