"""Outputs of a network, or images where gradients are needed -> detection scores: one file per paper.

Larger scores = more out-of-distribution. ``DETECTORS`` holds every detector by name; ``register_detector`` adds one.
"""

from offaxis.detectors.activation_shaping import ASH, SCALE, ReAct
from offaxis.detectors.base import Detector, Passes, Reads, State
from offaxis.detectors.cosine import Cosine, CosineEnsemble, IsoMaxPlus, MeanCosine, TwoCosines
from offaxis.detectors.fdbd import FDBD, NCI
from offaxis.detectors.feature_mahalanobis import MahalanobisPlusPlus, RelativeMahalanobis, RelativeMahalanobisPlusPlus
from offaxis.detectors.generalized_odin import GeneralizedODIN
from offaxis.detectors.knn import KNN
from offaxis.detectors.leave_out import LeaveOut
from offaxis.detectors.logit_scores import GEN, Energy, MaxLogit, MaxSoftmax
from offaxis.detectors.mahalanobis import Mahalanobis
from offaxis.detectors.odin import ODIN
from offaxis.detectors.passes import compatible_detectors, fit_all, make_detectors, score_all
from offaxis.detectors.pytorch_ood import PyTorchOOD
from offaxis.detectors.registry import (
    DETECTORS,
    NATIVE,
    default_detector,
    load_detector,
    make_detector,
    register_detector,
    save_detector,
)
from offaxis.detectors.vim import ViM

__all__ = [
    "ASH",
    "DETECTORS",
    "FDBD",
    "GEN",
    "KNN",
    "NATIVE",
    "NCI",
    "ODIN",
    "SCALE",
    "Cosine",
    "CosineEnsemble",
    "Detector",
    "Energy",
    "GeneralizedODIN",
    "IsoMaxPlus",
    "LeaveOut",
    "Mahalanobis",
    "MahalanobisPlusPlus",
    "MaxLogit",
    "MaxSoftmax",
    "MeanCosine",
    "Passes",
    "PyTorchOOD",
    "ReAct",
    "Reads",
    "RelativeMahalanobis",
    "RelativeMahalanobisPlusPlus",
    "State",
    "TwoCosines",
    "ViM",
    "compatible_detectors",
    "default_detector",
    "fit_all",
    "load_detector",
    "make_detector",
    "make_detectors",
    "register_detector",
    "save_detector",
    "score_all",
]
