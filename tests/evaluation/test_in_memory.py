"""``offaxis.evaluate`` in memory: data and detectors of every kind, and what ``Results`` gives."""

import builtins
import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import wilcoxon
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import offaxis
from offaxis.data import Normalise, TensorSet
from offaxis.data.images import split_validation
from offaxis.detectors import KNN, ODIN, Cosine, Detector
from offaxis.errors import ArgumentError, DataError, EvaluationError, MissingPackageError
from offaxis.evaluation import Result, Results, Store
from offaxis.evaluation.summary import read_predictions
from offaxis.heads import Outputs
from offaxis.metrics import all_metrics
from offaxis.networks.classifier import Classifier
from offaxis.networks.open import combine
from offaxis.networks.opened import OpenedNetwork
from offaxis.reports.report import write_tables

from .conftest import NORMALISE, World

Make = Callable[..., OpenedNetwork]


def numbers(results: Results) -> dict[tuple[str, str], dict[str, float]]:
    return {(r.method, r.ood): dict(r.metrics) for r in results}


def normalised(images: TensorSet) -> Tensor:
    return NORMALISE(images.images)


@pytest.fixture
def network(subject: Make) -> Classifier:
    found = subject().network
    assert isinstance(found, Classifier)
    return found


Expected = Mapping[tuple[str, str], Mapping[str, float]]
"""(detector, OOD set) -> the metrics."""


@pytest.fixture
def expected(network: Classifier, world: World) -> Expected:
    """What the cosine and max-softmax give, computed by hand."""
    scores = {}
    for images in (world["id"], *world["ood"]):
        with torch.no_grad():
            outputs = network.outputs(normalised(images))
        tested = torch.arange(int(0.2 * len(images)), len(images))
        assert outputs.cosine is not None
        scores[images.name] = {
            "cosine": -outputs.cosine.amax(1)[tested],
            "max-softmax": -outputs.logits.double().softmax(1).amax(1)[tested],
        }
    return {
        (name, ood.name): all_metrics(scores["stripes"][name].numpy(), scores[ood.name][name].numpy())
        for name in ("cosine", "max-softmax")
        for ood in world["ood"]
    }


def close(results: Results, expected: Expected) -> bool:
    found = numbers(results)
    return set(found) == set(expected) and all(
        {name: found[key][name] for name in expected[key]} == pytest.approx(expected[key]) for key in expected
    )


def test_sets_of_images(network: Classifier, world: World, expected: Expected, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    results = offaxis.evaluate(network, world["id"], world["ood"], ["cosine", "max-softmax"], normalise=NORMALISE)
    assert isinstance(results, offaxis.Results)
    assert close(results, expected)
    assert len(results) == 6
    assert {r.detector for r in results} == {"cosine", "max-softmax"}
    assert sorted(tmp_path.rglob("*")) == before
    [record] = results.networks
    assert record.accuracy > 0.8
    assert (record.kind, record.head["name"], record.architecture, record.commands) == ("single", "cosine", "", ())


def test_a_network_in_training_stays_in_train_mode(network: Classifier, world: World, expected: Expected) -> None:
    network = copy.deepcopy(network).train()
    network.backbone.eval()
    before = [module.training for module in network.modules()]
    for given in (network, combine([network, network])):
        results = offaxis.evaluate(given, world["id"], world["ood"], ["cosine", "max-softmax"], normalise=NORMALISE)
        assert [module.training for module in network.modules()] == before
        assert close(results, expected)
    values = world["id"].images[0].numel()
    bare = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(values).eval(), nn.Linear(values, network.num_classes))
    offaxis.evaluate(bare, world["id"], world["ood"], "energy", normalise=NORMALISE)
    assert [module.training for module in bare.modules()] == [True, True, False, True]


def test_arrays_and_tensors(network: Classifier, world: World, expected: Expected) -> None:
    images, labels = world["id"].images.numpy(), np.asarray(world["id"].labels)
    ood = {s.name: s.images.numpy() if number else s.images for number, s in enumerate(world["ood"])}
    results = offaxis.evaluate(network, (images, labels), ood, ["cosine", "max-softmax"], normalise=NORMALISE)
    assert close(results, expected)


class Pairs(Dataset[tuple[Tensor, int]]):
    """A plain torch Dataset of (uint8 image, label)."""

    def __init__(self, images: Tensor, labels: Sequence[int]) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.images[index], self.labels[index]


def test_torch_datasets(network: Classifier, world: World, expected: Expected) -> None:
    assert world["id"].labels is not None
    known = Pairs(world["id"].images, world["id"].labels.tolist())
    ood = {s.name: TensorDataset(s.images) for s in world["ood"]}
    results = offaxis.evaluate(network, known, ood, ["cosine", "max-softmax"], normalise=NORMALISE)
    assert close(results, expected)


def loader(images: TensorSet, **options: Any) -> "DataLoader[Any]":
    labels = torch.zeros(len(images.images), dtype=torch.long) if images.labels is None else images.labels
    return DataLoader(TensorDataset(normalised(images), labels), batch_size=32, **options)  # type: ignore[arg-type]


def test_data_loaders_are_used_unchanged(network: Classifier, world: World, expected: Expected, tmp_path: Path) -> None:
    ood = {s.name: loader(s) for s in world["ood"]}
    results = offaxis.evaluate(network, loader(world["id"]), ood, ["cosine", "max-softmax"])
    assert close(results, expected)
    assert {r.id for r in results} == {"id"}
    stored = offaxis.evaluate(network, loader(world["id"]), ood, ["cosine", "max-softmax"], store=tmp_path / "s")
    again = offaxis.evaluate(network, loader(world["id"]), ood, ["cosine", "max-softmax"], store=tmp_path / "s")
    assert numbers(stored) == numbers(again) == numbers(results)
    assert not again.arrays  # nothing was computed


def test_a_loader_and_a_set_can_be_mixed(network: Classifier, world: World, expected: Expected) -> None:
    ood: dict[str, Any] = {s.name: s for s in world["ood"]}
    ood["dark"] = loader(world["ood"][1])
    results = offaxis.evaluate(network, world["id"], ood, ["cosine", "max-softmax"], normalise=NORMALISE)
    assert close(results, expected)


class Noisy(Dataset[tuple[Tensor, int]]):
    """Other images each time."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.rand(1, 8, 8), 0


def test_loaders_whose_images_change_are_refused(network: Classifier, world: World) -> None:
    with pytest.raises(DataError, match="shuffle=False"):
        offaxis.evaluate(network, loader(world["id"], shuffle=True), [loader(world["ood"][0])], "cosine")
    with pytest.raises(DataError, match="no random transforms"):
        offaxis.evaluate(network, loader(world["id"]), {"noisy": DataLoader(Noisy(), batch_size=5)}, "cosine")
    with pytest.raises(DataError, match="labels"):
        offaxis.evaluate(network, world["ood"][0].images, world["ood"], "cosine", normalise=NORMALISE)


def test_images_of_another_size_are_matched(network: Classifier, world: World) -> None:
    large = TensorSet("large", nn.functional.interpolate(world["ood"][0].images, scale_factor=2))
    results = offaxis.evaluate(network, world["id"], [large], "cosine", normalise=NORMALISE)
    [about] = [record.about for record in results.sets.values() if record.about["name"] == "large"]
    assert about["shape"] == [1, 8, 8]


class Brightness(Detector):
    """A detector of one's own: how far the mean feature is from that of the training images."""

    name, paper, needs_fit, uses = "brightness", "", True, ("features",)
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.expect("mean")

    def begin(self, network: Any) -> None:
        self.sums: list[Tensor] = []

    def update(self, outputs: Outputs, labels: Tensor) -> None:
        self.sums.append(outputs.features.mean(1))

    def finish(self) -> None:
        self.mean = torch.cat(self.sums).mean()

    def forward(self, outputs: Outputs) -> Tensor:
        return (outputs.features.mean(1) - self.mean).abs()


def test_own_detectors_and_names_with_arguments(network: Classifier, world: World) -> None:
    detectors: list[str | Detector] = [Brightness(), "knn:k=3", KNN(k=7), "cosine", "cosine"]
    results = offaxis.evaluate(
        network, world["id"], world["ood"][:1], detectors, train=world["train"], normalise=NORMALISE
    )
    assert [(r.detector, dict(r.hyperparameters)) for r in results] == [
        ("brightness", {}),
        ("knn", {"k": 3}),
        ("knn", {"k": 7}),
        ("cosine", {}),
    ]
    assert "240 training images of stripes" in results.results[0].fitted_on
    assert all(f"| knn, k={k} " in results.table() for k in (3, 7))


class Backwards(Detector):
    """The largest cosine, which is larger for ID images."""

    name, uses = "backwards", ("cosine",)

    def forward(self, outputs: Outputs) -> Tensor:
        assert outputs.cosine is not None
        return outputs.cosine.amax(1)


class NotANumber(Backwards):
    """Scores that cannot be ranked."""

    name = "not-a-number"

    def forward(self, outputs: Outputs) -> Tensor:
        return super().forward(outputs) * torch.nan


def test_a_named_detector_without_a_result_is_not_passed_over(network: Classifier, world: World) -> None:
    images: dict[str, Any] = {"id": world["id"], "ood": world["ood"][:1], "normalise": NORMALISE}
    said = "not-a-number has no result on .*NaN"
    detectors: list[str | Detector] = [NotANumber(), "cosine"]
    for networks in (network, [network]):
        with pytest.warns(UserWarning, match=said) as warned:
            results = offaxis.evaluate(networks, detectors=iter(detectors), **images)
        assert [str(w.message) for w in warned] == list(results.notes)
        assert warned[0].filename == __file__
        assert repr(results).endswith(results.notes[0])
    notes: list[str] = []
    offaxis.evaluate(network, detectors=detectors, note=notes.append, **images)  # told, so no warning
    assert len(notes) == 1
    with pytest.raises(ArgumentError, match="at least one detector"):
        offaxis.evaluate(network, detectors=[], **images)


class NotANumberToo(NotANumber):
    """Its name begins with that of another one, which was not asked for by name."""

    name = "not-a-number-too"


def test_only_the_named_detector_is_warned_of(network: Classifier, world: World) -> None:
    images: dict[str, Any] = {"id": world["id"], "ood": world["ood"][:1], "normalise": NORMALISE}
    with pytest.warns(UserWarning, match="not-a-number has no result") as warned:
        results = offaxis.evaluate(network, detectors=[NotANumber(), "native"], **images)
    left_out = [note for note in results.notes if "is left out" in note]
    assert len(warned) == 1
    assert len(left_out) > 1
    with pytest.warns(UserWarning, match="not-a-number-too has no result") as warned:
        offaxis.evaluate(network, detectors=[NotANumberToo(), "cosine"], **images)
    assert len(warned) == 1


def test_a_detector_with_a_wrong_sign_is_noticed(network: Classifier, world: World) -> None:
    with pytest.warns(UserWarning, match="backwards scores ID images higher than OOD images .* Is its sign right?"):
        results = offaxis.evaluate(network, world["id"], world["ood"], [Backwards(), "cosine"], normalise=NORMALISE)
    [note] = results.notes
    means = {
        name: np.mean([r.metrics["auroc"] for r in results if r.detector == name]) for name in ("backwards", "cosine")
    }
    assert means["backwards"] == pytest.approx(1 - means["cosine"])
    assert f"{100 * means['backwards']:.1f} %" in note


def test_fitted_detectors_stay_as_they_are_without_training_images(network: Classifier, world: World) -> None:
    train = world["train"]()
    knn = KNN(k=3).fit(network, [(NORMALISE(train.batch(torch.arange(240))), train.labels)])  # type: ignore[list-item]
    bank = {name: tensor.clone() for name, tensor in knn.state_dict().items()}
    first = offaxis.evaluate(network, world["id"], world["ood"], [knn], normalise=NORMALISE)
    assert all(torch.equal(tensor, bank[name]) for name, tensor in knn.state_dict().items())
    second = offaxis.evaluate(network, world["id"], world["ood"], "knn:k=3", train=train, normalise=NORMALISE)
    assert {key: value["auroc"] for key, value in numbers(first).items()} == pytest.approx(
        {key: value["auroc"] for key, value in numbers(second).items()}
    )


def test_detectors_that_need_training_images(network: Classifier, world: World) -> None:
    notes: list[str] = []
    results = offaxis.evaluate(network, world["id"], world["ood"][:1], normalise=NORMALISE, note=notes.append)
    assert {"cosine", "max-softmax", "energy"} <= {r.detector for r in results}
    assert "knn" not in {r.detector for r in results}
    assert list(results.notes) == notes
    assert any("knn is left out: it must be fitted: pass the training images" in note for note in notes)
    with pytest.raises(ArgumentError, match="training images for knn"):
        offaxis.evaluate(network, world["id"], world["ood"], ["cosine", "knn"], normalise=NORMALISE)
    with pytest.raises(EvaluationError, match="No detector fits"):
        offaxis.evaluate(network, world["id"], world["ood"], "cosine-ensemble", normalise=NORMALISE)


def test_tuning_in_memory_gives_what_a_store_gives(subject: Make, world: World, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "detectors": [ODIN(temperatures=(1.0, 1000.0), epsilons=(0.0, 0.01)), Cosine()],
        "tune": True,
        "protocols": ("one-vs-one", "less-biased"),
    }
    memory = offaxis.evaluate(subject(), world["id"], world["ood"], **options)
    stored = offaxis.evaluate(subject(), world["id"], world["ood"], store=tmp_path / "store", **options)
    assert memory.results == stored.results
    assert len(memory) == 3 * 3 + 6
    store = Store(tmp_path / "store")
    for reference in {reference for r in memory for reference in r.scores}:
        np.testing.assert_array_equal(memory.scores(reference), store.scores(reference))


def test_a_score_is_written_once_and_not_read_again(
    subject: Make, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    keep = Store._add_arrays

    def counting(self: Store, name: str, arrays: Mapping[str, Any]) -> None:
        written.append(name)
        keep(self, name, arrays)

    monkeypatch.setattr(Store, "_add_arrays", counting)
    monkeypatch.setattr(Store, "_array", lambda *_: pytest.fail("scores are in memory"))
    detectors: list[str | Detector] = [ODIN(temperatures=(1.0, 1000.0), epsilons=(0.0, 0.01)), "cosine"]
    results = offaxis.evaluate(subject(), world["id"], world["ood"], detectors, tune=True, store=tmp_path / "store")
    for r in results:
        assert all_metrics(*(results.scores(reference) for reference in r.scores)).items() <= r.metrics.items()
    assert len(written) == len(set(written))
    assert not [name for name in written if name.startswith("grid_scores") and "cosine" in name]


# what Results gives ---------------------------------------------------------------------------------------------------


@pytest.fixture
def results(network: Classifier, world: World) -> Results:
    return offaxis.evaluate(network, world["id"], world["ood"], ["cosine", "knn:k=3"], train=world["train"]())


def test_to_frame(results: Results) -> None:
    frame = results.to_frame()
    assert len(frame) == len(results) == 6
    assert {"auroc", "aupr_in", "fpr_at_tpr95", "detector", "ood", "network", "head", "seed", "kind"} <= set(frame)
    assert frame["auroc"].tolist() == [r.metrics["auroc"] for r in results]
    assert set(frame[frame["detector"] == "knn"]["hyperparameters"]) == {"k=3"}
    assert frame.groupby("detector")["auroc"].mean()["cosine"] <= 1


def _table(results: Results, metric: str = "auroc") -> list[dict[str, str]]:
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in results.table(metric).splitlines()
    ]
    return [dict(zip(head, row, strict=True)) for row in rows]


@pytest.mark.parametrize("metric", ["auroc", "fpr_at_tpr95"])
@pytest.mark.parametrize("protocols", [("less-biased",), ("one-vs-one", "less-biased")])
def test_rows_that_were_tuned_on_another_set_are_in_the_table(
    network: Classifier, world: World, protocols: Any, metric: str
) -> None:
    results = offaxis.evaluate(
        network, world["id"], world["ood"], ["odin", "cosine"], tune=True, protocols=protocols, normalise=NORMALISE
    )
    rows = {next(iter(row.values())): row for row in _table(results, metric)}
    assert set(rows) == {"cosine", "odin (default)", "odin (tuned)", *(["odin (oracle)"] * (len(protocols) - 1))}
    assert list(rows)[-1] == "odin (oracle)" or len(protocols) == 1
    tuned = [r for r in results if r.state == "tuned" and r.assumed != r.ood]
    for name in ("bright", "dark", "grey"):
        mean = np.mean([r.metrics[metric] for r in tuned if r.ood == name])
        assert rows["odin (tuned)"][name] == f"{100 * mean:.2f}"
    assert set(results.to_frame()["method"]) == set(rows)


def test_the_frame_calls_networks_and_detectors_as_the_table_does(world: World) -> None:
    plain = [nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3)) for _ in range(2)]
    heads = [offaxis.attach(plain[0], head="cosine"), offaxis.attach(plain[1], head="keep")]
    networks = [offaxis.open_network(one, label="mine") for one in heads]
    results = offaxis.evaluate(
        networks, world["id"], world["ood"], ["knn:k=3", "knn:k=7"], train=world["train"], normalise=NORMALISE
    )
    rows, frame = _table(results), results.to_frame()
    assert len({row["network"] for row in rows}) == 2
    assert set(zip(frame["network"], frame["method"], strict=True)) == {(r["network"], r["detector"]) for r in rows}
    means = frame.groupby(["network", "method"])["auroc"].mean()
    assert all(f"{100 * means[row['network'], row['detector']]:.2f}" == row["mean"] for row in rows)


def test_to_frame_without_pandas(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingPackageError, match=r"pip install 'offaxis\[frames\]'"):
        results.to_frame()


def test_table(results: Results) -> None:
    lines = results.table().splitlines()
    assert [cell.strip() for cell in lines[0].strip("|").split("|")] == ["detector", "bright", "dark", "grey", "mean"]
    means = [float(line.rstrip("| ").rpartition("|")[2]) for line in lines[2:]]
    assert means == sorted(means, reverse=True)
    errors = [float(line.rstrip("| ").rpartition("|")[2]) for line in results.table("fpr_at_tpr95").splitlines()[2:]]
    assert errors == sorted(errors)
    with pytest.raises(ArgumentError, match="Expected a metric out of auroc"):
        results.table("beauty")


@pytest.mark.parametrize(
    ("metric", "heads"),
    [
        ("fpr_at_tpr95", ("detector (FPR, ID positive)", "mean, OOD positive (as OpenOOD)", "mean, ID positive")),
        ("fpr_at_tpr95_ood", ("detector (FPR, OOD positive, interpolated)", "mean, OOD positive, interpolated")),
        ("fpr_at_tpr95_openood", ("detector (FPR, OOD positive (as OpenOOD))", "mean, OOD positive (as OpenOOD)")),
    ],
)
def test_a_false_positive_rate_says_which_class_is_positive(
    results: Results, metric: str, heads: tuple[str, ...]
) -> None:
    found = [cell.strip() for cell in results.table(metric).splitlines()[0].strip("|").split("|")]
    assert tuple(cell for cell in found if cell not in ("bright", "dark", "grey")) == heads


def test_networks_of_a_list_are_compared_and_seeds_have_a_deviation(
    subject: Make, world: World, tmp_path: Path
) -> None:
    networks = [subject("cosine", 0), subject("cosine", 1), subject("linear", 0)]
    given: Any = {"train": world["train"], "near": ["grey"]}
    results = offaxis.evaluate(networks, world["id"], world["ood"], ["max-softmax", "knn:k=3"], **given)
    alone = offaxis.evaluate(networks[1], world["id"], world["ood"], ["max-softmax", "knn:k=3"], **given)
    own = {(r.method, r.ood): dict(r.metrics) for r in results if (r.network, r.seed) == ("toy cosine", 1)}
    assert own == numbers(alone)
    assert [(n.label, n.seed) for n in results.networks] == [("toy cosine", 0), ("toy cosine", 1), ("toy linear", 0)]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in results.table().splitlines()]
    assert head == ["detector", "network", "grey", "bright", "dark", "mean", "seed sd", "seeds"]
    assert {(row[0], row[1], row[-1]) for row in rows} == {
        (detector, network, seeds)
        for detector in ("max-softmax", "knn, k=3")
        for network, seeds in (("toy cosine", "2"), ("toy linear", "1"))
    }
    means = [
        np.mean([r.metrics["auroc"] for r in results if (r.detector, r.network, r.seed) == ("knn", "toy cosine", seed)])
        for seed in (0, 1)
    ]
    [row] = [row for row in rows if row[:2] == ["knn, k=3", "toy cosine"]]
    assert row[-3:-1] == [f"{100 * np.mean(means):.2f}", f"{100 * np.std(means, ddof=1):.2f}"]
    assert [row[-2] for row in rows if row[1] == "toy linear"] == ["-", "-"]
    saved = results.save(tmp_path / "saved")
    assert len(saved.results()) == len(results) == 18
    assert len(saved.networks()) == 3


def test_networks_of_a_list_that_cannot_be_distinguished_are_refused(subject: Make, world: World) -> None:
    bare = [subject("cosine", seed).network for seed in (0, 1)]
    given: Any = {"normalise": NORMALISE, "detectors": "cosine"}
    with pytest.raises(
        EvaluationError, match=r"Another network in the list is called 'own network' with seed 0.*seed=1"
    ):
        offaxis.evaluate(bare, world["id"], world["ood"], **given)
    told = [offaxis.open_network(network, seed=seed) for seed, network in enumerate(bare)]
    assert {r.seed for r in offaxis.evaluate(told, world["id"], world["ood"], **given)} == {0, 1}
    with pytest.raises(ArgumentError, match="at least one network"):
        offaxis.evaluate([], world["id"], world["ood"], **given)
    fitted = KNN(3)
    fitted.fit(bare[0], world["train"](), NORMALISE)
    with pytest.raises(ArgumentError, match="belongs to one of the networks"):
        offaxis.evaluate(told, world["id"], world["ood"], fitted)


def test_save_writes_a_store_that_can_be_reported_and_resumed(
    results: Results, network: Classifier, world: World, tmp_path: Path
) -> None:
    store = results.save(tmp_path / "saved")
    assert [r.key for r in store.results()] == [r.key for r in results]
    assert store.networks() == list(results.networks)
    for r in results:
        for reference in r.scores:
            np.testing.assert_array_equal(store.scores(reference), results.scores(reference))
    files = sorted(path for path in store.path.rglob("*") if path.is_file())
    assert results.save(tmp_path / "saved").path == store.path
    assert sorted(path for path in store.path.rglob("*") if path.is_file()) == files
    again = offaxis.evaluate(
        network, world["id"], world["ood"], ["cosine", "knn:k=3"], train=world["train"](), store=store.path
    )
    assert again.results == results.results
    assert not again.arrays
    copied = again.save(tmp_path / "copied")  # scores come from the store
    assert numbers_of(copied.results()) == numbers_of(results)


def numbers_of(results: Any) -> dict[str, dict[str, float]]:
    return {r.key: dict(r.metrics) for r in results}


def test_unknown_scores_are_refused(results: Results) -> None:
    with pytest.raises(ArgumentError, match="a reference out of a Result"):
        results.scores("scores/none.npz#scores")


def test_records_hold_fields(network: Classifier, world: World) -> None:
    member = OpenedNetwork(
        network=network,
        normalise=NORMALISE,
        label="mine",
        seed=4,
        origin="run",
        recipe={"name": "short", "epochs": 3},
        data={"name": "stripes", "images": 240},
        settings={"recipe": {"name": "short"}, "loss": {"name": "cross_entropy"}},
        command=["offaxis", "train", "--seed", "4"],
    )
    results = offaxis.evaluate(member, world["id"], world["ood"][:1], "cosine", command=["offaxis", "evaluate", "run"])
    [record], [result] = results.networks, results.results
    for fields in (record, result):
        assert fields.recipe == {"name": "short", "epochs": 3}
        assert fields.data == {"name": "stripes", "images": 240}
        assert fields.settings == {"loss": {"name": "cross_entropy"}}
        assert (fields.kind, fields.seed, fields.members) == ("single", 4, ())
        assert set(fields.versions) == {"offaxis", "torch", "numpy", "python"}
    assert record.commands == (("offaxis", "train", "--seed", "4"),)
    assert result.command == ("offaxis", "evaluate", "run")
    assert Result.from_json(result.to_json()) == result
    pair = combine([member, replace(member, origin="other", seed=5)], "ensemble")
    [record] = offaxis.evaluate(pair, world["id"], world["ood"][:1], "cosine-ensemble").networks
    assert (record.kind, record.members, record.origins) == ("ensemble", ("run", "other"), ("run", "other"))
    assert record.commands == (("offaxis", "train", "--seed", "4"),) * 2
    assert result.to_row()["recipe"] == "short"


def test_the_normalisation_of_the_training_images_is_used(network: Classifier, world: World) -> None:
    results = offaxis.evaluate(network, world["id"], world["ood"][:1], "cosine", train=world["train"])
    own = Normalise.from_images(world["train"]())
    assert numbers(results) == numbers(
        offaxis.evaluate(network, world["id"], world["ood"][:1], "cosine", normalise=own)
    )


# labels, classes and shifted sets --------------------------------------------------------------------------------------


def blurred(world: World) -> TensorSet:
    images, seen = world["id"].images.float(), world["id"]
    soft = torch.nn.functional.avg_pool2d(images, 3, 1, 1).round().to(torch.uint8)
    return TensorSet("blurred", soft, seen.labels, seen.classes)


def test_labels_and_predictions_give_metrics_of_each_class(network: Classifier, world: World, tmp_path: Path) -> None:
    keep: dict[str, Any] = {"normalise": NORMALISE, "detectors": ["max-softmax"]}
    results = offaxis.evaluate(network, world["id"], world["ood"][:1], store=tmp_path / "store", **keep)
    [result], [record] = results, results.networks
    seen = results.predictions(result)
    probabilities = network(normalised(world["id"])).double().softmax(1).detach()
    tested = split_validation(world["id"]).test
    assert torch.equal(torch.from_numpy(seen.labels), world["id"].labels[tested])
    assert torch.equal(torch.from_numpy(seen.predicted), probabilities.argmax(1)[tested])
    np.testing.assert_allclose(seen.probability, probabilities.amax(1)[tested], rtol=1e-5)
    labels, shares = world["id"].labels.numpy(), probabilities.numpy()
    assert record.nll == pytest.approx(log_loss(labels, shares), rel=1e-5)
    assert record.brier == pytest.approx(((shares - np.eye(3)[labels]) ** 2).sum(1).mean(), rel=1e-5)
    assert record.classwise_ece is not None
    id_scores, ood_scores = map(results.scores, result.scores)
    rows = results.per_class()
    assert [row["class"] for row in rows] == [0, 1, 2]
    for row in rows:
        own = seen.labels == row["class"]
        assert row["images"] == own.sum()
        assert row["accuracy"] == (seen.predicted[own] == row["class"]).mean()
        truth = np.repeat([0, 1], [own.sum(), len(ood_scores)])
        assert row["auroc"] == pytest.approx(roc_auc_score(truth, np.concatenate([id_scores[own], ood_scores])))
    correct = (seen.labels == seen.predicted).tolist()
    wins = [ok * ((a < b) + 0.5 * (a == b)) for a, ok in zip(id_scores, correct, strict=True) for b in ood_scores]
    assert result.metrics["oscr"] == pytest.approx(np.mean(wins))
    again = results.save(tmp_path / "copy")
    np.testing.assert_array_equal(read_predictions(again, result).predicted, seen.predicted)
    write_tables(again, tmp_path / "report")
    assert "NLL (nats)" in (tmp_path / "report" / "report.md").read_text()


def test_shifted_sets_count_as_id_images_in_the_columns_that_say_so(network: Classifier, world: World) -> None:
    keep: dict[str, Any] = {"normalise": NORMALISE, "detectors": ["max-softmax"]}
    plain = offaxis.evaluate(network, world["id"], world["ood"], **keep)
    results = offaxis.evaluate(network, world["id"], world["ood"], shifted=[blurred(world)], **keep)
    for before, result in zip(plain, results, strict=True):
        assert result.shifted == ("blurred",)
        assert result.key != before.key
        assert before.metrics.items() <= result.metrics.items()
        id_scores, ood_scores, soft = map(results.scores, result.every_score)
        assert len(soft) == 150  # nothing is tuned on them, so all are tested
        truth = np.repeat([0, 1], [len(id_scores) + len(soft), len(ood_scores)])
        wanted = roc_auc_score(truth, np.concatenate([id_scores, soft, ood_scores]))
        assert result.metrics["full_spectrum_auroc"] == pytest.approx(wanted)
        assert {f"full_spectrum_{name}" for name in before.metrics} <= result.metrics.keys()
    assert "max-softmax" in results.table("full_spectrum_auroc")
    with pytest.raises(EvaluationError, match="full_spectrum_auroc"):
        plain.table("full_spectrum_auroc")


def test_two_detectors_are_compared_and_tables_are_written_for_latex(subject: Make, world: World) -> None:
    networks = [subject(seed=seed) for seed in range(3)]  # of one label
    results = offaxis.evaluate(networks, world["id"], world["ood"], ["cosine", "max-softmax"])
    found = results.compare("cosine", "max-softmax")
    value = {(r.detector, r.seed, r.ood): r.metrics["auroc"] for r in results}
    pairs = [[value["cosine", s, o.name] - value["max-softmax", s, o.name] for o in world["ood"]] for s in range(3)]
    np.testing.assert_allclose(found.differences, pairs)
    assert (found.seeds, found.sets) == (3, 3)
    assert found.p_value == pytest.approx(wilcoxon(np.mean(pairs, 0)).pvalue)
    with pytest.raises(ArgumentError, match="cosine"):
        results.compare("cosin", "max-softmax")
    text = results.to_latex()
    for part in (r"\centering", r"\toprule", r"\bottomrule", r"\textbf{", "max-softmax"):
        assert part in text
    assert text.count(r"\\") == 3


def test_a_misspelt_name_is_asked_back(network: Classifier, world: World) -> None:
    for word, meant in {"max-softmx": "max-softmax", "nativ": "native"}.items():
        with pytest.raises(ArgumentError, match=f"Did you mean {meant}"):
            offaxis.evaluate(network, world["id"], world["ood"], [word], normalise=NORMALISE)
    with pytest.raises(ArgumentError, match="Did you mean gaussian"):
        offaxis.evaluate(network, world["id"], ["gausian"], ["cosine"], normalise=NORMALISE)
