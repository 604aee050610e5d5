"""Slow and obvious versions of OpenOOD's preprocessing, postprocessors and metrics, one image or one class at a time."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.covariance import EmpiricalCovariance
from sklearn.metrics import auc, precision_recall_curve, roc_curve
from torch import Tensor

from offaxis import Classifier

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
NEAR, FAR = ("cifar100", "tin"), ("mnist", "svhn", "texture", "places365")
POSTPROCESSORS = ("MSP", "MLS", "EBO", "GEN", "ODIN", "KNN", "VIM", "ReAct", "MDS", "RMDS", "fDBD", "NCI")
Array = NDArray[np.float64]
Rows = dict[tuple[str, str], list[float]]


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


class Postprocessors:
    """Confidences of all postprocessors for a network in float64; larger is more in-distribution.

    Args:
        network: with a linear head.
        images: the training images, normalised.
        labels: their classes.
    """

    def __init__(self, network: Classifier, images: Tensor, labels: list[int]) -> None:
        self.network = network
        self.weight = network.head.weight.detach().numpy()
        self.bias = network.head.bias.detach().numpy()
        self.logits, self.features = self.outputs(images)
        self.labels = np.array(labels)
        self.classes = range(len(self.weight))
        self.mean = self.features.mean(0)
        self.means = [self.features[self.labels == c].mean(0) for c in self.classes]
        centred = np.concatenate([self.features[self.labels == c] - self.means[c] for c in self.classes])
        self.within = EmpiricalCovariance(assume_centered=False).fit(centred).precision_
        self.total = EmpiricalCovariance(assume_centered=False).fit(self.features).precision_
        self.origin = -np.linalg.pinv(self.weight) @ self.bias
        moment = EmpiricalCovariance(assume_centered=True).fit(self.features - self.origin).covariance_
        values, vectors = np.linalg.eigh(moment)
        self.space = vectors.T[np.argsort(-values)[len(values) // 2 :]].T  # half of the directions
        lengths = np.linalg.norm((self.features - self.origin) @ self.space, axis=1)
        self.alpha = self.logits.max(1).mean() / lengths.mean()
        self.clip = np.percentile(self.features.flatten(), 90)
        self.bank = np.array([g / np.linalg.norm(g) for g in self.features])

    def outputs(self, images: Tensor) -> tuple[Array, Array]:
        with torch.no_grad():
            out = self.network.outputs(images.double())
        return out.logits.numpy(), out.features.numpy()

    def confidences(self, images: Tensor) -> dict[str, Array]:
        """By name: (N,)."""
        logits, features = self.outputs(images)
        found = {}
        for name in POSTPROCESSORS:
            if name == "ODIN":
                found[name] = self._odin(images.double())
            else:
                method = getattr(self, f"_{name.lower()}")
                found[name] = np.array([method(z, f) for z, f in zip(logits, features, strict=True)])
        return found

    def _odin(self, images: Tensor) -> Array:
        x = images.clone().requires_grad_()
        logits = self.network(x) / 1000
        loss = torch.nn.functional.cross_entropy(logits, logits.argmax(1), reduction="sum")
        (gradient,) = torch.autograd.grad(loss, x)
        step = gradient.sign() / torch.tensor(STD, dtype=torch.float64).view(1, 3, 1, 1)
        with torch.no_grad():
            found: Array = (self.network(x - 0.0014 * step) / 1000).softmax(1).max(1).values.numpy()
        return found

    def _softmax(self, z: Array) -> Array:
        e = np.exp(z - z.max())
        shares: Array = e / e.sum()
        return shares

    def _energy(self, z: Array) -> float:
        return float(z.max() + np.log(np.exp(z - z.max()).sum()))

    def _msp(self, z: Array, f: Array) -> float:
        return float(self._softmax(z).max())

    def _mls(self, z: Array, f: Array) -> float:
        return float(z.max())

    def _ebo(self, z: Array, f: Array) -> float:
        return self._energy(z)

    def _gen(self, z: Array, f: Array) -> float:
        return float(-sum(p**0.1 * (1 - p) ** 0.1 for p in self._softmax(z)))

    def _knn(self, z: Array, f: Array) -> float:  # K = 5
        unit = f / np.linalg.norm(f)
        return -float(np.sort(np.linalg.norm(self.bank - unit, axis=1))[4])

    def _vim(self, z: Array, f: Array) -> float:
        return self._energy(z) - float(self.alpha * np.linalg.norm((f - self.origin) @ self.space))

    def _react(self, z: Array, f: Array) -> float:
        return self._energy(self.weight @ np.minimum(f, self.clip) + self.bias)

    def _mds(self, z: Array, f: Array) -> float:
        return -min(float((f - mean) @ self.within @ (f - mean)) for mean in self.means)

    def _rmds(self, z: Array, f: Array) -> float:
        return self._mds(z, f) + float((f - self.mean) @ self.total @ (f - self.mean))

    def _fdbd(self, z: Array, f: Array) -> float:
        best = int(z.argmax())
        others = [c for c in self.classes if c != best]
        distances = [(z[best] - z[c]) / np.linalg.norm(self.weight[best] - self.weight[c]) for c in others]
        return float(np.mean(distances) / np.linalg.norm(f - self.mean))

    def _nci(self, z: Array, f: Array) -> float:
        centred = f - self.mean
        return float(self.weight[int(z.argmax())] @ centred / np.linalg.norm(centred))


def openood_metrics(id_confidence: Array, ood_confidence: Array) -> list[float]:
    """FPR@95, AUROC, AUPR_IN, AUPR_OUT as OpenOOD v1.5 computes them, in percent."""
    confidence = np.concatenate([id_confidence, ood_confidence])
    outlier = np.r_[np.zeros(len(id_confidence)), np.ones(len(ood_confidence))]
    fpr, tpr, _ = roc_curve(outlier, -confidence, drop_intermediate=False)
    inside = precision_recall_curve(1 - outlier, confidence)
    outside = precision_recall_curve(outlier, -confidence)
    values = [fpr[np.argmax(tpr >= 0.95)], auc(fpr, tpr), auc(inside[1], inside[0]), auc(outside[1], outside[0])]
    return [100 * float(v) for v in values]


def slow_table(network: Classifier, root: Path) -> Rows:
    """OpenOOD's rows by (postprocessor, dataset): each set, then the means of near and far sets."""
    slow = Postprocessors(network, *by_hand(root, "train_cifar10"))
    data = {name: by_hand(root, f"test_{name}") for name in ("cifar10", *NEAR, *FAR)}
    rows: Rows = {}
    accuracy = np.mean(slow.outputs(data["cifar10"][0])[0].argmax(1) == np.array(data["cifar10"][1]))
    every = {name: slow.confidences(images) for name, (images, _) in data.items()}
    for method in POSTPROCESSORS:
        confidence = {name: found[method] for name, found in every.items()}
        for group, members in (("nearood", NEAR), ("farood", FAR)):
            for name in members:
                metrics = openood_metrics(confidence["cifar10"], confidence[name])
                rows[method, name] = [*metrics, 100 * float(accuracy)]
            rows[method, group] = np.mean([rows[method, name] for name in members], 0).tolist()
    return rows
