"""Means, deviations and comparisons against numbers made by hand, and both less-biased views."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from offaxis.data.catalogue import Group
from offaxis.errors import ArgumentError
from offaxis.evaluation import Result
from offaxis.evaluation.protocols import (
    EMBEDDED,
    FRAME_FREE,
    FRAMED,
    sets_for,
)
from offaxis.evaluation.summary import (
    Comparison,
    Summary,
    View,
    compare_pair,
    distinguish_networks,
    largest_tests,
    less_biased_results,
    less_biased_rows,
    method_names,
    one_vs_one_results,
    reference_of,
    summarise,
    views_in,
)

SETS: dict[str, Group] = {"a": "near", "b": "far", "c": "noise"}


def result(ood: str, value: float, seed: int = 0, detector: str = "cosine", assumed: str | None = None) -> Result:
    return Result(
        network="net",
        seed=seed,
        weights=f"w{seed}",
        id="id",
        ood=ood,
        assumed=assumed,
        id_data="id",
        ood_data=ood,
        assumed_data=assumed,
        group=SETS[ood],
        detector=detector,
        setup="",
        hyperparameters={},
        state="tuned" if assumed else "none",
        passes=(1, 0),
        metrics={"auroc": value, "fpr_at_tpr95": 1 - value},
        images=(1, 1),
        scores=("", ""),
        versions={},
    )


VALUES = {("a", 0): 0.8, ("b", 0): 0.9, ("c", 0): 1.0, ("a", 1): 0.7, ("b", 1): 0.9, ("c", 1): 0.9}
FREE = [result(ood, value, seed) for (ood, seed), value in VALUES.items()]
TUNED = [
    result(tested, 0.5 + 0.1 * i + 0.01 * j + 0.001 * seed, seed, "odin", assumed)
    for i, assumed in enumerate(SETS)
    for j, tested in enumerate(SETS)
    for seed in (0, 1)
]


def one(results: list[Result], *arguments: str) -> Summary:
    [found] = summarise(results, *arguments)  # type: ignore[arg-type]
    return found


def test_seed_and_set_variance_are_kept_apart() -> None:
    summary = one(FREE)
    matrix = np.array([[0.8, 0.9, 1.0], [0.7, 0.9, 0.9]])
    whole = summary.groups["all"]
    assert whole.mean == pytest.approx(matrix.mean())
    assert whole.seed_std == pytest.approx(np.std(matrix.mean(1), ddof=1))
    assert whole.set_std == pytest.approx(np.std(matrix.mean(0), ddof=1))
    assert (whole.seeds, whole.sets) == (2, 3)
    assert summary.groups["near"].mean == pytest.approx(0.75)
    assert summary.groups["near"].set_std is None
    assert summary.groups["noise"].mean == pytest.approx(0.95)
    assert summary.rows["a"].mean == pytest.approx(0.75)
    assert summary.rows["a"].std == pytest.approx(0.05 * 2**0.5)
    assert one(FREE[:1]).groups["all"].seed_std is None


def test_seeds_that_lack_a_set_do_not_bend_the_spread() -> None:
    summary = one([*FREE, result("a", 0.0, seed=2), result("b", 0.9, seed=2)])
    assert (summary.groups["all"].seeds, summary.groups["all"].sets) == (3, 2)
    apart = one([result("a", 0.5, seed=0), result("b", 0.7, seed=1)])
    assert apart.groups["all"].mean == pytest.approx(0.6)


def test_a_fuller_test_takes_the_place_of_a_smaller_one() -> None:
    fuller = replace(
        FREE[0], metrics={"auroc": 0.1, "fpr_at_tpr95": 0.9}, images=(9, 9), id_data="more", ood_data="more"
    )
    for order in ([*FREE, fuller], [fuller, *FREE]):
        assert one(largest_tests(order)).cells[0, "a"] == 0.1


def test_the_best_comes_first_whichever_way_is_better() -> None:
    other = [result(ood, value - 0.1, seed, "max-softmax") for (ood, seed), value in VALUES.items()]
    for metric in ("auroc", "fpr_at_tpr95"):
        assert [s.detector for s in summarise([*other, *FREE], "one-vs-one", metric)] == ["cosine", "max-softmax"]


def test_the_two_protocols_share_results_without_an_assumed_set() -> None:
    assert {(r.assumed, r.ood) for r in one_vs_one_results(TUNED)} == {(s, s) for s in SETS}
    assert len(less_biased_results([*TUNED, *FREE])) == 12 + 6
    assert views_in(FREE) == views_in(one_vs_one_results(TUNED)) == ["one-vs-one"]
    assert len(views_in(TUNED)) == 3


def test_settings_of_one_detector_have_the_same_names_everywhere() -> None:
    """The second setting was tuned on other sets alone: its number does not depend on the view."""
    first = [replace(r, setup="one") for r in TUNED]
    second = [replace(r, setup="two") for r in TUNED if r.assumed != r.ood]
    names = method_names([*second, *first])
    assert {kind[3]: name for kind, name in names.items()} == {"two": "odin (tuned)", "one": "odin (tuned) #2"}
    assert [s.method for s in summarise([*second, *first])] == ["odin (tuned) #2"]
    views: tuple[View, ...] = ("less-biased by tested set", "less-biased by assumed set")
    for view in views:
        assert {s.method for s in summarise([*second, *first], view)} == {"odin (tuned)", "odin (tuned) #2"}


def test_what_differs_stands_in_the_names() -> None:
    """Records of earlier versions hold no arguments: their hyperparameters and what they were fitted on tell rows apart."""
    old = replace(FREE[0], detector="knn", state="published default")
    rows = [replace(old, setup=str(k), hyperparameters={"k": k}) for k in (10, 50)]
    assert sorted(method_names(rows).values()) == ["knn, k=10", "knn, k=50"]
    rows = [replace(old, setup=text, hyperparameters={"k": 50}, fitted_on=text) for text in ("all images", "9 images")]
    assert sorted(method_names(rows).values()) == [
        "knn (default), fitted on 9 images",
        "knn (default), fitted on all images",
    ]
    grids = [replace(TUNED[0], setup=str(e), given={"epsilons": (0.0, e)}) for e in (0.1, 0.2)]
    assert sorted(method_names(grids).values()) == ["odin, epsilons=0/0.1 (tuned)", "odin, epsilons=0/0.2 (tuned)"]
    assert method_names(grids[:1]).popitem()[1] == "odin (tuned)"
    # one row, though an earlier version called its state otherwise
    again = replace(old, setup="10", state="given", given={"k": 10}, ood="b", ood_data="b")
    assert len(summarise([replace(old, setup="10"), again])) == 1


RECIPE = {"name": "short", "epochs": 6, "learning_rate": 0.1, "clip": 1.5, "flip": True}


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({"recipe": RECIPE}, {"recipe": {**RECIPE, "epochs": 30}}, ("6 epochs", "30 epochs")),
        (
            {"recipe": RECIPE},
            {"recipe": {**RECIPE, "learning_rate": 0.01, "clip": None, "flip": False}},
            ("learning rate 0.1, clip 1.5, flip", "learning rate 0.01, no clip, no flip"),
        ),
        ({"recipe": RECIPE}, {"recipe": {**RECIPE, "name": "laptop", "epochs": 9}}, ("recipe short", "recipe laptop")),
        (
            {"head": {"name": "cosine", "start": "paper"}},
            {"head": {"name": "cosine", "start": "sizes"}},
            ("start paper", "start sizes"),
        ),
        (
            {"data": {"name": "id", "images": 100, "fingerprint": "a"}},
            {"data": {"name": "id", "images": 200, "fingerprint": "b"}},
            ("100 training images", "200 training images"),
        ),
        ({"settings": {"frozen": True}}, {"settings": {"frozen": False}}, ("frozen", "no frozen")),
        (
            {"architecture": "wrn-10-1"},
            {"architecture": "wrn-10-2"},
            ("architecture wrn-10-1", "architecture wrn-10-2"),
        ),
    ],
)
def test_networks_that_differ_by_more_than_the_seed_are_not_averaged(
    first: dict[str, Any], second: dict[str, Any], words: tuple[str, str]
) -> None:
    """Two seeds of each, of the same number and of others: two rows of two seeds."""
    one_kind = [replace(r, weights=f"a{r.seed}", **first) for r in FREE]
    for apart in (0, 2):
        other = [
            replace(r, weights=f"b{r.seed}", seed=r.seed + apart, metrics={"auroc": 0.5, "fpr_at_tpr95": 0.5}, **second)
            for r in FREE
        ]
        for results in ([*one_kind, *other], largest_tests([*one_kind, *other])):
            found = {s.network: s.groups["all"] for s in summarise(results)}
            assert found.keys() == {f"net ({text})" for text in words}
            assert {spread.seeds for spread in found.values()} == {2}
            assert found[f"net ({words[0]})"].mean == pytest.approx(np.mean(list(VALUES.values())))
            assert found[f"net ({words[1]})"].mean == 0.5


def test_what_is_not_recorded_differs_from_nothing() -> None:
    """A seed of a bundle, which records less, and one of an earlier version, whose recipe had fewer fields."""
    full = {
        "recipe": {**RECIPE, "jitter": None},
        "settings": {"loss": {"name": "cross_entropy"}, "precision": "32-true"},
    }
    seeds = [replace(r, weights=f"w{r.seed}", **(full if r.seed else {"recipe": RECIPE})) for r in FREE]
    assert [s.network for s in summarise(seeds)] == ["net"]
    assert [s.network for s in summarise([replace(r, recipe={}) if r.seed else r for r in seeds])] == ["net"]
    assert distinguish_networks(seeds) == seeds


def test_both_less_biased_views() -> None:
    tested = one(TUNED, "less-biased by tested set")
    values = [0.5 + 0.1 * i + 0.001 * seed for i in (1, 2) for seed in (0, 1)]  # assumed b and c, tested a
    assert tested.rows["a"].mean == pytest.approx(np.mean(values))
    assert tested.rows["a"].std == pytest.approx(np.std(values, ddof=1))
    assert tested.rows["a"].count == 4
    assumed = one(TUNED, "less-biased by assumed set")
    values = [0.5 + 0.01 * j + 0.001 * seed for j in (1, 2) for seed in (0, 1)]  # assumed a, tested b and c
    assert assumed.rows["a"].mean == pytest.approx(np.mean(values))
    assert assumed.groups["all"].mean == pytest.approx(tested.groups["all"].mean)
    # without hyperparameters: the tested view is one-vs-one, the assumed view the mean over the other sets
    assert one(FREE, "less-biased by tested set").rows == one(FREE).rows
    assert one(FREE, "less-biased by assumed set").rows["a"].mean == pytest.approx(np.mean([0.9, 1.0, 0.9, 0.9]))


def test_by_assumed_set_a_row_is_a_set_that_the_same_network_was_tested_on() -> None:
    other = [replace(result(ood, 0.5), id="other") for ood in ("b", "c")]
    third = [replace(result(ood, 0.5), network="third") for ood in ("a", "c")]
    rows = less_biased_rows([*[result(ood, 0.9) for ood in ("a", "b")], *other, *third], "assumed")
    assert sorted((r.id, r.network, name, r.ood) for name, r in rows) == [
        ("id", "net", "a", "b"),
        ("id", "net", "b", "a"),
        ("id", "third", "a", "c"),
        ("id", "third", "c", "a"),
        ("other", "net", "b", "c"),
        ("other", "net", "c", "b"),
    ]


def compared(first: Summary, second: Summary, resamples: int = 2000) -> Comparison:
    """Compare one pair."""
    return compare_pair(first, second, resamples=resamples)


def test_pairs_are_compared_seed_by_seed_and_set_by_set() -> None:
    other = [result(ood, value - 0.05 - 0.01 * seed, seed, "max-softmax") for (ood, seed), value in VALUES.items()]
    first, second = summarise([*FREE, *other])
    found = compared(first, second)
    assert found.difference == pytest.approx(0.055)
    assert (found.wins, found.pairs, found.seeds, found.sets) == (6, 6, 2, 3)
    assert found.interval is not None
    assert 0.05 - 1e-9 <= found.interval[0] <= 0.055 <= found.interval[1] <= 0.06 + 1e-9
    assert found.over_seeds == pytest.approx((0.05, 0.06))  # of two seeds, every resample is one of them or both
    assert found.over_sets == pytest.approx((0.055, 0.055))
    assert found.p_value == pytest.approx(0.25)  # 2 / 2^3: three sets, all of one sign
    assert found.clear
    assert compared(second, first).difference == pytest.approx(-found.difference)
    assert str(compared(first, second)) == str(found)
    assert "+5.50 points of auroc" in str(found)
    assert not compared(first, first).clear
    alone = one(FREE[:1])
    assert compared(alone, first).interval is None
    assert reference_of([second, first]) is first
    assert reference_of([second]) is second
    with pytest.raises(ArgumentError, match="in common"):
        compared(one([result("a", 1.0, seed=8)]), first)


def test_the_smaller_value_wins_where_the_metric_is_an_error() -> None:
    other = [result(ood, value - 0.05, seed, "max-softmax") for (ood, seed), value in VALUES.items()]
    better, worse = summarise([*FREE, *other], metric="fpr_at_tpr95")
    assert (better.detector, better.metric) == ("cosine", "fpr_at_tpr95")
    assert compared(better, worse).difference == pytest.approx(-0.05)
    assert (compared(better, worse).wins, compared(worse, better).wins) == (6, 0)
    assert compared(better, better).wins == 0


def test_an_interval_covers_what_it_should() -> None:
    """Fifteen sets with differences from N(0.02, 0.05): the interval holds the mean in about 95 of 100 cases."""
    draw = np.random.default_rng(0)
    names = [f"s{i}" for i in range(15)]
    base = one([result("a", 0.5)])
    held = 0
    for _ in range(200):
        cells = {(0, n): 0.02 + 0.05 * float(v) for n, v in zip(names, draw.standard_normal(15), strict=True)}
        zero = Summary(**{**base.__dict__, "cells": dict.fromkeys(cells, 0.0)})
        found = compared(Summary(**{**base.__dict__, "cells": cells}), zero, resamples=500)
        assert found.interval is not None
        held += found.interval[0] <= 0.02 <= found.interval[1]
    assert 0.86 <= held / 200 <= 0.99


def test_the_papers_pools() -> None:
    assert len(FRAME_FREE) == len(FRAMED) == 13  # with STL-10, which CIFAR-10 has no use for
    assert set(FRAME_FREE) - set(FRAMED) == {"tin-crop-free", "lsun-crop-free"}
    names, left_out = sets_for("cifar10", ["paper-frame-free"], "/nowhere")
    assert names == ["gaussian", "uniform"]
    assert "nine of STL-10's" in left_out["stl10"]
    assert left_out["svhn"] == "it is not on this machine"
    assert sets_for("digits", ["embedded", "mnist"])[0] == [*EMBEDDED, "mnist"]
    assert "digits" not in sets_for("digits", ["here"])[0]
    with pytest.raises(ArgumentError, match="at least one OOD set"):
        sets_for("digits", [])
