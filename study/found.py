"""What the study's store holds of some networks."""

from collections.abc import Sequence

from offaxis.evaluation import Result, Store
from offaxis.jobs import TrainingRun
from offaxis.reproduce.tables import results_of
from study.steps import KEPT, SEEDS, chain_for, main_runs

GROUPS = ("near", "far", "noise", "all")
"""Of OOD sets."""


def of(id_name: str, runs: Sequence[TrainingRun], ood: Sequence[str], combined: bool = False) -> list[Result]:
    """Results of some networks on some sets; the sets that they were tuned on may be others."""
    found = results_of(chain_for(id_name, KEPT), runs, None, combined)
    return [r for r in found if r.ood in ood]


def mains(id_name: str) -> list[TrainingRun]:
    """The networks of all seeds, standard and cosine."""
    return [run for seed in SEEDS for run in main_runs(id_name, seed)]


def there(id_name: str, runs: Sequence[TrainingRun]) -> bool:
    """Whether the study has come to these networks yet."""
    known = {record.origin for record in Store.existing(chain_for(id_name, KEPT).store).networks()}
    return {run.name for run in runs} <= known
