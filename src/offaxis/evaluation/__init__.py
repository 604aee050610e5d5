"""Detectors x networks x sets -> Results, honestly: tuning sees validation images alone, and all are tested on the same."""

from offaxis.deploy.open import EvaluatedNetwork, combine, normalised, open_network
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
    "combine",
    "evaluate",
    "normalised",
    "open_network",
    "sets_for",
]
