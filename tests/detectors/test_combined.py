"""The combined score: against a slow version of its formula, in bundles, in ONNX and on feature vectors."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.special import log_softmax
from scipy.stats import multivariate_normal, norm
from torch import Tensor, nn

import offaxis
from offaxis import Classifier, EmbeddingDetector
from offaxis.data import Normalise, TensorSet
from offaxis.data.transforms import Preprocessing
from offaxis.detectors import Combined, fit_all
from offaxis.detectors.feature_mahalanobis import ledoit_wolf
from offaxis.heads import make_head
from offaxis.metrics import auroc
from tests.detectors.toy import NetworkOf, Toy

Floats = NDArray[np.float64]
CLASSES, WIDTH = 4, 12


def rows(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Features (count, 12) around a centre of each class, and the classes."""
    random, labels = torch.Generator().manual_seed(seed), torch.arange(count) % CLASSES
    mixing = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(5))
    return 3 * torch.eye(WIDTH)[labels] + torch.randn(count, WIDTH, generator=random) @ mixing / 3 + 0.5, labels


def network(head: str) -> Classifier:
    torch.manual_seed(1)
    return Classifier(nn.Flatten(), make_head(head, WIDTH, CLASSES)).eval()


def readings(known: Floats, y: NDArray[np.int64], whole: Floats, x: Floats, z: Floats) -> Floats:
    """Compute the readings (N, R) of unit features x by those of known images; the shrinkage is that of the whole sample."""
    means = np.stack([known[y == c].mean(0) for c in range(CLASSES)])
    inside = known - means[y]
    all_classes = np.arange(len(whole)) % CLASSES
    shrunk = ledoit_wolf(
        torch.from_numpy(inside.T @ inside / len(known)), torch.from_numpy(whole - means[all_classes]), len(known)
    ).numpy()
    distances = cdist(x, means, "mahalanobis", VI=np.linalg.inv(shrunk)) ** 2
    densities = np.stack([multivariate_normal(mean, shrunk).logpdf(x) for mean in means], 1)
    background = multivariate_normal(known.mean(0), shrunk).logpdf(x)
    found = [
        cdist(x, means, "cosine").min(1) - 1,
        distances.min(1),
        background - np.log(np.exp(densities - densities.max(1, keepdims=True)).sum(1)) - densities.max(1),
        -log_softmax(z, 1).max(1),
    ]
    return np.stack(found, 1)


@pytest.mark.parametrize("head", ["linear", "cosine", "isomax", "t2fnorm", "deconf-c"])
def test_it_is_its_formula_for_every_head(head: str) -> None:
    subject, (train, labels), (test, _) = network(head), rows(90, 0), rows(20, 1)
    images = [(part[:, :, None, None], own) for part, own in zip(train.split(32), labels.split(32), strict=True)]
    detector = Combined()
    fit_all(subject, images, [detector])
    with torch.no_grad():
        known, new = (subject.head.outputs(features) for features in (train, test))

    def arrays(outputs: offaxis.Outputs) -> tuple[Floats, Floats]:
        x = outputs.features.double().numpy()
        return x / np.linalg.norm(x, axis=1, keepdims=True), outputs.detection_logits.double().numpy()

    x, z = arrays(known)
    crossed = []
    for fold in range(5):
        own = np.arange(90) % 5 == fold
        crossed.append(readings(x[~own], labels.numpy()[~own], x, x[own], z[own]))
    together = np.concatenate(crossed)
    expected = readings(x, labels.numpy(), x, *arrays(new))
    larger = (together[None] >= expected[:, None]).sum(1)
    beyond = np.maximum(expected - together.max(0), 0) / together.std(0)
    expected = (norm.isf((larger + 0.5) / 91) + np.log1p(beyond)).sum(1)
    np.testing.assert_allclose(detector.score(new).numpy(), expected, rtol=1e-6, atol=1e-6)


def test_classes_of_one_image_and_classes_without_spread_are_scored() -> None:
    subject, (train, labels) = network("cosine"), rows(41, 0)
    few = torch.cat([torch.nonzero(labels != 3).flatten(), torch.tensor([3])])
    detector = Combined().fit(subject, [(train[few][:, :, None, None], labels[few])])
    assert torch.isfinite(detector.score(subject.head.outputs(rows(8, 1)[0]))).all()
    collapsed = Combined().fit(subject, [(torch.eye(WIDTH)[labels][:, :, None, None], labels)])
    assert torch.isfinite(collapsed.score(subject.head.outputs(rows(8, 1)[0]))).all()


def test_it_serves_from_a_bundle_and_as_onnx(toy: Toy, network_of: NetworkOf, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    from offaxis.onnx import with_engine

    images, labels = (torch.cat(parts) for parts in zip(*toy.train, strict=True))
    low, high = float(images.min()), float(images.max())
    pixels = (255 * (images - low) / (high - low)).round().to(torch.uint8)
    normalise = Normalise((-low / (high - low),), (1 / (high - low),))
    train, held = (TensorSet("stripes", pixels[part], labels[part]) for part in (slice(0, -60), slice(-60, None)))
    model = offaxis.Model.calibrated(
        network_of("cosine"), held, used=[train], detector="combined", preprocessing=Preprocessing((1, 8, 8), normalise)
    )
    model.save(tmp_path / "stripes.oax")
    again = offaxis.load(tmp_path / "stripes.oax", network_of("cosine"))
    assert isinstance(again.detector, Combined)
    noise = torch.randint(0, 256, (40, 1, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    scores = [
        np.array([p.score for p in each.predict_batch(noise)]) for each in (model, again, with_engine(again, "onnx"))
    ]
    np.testing.assert_array_equal(scores[1], scores[0])
    np.testing.assert_allclose(scores[2], scores[0], rtol=1e-4, atol=1e-4)
    assert auroc(model.calibration.scores, scores[0]) > 0.9


def test_it_scores_feature_vectors() -> None:
    train, labels = rows(200, 0)
    known = EmbeddingDetector("combined", random_state=0).fit(train.numpy(), labels.numpy()).calibrate(rows(100, 1)[0])
    assert (known.predict(-rows(60, 3)[0]) == -1).mean() > 0.9
    assert (known.predict(rows(200, 2)[0]) == 1).mean() > 0.85
