"""Read the paper's tables out of its LaTeX source into ``src/offaxis/paper/data``.

The source is not part of the project: it comes with arXiv:1905.10628.

    python scripts/transcribe_paper.py PAPER.TEX
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from offaxis.files import write_text
from offaxis.paper.published import PaperCell, as_csv

DATA = Path(__file__).parents[1] / "src" / "offaxis" / "paper" / "data"

LABELS = {
    "classification": "classification_results",
    "one-vs-one-main": "single_ood_result2",
    "ablation": "ablation_study",
    "time": "calculation_time",
    "less-biased": "OOD_detection_result_less_biased",
    "less-biased-framed": "less_biased_orig_cropped",
    "one-vs-one": "OOD_detection_result_one_vs_one",
    "ensembles": "OOD_detection_result_ens",
}
NETWORKS = {"DenseBC": "densenet-100-12", "Dense-BC": "densenet-100-12", "WRN-28-10": "wrn-28-10"}
ID_SETS = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100", "C-10": "cifar10", "C-100": "cifar100"}
OOD_SETS = {
    "TIN (c)": "tin-crop",
    "TIN (c)*": "tin-crop-free",
    "TIN (r)": "tin-resize",
    "TinyIm (c)": "tin-crop",
    "TinyIm (c)*": "tin-crop-free",
    "TinyIm (r)": "tin-resize",
    "LSUN (c)": "lsun-crop",
    "LSUN (c)*": "lsun-crop-free",
    "LSUN (r)": "lsun-resize",
    "iSUN": "isun",
    "SVNH": "svhn",
    "SVHN": "svhn",
    "Food-101": "food101",
    "STL-10": "stl10",
    "MNIST": "mnist",
    "F-MNIST": "fashion-mnist",
    "NotMNIST": "notmnist",
    "Gaussian": "gaussian",
    "Gausian": "gaussian",
    "Uniform": "uniform",
}
DETECTORS = {
    "Base": "max-softmax",
    "Baseline": "max-softmax",
    "ODIN": "odin",
    "Maha": "mahalanobis",
    "Mahalanobis": "mahalanobis",
    "Cosine": "cosine",
    "Ours": "cosine",
}
ENSEMBLES = {"Leave-out[38]": "leave-out-published", "Leave-out*": "leave-out", "Ours": "cosine-ensemble"}
METRICS = ("accuracy_at_tpr", "auroc", "aupr_in")


def main() -> None:
    """Write every table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paper", type=Path, help="the LaTeX source")
    source = parser.parse_args().paper.read_text(encoding="utf-8")
    for name, cells in transcribe(source).items():
        write_text(DATA / f"{name}.csv", as_csv(cells))


def transcribe(source: str) -> dict[str, list[PaperCell]]:
    """LaTeX -> the cells of every table."""
    return {name: list(_cells(name, list(rows(source, label)))) for name, label in LABELS.items()}


def rows(source: str, label: str) -> Iterator[list[str]]:
    """The rows of a table as their cells' LaTeX; rules are left out."""
    body = source[source.index(f"\\label{{table:{label}}}") :]
    body = body[body.index("\\begin{tabular}") : body.index("\\end{tabular}")]
    body = re.sub(r"^\\begin\{tabular\}\{c+\}", "", body)
    body = re.sub(r"\\(toprule|midrule|bottomrule|cmidrule(\(l\))?(\{[\d-]+\})?)", "", body)
    for row in body.split("\\\\"):
        if row.strip():
            yield [cell.strip() for cell in row.split("&")]


def text(cell: str) -> str:
    """A cell without its LaTeX: the innermost argument of every command is what is printed."""
    cell = re.sub(r"\\cite\{\w+\}", "", cell).replace("~", " ")
    cell = re.sub(r"\\rotatebox\[[^]]*\]\{\d+\}|\\multirow\{\d+\}\{\*\}|\\multicolumn\{\d+\}\{c\}|\\textbf", "", cell)
    cell = cell.replace("\\cmark", "yes").replace("\\xmark", "no")
    return " ".join(cell.replace("{", "").replace("}", "").split())


def _cells(name: str, table: list[list[str]]) -> Iterator[PaperCell]:
    if name == "ablation":
        yield from _ablation(name, table[1:])
        return
    packed = name not in (
        "classification",
        "one-vs-one-main",
        "time",
    )  # several methods in a cell, with slashes between
    header = text(table[1][-1]).split("/") if packed else [text(cell) for cell in table[1]]
    if name == "ensembles":
        header = text(table[2][-1]).split("/")
    methods = [method.strip() for method in header if method.strip()]
    network = id_set = ood = ""
    for row in table[3 if name == "ensembles" else 2 :]:
        names, values = _split(row, 3 if packed else len(methods))
        if names[0]:
            network = names[0]
        if len(names) > 1 and names[1]:
            id_set = names[1]
        if len(names) > 2:
            ood = names[2]
        for column, value in enumerate(values):
            parts = value.split("/") if packed else [value]
            for number, part in enumerate(parts):
                metric = (
                    METRICS[column] if packed else {"classification": "accuracy", "time": "seconds"}.get(name, "auroc")
                )
                yield _cell(name, network, id_set, ood, methods[number if packed else column], metric, part)


def _split(row: list[str], values: int) -> tuple[list[str], list[str]]:
    return [text(cell) for cell in row[:-values]], row[-values:]


def _ablation(name: str, table: list[list[str]]) -> Iterator[PaperCell]:
    for row in table:
        number = text(row[0])
        parts = [text(cell) for cell in row[1:-2]]
        made_of = parts[0] if len(parts) == 1 else "cosine {}, single FC {}, scale {}, w/o WD {}".format(*parts)
        for id_set, value in zip(("C-10", "C-100"), row[-2:], strict=True):
            printed = f"{number} {made_of}"
            yield _cell(name, "WRN-28-10", id_set, "TIN (r)", printed, "auroc", value)


def _cell(name: str, network: str, id_set: str, ood: str, method: str, metric: str, value: str) -> PaperCell:
    printed = text(value)
    found = re.fullmatch(r"(\d+\.\d\d)(?:\((\d+\.\d\d)\))?|-", printed)
    if found is None:
        raise SystemExit(f"{name}: {printed!r} is no number")
    return PaperCell(
        table=name,
        network=NETWORKS[network],
        id=ID_SETS[id_set] if id_set else "",
        ood=OOD_SETS[ood] if ood else "",
        method=_method(name, method),
        metric=metric,
        mean=float(found[1]) if found[1] else None,
        std=float(found[2]) if found[2] else None,
        bold="\\textbf" in value,
        printed=printed,
        printed_network=network,
        printed_id=id_set,
        printed_ood=ood,
        printed_method=method,
    )


def _method(table: str, printed: str) -> str:
    if table == "ablation":
        return "row-" + printed[1 : printed.index(")")]
    if table == "classification":
        return {"Standard": "linear", "Cosine": "cosine"}[printed]
    return (ENSEMBLES if table == "ensembles" else DETECTORS)[printed]


if __name__ == "__main__":
    main()
