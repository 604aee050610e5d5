"""OpenOOD's benchmarks against slow and obvious versions of its preprocessing, scores and metrics, and pytorch-ood's."""

import copy
import csv
import importlib
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import offaxis
from offaxis.cli import app
from offaxis.data import Normalise, load_images, openood
from offaxis.detectors import (
    FDBD,
    GEN,
    KNN,
    NATIVE,
    NCI,
    ODIN,
    Energy,
    Mahalanobis,
    MaxLogit,
    MaxSoftmax,
    ReAct,
    RelativeMahalanobis,
    ViM,
)
from offaxis.errors import ArgumentError, DataError, OffaxisError
from offaxis.evaluation import Store
from offaxis.networks.resnet import resnet_cifar, to_published
from offaxis.reports.report import write_openood
from tests.data.openood_root import noise_root, write_root
from tests.evaluation.openood_by_hand import FAR, MEAN, NEAR, STD, Postprocessors, Rows, by_hand, slow_table


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return noise_root(tmp_path_factory.mktemp("openood") / "data")


def classifier(double: bool = True) -> offaxis.Classifier:
    torch.manual_seed(0)
    network = resnet_cifar(8, num_classes=10, head="linear").eval()
    return network.double() if double else network


DETECTORS = {
    "MSP": MaxSoftmax(),
    "MLS": MaxLogit(),
    "EBO": Energy(),
    "GEN": GEN(),
    "ODIN": ODIN(std=STD),
    "KNN": KNN(5),
    "VIM": ViM(),
    "ReAct": ReAct(),
    "MDS": Mahalanobis(("",)),
    "RMDS": RelativeMahalanobis(),
    "fDBD": FDBD(),
    "NCI": NCI(),
}
"""Our detectors by OpenOOD's names; MDS reads the features alone, as OpenOOD's does."""


def read_table(path: Path) -> Rows:
    names = {detector.name: name for name, detector in DETECTORS.items()}
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = ("FPR@95", "AUROC", "AUPR_IN", "AUPR_OUT", "ACC")
    return {
        (names[re.split("[ ,]", row["detector"])[0]], row["dataset"].replace(" (partial)", "")): [
            float(row[c]) for c in columns
        ]
        for row in rows
    }


def check_table(network: offaxis.Classifier, root: Path, tmp_path: Path) -> None:
    """Compare a table with the slow one, and the leaderboard's lines with its means."""
    results = offaxis.evaluate(
        network,
        openood(root, "cifar10", partial=True),
        detectors=list(DETECTORS.values()),
        normalise=Normalise(MEAN, STD),
        store=tmp_path / "store",
    )
    assert all(result.benchmark == "openood-cifar10 (partial)" for result in results)
    table, leaderboard = write_openood(Store(tmp_path / "store"), tmp_path / "out.csv")
    found, expected = read_table(table), slow_table(network, root)
    assert found.keys() == expected.keys()
    for key, numbers in expected.items():
        assert found[key] == pytest.approx(numbers, abs=1e-10, rel=0), key
    with leaderboard.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert ",".join(lines[0]) == (
        "Training,Postprocessor,Near-OOD_AUROC,Far-OOD_AUROC,ID_Accuracy,Outlier_Data,Arch,Additional_Description"
    )
    assert {line["Postprocessor"] for line in lines} == {*DETECTORS, "MDSEns"} - {"MDS"}
    for line in lines:
        method = line["Postprocessor"].removesuffix("Ens")  # our mahalanobis is the one of several layers, unless told
        assert float(line["Near-OOD_AUROC"]) == pytest.approx(expected[method, "nearood"][1], abs=0.00501)  # rounded
        assert line["Training"] == "CrossEntropy"
        assert "(partial)" in line["Additional_Description"]


def check_scores(network: offaxis.Classifier, root: Path, name: str) -> None:
    """Compare the scores of a set with the slow ones."""
    bench = openood(root, "cifar10", partial=True)
    slow = Postprocessors(network, *by_hand(root, "train_cifar10"))
    images, _ = by_hand(root, f"test_{name}")
    ours = Normalise(MEAN, STD)(bench.ood(name).batch(torch.arange(len(images))))
    assert torch.equal(ours, images)
    expected = slow.confidences(images)
    for method, detector in DETECTORS.items():
        fitted = copy.deepcopy(detector)
        if fitted.needs_fit:
            fitted.fit(network, bench.train, Normalise(MEAN, STD))
        score = fitted.score_images(network, ours).numpy() * (2 if method == "MDS" else 1)  # ours is half the distance
        assert score == pytest.approx(-expected[method], abs=1e-10, rel=1e-10), method


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
    check_table(classifier(), root, tmp_path)


def test_scores_are_openoods(root: Path) -> None:
    check_scores(classifier(), root, "texture")


def test_the_validation_lists_tune_and_the_test_lists_test(root: Path) -> None:
    bench = openood(root, "cifar10", partial=True)
    own = ReAct()
    results = offaxis.evaluate(classifier(), bench, detectors=[own, "energy"], tune=True)
    assert own.tuning_metric == "tnr_at_tpr95"  # it is tuned as OpenOOD does, and stays as it was
    tuned = [result for result in results if result.state == "tuned"]
    assert {result.assumed for result in tuned} == {"val_tin"}
    assert {result.ood for result in results} == {f"{name} (partial)" for name in (*NEAR, *FAR)}
    assert all(result.images == (20, 12) for result in results)
    assert {result.ood: result.group for result in results}["tin (partial)"] == "near"
    assert "react (tuned)" in results.table()
    head, _, first = (line.strip("|").split("|") for line in results.table().splitlines()[:3])
    row = dict(zip(map(str.strip, head), map(str.strip, first), strict=True))
    assert list(row)[-3:] == ["near", "far", "mean"]
    near = [float(row[f"{name} (partial)"]) for name in NEAR]
    assert float(row["near"]) == pytest.approx(np.mean(near), abs=0.01)
    with pytest.raises(ArgumentError, match="brings its own"):
        offaxis.evaluate(classifier(), bench, ["digits"])
    with pytest.raises(ArgumentError, match="brings its own"):
        offaxis.evaluate(classifier(), "digits")


def test_a_list_with_a_byte_order_mark_loses_no_image(tmp_path: Path) -> None:
    file = noise_root(tmp_path) / "benchmark_imglist" / "cifar10" / "test_mnist.txt"
    before = len(openood(tmp_path, "cifar10", partial=True).lists["test_mnist"].paths)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert len(openood(tmp_path, "cifar10", partial=True).lists["test_mnist"].paths) == before


def test_what_is_missing_is_said_with_the_remedy(root: Path, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"no folder .*cifar10 with its image lists.*download.py .*--save_dir"
    ) as nothing:
        openood(tmp_path, "cifar10")
    assert "--partial" not in str(nothing.value)  # there is no part
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
    Image.new("L", (1, 200_000)).save(whole / "images_classic" / "tin" / "test" / "images" / "0000.png")
    with pytest.raises(DataError, match=r"0000.png is 1x200000, too long"):  # 32 x 6,400,000 pixels
        bench.ood("tin")
    listing = whole / "benchmark_imglist" / "cifar10" / "test_svhn.txt"
    for wrong in ("../../etc/passwd -1", "/etc/passwd -1"):
        listing.write_text(wrong)
        with pytest.raises(DataError, match="line 1"):
            openood(whole, "cifar10", partial=True)
    listing.write_text("")
    with pytest.raises(DataError, match="lists none"):
        openood(whole, "cifar10", partial=True)
    listing.write_bytes(b"\xff")
    with pytest.raises(DataError, match="test_svhn.txt cannot be read"):
        openood(whole, "cifar10", partial=True)
    (listing.parent / "train_cifar10.txt").write_text("cifar10/train/airplane/0000.png 999999999999")
    with pytest.raises(DataError, match="line 1"):  # so many classes
        openood(whole, "cifar10", partial=True)


def test_from_the_shell_to_openoods_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = noise_root(tmp_path / "data")
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

    taken = (["--id", "digits"], ["--images", "5"], ["--ood", "digits"], ["--near", "tin"], ["--skip-bad"])
    for extra in (*taken, ["--protocol", "both"], ["--validation", "50"]):
        refused = CliRunner().invoke(app, [*network, *options, "--partial", *extra])
        assert isinstance(refused.exception, OffaxisError), extra


def test_several_files_of_weights_are_seeds_of_one_network(tmp_path: Path) -> None:
    root = noise_root(tmp_path / "data", count=6)
    words = ["evaluate", "resnet8-cifar", "--benchmark", "openood-cifar10", "--data", str(root), "--partial", "--quiet"]
    for seed in (0, 1):
        torch.manual_seed(seed)
        weights = tmp_path / f"s{seed}" / "best.ckpt"
        weights.parent.mkdir()
        torch.save(to_published(resnet_cifar(8, num_classes=10, head="linear")), weights)
        words += ["--weights", str(weights)]
    store = tmp_path / "store"
    done = CliRunner().invoke(app, [*words, "--detectors", "energy,fdbd", "--out", str(store)])
    assert done.exception is None, done.output
    assert {(r.network, r.seed) for r in Store(store).results()} == {
        ("resnet8-cifar linear", 0),
        ("resnet8-cifar linear", 1),
    }
    table, leaderboard = write_openood(Store(store), tmp_path / "ood.csv")
    rows = [row for row in csv.DictReader(table.read_text().splitlines()) if row["detector"] == "fdbd"]
    near = [float(row["AUROC"]) for row in rows if row["dataset"] == "nearood (partial)"]
    lines = {line["Postprocessor"]: line for line in csv.DictReader(leaderboard.read_text().splitlines())}
    assert lines["fDBD"]["Near-OOD_AUROC"] == f"{np.mean(near):.2f} ± {np.std(near):.2f}"
    assert "2 seeds" in lines["fDBD"]["Additional_Description"]
    refused = CliRunner().invoke(app, [*words, "resnet20-cifar", "--out", str(store)])
    assert isinstance(refused.exception, ArgumentError)


def test_every_detector_of_ours_takes_part(tmp_path: Path) -> None:
    root = noise_root(tmp_path / "data", count=6)
    torch.save(to_published(classifier(double=False)), tmp_path / "weights.th")
    words = ["evaluate", "resnet8-cifar", "--weights", str(tmp_path / "weights.th"), "--benchmark", "openood-cifar10"]
    words += ["--data", str(root), "--partial", "--no-tune", "--out", str(tmp_path / "store")]
    done = CliRunner().invoke(app, words)
    assert done.exception is None, done.output
    table, leaderboard = write_openood(Store(tmp_path / "store"), tmp_path / "ood.csv")
    rows = list(csv.DictReader(table.read_text().splitlines()))
    others = {"cosine", "two-cosines", "cosine-ensemble", "leave-out", "isomax", "generalized-odin"}  # for other heads
    others |= {"knn"}  # there are fewer training images than its 50 neighbours, which a note says
    assert "knn is left out" in done.stderr
    assert {row["detector"].removesuffix(" (default)") for row in rows} == set(NATIVE) - others
    assert all(row["dataset"].endswith("(partial)") for row in rows)
    assert len(leaderboard.read_text().splitlines()) == 1 + len(set(NATIVE) - others)


def pytorch_oods(root: Path, id: str, network: offaxis.Classifier, tmp_path: Path) -> list[dict[str, Any]]:
    """What pytorch-ood's OpenOOD benchmark gives for max-softmax on the same root."""
    benchmark = importlib.import_module("pytorch_ood.benchmark")
    transforms = importlib.import_module("torchvision.transforms")
    detector = importlib.import_module("pytorch_ood.detector").MaxSoftmax
    normalise = transforms.Normalize(MEAN, STD)
    steps = [transforms.Resize(32), transforms.CenterCrop(32), transforms.ToTensor(), normalise]
    before = torch.hub.get_dir()
    torch.hub.set_dir(str(tmp_path / "hub"))
    try:
        target = tmp_path / "hub" / "openood_benchmark_imglist"
        target.mkdir(parents=True)
        (target / "benchmark_imglist").symlink_to(root / "benchmark_imglist")
        kind = getattr(benchmark, f"{id.upper()}_OpenOOD")
        theirs = kind(str(root / "images_classic"), transforms.Compose(steps), download=False)
        doubled = lambda images: network(images.double())  # noqa: E731
        found: list[dict[str, Any]] = theirs.evaluate(detector(doubled), loader_kwargs={"batch_size": 16}, device="cpu")
    finally:
        torch.hub.set_dir(before)
    return found


def check_pytorch_ood(network: offaxis.Classifier, root: Path, id: str, tmp_path: Path) -> None:
    for file in (root / "benchmark_imglist" / id).glob("test_*.txt"):  # it takes labels as they are listed
        if file.stem != f"test_{id}":
            file.write_text("".join(f"{line.split()[0]} -1\n" for line in file.read_text().splitlines()))
    theirs = pytorch_oods(root, id, network, tmp_path)
    bench = openood(root, id, partial=True)
    ours = offaxis.evaluate(network, bench, detectors="max-softmax", normalise=Normalise(MEAN, STD))
    columns = {"AUROC": "auroc", "AUPR-IN": "aupr_in_trapezoid", "AUPR-OUT": "aupr_out_trapezoid"}
    columns["FPR95TPR"] = "fpr_at_tpr95_openood"
    assert len(theirs) == len(ours) == 6
    for row, result in zip(theirs, ours, strict=True):  # both in the order of the benchmark
        for column, metric in columns.items():
            assert row[column] == pytest.approx(result.metrics[metric], abs=1e-10, rel=0), (row, result.ood)


@pytest.mark.thirdparty
@pytest.mark.parametrize("id", ["cifar10", "cifar100"])
def test_the_table_is_pytorch_oods(ood: ModuleType, id: str, tmp_path: Path) -> None:
    check_pytorch_ood(classifier(), noise_root(tmp_path / "data", seed=3, id=id), id, tmp_path)


@pytest.fixture(scope="module")
def real_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small root of real images; photographs of landscapes stand in for Places365."""
    data = Path(os.environ.get("OFFAXIS_DATA", ""))
    if not (data / "dtd" / "images").is_dir():
        pytest.skip("CIFAR-10, CIFAR-100, SVHN, MNIST, TinyImageNet, DTD and scenes are not under OFFAXIS_DATA")
    images: dict[str, list[Any]] = {}
    labels: dict[str, list[int]] = {}

    def some(name: str, counts: dict[str, int], split: Any = "test") -> None:
        """Take images of a set of the catalogue, one after the other, for some lists."""
        found = load_images(name, split, root=data)
        begin = 0
        for listed, count in counts.items():
            chosen = torch.arange(begin, begin + count)
            images[listed] = list(found.batch(chosen).permute(0, 2, 3, 1).squeeze(-1).numpy())
            if listed.endswith("_cifar10"):
                assert found.labels is not None
                labels[listed] = found.labels[chosen].tolist()
            begin += count

    def files(folder: str, begin: int, end: int) -> list[Any]:
        paths = sorted(path for path in (data / folder).rglob("*") if path.suffix in (".png", ".jpg"))
        return [np.array(Image.open(path).convert("RGB")) for path in paths[begin:end]]

    some("cifar10", {"train_cifar10": 200}, "train")
    some("cifar10", {"val_cifar10": 10, "test_cifar10": 50})
    for name in ("cifar100", "mnist", "svhn"):
        some(name, {f"test_{name}": 40})
    images["val_tin"], images["test_tin"] = files("Imagenet_resize", 0, 10), files("Imagenet_resize", 10, 50)
    images["test_texture"], images["test_places365"] = files("dtd/images", 0, 40), files("scenes", 0, 40)
    return write_root(tmp_path_factory.mktemp("openood") / "data", images, labels)


@pytest.fixture(scope="module")
def real_network() -> offaxis.Classifier:
    """The published ResNet-20 where it is there, else one that was not trained."""
    weights = Path(os.environ.get("OFFAXIS_WEIGHTS", "")) / "resnet20-12fca82f.th"
    network = offaxis.open_network("resnet20-cifar", weights=weights).network if weights.is_file() else classifier()
    assert isinstance(network, offaxis.Classifier)
    return network.eval().double()


@pytest.mark.realdata
def test_the_table_on_real_images_is_openoods(
    real_root: Path, real_network: offaxis.Classifier, tmp_path: Path
) -> None:
    check_table(real_network, real_root, tmp_path)


@pytest.mark.realdata
def test_scores_of_real_images_are_openoods(real_root: Path, real_network: offaxis.Classifier) -> None:
    check_scores(real_network, real_root, "svhn")


@pytest.mark.realdata
def test_the_table_on_real_images_is_pytorch_oods(
    ood: ModuleType, real_root: Path, real_network: offaxis.Classifier, tmp_path: Path
) -> None:
    check_pytorch_ood(real_network, real_root, "cifar10", tmp_path)


def test_full_spectrum_takes_the_lists_of_shifted_images(root: Path, tmp_path: Path) -> None:
    lists, network = root / "benchmark_imglist" / "cifar10" / "test_cifar10c.txt", classifier()
    with pytest.raises(DataError, match="and 7 more"):  # than are shown, and one more than without
        openood(root, "cifar10", full_spectrum=True)
    with pytest.raises(ArgumentError, match="cifar100 has none"):
        openood(root, "cifar100", full_spectrum=True)
    rows = (root / "benchmark_imglist" / "cifar10" / "test_cifar10.txt").read_text().splitlines()[:8]
    for row in rows:
        source = root / "images_classic" / row.split()[0]
        target = root / "images_classic" / row.split()[0].replace("cifar10/", "cifar10c/", 1)
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.open(source).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(target)
    lists.write_text("".join(row.replace("cifar10/", "cifar10c/", 1) + "\n" for row in rows))
    try:
        common: dict[str, Any] = {"detectors": ["max-softmax"], "normalise": Normalise(MEAN, STD)}
        results = offaxis.evaluate(network, openood(root, "cifar10", partial=True, full_spectrum=True), **common)
        plain = offaxis.evaluate(network, openood(root, "cifar10", partial=True), **common)
    finally:
        lists.unlink()
    shifted, _ = by_hand(root, "test_cifar10")
    expected = -network(shifted[:8].flip(3).double()).softmax(1).amax(1).detach().numpy()
    for before, result in zip(plain, results, strict=True):
        assert result.shifted == ("cifar10c",)
        id_scores, ood_scores, soft = map(results.scores, result.every_score)
        np.testing.assert_allclose(soft, expected, rtol=1e-5)
        assert result.metrics["auroc"] == before.metrics["auroc"]
        every = np.concatenate([id_scores, soft])
        wins = [(a < b) + 0.5 * (a == b) for a in every for b in ood_scores]
        assert result.metrics["full_spectrum_auroc"] == pytest.approx(np.mean(wins))
