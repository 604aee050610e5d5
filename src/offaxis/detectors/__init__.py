"""Outputs, or images where gradients are needed -> how unfamiliar: one file a paper."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from offaxis.detectors import registry
from offaxis.detectors.ash import ASH
from offaxis.detectors.base import Detector, Passes, Reads, State
from offaxis.detectors.cosine import Cosine, CosineEnsemble
from offaxis.detectors.energy import Energy
from offaxis.detectors.gen import GEN
from offaxis.detectors.generalized_odin import GeneralizedODIN
from offaxis.detectors.isomax import IsoMaxPlus
from offaxis.detectors.knn import KNN
from offaxis.detectors.leave_out import LeaveOut
from offaxis.detectors.mahalanobis import Mahalanobis
from offaxis.detectors.max_logit import MaxLogit
from offaxis.detectors.max_softmax import MaxSoftmax
from offaxis.detectors.mean_cosine import MeanCosine
from offaxis.detectors.odin import ODIN
from offaxis.detectors.passes import fit_all, grid_scores_all, score_all
from offaxis.detectors.pytorch_ood import PyTorchOOD
from offaxis.detectors.pytorch_ood_table import TABLE
from offaxis.detectors.react import ReAct
from offaxis.detectors.registry import save_detector
from offaxis.detectors.relative_mahalanobis import RelativeMahalanobis
from offaxis.detectors.scale import SCALE
from offaxis.detectors.two_cosines import TwoCosines
from offaxis.detectors.vim import ViM
from offaxis.networks.ensemble import Ensemble, LeaveOutEnsemble
from offaxis.training.leave_out import MarginEntropyLoss, SelectOn, train_leave_out

NATIVE: dict[str, type[Detector]] = {
    kind.name: kind
    for kind in (
        Cosine,
        CosineEnsemble,
        TwoCosines,
        MeanCosine,
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
"""Our own."""

DETECTORS: dict[str, Callable[..., Detector]] = {
    **NATIVE,
    **{f"pytorch-ood-{kind.lower()}": partial(PyTorchOOD, kind=kind) for kind in TABLE},
}
"""Name -> what makes it, for the command line and for files: our own and pytorch-ood's."""


def load_detector(path: Path) -> Detector:
    """Read a detector that ``save`` wrote: it scores as the saved one did, bit for bit."""
    return registry.read_detector(path, DETECTORS)


__all__ = [
    "ASH",
    "DETECTORS",
    "GEN",
    "KNN",
    "NATIVE",
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
    "MeanCosine",
    "Passes",
    "PyTorchOOD",
    "ReAct",
    "Reads",
    "RelativeMahalanobis",
    "SelectOn",
    "State",
    "TwoCosines",
    "ViM",
    "fit_all",
    "grid_scores_all",
    "load_detector",
    "save_detector",
    "score_all",
    "train_leave_out",
]
