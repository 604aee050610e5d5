"""Compute the golden texts: the study's tables, what the paper's commands print."""

import hashlib
import re
from collections.abc import Sequence
from functools import cache

from typer.testing import CliRunner

from offaxis.cli import app
from offaxis.paper.items import ITEMS
from offaxis.paper.published import TABLES as PAPER_TABLES
from study.page import BLOCK, PAGES, filled
from study.tables import TABLES as FIRST_TABLES

from .subjects import ROOT, Json


def study_names() -> list[str]:
    """Return the tables of the first study that the pages show, as ``NAME ID``."""
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    # not those with rows of the second study, which is still growing
    first = [found for found in BLOCK.finditer(text) if found[2] in FIRST_TABLES and found[2] != "five"]
    return sorted({f"{found[2]} {found[3]}" for found in first})


def study_table(name: str) -> str:
    """Compute the text of one table out of the study's results; the working folder must be the project's root."""
    return filled(f"<!-- table {name} -->\n<!-- end -->\n")


@cache
def study() -> dict[str, str]:
    """Compute every table of the study."""
    return {name: study_table(name) for name in study_names()}


PAPER_COMMANDS = (
    ("paper",),
    *(("paper", name) for name in PAPER_TABLES),
    *(("paper", name, "--csv") for name in PAPER_TABLES),
    ("paper", "one-vs-one", "--network", "wrn-28-10", "--id", "cifar100", "--metric", "auroc"),
    ("paper", "one-vs-one", "--network", "densenet-100-12", "--metric", "accuracy_at_tpr"),
    ("paper", "less-biased", "--id", "CIFAR-10", "--metric", "aupr_in"),
    ("paper", "ensembles", "--csv", "--id", "cifar10", "--metric", "aupr_in"),
)
REPRODUCE_COMMANDS = (
    ("reproduce",),
    *(("reproduce", item, "--scale", scale, "--list") for item in ITEMS for scale in ("paper", "laptop")),
    ("reproduce", "classification", "--id", "digits", "--seeds", "1", "--network", "wrn-10-1", "--epochs", "3", "--list"),
)  # fmt: skip
NO_TERMINAL = dict.fromkeys(("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "CLICOLOR_FORCE"))


def printed(words: Sequence[str]) -> str:
    """Compute what a command prints, 100 columns wide; what is long and for programs, as its hash."""
    settings = {**NO_TERMINAL, "COLUMNS": "100", "LINES": "40", "OFFAXIS_DATA": "/nowhere", "TERM": "dumb"}
    shown = CliRunner().invoke(app, list(words), env=settings, catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    if "--csv" in words:
        lines = shown.stdout.splitlines()
        return f"{lines[0]}\n{len(lines)} lines, {hashlib.sha256(shown.stdout.encode()).hexdigest()}\n"
    return "".join(f"{line.rstrip()}\n" for line in shown.stdout.splitlines())


@cache
def paper() -> dict[str, str]:
    """Compute what ``offaxis paper`` prints for every table and some filters."""
    return {" ".join(words): printed(words) for words in PAPER_COMMANDS}


def reproduce() -> dict[str, str]:
    """Compute the plan of every table and figure: the commands that ``offaxis reproduce --list`` prints."""
    return {" ".join(words): printed(words) for words in REPRODUCE_COMMANDS}


def numbers(text: str) -> list[str]:
    """Return the numbers of a text in their order, whatever the words around them."""
    return re.findall(r"(?<![\w.])[-+]?\d+\.\d+", text)


def text_numbers() -> Json:
    """Compute the decimal numbers of the study's and the paper's tables, apart from their words."""
    groups = {"study": study, "paper": paper}
    return {group: {name: numbers(text) for name, text in texts().items()} for group, texts in groups.items()}
