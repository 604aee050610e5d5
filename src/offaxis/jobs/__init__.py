"""Trainings and evaluations by name, as typed settings: what ``offaxis train``, ``evaluate`` and ``reproduce`` call.

Importing this is cheap: what runs networks is imported inside the functions.
"""

from offaxis.jobs.evaluation import (
    BENCHMARKS,
    EvaluationRun,
    Kind,
    ProtocolName,
    evaluate_run,
    evaluation_words,
    export_published,
    open_runs,
)
from offaxis.jobs.training import Note, train_run
from offaxis.jobs.training_settings import Precision, RecipeOverrides, Start, TrainingRun, training_words

__all__ = [
    "BENCHMARKS",
    "EvaluationRun",
    "Kind",
    "Note",
    "Precision",
    "ProtocolName",
    "RecipeOverrides",
    "Start",
    "TrainingRun",
    "evaluate_run",
    "evaluation_words",
    "export_published",
    "open_runs",
    "train_run",
    "training_words",
]
