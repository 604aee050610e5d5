"""Detectors x networks x sets -> Results, honestly: tuning sees validation images alone, and all are tested on the same."""

from offaxis.protocols.candidates import make_detectors
from offaxis.protocols.evaluation import evaluate
from offaxis.protocols.parts import Divided, at_most, divide
from offaxis.protocols.pools import POOLS, sets_for
from offaxis.protocols.result import NetworkRecord, Result
from offaxis.protocols.store import Store
from offaxis.protocols.subject import Subject, ensemble, leave_out_ensemble, normalised, open_network, paired

__all__ = [
    "POOLS",
    "Divided",
    "NetworkRecord",
    "Result",
    "Store",
    "Subject",
    "at_most",
    "divide",
    "ensemble",
    "evaluate",
    "leave_out_ensemble",
    "make_detectors",
    "normalised",
    "open_network",
    "paired",
    "sets_for",
]
