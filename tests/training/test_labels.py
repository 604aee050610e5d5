"""Images in wrong folders: confident learning beside cleanlab, and what a training says of misfiled photographs."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from offaxis import attach, load_images
from offaxis.cli import app
from offaxis.data import Normalise
from offaxis.training.features import extract_features
from offaxis.training.labels import confusion_lines, doubtful, out_of_fold

run = CliRunner().invoke


def _noisy(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return features of five classes, their labels with some wrong, and which are wrong."""
    draw = torch.Generator().manual_seed(seed)
    true = torch.arange(300) % 5
    features = 2.0 * torch.eye(5)[true].repeat(1, 4) + torch.randn(300, 20, generator=draw)
    wrong = torch.randperm(300, generator=draw)[:20]
    labels = true.clone()
    labels[wrong] = (true[wrong] + 1) % 5
    return features, labels, wrong


@pytest.mark.thirdparty
@pytest.mark.parametrize("seed", range(5))
def test_the_same_images_are_doubtful_as_for_cleanlab(seed: int) -> None:
    cleanlab = pytest.importorskip("cleanlab.filter")
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 6, 400)
    logits = draw.normal(size=(400, 6)) + 1.5 * np.eye(6)[labels]
    probabilities = np.exp(2 * logits) / np.exp(2 * logits).sum(1, keepdims=True)
    found = doubtful(torch.from_numpy(probabilities), torch.from_numpy(labels))
    expected = cleanlab.find_label_issues(
        labels,
        probabilities,
        filter_by="confident_learning",
        return_indices_ranked_by="self_confidence",
        n_jobs=1,
    )
    assert len(found) > 20
    assert found.tolist() == expected.tolist()


def test_wrong_labels_are_found_by_heads_that_have_not_seen_them() -> None:
    features, labels, wrong = _noisy(0)
    found = doubtful(out_of_fold(features, labels, 5), labels)
    assert len(set(found.tolist()) & set(wrong.tolist())) >= 12  # of 20; others look like their labels
    assert len(found) <= 20
    assert not len(doubtful(torch.eye(5)[labels], labels))


def test_confusions_are_told_with_their_numbers() -> None:
    counts = torch.tensor([[8, 2, 0], [0, 10, 0], [0, 0, 0]])
    assert confusion_lines(counts, ("boxer", "pug", "beagle")) == [
        "Recognised least: boxer 80% of 10.",
        "Taken most often for another class: boxer for pug (2).",
    ]


NETWORK = """
from torch import nn
from offaxis.data import Normalise, Preprocessing

def plain():
    layers = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 3))
    return layers, Preprocessing((3, 32, 32), Normalise((0.5,) * 3, (0.3,) * 3), "crop")
"""


def test_a_training_names_misfiled_photographs_and_small_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NETWORK)
    draw = np.random.default_rng(0)
    for colour, (name, count) in enumerate((("red", 40), ("green", 40), ("blue", 8))):
        for number in range(count):
            folder = Path("photos", "test" if number % 4 == 0 else "train", name)
            if name == "red" and number in (5, 8):  # one of each part is in the wrong folder
                folder = folder.parent / "green"
            folder.mkdir(parents=True, exist_ok=True)
            pixels = draw.integers(0, 120, (40, 40, 3), np.uint8)
            pixels[..., colour] += 100
            Image.fromarray(pixels).save(folder / f"{name}{number}.png")
    done = run(app, ["train", "--id", "photos", "--network", "net.py:plain", "--freeze", "--out", "run"])
    assert done.exit_code == 0, (done.output, done.exception)
    said = done.stderr
    assert said.index("Held-out accuracy") < said.index("training accuracy")
    assert "Classes with few training images, of which it learns little: blue (6)." in said
    assert "The folder of 2 of 88 images is doubtful" in said
    for file in ("photos/train/green/red5.png", "photos/test/green/red8.png"):
        assert f"{file}: in green, looks like red (" in said
    assert "green for red (2)" in said
    rows = csv.DictReader(Path("run/doubtful.csv").read_text().splitlines())
    assert {row["given"] for row in rows} == {"green"}
    page = Path("run/classes.html").read_text()
    assert page.count("data:image/jpeg") == 2
    assert "photos/train/green/red5.png" in page.replace("<wbr>", "")
    assert "features 66/66" in said  # images, not batches


def test_a_class_that_is_added_takes_the_features_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = np.random.default_rng(0)

    def write(name: str) -> None:
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(20):
            pixels = chance.integers(0, 255, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")

    torch.manual_seed(0)
    net = attach(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 6), torch.nn.Linear(6, 2)), "cosine")
    passed = list[int]()
    net.backbone.register_forward_hook(lambda *of: passed.append(len(of[2])))
    normalise = Normalise((0.5,) * 3, (0.3,) * 3)

    def features() -> torch.Tensor:
        images = load_images(tmp_path / "photos", "test", size=8)
        return extract_features(net, images, normalise, cache=tmp_path / "cache")

    write("a")
    write("c")
    before = features()
    assert sum(passed) == 40
    write("b")
    passed.clear()
    after = features()
    assert sum(passed) == 20
    assert torch.equal(after[:20], before[:20])
    assert torch.equal(after[40:], before[20:])
