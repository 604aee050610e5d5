"""OpenOOD's benchmarks against slow and obvious versions of its preprocessing, scores and metrics, and pytorch-ood's."""

import csv
import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import auc, precision_recall_curve, roc_curve
from torch import Tensor
from typer.testing import CliRunner

import offaxis
from offaxis.cli import app
from offaxis.data import load_images, openood
from offaxis.detectors import KNN, Energy, MaxLogit, MaxSoftmax
from offaxis.errors import ArgumentError, DataError, OffaxisError
from offaxis.evaluation import Store
from offaxis.networks.resnet import resnet_cifar, to_published
from offaxis.reports.report import write_openood
from tests.data.openood_root import noise_root, write_root

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
NEAR, FAR = ("cifar100", "tin"), ("mnist", "svhn", "texture", "places365")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return noise_root(tmp_path_factory.mktemp("openood") / "data")


def classifier(double: bool = True) -> offaxis.Classifier:
    torch.manual_seed(0)
    network = resnet_cifar(8, num_classes=10, head="linear").eval()
    return network.double() if double else network


# slow and obvious versions ---------------------------------------------------------------------------------------------


def by_hand(root: Path, name: str, id: str = "cifar10") -> tuple[Tensor, list[int]]:
    """Normalised images and labels of a list, file by file."""
    images, labels = [], []
    for line in (root / "benchmark_imglist" / id / f"{name}.txt").read_text().splitlines():
        path, label = line.split()
        image = Image.open(root / "images_classic" / path).convert("RGB")
        short = min(image.size)
        image = image.resize([int(32 * side / short) for side in image.size], Image.Resampling.BILINEAR)
        left, top = round((image.width - 32) / 2), round((image.height - 32) / 2)
        pixels = torch.from_numpy(np.array(image)[top : top + 32, left : left + 32]).permute(2, 0, 1)
        scaled = pixels.to(torch.float32).div(255)
        images.append((scaled - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1))
        labels.append(int(label))
    return torch.stack(images), labels


def postprocessed(name: str, logits: Tensor, features: Tensor, training: Tensor) -> Tensor:
    """OpenOOD's confidence: larger is more in-distribution."""
    if name == "MSP":
        return torch.softmax(logits, 1).max(1).values
    if name == "MLS":
        return logits.max(1).values
    if name == "EBO":
        return torch.logsumexp(logits, 1)
    unit = features / features.norm(dim=1, keepdim=True)
    bank = training / training.norm(dim=1, keepdim=True)
    return -torch.cdist(unit, bank).sort(1).values[:, 4]  # KNN with K = 5


def openood_metrics(id_confidence: Tensor, ood_confidence: Tensor) -> list[float]:
    """FPR@95, AUROC, AUPR_IN, AUPR_OUT as OpenOOD v1.5 computes them, in percent."""
    confidence = torch.cat([id_confidence, ood_confidence]).numpy()
    outlier = np.r_[np.zeros(len(id_confidence)), np.ones(len(ood_confidence))]
    fpr, tpr, _ = roc_curve(outlier, -confidence, drop_intermediate=False)
    inside = precision_recall_curve(1 - outlier, confidence)
    outside = precision_recall_curve(outlier, -confidence)
    values = [fpr[np.argmax(tpr >= 0.95)], auc(fpr, tpr), auc(inside[1], inside[0]), auc(outside[1], outside[0])]
    return [100 * float(v) for v in values]


Rows = dict[tuple[str, str], list[float]]
DETECTORS = {"MSP": MaxSoftmax(), "MLS": MaxLogit(), "EBO": Energy(), "KNN": KNN(5)}


def slow_table(network: offaxis.Classifier, root: Path, near: tuple[str, ...], far: tuple[str, ...]) -> Rows:
    """OpenOOD's rows by (postprocessor, dataset), and the scores."""
    names = {name: f"test_{name}" for name in ("cifar10", *near, *far)} | {"train": "train_cifar10"}
    with torch.no_grad():
        data = {name: by_hand(root, listed) for name, listed in names.items()}
        outputs = {name: network.outputs(images.double()) for name, (images, _) in data.items()}
    rows: Rows = {}
    accuracy = outputs["cifar10"].logits.argmax(1).eq(torch.tensor(data["cifar10"][1])).double().mean().item()
    for method in DETECTORS:
        confidence = {
            name: postprocessed(method, out.logits, out.features, outputs["train"].features)
            for name, out in outputs.items()
            if name != "train"
        }
        for group, members in (("nearood", near), ("farood", far)):
            for name in members:
                metrics = openood_metrics(confidence["cifar10"], confidence[name])
                rows[method, name] = [*metrics, 100 * accuracy]
            rows[method, group] = np.mean([rows[method, name] for name in members], 0).tolist()
    return rows


def read_table(path: Path) -> Rows:
    names = {"max-softmax": "MSP", "max-logit": "MLS", "energy": "EBO", "knn": "KNN"}
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = ("FPR@95", "AUROC", "AUPR_IN", "AUPR_OUT", "ACC")
    return {
        (names[row["detector"].split(" ")[0]], row["dataset"].replace(" (partial)", "")): [
            float(row[c]) for c in columns
        ]
        for row in rows
    }


def check_table(network: offaxis.Classifier, root: Path, far: tuple[str, ...], tmp_path: Path) -> None:
    results = offaxis.evaluate(
        network, openood(root, "cifar10", partial=True), detectors=list(DETECTORS.values()), store=tmp_path / "store"
    )
    assert all(result.benchmark == "openood-cifar10 (partial)" for result in results)
    table, leaderboard = write_openood(Store(tmp_path / "store"), tmp_path / "out.csv")
    found, expected = read_table(table), slow_table(network, root, NEAR, far)
    assert found.keys() == expected.keys()
    for key, numbers in expected.items():
        assert found[key] == pytest.approx(numbers, abs=1e-10, rel=0), key
    with leaderboard.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert ",".join(lines[0]) == (
        "Training,Postprocessor,Near-OOD_AUROC,Far-OOD_AUROC,ID_Accuracy,Outlier_Data,Arch,Additional_Description"
    )
    assert {line["Postprocessor"] for line in lines} == set(DETECTORS)
    for line in lines:
        assert line["Near-OOD_AUROC"] == f"{expected[line['Postprocessor'], 'nearood'][1]:.2f}"
        assert line["Training"] == "CrossEntropy"
        assert "(partial)" in line["Additional_Description"]


# tests -----------------------------------------------------------------------------------------------------------------


def test_pixels_are_openoods_to_the_bit(root: Path) -> None:
    bench = openood(root, "cifar10", partial=True)
    for name in (*NEAR, *FAR):
        images = bench.ood(name)
        expected, _ = by_hand(root, f"test_{name}")
        assert torch.equal(bench.normalise(images.batch(torch.arange(len(images)))), expected)
    assert bench.id_images.labels is not None
    assert bench.id_images.labels.tolist() == by_hand(root, "val_cifar10")[1] + by_hand(root, "test_cifar10")[1]
    assert bench.classes[0] == "airplane"
    assert bench.ood("svhn").labels is None  # whatever its list says


def test_the_table_is_openoods(root: Path, tmp_path: Path) -> None:
    check_table(classifier(), root, FAR, tmp_path)


def test_scores_are_openoods(root: Path) -> None:
    network, bench = classifier(), openood(root, "cifar10", partial=True)
    fitted = KNN(5).fit(network, bench.train, bench.normalise)
    with torch.no_grad():
        training = network.outputs(by_hand(root, "train_cifar10")[0].double()).features
        out = network.outputs(by_hand(root, "test_texture")[0].double())
    images = bench.normalise(bench.ood("texture").batch(torch.arange(12)))
    for method, detector in DETECTORS.items():
        score = (fitted if method == "KNN" else detector).score_images(network, images)
        expected = postprocessed(method, out.logits, out.features, training)
        offset = 1 if method == "MSP" and bool((score >= 0).all()) else 0
        torch.testing.assert_close(score, offset - expected, rtol=0, atol=1e-10)


def test_the_validation_lists_tune_and_the_test_lists_test(root: Path) -> None:
    bench = openood(root, "cifar10", partial=True)
    results = offaxis.evaluate(classifier(), bench, detectors=["react", "energy"], tune=True)
    tuned = [result for result in results if result.state == "tuned"]
    assert {result.assumed for result in tuned} == {"val_tin"}
    assert {result.ood for result in results} == {f"{name} (partial)" for name in (*NEAR, *FAR)}
    assert all(result.images == (20, 12) for result in results)
    assert {result.ood: result.group for result in results}["tin (partial)"] == "near"
    assert "react (tuned)" in results.table()
    with pytest.raises(ArgumentError, match="brings its own"):
        offaxis.evaluate(classifier(), bench, ["digits"])
    with pytest.raises(ArgumentError, match="brings its own"):
        offaxis.evaluate(classifier(), "digits")


def test_what_is_missing_is_said_with_the_remedy(root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the list .*train_cifar10.txt is not there.*download.py .*--save_dir"):
        openood(tmp_path, "cifar10")
    with pytest.raises(DataError, match=r"train_cifar10 lists 40 images where OpenOOD's list has 50000.*--partial"):
        openood(root, "cifar10")
    with pytest.raises(DataError, match=r"imagenet_1k.*--partial needs at least"):
        openood(tmp_path, "imagenet200", partial=True)
    with pytest.raises(ArgumentError, match="imagenet200"):
        openood(root, "mnist")
    whole = noise_root(tmp_path / "again" / "data", count=3)
    (whole / "images_classic" / "tin" / "test" / "images" / "0001.png").unlink()
    (whole / "benchmark_imglist" / "cifar10" / "test_mnist.txt").unlink()
    bench = openood(whole.parent, "cifar10", partial=True)  # the folder around it will do
    assert len(bench.ood("tin")) == 2
    assert bench.partial["test_tin"] == (2, 7793)
    assert bench.partial["test_mnist"] == (0, 70_000)
    assert bench.far == ("svhn", "texture", "places365")
    (whole / "images_classic" / "tin" / "test" / "images" / "0000.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"0000.png cannot be read"):
        bench.ood("tin")
    listing = whole / "benchmark_imglist" / "cifar10" / "test_svhn.txt"
    for wrong in ("../../etc/passwd -1", "/etc/passwd -1"):
        listing.write_text(wrong)
        with pytest.raises(DataError, match="line 1"):
            openood(whole, "cifar10", partial=True)
    listing.write_text("")
    with pytest.raises(DataError, match="lists none"):
        openood(whole, "cifar10", partial=True)


def test_from_the_shell_to_openoods_table(root: Path, tmp_path: Path) -> None:
    torch.save(to_published(classifier(double=False)), tmp_path / "weights.th")
    network = ["evaluate", "resnet8-cifar", "--weights", str(tmp_path / "weights.th"), "--benchmark", "openood-cifar10"]
    options = ["--data", str(root), "--out", str(tmp_path / "store"), "--detectors", "energy,fdbd,react", "--quiet"]
    refused = CliRunner().invoke(app, [*network, *options])
    assert isinstance(refused.exception, OffaxisError)
    assert not (tmp_path / "store").exists()
    done = CliRunner().invoke(app, [*network, *options, "--partial"])
    assert done.exception is None, done.output
    words = [
        "report",
        str(tmp_path / "store"),
        "--out",
        str(tmp_path / "report"),
        "--openood",
        str(tmp_path / "ood.csv"),
    ]
    done = CliRunner().invoke(app, [*words, "--thumbnails", "2"])
    assert done.exception is None, done.output
    rows = list(csv.DictReader((tmp_path / "ood.csv").read_text().splitlines()))
    assert {row["dataset"] for row in rows if row["detector"] == "fdbd"} == {
        *(f"{name} (partial)" for name in (*NEAR, *FAR, "nearood", "farood"))
    }
    text = (tmp_path / "report" / "report.md").read_text()
    assert "openood-cifar10 (partial) in distribution" in text
    assert "OpenOOD, tuned on its validation lists" in text
    for extra in (["--id", "digits"], ["--images", "5"], ["--ood", "digits"]):
        refused = CliRunner().invoke(app, [*network, *options, "--partial", *extra])
        assert isinstance(refused.exception, OffaxisError), extra


def pytorch_oods(ood: ModuleType, root: Path, network: offaxis.Classifier, tmp_path: Path) -> list[dict[str, Any]]:
    """What pytorch-ood's OpenOOD benchmark gives for max-softmax on the same root."""
    benchmark = importlib.import_module("pytorch_ood.benchmark")
    transforms = importlib.import_module("torchvision.transforms")
    detector = importlib.import_module("pytorch_ood.detector").MaxSoftmax
    steps = [transforms.Resize(32), transforms.CenterCrop(32), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    before = torch.hub.get_dir()
    torch.hub.set_dir(str(tmp_path / "hub"))
    try:
        target = tmp_path / "hub" / "openood_benchmark_imglist"
        target.mkdir(parents=True)
        (target / "benchmark_imglist").symlink_to(root / "benchmark_imglist")
        theirs = benchmark.CIFAR10_OpenOOD(str(root / "images_classic"), transforms.Compose(steps), download=False)
        doubled = lambda images: network(images.double())  # noqa: E731
        found: list[dict[str, Any]] = theirs.evaluate(detector(doubled), loader_kwargs={"batch_size": 16}, device="cpu")
    finally:
        torch.hub.set_dir(before)
    return found


@pytest.mark.thirdparty
def test_the_table_is_pytorch_oods(ood: ModuleType, tmp_path: Path) -> None:
    whole = noise_root(tmp_path / "data", seed=3)
    for file in (whole / "benchmark_imglist" / "cifar10").glob("test_*.txt"):  # it takes labels as they are listed
        if file.stem != "test_cifar10":
            file.write_text("".join(f"{line.split()[0]} -1\n" for line in file.read_text().splitlines()))
    network = classifier()
    theirs = pytorch_oods(ood, whole, network, tmp_path)
    ours = offaxis.evaluate(network, openood(whole, "cifar10", partial=True), detectors="max-softmax")
    columns = {"AUROC": "auroc", "AUPR-IN": "aupr_in_trapezoid", "AUPR-OUT": "aupr_out_trapezoid"}
    columns["FPR95TPR"] = "fpr_at_tpr95_openood"
    assert len(theirs) == len(ours) == 6
    for row, result in zip(theirs, ours, strict=True):  # both in the order of the benchmark
        for column, metric in columns.items():
            assert row[column] == pytest.approx(result.metrics[metric], abs=1e-10), (row, result.ood)


@pytest.mark.realdata
def test_the_table_on_real_images_is_openoods(tmp_path: Path) -> None:
    data = Path(os.environ.get("OFFAXIS_DATA", ""))
    if not (data / "dtd" / "images").is_dir():
        pytest.skip("CIFAR-10, CIFAR-100, SVHN, MNIST, TinyImageNet and DTD are not under OFFAXIS_DATA")
    weights = Path(os.environ.get("OFFAXIS_WEIGHTS", "")) / "resnet20-12fca82f.th"
    images: dict[str, list[Any]] = {}
    labels: dict[str, list[int]] = {}

    def some(name: str, begin: int, count: int, split: Any = "test") -> tuple[list[Any], list[int]]:
        found = load_images(name, split, root=data)
        chosen = torch.arange(begin, begin + count)
        pixels = found.batch(chosen).permute(0, 2, 3, 1).squeeze(-1).numpy()
        return list(pixels), [] if found.labels is None else found.labels[chosen].tolist()

    for name, begin, count, split in (("train", 0, 60, "train"), ("val", 0, 10, "test"), ("test", 10, 50, "test")):
        images[f"{name}_cifar10"], labels[f"{name}_cifar10"] = some("cifar10", begin, count, split)
    for name, set_name in (("cifar100", "cifar100"), ("mnist", "mnist"), ("svhn", "svhn"), ("tin", "tin-resize")):
        images[f"test_{name}"] = some(set_name, 10, 40)[0]
    images["val_tin"] = some("tin-resize", 0, 10)[0]
    textures = sorted((data / "dtd" / "images").rglob("*.png"))[:40]
    images["test_texture"] = [np.array(Image.open(path).convert("RGB")) for path in textures]
    root = write_root(tmp_path / "data", images, labels)
    network = offaxis.open_network("resnet20-cifar", weights=weights).network if weights.is_file() else classifier()
    assert isinstance(network, offaxis.Classifier)
    check_table(network.double(), root, ("mnist", "svhn", "texture"), tmp_path)
