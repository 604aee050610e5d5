"""Runs -> their results in the store."""

from collections.abc import Sequence

from offaxis.data import CATALOGUE
from offaxis.errors import EvaluationError
from offaxis.evaluation import Result, Store
from offaxis.evaluation.pools import POOLS
from offaxis.reproduce.commands import Chain, Run


def names_of(ood: Sequence[str]) -> set[str]:
    """The sets that names and pools stand for."""
    return {name for entry in ood for name in POOLS.get(entry, (entry,))}


def results_of(
    chain: Chain, runs: Sequence[Run], ood: Sequence[str] | None = None, together: bool = False
) -> list[Result]:
    """The results of some networks on some sets, assumed sets included.

    Args:
        chain: whose store it is.
        runs: the networks; with ``together`` one network made of all.
        ood: names of sets or pools; None for all.
        together: whether the runs are the members of one network.

    Raises:
        EvaluationError: there are none.
    """
    store = Store.existing(chain.store)
    origins = {", ".join(run.name for run in runs)} if together else {run.name for run in runs}
    keys = {record.key for record in store.networks() if record.origin in origins}
    sets = names_of(ood) if ood is not None else set(CATALOGUE)
    found = [
        r for r in store.results() if r.weights in keys and r.ood in sets and (r.assumed is None or r.assumed in sets)
    ]
    if not found:
        raise EvaluationError(
            f"There are no results of {', '.join(sorted(origins))} in {chain.store} yet: run the steps first."
        )
    return found
