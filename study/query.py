"""Results and records of the study's store, by network."""

from collections.abc import Sequence

from offaxis.evaluation import NetworkRecord, Result
from offaxis.options import TrainOptions
from offaxis.paper import tables
from study.steps import KEPT, SEEDS, chain_for, main_runs

GROUPS = ("near", "far", "noise", "all")
"""The groups of OOD sets, in the order of the tables."""


def results_for(id_name: str, runs: Sequence[TrainOptions], ood: Sequence[str], combined: bool = False) -> list[Result]:
    """Return the results of some networks on some sets; the sets that they were tuned on may be others."""
    results = tables.results_of(chain_for(id_name, KEPT), runs, None, combined)
    return [r for r in results if r.ood in ood]


def main_networks(id_name: str) -> list[TrainOptions]:
    """Return the networks of all seeds, standard and cosine."""
    return [run for seed in SEEDS for run in main_runs(id_name, seed)]


def records_of(id_name: str, runs: Sequence[TrainOptions], combined: bool = False) -> list[NetworkRecord]:
    """Return the records of some networks; with ``combined``, of the one network that they were combined into."""
    return tables.records_of(chain_for(id_name, KEPT), runs, combined)


def is_evaluated(id_name: str, runs: Sequence[TrainOptions]) -> bool:
    """Return whether the store has all of these networks."""
    return len(records_of(id_name, runs)) == len(set(runs))
