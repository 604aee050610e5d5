"""A verdict for one image: bundle, batch scoring, ONNX graph, HTTP service with its page."""

from offaxis.deploy.bundle import load, save_bundle
from offaxis.deploy.model import Model, Prediction, Verdict
from offaxis.deploy.preprocessing import Preprocessing

__all__ = ["Model", "Prediction", "Preprocessing", "Verdict", "load", "save_bundle"]
