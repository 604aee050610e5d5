"""Outputs of a network, or images where gradients are needed -> detection scores: one file per paper.

Larger scores = more out-of-distribution. ``DETECTORS`` holds every detector by name; ``register_detector`` adds one.
"""

from typing import TYPE_CHECKING

from offaxis.names import lazy

if TYPE_CHECKING:
    from offaxis.detectors.activation_shaping import ASH as ASH
    from offaxis.detectors.activation_shaping import SCALE as SCALE
    from offaxis.detectors.activation_shaping import ReAct as ReAct
    from offaxis.detectors.base import Detector as Detector
    from offaxis.detectors.base import Passes as Passes
    from offaxis.detectors.base import Reads as Reads
    from offaxis.detectors.base import State as State
    from offaxis.detectors.cosine import Cosine as Cosine
    from offaxis.detectors.cosine import CosineEnsemble as CosineEnsemble
    from offaxis.detectors.cosine import IsoMaxPlus as IsoMaxPlus
    from offaxis.detectors.cosine import MeanCosine as MeanCosine
    from offaxis.detectors.cosine import TwoCosines as TwoCosines
    from offaxis.detectors.fdbd import FDBD as FDBD
    from offaxis.detectors.fdbd import NCI as NCI
    from offaxis.detectors.feature_mahalanobis import MahalanobisPlusPlus as MahalanobisPlusPlus
    from offaxis.detectors.feature_mahalanobis import RelativeMahalanobis as RelativeMahalanobis
    from offaxis.detectors.feature_mahalanobis import RelativeMahalanobisPlusPlus as RelativeMahalanobisPlusPlus
    from offaxis.detectors.generalized_odin import GeneralizedODIN as GeneralizedODIN
    from offaxis.detectors.knn import KNN as KNN
    from offaxis.detectors.leave_out import LeaveOut as LeaveOut
    from offaxis.detectors.logit_scores import GEN as GEN
    from offaxis.detectors.logit_scores import Energy as Energy
    from offaxis.detectors.logit_scores import MaxLogit as MaxLogit
    from offaxis.detectors.logit_scores import MaxSoftmax as MaxSoftmax
    from offaxis.detectors.mahalanobis import Mahalanobis as Mahalanobis
    from offaxis.detectors.odin import ODIN as ODIN
    from offaxis.detectors.passes import compatible_detectors as compatible_detectors
    from offaxis.detectors.passes import fit_all as fit_all
    from offaxis.detectors.passes import make_detectors as make_detectors
    from offaxis.detectors.passes import score_all as score_all
    from offaxis.detectors.pytorch_ood import PyTorchOOD as PyTorchOOD
    from offaxis.detectors.registry import DETECTORS as DETECTORS
    from offaxis.detectors.registry import default_detector as default_detector
    from offaxis.detectors.registry import load_detector as load_detector
    from offaxis.detectors.registry import make_detector as make_detector
    from offaxis.detectors.registry import register_detector as register_detector
    from offaxis.detectors.registry import save_detector as save_detector
    from offaxis.detectors.vim import ViM as ViM
    from offaxis.names import NATIVE as NATIVE

_HOMES = {
    "ASH": "offaxis.detectors.activation_shaping",
    "Cosine": "offaxis.detectors.cosine",
    "CosineEnsemble": "offaxis.detectors.cosine",
    "DETECTORS": "offaxis.detectors.registry",
    "Detector": "offaxis.detectors.base",
    "Energy": "offaxis.detectors.logit_scores",
    "FDBD": "offaxis.detectors.fdbd",
    "GEN": "offaxis.detectors.logit_scores",
    "GeneralizedODIN": "offaxis.detectors.generalized_odin",
    "IsoMaxPlus": "offaxis.detectors.cosine",
    "KNN": "offaxis.detectors.knn",
    "LeaveOut": "offaxis.detectors.leave_out",
    "Mahalanobis": "offaxis.detectors.mahalanobis",
    "MahalanobisPlusPlus": "offaxis.detectors.feature_mahalanobis",
    "MaxLogit": "offaxis.detectors.logit_scores",
    "MaxSoftmax": "offaxis.detectors.logit_scores",
    "MeanCosine": "offaxis.detectors.cosine",
    "NATIVE": "offaxis.names",
    "NCI": "offaxis.detectors.fdbd",
    "ODIN": "offaxis.detectors.odin",
    "Passes": "offaxis.detectors.base",
    "PyTorchOOD": "offaxis.detectors.pytorch_ood",
    "ReAct": "offaxis.detectors.activation_shaping",
    "Reads": "offaxis.detectors.base",
    "RelativeMahalanobis": "offaxis.detectors.feature_mahalanobis",
    "RelativeMahalanobisPlusPlus": "offaxis.detectors.feature_mahalanobis",
    "SCALE": "offaxis.detectors.activation_shaping",
    "State": "offaxis.detectors.base",
    "TwoCosines": "offaxis.detectors.cosine",
    "ViM": "offaxis.detectors.vim",
    "compatible_detectors": "offaxis.detectors.passes",
    "default_detector": "offaxis.detectors.registry",
    "fit_all": "offaxis.detectors.passes",
    "load_detector": "offaxis.detectors.registry",
    "make_detector": "offaxis.detectors.registry",
    "make_detectors": "offaxis.detectors.passes",
    "register_detector": "offaxis.detectors.registry",
    "save_detector": "offaxis.detectors.registry",
    "score_all": "offaxis.detectors.passes",
}
__all__ = [*_HOMES]
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(__name__, _HOMES)
