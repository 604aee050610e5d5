"""Detectors x networks x sets -> Results, honestly: tuning sees validation images alone, and all are tested on the same."""

from offaxis.deploy.open import EvaluatedNetwork, ensemble, leave_out_ensemble, normalised, open_network, paired
from offaxis.evaluation.evaluate import evaluate
from offaxis.evaluation.protocols import POOLS, sets_for
from offaxis.evaluation.results import NetworkRecord, Result
from offaxis.evaluation.store import Store

__all__ = [
    "POOLS",
    "EvaluatedNetwork",
    "NetworkRecord",
    "Result",
    "Store",
    "ensemble",
    "evaluate",
    "leave_out_ensemble",
    "normalised",
    "open_network",
    "paired",
    "sets_for",
]
