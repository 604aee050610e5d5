"""The second study: its split, its rows and its tables."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from offaxis.errors import ArgumentError
from offaxis.heads import make_head
from offaxis.metrics import auroc
from offaxis.reports.tables import Table
from offaxis.training.recipe import recipe_of
from study.page import TABLES
from study.second import answers, scratch, store, tables
from study.second.compare import compared
from study.second.corruptions import rates
from study.second.judge import Images, fitted, judge, scores_of
from study.second.sets import (
    CHOICES,
    CLASSES,
    DEVELOPMENT,
    DEVELOPMENT_CHOICES,
    REPORTED,
    is_development,
    unseen_classes,
)
from study.steps import LONGER_EPOCHS, longer_runs, name_of


def test_no_set_is_in_both_parts_of_the_split() -> None:
    for id_name, sets in DEVELOPMENT.items():
        assert not set(sets) & set(REPORTED[id_name])
        assert id_name not in (*sets, *REPORTED[id_name])
    for id_name, choices in CHOICES.items():
        drawn = [unseen_classes(id_name, choice) for choice in (*choices, *DEVELOPMENT_CHOICES)]
        assert len(set(drawn)) == len(drawn)
        assert all(0 <= c < CLASSES[id_name] for classes in drawn for c in classes)
    assert is_development("fruit", "packages")
    assert is_development("fruit", "unseen-101")
    assert not is_development("fruit", "vegetables")
    assert not is_development("fruit", "unseen-0")


def some_images(count: int, seed: int, shift: float = 0.0) -> Images:
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 4
    centres = torch.eye(12)[:4] * 3
    return Images(centres[labels] + torch.rand(count, 12, generator=random) + shift, labels)


def test_a_head_is_judged_by_every_score_that_it_can_feed() -> None:
    torch.manual_seed(0)
    far = some_images(60, 2, 5.0)
    rows, scores = judge(make_head("cosine", 12, 4), some_images(200, 0), some_images(80, 1), {"far": far})
    assert set(rows[0]) == {"accuracy", "id_images"}
    found = {row["detector"]: row for row in rows[1:]}
    assert {"cosine", "two-cosines", "knn", "mahalanobis++", "mahalanobis++ shrunk", "energy"} <= set(found)
    assert not {"isomax", "generalized-odin"} & set(found)
    assert found["mahalanobis++"]["auroc"] > 0.9
    assert found["knn"]["ood_images"] == 60
    assert auroc(scores["id"]["knn"], scores["far"]["knn"]) == pytest.approx(found["knn"]["auroc"], abs=1e-5)


def test_recalibrating_on_a_mix_moves_the_threshold_and_not_the_score() -> None:
    torch.manual_seed(0)
    head, training = make_head("linear", 12, 4), some_images(200, 0)
    clean, far = some_images(400, 1), some_images(100, 2, 3.0)
    test = {"clean": clean, "shifted": Images(clean.features + 0.4, clean.labels)}
    detectors = fitted(head, training, ("knn",))
    before, after = rates(head, detectors, test, {"far": far})
    assert (before["ood"], after["ood"]) == ("clean", "mixed")
    assert before["flagged"]["clean"] < 0.12 < before["flagged"]["shifted"]
    assert after["flagged"]["shifted"] < before["flagged"]["shifted"]
    assert after["found"]["far"] <= before["found"]["far"]
    other_half = torch.randperm(400, generator=torch.Generator().manual_seed(3))[200:]
    scores = [scores_of(head, detectors, images)["knn"] for images in (clean, test["shifted"], far)]
    mixed = np.where(np.arange(200) % 2, scores[1][other_half], scores[0][other_half])
    assert before["auroc"]["far"] == pytest.approx(auroc(scores[0][other_half], scores[2]), abs=1e-5)
    assert after["auroc"]["far"] == pytest.approx(auroc(mixed, scores[2]), abs=1e-5)


def test_classes_are_left_out() -> None:
    images = some_images(40, 0)
    known = images.of_classes([0, 3])
    assert known.labels is not None
    assert known.labels.tolist() == [0, 1] * 10
    assert torch.equal(known.features, images.features[torch.isin(images.labels, torch.tensor([0, 3]))])  # type: ignore[arg-type]


def test_rows_are_replaced_and_kept_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "RESULTS", tmp_path)
    network = {"id": "fruit", "network": "n", "head": "linear", "seed": 1, "unseen": None}
    store.replace("step", network, [{"accuracy": 0.5}, {"detector": "knn", "ood": "packages", "auroc": 0.7}])
    store.replace("step", {**network, "seed": 0}, [{"accuracy": 0.4}])
    store.replace("step", network, [{"accuracy": 0.6}])
    assert [(row["seed"], row["accuracy"]) for row in store.read("step")] == [(0, 0.4), (1, 0.6)]
    assert len(store.networks("step")) == 2


def test_scores_of_the_first_seed_are_kept_for_histograms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "RESULTS", tmp_path)
    network = {"id": "fruit", "network": "a b", "head": "linear", "seed": 0, "unseen": None}
    values = np.random.default_rng(0).normal(size=3000)
    scores = {"id": {"knn": values, "vim": values}, "packages": {"knn": values[:40] + 3, "vim": values[:40]}}
    store.keep_scores("step", network, scores)
    kept = store.kept_scores("step", network, "knn")
    assert {name: len(own) for name, own in kept.items()} == {"id": store.KEPT_IMAGES, "packages": 40}
    np.testing.assert_allclose(kept["packages"], values[:40] + 3, rtol=1e-3)
    assert store.kept_scores("step", network, "vim") == {}
    for other in ({**network, "seed": 1, "head": "x"}, {**network, "unseen": 2, "head": "y"}):
        store.keep_scores("step", other, scores)
        assert not store.scores_path("step", other).exists()


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("photographs-all", "fruit"),
        ("unseen-all", "fruit"),
        ("published-all", "resnet20-cifar"),
        ("from-scratch", "both"),
        ("published", "both"),
        ("photographs-both", "both"),
        ("unseen-everywhere", "all"),
    ],
)
def test_tables_are_rebuilt_from_the_committed_rows(name: str, argument: str) -> None:
    table = TABLES[name](argument)
    assert len(table.rows) > 5
    assert all(len(row) == len(table.columns) for row in table.rows)


def rows_of(head: str, seed: int, detector: str, values: dict[str, float]) -> list[store.Row]:
    network = {"id": "fruit", "network": "n", "head": head, "seed": seed, "unseen": None}
    scored = [{**network, "detector": detector, "ood": ood, "auroc": value} for ood, value in values.items()]
    return [{**network, "accuracy": 0.5 + seed / 10}, *scored]


def test_a_mean_is_over_sets_of_means_over_seeds() -> None:
    rows = [
        *rows_of("linear", 0, "energy", {"a": 0.9, "b": 0.5}),
        *rows_of("linear", 1, "energy", {"a": 0.7}),
        *rows_of("cosine", 0, "cosine", {"a": 0.6, "b": 0.9}),
    ]
    made = tables.ranking(rows, {"a": ("a",), "all": ("a", "b")}, name="n", title="t")
    assert texts_of(made) == [
        ["cosine", "cosine", "60.0", "75.0", "50.0", "1"],
        ["linear", "energy", "80.0", "65.0", "55.0", "2"],
    ]


def texts_of(table: Table) -> list[list[str]]:
    return [[entry if isinstance(entry, str) else entry.text for entry in row] for row in table.rows]


def test_methods_are_compared_seed_by_seed_with_a_reference() -> None:
    means = {"cosine": (0.90, 0.91, 0.92), "linear": (0.88, 0.90, 0.93), "logitnorm": (0.81, 0.83), "any": (0.90,)}
    rows = [
        row
        for head, by_seed in means.items()
        for seed, mean in enumerate(by_seed)
        for row in rows_of(head, seed, "knn", {"a": mean + 0.05, "b": mean - 0.05})
    ]
    columns = {"a": ("a",), "all": ("a", "b")}
    made = tables.ranking(rows, columns, name="n", title="t", reference=("cosine", "knn"))
    assert made.columns[-2:] == ("by seed", "to KNN, 95 % interval over seeds")
    assert {row[0]: row[-2:] for row in texts_of(made)} == {
        "cosine": ["90.0, 91.0, 92.0", "-"],
        "linear": ["88.0, 90.0, 93.0", tables.interval([-2.0, -1.0, 1.0])],
        "LogitNorm": ["81.0, 83.0", "-8.5"],  # two seeds have no interval
        "any (features alone)": ["90.0", tables.interval([0.0, -1.0, -2.0])],  # it has no seeds of its own
    }


def test_two_methods_are_compared_over_seeds_and_over_sets() -> None:
    ahead = {"linear": 0.0, "cosine": 0.02}
    rows = [
        row
        for head, gap in ahead.items()
        for seed in range(3)
        for row in rows_of(
            head, seed, "knn", {"vegetables": 0.80 + gap + seed / 100, "clothing": 0.90 + gap * (seed + 1)}
        )
    ]
    made = compared(rows, "fruit", ("cosine", "knn"), ("linear", "knn"))
    assert [row[0] for row in texts_of(made)] == ["near", "far", "all"]
    near, far, every = texts_of(made)
    assert near[1:] == ["82.0, 83.0, 84.0", "80.0, 81.0, 82.0", "+2.0 [+2.0, +2.0]", "+2.0"]
    assert far[1:] == ["92.0, 94.0, 96.0", "90.0, 90.0, 90.0", tables.interval([2.0, 4.0, 6.0]), "+4.0"]
    assert every[-2:] == [tables.interval([2.0, 3.0, 4.0]), "+3.0"]  # two sets have no interval
    with pytest.raises(ArgumentError, match="cosine:knn, linear:knn"):
        compared(rows, "fruit", ("cosine", "energy"), ("linear", "knn"))


@pytest.mark.parametrize(
    ("precisions", "words"),
    [
        ((), ""),
        (("32-true", "32-true"), "All trained in 32 bits."),
        (("bf16-mixed",), "All trained in bf16."),
        (("32-true", "bf16-mixed", "32-true"), "Trained in bf16: linear (seed 1); the others in 32 bits."),
        (("bf16-mixed", "bf16-mixed", "32-true"), "Trained in 32 bits: linear (seed 2); the others in bf16."),
    ],
)
def test_the_rarer_precision_is_named(precisions: tuple[str, ...], words: str) -> None:
    networks = [{"head": "linear", "seed": seed, "precision": each} for seed, each in enumerate(precisions)]
    assert tables.precisions(networks) == words


def test_methods_stand_side_by_side_by_the_last_column() -> None:
    columns = {"a": {("cosine", "cosine"): 90.0, ("linear", "knn"): 95.0}, "mean": {("cosine", "cosine"): 91.0}}
    only = [("linear", "knn"), ("linear", "energy"), ("cosine", "cosine")]
    beside = {"gap": {("cosine", "cosine"): "+1.0"}}
    made = answers.side_by_side(columns, name="n", title="t", only=only, beside=beside)
    assert texts_of(made) == [["cosine", "cosine", "90.0", "91.0", "+1.0"], ["linear", "KNN", "95.0", "-", "-"]]
    assert [[entry.best for entry in row if not isinstance(entry, str)] for row in made.rows] == [[False, True], [True]]
    one_head = answers.side_by_side(columns, name="n", title="t", only=only[:2])
    assert tuple(one_head.columns) == ("score", "a", "mean")
    assert texts_of(one_head) == [["KNN", "95.0", "-"]]


def test_unseen_classes_of_all_sets_are_compared_choice_by_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RESULTS", tmp_path)
    for id_name, choices in CHOICES.items():
        step, start = ("scratch", "cosine-paper") if id_name == "cifar10" else ("photos", "cosine")
        known = [(start, "two-cosines", 0.7), ("linear" if id_name == "cifar10" else "any", "knn", 0.5)]
        known += [("cosine", "two-cosines", 0.1)] if id_name == "cifar10" else []  # another start: not compared
        for choice in choices:
            for head, score, value in known:
                network = {"id": id_name, "network": "n", "head": head, "seed": 0, "unseen": choice}
                row = {"detector": score, "ood": f"unseen-{choice}", "auroc": value + choice / 100}
                store.replace(step, network, [{"accuracy": 0.9}, row])
    network = {"id": "fruit", "network": "n", "head": "logitnorm", "seed": 0, "unseen": 0}
    store.replace("photos", network, [{"detector": "max-softmax", "ood": "unseen-0", "auroc": 0.99}])
    made = answers.unseen_everywhere()
    assert texts_of(made) == [
        ["cosine", "two cosines", "72.0", "72.0", "71.0", "71.8", "-"],
        ["linear", "KNN", "52.0", "52.0", "51.0", "51.8", "-20.0 [-20.0, -20.0]"],
    ]


def test_an_interval_is_that_of_students_t() -> None:
    assert tables.interval([1.0, 2.0, 3.0]) == "+2.0 [-0.5, +4.5]"
    assert tables.interval([1.0]) == "+1.0"
    assert tables.interval([1.0, 2.0]) == "+1.5"


def test_the_store_is_small_and_whole() -> None:
    committed = [path for path in store.RESULTS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in committed) < 15_000_000
    for path in committed:
        for line in path.read_text().splitlines() if path.suffix == ".jsonl" else ():
            json.loads(line)


def test_every_training_has_a_name_and_rows_of_its_own() -> None:
    every = list(scratch.trainings())
    assert len({each.name for each in every}) == len({tuple(each.key.values()) for each in every}) == len(every)
    by_head = {each.key["head"] for each in every if each.run.id == "cifar10" and each.run.seed == 0}
    assert set(tables.ABLATION) <= by_head
    longer = {each.name for each in every if recipe_of(each.run).epochs == LONGER_EPOCHS}
    assert {name_of(run) for run in longer_runs()} <= longer
    assert len(longer) == 9


def test_the_ablation_shows_what_has_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "RESULTS", tmp_path)
    for head, score, value in (("linear", "max-softmax", 0.8), ("cosine scale 16 decay-head", "cosine", 0.9)):
        network = {"id": "cifar10", "network": "wrn-10-4-half", "head": head, "seed": 0, "unseen": None}
        scored = [{"detector": score, "ood": ood, "auroc": value} for ood in REPORTED["cifar10"]]
        store.replace("scratch", network, [{"accuracy": 0.85, "precision": "32-true"}, *scored])
    made = tables.TABLES["ablation-whole"]("cifar10")
    assert texts_of(made) == [["linear", *["80.0"] * 4, "85.0"], ["cosine, scale fixed at 16", *["90.0"] * 4, "85.0"]]
    assert made.note == "All trained in 32 bits."


def test_development_candidates_saw_no_reported_set() -> None:
    for row in store.read("candidates"):
        assert "ood" not in row or is_development(row["id"], row["ood"])
