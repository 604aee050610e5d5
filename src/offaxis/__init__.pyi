from offaxis.bundle import load as load
from offaxis.calibration.calibration import Calibration as Calibration
from offaxis.calibration.calibration import calibrate as calibrate
from offaxis.data.images import ImageSet as ImageSet
from offaxis.data.load import load_images as load_images
from offaxis.detectors.base import Detector as Detector
from offaxis.detectors.registry import register_detector as register_detector
from offaxis.embeddings import EmbeddingDetector as EmbeddingDetector
from offaxis.errors import OffaxisError as OffaxisError
from offaxis.evaluation.evaluating import evaluate as evaluate
from offaxis.evaluation.results import Results as Results
from offaxis.heads.base import Outputs as Outputs
from offaxis.heads.cosine import CosineHead as CosineHead
from offaxis.heads.linear import LinearHead as LinearHead
from offaxis.model import Model as Model
from offaxis.networks.attaching import attach as attach
from offaxis.networks.classifier import Classifier as Classifier
from offaxis.networks.combine import Ensemble as Ensemble
from offaxis.networks.combine import Paired as Paired
from offaxis.networks.open import open_network as open_network
from offaxis.prediction import Prediction as Prediction
from offaxis.prediction import Verdict as Verdict
from offaxis.training.loop import train as train
from offaxis.training.recipe import Recipe as Recipe

__version__: str
__all__: list[str]
