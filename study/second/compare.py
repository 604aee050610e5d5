"""Two methods side by side, seed by seed and set by set: what pages say of a difference is read off this table.

    python -m study.second.compare cifar10 cosine-paper:two-cosines logitnorm:max-softmax
    python -m study.second.compare fruit cosine:two-cosines linear:energy --step photos
    python -m study.second.compare cifar10 cosine:knn linear:knn --step finetune --network "resnet20-cifar fine-tuned"

A method is HEAD:SCORE by its names in the store. Nothing is trained: the rows are the committed ones.
"""

import argparse
from collections.abc import Sequence
from statistics import fmean

from offaxis.errors import ArgumentError
from offaxis.reports.tables import Entry, Table, markdown
from study.second import store
from study.second.tables import HEADS, MAIN, SCORES, Method, by_method, by_seed, gap_over_seeds, groups_of, interval


def compared(rows: Sequence[store.Row], id_name: str, first: Method, second: Method) -> Table:
    """Return a row for each group of OOD sets: both methods by seed, and how far the first is ahead.

    Args:
        rows: of networks that were trained alike.
        id_name: the ID set.
        first: a head and a score.
        second: what it is compared with.

    Raises:
        ArgumentError: a method has no rows.
    """
    found = by_method(rows)
    for method in (first, second):
        if method not in found:
            known = ", ".join(sorted(f"{head}:{score}" for head, score in found)) or "none"
            raise ArgumentError(f"Expected a method with rows but got {':'.join(method)}. Those of {id_name}: {known}.")
    made: list[list[Entry]] = []
    for title, sets in groups_of(id_name).items():
        ours, theirs = (by_seed(found[method], sets) for method in (first, second))
        pairs = [(by_seed(found[first], (name,)), by_seed(found[second], (name,))) for name in sets]
        gaps = [fmean(a.values()) - fmean(b.values()) for a, b in pairs if a and b]
        values = [", ".join(f"{value:.1f}" for value in each.values()) for each in (ours, theirs)]
        made.append([title, *values, gap_over_seeds(ours, theirs), interval(gaps)])
    names = [f"{HEADS.get(head, head)}, {SCORES[score]}" for head, score in (first, second)]
    return Table(
        name="compared",
        title=f"{id_name}, AUROC in percent by seed, and how far {names[0]} is ahead",
        columns=("OOD sets", *names, "95 % interval over seeds", "over sets"),
        rows=made,
    )


def _method(text: str) -> Method:
    head, _, score = text.partition(":")
    return head, score


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("id")
    parser.add_argument("first", type=_method)
    parser.add_argument("second", type=_method)
    parser.add_argument("--step", default="scratch", help="of the store; %(default)s if not given")
    parser.add_argument("--network", help="the ID set's main network from scratch, else any, if not given")
    options = parser.parse_args()
    network = options.network or (MAIN.get(options.id) if options.step == "scratch" else None)
    only = {"network": network} if network else {}
    rows = list(store.select(store.read(options.step), id=options.id, unseen=None, **only))
    try:
        print(markdown(compared(rows, options.id, options.first, options.second)))
    except ArgumentError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
