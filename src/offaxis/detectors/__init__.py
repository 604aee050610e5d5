"""Outputs, or images where gradients are needed -> how unfamiliar: one file a paper."""

from pathlib import Path

from offaxis.detectors import storage
from offaxis.detectors.ash import ASH
from offaxis.detectors.cosine import Cosine
from offaxis.detectors.cosine_ensemble import CosineEnsemble
from offaxis.detectors.detector import Detector, Passes, Reads, State
from offaxis.detectors.energy import Energy
from offaxis.detectors.ensemble import Ensemble
from offaxis.detectors.gen import GEN
from offaxis.detectors.generalized_odin import GeneralizedODIN
from offaxis.detectors.isomax import IsoMaxPlus
from offaxis.detectors.knn import KNN
from offaxis.detectors.leave_out import LeaveOut, LeaveOutEnsemble, MarginEntropyLoss, train_leave_out
from offaxis.detectors.mahalanobis import Mahalanobis
from offaxis.detectors.max_logit import MaxLogit
from offaxis.detectors.max_softmax import MaxSoftmax
from offaxis.detectors.odin import ODIN
from offaxis.detectors.passes import evidence_all, fit_all, score_all
from offaxis.detectors.react import ReAct
from offaxis.detectors.relative_mahalanobis import RelativeMahalanobis
from offaxis.detectors.scale import SCALE
from offaxis.detectors.storage import save
from offaxis.detectors.vim import ViM

DETECTORS: dict[str, type[Detector]] = {
    kind.name: kind
    for kind in (
        Cosine,
        CosineEnsemble,
        MaxSoftmax,
        ODIN,
        Mahalanobis,
        LeaveOut,
        MaxLogit,
        Energy,
        GEN,
        KNN,
        ViM,
        RelativeMahalanobis,
        ReAct,
        ASH,
        SCALE,
        GeneralizedODIN,
        IsoMaxPlus,
    )
}
"""Name -> class, for the command line and for files."""


def load(path: Path) -> Detector:
    """Read a detector that ``save`` wrote: it scores as the saved one did, bit for bit."""
    return storage.load(path, DETECTORS)


__all__ = [
    "ASH",
    "DETECTORS",
    "GEN",
    "KNN",
    "ODIN",
    "SCALE",
    "Cosine",
    "CosineEnsemble",
    "Detector",
    "Energy",
    "Ensemble",
    "GeneralizedODIN",
    "IsoMaxPlus",
    "LeaveOut",
    "LeaveOutEnsemble",
    "Mahalanobis",
    "MarginEntropyLoss",
    "MaxLogit",
    "MaxSoftmax",
    "Passes",
    "ReAct",
    "Reads",
    "RelativeMahalanobis",
    "State",
    "ViM",
    "evidence_all",
    "fit_all",
    "load",
    "save",
    "score_all",
    "train_leave_out",
]
