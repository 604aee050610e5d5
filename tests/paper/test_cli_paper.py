"""``offaxis paper`` as a user types it."""

import csv
import io

import pytest
from typer.testing import CliRunner, Result

from offaxis.cli import app
from offaxis.errors import ArgumentError
from offaxis.paper.published import TABLES, paper_table


def run(*words: str, width: int = 80) -> Result:
    return CliRunner().invoke(app, ["paper", *words], env={"COLUMNS": str(width)})


def test_without_a_table_all_are_listed() -> None:
    shown = run()
    assert shown.exit_code == 0
    for name in TABLES:
        assert sum(line.split()[:1] == [name] for line in shown.output.splitlines()) == 1


@pytest.mark.parametrize("name", TABLES)
def test_every_number_is_shown_within_80_columns(name: str) -> None:
    shown = run(name)
    assert shown.exit_code == 0, shown.exception
    assert max(map(len, shown.output.splitlines())) <= 80
    assert "…" not in shown.output
    words = shown.output.split()
    for cell in paper_table(name):
        assert cell.printed.partition("(")[0] in words


def test_filters_take_our_names_and_the_papers() -> None:
    ours = run("one-vs-one", "--network", "wrn-28-10", "--id", "cifar100", "--metric", "auroc").output
    assert ours == run("one-vs-one", "--network", "WRN-28-10", "--id", "CIFAR-100", "--metric", "AUROC").output
    assert "97.52 (0.41)" in ours
    assert "densenet" not in ours
    assert "accuracy" not in ours.casefold()


def test_csv_can_be_read_by_programs() -> None:
    shown = run("ensembles", "--csv", "--id", "cifar10", "--metric", "aupr_in").output
    rows = list(csv.DictReader(io.StringIO(shown)))
    assert len(rows) == 2 * 14 * 3
    [row] = [
        row for row in rows if (row["network"], row["ood"], row["method"]) == ("densenet-100-12", "svhn", "leave-out")
    ]
    assert (row["mean"], row["printed_ood"]) == ("95.06", "SVHN")


def test_what_a_reader_must_know_stands_below() -> None:
    assert "cannot be compared" in " ".join(run("ensembles").output.split())
    for name in ("less-biased", "less-biased-framed"):
        assert "names the set that was tested" in " ".join(run(name).output.split())
    assert "no row for WRN-28-10, CIFAR-100 and Uniform" in " ".join(run("less-biased").output.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tables"], "Expected a table of the paper out of classification, .*ensembles but got 'tables'"),
        (["one-vs-one", "--metric", "f1"], "--metric to be one of accuracy_at_tpr, auroc, aupr_in but got 'f1'"),
        (["one-vs-one", "--network", "vgg"], "--network to be one of densenet-100-12, wrn-28-10 but got 'vgg'"),
        (["time", "--id", "cifar10"], "no column id: leave out --id cifar10"),
    ],
)
def test_wrong_words(words: list[str], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        raise run(*words).exception or AssertionError("no error")


def test_help_shows_an_example() -> None:
    assert "offaxis paper one-vs-one" in run("--help", width=120).output
