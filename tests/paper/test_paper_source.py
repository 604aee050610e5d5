"""Every cell against the paper's source, read by a second parser that shares nothing with the first.

The first (``scripts/transcribe_paper.py``) splits rows and columns; this one walks along the lines and picks numbers. The
source is not part of the project: ``OFFAXIS_PAPER`` points at it.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from offaxis.paper.published import TABLES, paper_table

SOURCE = os.environ.get("OFFAXIS_PAPER")
pytestmark = pytest.mark.skipif(SOURCE is None, reason="OFFAXIS_PAPER does not point at the paper's LaTeX source")

Found = tuple[str, str, str, str, str, str, bool]
"""network, id, ood, method, metric, printed, bold."""

FOUR = ("max-softmax", "odin", "mahalanobis", "cosine")
PAPERS_ORDER = {  # of methods along a line, and whether metrics change first
    "one-vs-one-main": FOUR,
    "one-vs-one": FOUR,
    "less-biased": FOUR,
    "less-biased-framed": FOUR,
    "ensembles": ("leave-out-published", "leave-out", "cosine-ensemble"),
    "time": ("mahalanobis", "odin", "cosine"),
    "classification": ("linear", "cosine"),
}
NUMBER = re.compile(r"(\\textbf\{)?(?<![\w-])(\d+\.\d\d(?:\(\d+\.\d\d\))?|-(?=~))")


def _lines() -> dict[int, list[str]]:
    """The lines of the n-th table environment."""
    tables: dict[int, list[str]] = {}
    inside = False
    for line in Path(SOURCE or "").read_text(encoding="utf-8").splitlines():
        if line.strip().startswith("\\begin{table}"):
            inside = True
            tables[len(tables) + 1] = []
        elif line.strip().startswith("\\end{table}"):
            inside = False
        elif inside:
            tables[len(tables)].append(line)
    return tables


def _ood(line: str) -> str:
    name = re.search(r"(TinyIm|TIN|LSUN) \((c|r)\)(\*?)", line)
    if name:
        kind = {"c": "crop", "r": "resize"}[name[2]]
        return ("lsun" if name[1] == "LSUN" else "tin") + f"-{kind}" + ("-free" if name[3] else "")
    word = re.search(r"(i|SV|Food|STL|F-|Not)?(SUN|NH|HN|-101|-10|MNIST)|Gaus+ian|Uniform", line.split("rotatebox")[-1])
    assert word, line
    plain = word[0].lower().replace("gausian", "gaussian").replace("svnh", "svhn").replace("f-mnist", "fashion-mnist")
    return plain.replace("-101", "101").replace("-10", "10")


def _read(name: str, lines: list[str]) -> Iterator[Found]:
    methods = PAPERS_ORDER[name]
    network = id_name = ""
    for line in lines:
        if re.search(r"Dense-?BC", line):
            network = "densenet-100-12"
        elif "WRN-28-10" in line:
            network = "wrn-28-10"
        for found in re.findall(r"CIFAR-(100?)\b", line):
            id_name = "cifar" + found
        numbers = [(printed, bool(bold)) for bold, printed in NUMBER.findall(line)]
        if not numbers or "resizebox" in line or "vskip" in line:
            continue
        assert len(numbers) in (len(methods), 3 * len(methods)), line
        metrics = ("accuracy_at_tpr", "auroc", "aupr_in") if len(numbers) == 3 * len(methods) else ("auroc",)
        if name in ("time", "classification"):
            metrics = ("seconds",) if name == "time" else ("accuracy",)
        ood = "" if name in ("time", "classification") else _ood(line.split("multirow")[-1])
        for place, (printed, bold) in enumerate(numbers):
            metric, method = metrics[place // len(methods)], methods[place % len(methods)]
            yield network, "" if name == "time" else id_name, ood, method, metric, printed, bold


def _ablation(lines: list[str]) -> Iterator[Found]:
    for line in lines:
        row = re.match(r"\s*\((\d+)\)", line)
        if row:
            one, other = NUMBER.findall(line)
            for id_name, (bold, printed) in (("cifar10", one), ("cifar100", other)):
                yield "wrn-28-10", id_name, "tin-resize", f"row-{row[1]}", "auroc", printed, bool(bold)


@pytest.mark.parametrize("name", TABLES)
def test_every_cell(name: str) -> None:
    lines = _lines()
    assert len(lines) == len(TABLES)
    mine = lines[TABLES[name].number]
    read = list(_ablation(mine) if name == "ablation" else _read(name, mine))
    assert read == [(*cell.key, cell.printed, cell.bold) for cell in paper_table(name)]
