"""Evaluate detectors on networks and image sets: tuning sees validation images alone, and all are tested on the same.

``evaluate`` is imported when it is first used, so that stored results can be read and reported without torch.
"""

from typing import TYPE_CHECKING, Any

from offaxis.evaluation.protocols import POOLS, sets_for
from offaxis.evaluation.results import NetworkRecord, Result, Results
from offaxis.evaluation.store import Store

if TYPE_CHECKING:
    from offaxis.evaluation.evaluating import evaluate

__all__ = ["POOLS", "NetworkRecord", "Result", "Results", "Store", "evaluate", "sets_for"]


def __getattr__(name: str) -> Any:
    """Import ``evaluate`` at its first use."""
    if name != "evaluate":
        raise AttributeError(f"module 'offaxis.evaluation' has no attribute {name!r}")
    from offaxis.evaluation.evaluating import evaluate

    return evaluate
