"""Our numbers beside the paper's."""

import math

import pytest

from offaxis.errors import ArgumentError
from offaxis.paper.published import Key, compare_with_paper, paper_table

SVHN: Key = ("wrn-28-10", "cifar10", "svhn", "cosine", "auroc")
TIN: Key = ("wrn-28-10", "cifar10", "tin-resize", "cosine", "auroc")


def test_rows_come_in_the_papers_order_and_say_the_difference() -> None:
    tin, svhn = compare_with_paper({SVHN: 99.0, TIN: 98.0}, "one-vs-one")
    assert (tin.ood, svhn.ood) == ("tin-resize", "svhn")
    assert (svhn.ours, svhn.paper, svhn.std) == (99.0, 99.52, 0.24)
    assert svhn.difference == pytest.approx(-0.52)


def test_the_paper_compared_with_itself_differs_nowhere() -> None:
    ours = {cell.key: cell.mean for cell in paper_table("ensembles") if cell.mean is not None}
    rows = compare_with_paper(ours, "ensembles")
    assert len(rows) == len(ours)
    assert all(row.difference == 0 for row in rows)


def test_what_the_paper_does_not_have_is_left_out() -> None:
    dash: Key = ("wrn-28-10", "cifar10", "svhn", "leave-out-published", "auroc")
    assert compare_with_paper({(*SVHN[:2], "dtd", *SVHN[3:]): 50.0}, "one-vs-one") == []
    assert compare_with_paper({dash: 50.0}, "ensembles") == []
    assert compare_with_paper({}, "time") == []


def test_a_small_relative_is_compared_with_the_papers_network() -> None:
    ours = {("wrn-10-4-half", *SVHN[1:]): 90.0}
    assert compare_with_paper(ours, "one-vs-one") == []
    [row] = compare_with_paper(ours, "one-vs-one", network="wrn-28-10")
    assert (row.network, row.paper) == ("wrn-10-4-half", 99.52)


def test_wrong_input() -> None:
    with pytest.raises(ArgumentError, match="densenet-100-12 or wrn-28-10, but got 'vgg'"):
        compare_with_paper({}, "one-vs-one", network="vgg")
    with pytest.raises(ArgumentError, match="svhn / cosine / auroc but got nan"):
        compare_with_paper({SVHN: math.nan}, "one-vs-one")
    with pytest.raises(ArgumentError, match="got 'none'"):
        compare_with_paper({SVHN: 1.0}, "none")
