"""Evaluate detectors on networks and image sets: tuning sees validation images alone, and all are tested on the same."""

from offaxis.evaluation.evaluate import evaluate
from offaxis.evaluation.protocols import POOLS, sets_for
from offaxis.evaluation.results import NetworkRecord, Result, Results
from offaxis.evaluation.store import Store

__all__ = ["POOLS", "NetworkRecord", "Result", "Results", "Store", "evaluate", "sets_for"]
