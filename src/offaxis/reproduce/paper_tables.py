"""What tables the paper has, and what a reader must know of each."""

from dataclasses import dataclass

from offaxis.errors import ArgumentError
from offaxis.reproduce.paper import Cell, read

CITATION = (
    "Techapanurak, Suganuma, Okatani. Hyperparameter-Free Out-of-Distribution Detection Using Softmax of Scaled Cosine "
    "Similarity. 2019, arXiv:1905.10628"
)


@dataclass(frozen=True)
class Table:
    """A table of the paper.

    Attributes:
        name: what offaxis calls it.
        number: its number in the paper, the supplement's going on after the paper's.
        title: what it shows, in our words.
        notes: what its numbers do not say by themselves.
    """

    name: str
    number: int
    title: str
    notes: tuple[str, ...] = ()


_ROWS = (
    "A row names the set that was tested. The supplement says that it names the assumed set, but the rows of Baseline and "
    "Ours have the means of the one-vs-one table, all of them, so the numbers of ODIN and Mahalanobis are means over the "
    "sets that were assumed, and their deviations are over these sets and the five networks."
)

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        Table(
            "classification",
            1,
            "Classification accuracy (%) with a standard and with a cosine head",
            ("Mean and standard deviation of five trainings.",),
        ),
        Table(
            "one-vs-one-main",
            2,
            "AUROC (%), one-vs-one: tuned on the set that is tested",
            ("The nine sets of the main paper; `one-vs-one` has all sets and three metrics.",),
        ),
        Table(
            "ablation",
            3,
            "AUROC (%) of TIN (r) against CIFAR, ten variants of the head",
            (
                "Row 1 has 89.22 and 76.59 where the one-vs-one tables have 89.21 and 76.67 for the same network and set, and "
                "row 8 has 97.66 where they have 97.65: all are kept as printed.",
            ),
        ),
        Table("time", 4, "Seconds for a batch of 128 images"),
        Table(
            "less-biased",
            5,
            "Less-biased evaluation, crops without their frame (TIN (c)*, LSUN (c)*)",
            (_ROWS, "There is no row for WRN-28-10, CIFAR-100 and Uniform."),
        ),
        Table(
            "less-biased-framed",
            6,
            "Less-biased evaluation, crops with their black frame (TIN (c), LSUN (c))",
            (_ROWS,),
        ),
        Table(
            "one-vs-one",
            7,
            "One-vs-one evaluation: tuned on the set that is tested, three metrics",
            ("Mean and standard deviation of five trainings.",),
        ),
        Table(
            "ensembles",
            8,
            "Ensembles of five networks, one-vs-one",
            (
                "leave-out-published is what the leave-out paper reports (a dash where it does not), leave-out what the "
                "authors measured with public code, chosen on iSUN.",
                "The AUPR of leave-out looks like one with as many OOD as ID images counted (SVHN: AUROC 94.39, AUPR 95.06, "
                "with 26,032 images against 10,000): it cannot be compared with the other columns.",
            ),
        ),
    )
}


def table(name: str) -> list[Cell]:
    """The cells of a table, in the order in which they are printed.

    Example:
        >>> [cell.printed for cell in table("time") if cell.method == "cosine"]
        ['0.08', '0.22']
    """
    if name not in TABLES:
        raise ArgumentError(f"Expected a table of the paper out of {', '.join(TABLES)} but got {name!r}.")
    return list(read(name))
