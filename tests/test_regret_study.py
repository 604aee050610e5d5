"""The study of regrets: its rows, its combinations and its tables."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm

from offaxis.heads import make_head
from study import regret
from study.cases import Case, Material, is_development_place
from study.second import store
from study.second.judge import Images


def images(count: int, seed: int, shift: float = 0.0) -> Images:
    random, labels = torch.Generator().manual_seed(seed), torch.arange(count) % 4
    return Images(3 * torch.eye(12)[labels] + torch.rand(count, 12, generator=random) + shift, labels)


def test_a_case_is_collected_once_and_what_is_chosen_beside_reported_sets_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RESULTS", tmp_path / "rows")
    monkeypatch.setattr(regret, "READINGS", tmp_path / "readings")
    torch.manual_seed(0)
    material = Material(make_head("linear", 12, 4), images(200, 0), images(80, 1), {"packages": images(60, 2, 5.0)})
    case = Case("fruit", "net frozen", "linear", None, lambda: material)
    regret.collect(case, reported=False)
    rows = store.read(regret.STEP)
    assert regret.CHOSEN not in {row["detector"] for row in rows}
    assert {"knn", "energy", "mahalanobis++ shrunk"} <= {row["detector"] for row in rows}
    found = regret.stored(case)
    assert set(found) == {"crossed", "trained", "id", "ood packages"}
    scores = regret.combined(found, ("means", "mahalanobis", "discriminant", "softmax"), "normal")
    assert (scores["ood packages"].mean() - scores["id"].mean()) > 1
    regret.collect(case, reported=True)
    again = store.read(regret.STEP)
    assert [row for row in again if row["detector"] != regret.CHOSEN] == rows
    assert len(again) == len(rows) + 1


def test_p_values_are_combined_as_their_formula_says() -> None:
    known = np.arange(1.0, 100.0)
    found = {"crossed": {"a": known, "b": -known}, "id": {"a": np.array([50.0, 200.0]), "b": np.array([-50.0, -3.5])}}
    both = norm.isf(np.array([50.5, 0.5]) / 100) + norm.isf(np.array([50.5, 3.5]) / 100)
    beyond = np.log1p(np.array([0.0, 101 / known.std()]))
    np.testing.assert_allclose(regret.combined(found, ("a", "b"), "normal")["id"], both + beyond)


def test_regret_is_to_the_best_single_score_of_any_head() -> None:
    for reported in (True, False):
        found = regret.regrets(reported)
        singles = [own for (_, score), own in found.items() if score != regret.CHOSEN]
        for place in {place for own in singles for place in own}:
            assert min(own[place] for own in singles if place in own) == pytest.approx(0)
            assert is_development_place(place[0], place[3]) != reported
    mean = np.mean(list(found["cosine", regret.CHOSEN].values()))
    low, high = regret.interval(found["cosine", regret.CHOSEN])
    assert low < mean < high
