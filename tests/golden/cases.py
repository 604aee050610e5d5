"""Compute every group of golden values: pure functions of seeds and of the networks kept under ``values/``.

All that is known of the package's inside stands in the block of imports and in the functions that make networks and
models; module paths and names may change there, the numbers that come out may not.
"""

import hashlib
import json
import math
import platform
import re
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn import functional as F
from typer.testing import CliRunner

import offaxis
from offaxis import Calibration, Classifier, Model, Paired, Recipe, metrics
from offaxis.calibration import conformal
from offaxis.cli import app
from offaxis.data import ImageSet, Normalise, TensorSet
from offaxis.data.embedded import digits, letters, small_digits
from offaxis.deploy import Preprocessing
from offaxis.detectors import DETECTORS, Detector
from offaxis.heads import HEADS, CosineHead, HeadLike, make_head
from offaxis.networks import densenet_bc, wide_resnet
from offaxis.networks.ensemble import Ensemble, LeaveOutEnsemble, folds
from offaxis.reproduce.items import ITEMS
from offaxis.reproduce.paper import TABLES as PAPER_TABLES
from offaxis.training import RECIPES
from offaxis.training.leave_out import MarginEntropyLoss
from study.page import BLOCK, PAGES, filled
from study.tables import TABLES as FIRST_TABLES

ROOT = Path(__file__).parents[2]
VALUES = Path(__file__).parent / "values"
Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]
Json = Any
"""What JSON can hold."""


# where the numbers come from -----------------------------------------------------------------------------------------


def surroundings() -> dict[str, str]:
    """Return what bits depend on besides the code."""
    return {"torch": torch.__version__, "cpu_capability": torch.backends.cpu.get_cpu_capability()}


def about() -> dict[str, str]:
    """Return the surroundings with what else is worth knowing of a recording."""
    return {**surroundings(), "numpy": np.__version__, "python": platform.python_version()}


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread and in float32, without warnings, so that bits do not depend on the caller."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    with warnings.catch_warnings(), threadpool_limits(1), torch.random.fork_rng(devices=()):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.set_default_dtype(dtype)


def checksum(module: nn.Module) -> str:
    """Return a hash of all weights and buffers that knows neither their names nor their order."""
    tensors = (t.detach().contiguous() for t in module.state_dict().values())
    each = sorted(
        hashlib.sha256(f"{tuple(t.shape)} {t.dtype}".encode() + t.numpy().tobytes()).digest() for t in tensors
    )
    return hashlib.sha256(b"".join(each)).hexdigest()


# networks and images -------------------------------------------------------------------------------------------------

CLASSES = 4
TOYS = {
    "linear": ("linear", 0, None), "cosine": ("cosine", 0, None), "cosine-1": ("cosine", 1, None),
    "deconf-c": ("deconf-c", 0, None), "deconf-i": ("deconf-i", 0, None), "deconf-e": ("deconf-e", 0, None),
    "isomax": ("isomax", 0, None), "leave-out-0": ("linear", 0, 0), "leave-out-1": ("linear", 1, 1),
}  # fmt: skip
"""Name -> head, seed, and the fold that is left out of a training in two folds."""
DIGITS = {"digits-cosine": ("cosine", 0), "digits-cosine-1": ("cosine", 1), "digits-linear": ("linear", 0)}
"""Name -> head and seed of a small DenseNet-BC for digits of 8x8 pixels."""


def stripes(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return images (count, 1, 8, 8) of stripes in four directions, and their classes."""
    random = np.random.Generator(np.random.Philox(seed))
    labels = np.arange(count) % CLASSES
    angle = (labels * math.pi / CLASSES)[:, None, None]
    phase = random.uniform(0, 2 * math.pi, (count, 1, 1))
    grid = np.arange(8.0)
    waves = np.sin(1.6 * (grid[None, None] * np.cos(angle) + grid[None, :, None] * np.sin(angle)) + phase)
    images = waves + 0.1 * random.standard_normal((count, 8, 8))
    return torch.tensor(images[:, None], dtype=torch.float32), torch.tensor(labels)


def noise(count: int, seed: int) -> Tensor:
    """Return images (count, 1, 8, 8) of Gaussian noise."""
    random = np.random.Generator(np.random.Philox(seed))
    return torch.tensor(0.8 * random.standard_normal((count, 1, 8, 8)), dtype=torch.float32)


PAPER_HEAD = partial(CosineHead, start="paper")
"""The head that the scores of cosine networks are pinned on, and that the paper's recipes train."""


def untrained(name: str) -> Classifier:
    """Return a network of ``TOYS`` or ``DIGITS`` with its first weights."""
    if name in DIGITS:
        kind, seed = DIGITS[name]
        head = PAPER_HEAD if kind == "cosine" else kind
        torch.manual_seed(seed)
        return densenet_bc(depth=10, growth=6, num_classes=10, head=head, in_channels=1)
    kind, seed, _ = TOYS[name]
    head = PAPER_HEAD if kind == "cosine" else kind
    torch.manual_seed(seed)
    backbone = nn.Sequential(
        OrderedDict(
            first=nn.Conv2d(1, 8, 3, padding=1),
            norm=nn.BatchNorm2d(8),
            relu=nn.ReLU(),
            second=nn.Conv2d(8, 24, 3, padding=1, stride=2),
            relu2=nn.ReLU(),
            pool=nn.AdaptiveAvgPool2d(1),
            flat=nn.Flatten(),
        )
    )
    return Classifier(backbone, make_head(head, 24, CLASSES), layers=("first", "second"))


def trained(name: str) -> Classifier:
    """Return the network after a training; done once, for the file of weights."""
    network = untrained(name)
    if name in DIGITS:
        recipe = Recipe(epochs=6, batch_size=32, crop=0, flip=False)
        return offaxis.train(network, small_digits("train"), recipe, seed=DIGITS[name][1], quiet=True).classifier.eval()
    fold = TOYS[name][2]
    loss = None if fold is None else MarginEntropyLoss(folds(CLASSES, 2)[fold], CLASSES)
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    network.train()
    for i in range(150):
        images, labels = stripes(64, 1000 + i)
        outputs = network.outputs(images)
        value = F.cross_entropy(outputs.logits, labels) if loss is None else loss(outputs, labels)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    return network.eval()


def networks() -> Arrays:
    """Compute the weights of every network that scores are pinned on, by name and place, whatever they are called."""
    found = {}
    for name in (*TOYS, *DIGITS):
        for place, tensor in enumerate(trained(name).state_dict().values()):
            found[f"{name}/{place:03}"] = tensor.numpy()
    return found


@cache
def _weights() -> Arrays:
    with np.load(VALUES / "networks.npz") as file:
        return dict(file)


@cache
def network(name: str) -> Any:
    """Return a network with the weights that are kept, or one that is made of several."""
    if name == "ensemble":
        return Ensemble([network("cosine"), network("cosine-1")])
    if name == "digits-ensemble":
        return Ensemble([network("digits-cosine"), network("digits-cosine-1")])
    if name == "paired":
        return Paired(network("linear"), network("cosine"))
    if name == "leave-out":
        return LeaveOutEnsemble([network("leave-out-0"), network("leave-out-1")], folds(CLASSES, 2)).eval()
    made = untrained(name)
    with torch.no_grad():
        for place, tensor in enumerate(made.state_dict().values()):
            kept = torch.tensor(_weights()[f"{name}/{place:03}"])
            assert kept.shape == tensor.shape, f"weight {place} of {name}"
            tensor.copy_(kept)
    return made.eval()


# detectors -----------------------------------------------------------------------------------------------------------

STD = {"std": (0.5,)}
NATIVE_CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "cosine": ("cosine", {}, "cosine"),
    "cosine of a pair": ("cosine", {}, "paired"),
    "cosine of an ensemble": ("cosine", {}, "ensemble"),
    "cosine ensemble": ("cosine-ensemble", {}, "ensemble"),
    "two cosines": ("two-cosines", {}, "cosine"),
    "two cosines of a pair": ("two-cosines", {}, "paired"),
    "mean cosine": ("mean-cosine", {}, "linear"),
    "mean cosine, cosine head": ("mean-cosine", {}, "cosine"),
    "max-softmax": ("max-softmax", {}, "linear"),
    "max-softmax, cosine head": ("max-softmax", {}, "cosine"),
    "max-softmax of an ensemble": ("max-softmax", {}, "ensemble"),
    "odin": ("odin", STD, "linear"),
    "odin, T = 1": ("odin", {"temperature": 1, "eps": 0.001, **STD}, "linear"),
    "odin without eps": ("odin", {"eps": 0}, "linear"),
    "odin, cosine head": ("odin", STD, "cosine"),
    "mahalanobis": ("mahalanobis", {}, "linear"),
    "mahalanobis with eps": ("mahalanobis", {"eps": 0.001, **STD}, "linear"),
    "mahalanobis of a pair": ("mahalanobis", {"layers": ("second",), "eps": 0.001}, "paired"),
    "mahalanobis, cosine head": ("mahalanobis", {}, "cosine"),
    "leave-out": ("leave-out", {"networks": 2, **STD}, "leave-out"),
    "leave-out without eps": ("leave-out", {"networks": 2, "eps": 0}, "leave-out"),
    "max-logit": ("max-logit", {}, "linear"),
    "max-logit, cosine head": ("max-logit", {}, "cosine"),
    "energy": ("energy", {}, "linear"),
    "energy, cosine head": ("energy", {}, "cosine"),
    "gen": ("gen", {}, "linear"),
    "gen, top": ("gen", {"top": 2}, "linear"),
    "knn": ("knn", {"k": 10}, "linear"),
    "knn, cosine head": ("knn", {"k": 10}, "cosine"),
    "vim": ("vim", {}, "linear"),
    "vim, cosine head": ("vim", {"dim": 8}, "cosine"),
    "relative mahalanobis": ("relative-mahalanobis", {}, "linear"),
    "relative mahalanobis, cosine head": ("relative-mahalanobis", {}, "cosine"),
    "react": ("react", {}, "linear"),
    "react, cosine head": ("react", {"percentile": 0.95}, "cosine"),
    "ash-s": ("ash", {"percentile": 0.65}, "linear"),
    "ash-b": ("ash", {"percentile": 0.65, "variant": "b"}, "linear"),
    "ash-p": ("ash", {"percentile": 0.65, "variant": "p"}, "linear"),
    "scale": ("scale", {}, "linear"),
    "scale of a pair": ("scale", {}, "paired"),
    "generalized odin, deconf-c": ("generalized-odin", STD, "deconf-c"),
    "generalized odin, deconf-i": ("generalized-odin", {}, "deconf-i"),
    "generalized odin, deconf-e": ("generalized-odin", {}, "deconf-e"),
    "generalized odin without eps": ("generalized-odin", {"perturb": False}, "deconf-c"),
    "isomax": ("isomax", {}, "isomax"),
    "fdbd": ("fdbd", {}, "linear"),
    "fdbd, cosine head": ("fdbd", {}, "cosine"),
    "nci": ("nci", {}, "linear"),
    "nci, cosine head": ("nci", {}, "cosine"),
    "mahalanobis++": ("mahalanobis++", {}, "linear"),
    "mahalanobis++, shrunk": ("mahalanobis++", {"shrinkage": True}, "linear"),
    "relative mahalanobis++": ("relative-mahalanobis++", {}, "cosine"),
}
"""Name -> detector, its arguments, and the network it judges."""
PYTORCH_OOD_ARGUMENTS: dict[str, dict[str, Any]] = {
    "pytorch-ood-knn": {"k": 5},
    "pytorch-ood-mcd": {"samples": 3},
    "pytorch-ood-vim": {"d": 8},
    "pytorch-ood-odin": {"eps": 0.001, "temperature": 1.0},
    "pytorch-ood-mahalanobisodin": {"eps": 0.001},
}
PYTORCH_OOD_CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    name: (name, {"keywords": PYTORCH_OOD_ARGUMENTS.get(name)}, "linear")
    for name in DETECTORS
    if name.startswith("pytorch-ood-")
} | {
    f"{name}, cosine head": (name, {"keywords": PYTORCH_OOD_ARGUMENTS.get(name)}, "cosine")
    for name in ("pytorch-ood-dice", "pytorch-ood-nnguide", "pytorch-ood-react", "pytorch-ood-vim", "pytorch-ood-fdbd")
}
DIGITS_CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    f"{name} on {kind}": (name, {}, kind)
    for kind in ("digits-cosine", "digits-linear")
    for name in (
        "mean-cosine", "max-softmax", "odin", "mahalanobis", "energy", "knn", "vim", "relative-mahalanobis", "react", "ash",
        "scale", "gen",
    )
}  # fmt: skip
DIGITS_CASES |= {
    "cosine on digits-cosine": ("cosine", {}, "digits-cosine"),
    "two-cosines on digits-cosine": ("two-cosines", {}, "digits-cosine"),
    "cosine-ensemble on digits-ensemble": ("cosine-ensemble", {}, "digits-ensemble"),
}
DETECTOR_CASES = NATIVE_CASES | PYTORCH_OOD_CASES | DIGITS_CASES
ILL_CONDITIONED = ("mahalanobis on digits-cosine", "mahalanobis on digits-linear")
"""Their covariances are nearly singular: the last bits decide the inverse, so another processor gives other distances, in the
same order."""
SINGLE_PRECISION = ("pytorch-ood-pnml", "pytorch-ood-rmd")
"""Inverses in 32 bits: a few scores move by 0.1 % on another processor."""
FAR_OFF = "mahalanobis, standard network"
"""The entry of bundles and calibrations for which the same holds."""
PERTURBING = (
    "odin",
    "mahalanobis",
    "leave-out",
    "pytorch-ood-mcd",
    "pytorch-ood-grad",
    "pytorch-ood-nacue",
    "pytorch-ood-vim",
)
"""Detectors whose scores hang on the sign of gradients near zero, on random masks or on a near-singular matrix: on another
machine most images agree."""


@cache
def _toy_images() -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor]:
    images, labels = stripes(400, 1)
    return list(zip(images.split(100), labels.split(100), strict=True)), stripes(32, 2)[0], noise(32, 3)


@cache
def _digits_images() -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor]:
    training, normalise = small_digits("train"), digits_normalise()
    assert training.labels is not None
    first = torch.arange(400)
    fitted = normalise(training.batch(first)), training.labels[first]
    known, strange = small_digits("test").batch(torch.arange(32)), letters(32, 8).batch(torch.arange(32))
    return list(zip(*(part.split(100) for part in fitted), strict=True)), normalise(known), normalise(strange)


def digits_normalise() -> Normalise:
    """Return the normalisation of the training digits, in plain numbers."""
    return Normalise((0.305,), (0.376,))


def make_detector(name: str) -> tuple[Detector, Any, tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor]]:
    """Return a case's detector, fitted, with its network and images."""
    kind, arguments, judged = DETECTOR_CASES[name]
    data = _digits_images() if judged in DIGITS or judged == "digits-ensemble" else _toy_images()
    return DETECTORS[kind](**arguments).fit(network(judged), data[0]), network(judged), data


def detector_scores(name: str) -> Arrays:
    """Compute a case's scores of familiar and of strange images."""
    detector, judged, (_, known, strange) = make_detector(name)
    return {
        f"{name}/known": detector.score_images(judged, known).numpy(),
        f"{name}/strange": detector.score_images(judged, strange).numpy(),
    }


def detectors(names: Sequence[str] = tuple(DETECTOR_CASES)) -> Arrays:
    """Compute the scores of every case."""
    return {key: scores for name in names for key, scores in detector_scores(name).items()}


def tuning() -> Json:
    """Compute what tuning on the OOD images chooses, and the scores that come of it, for every detector with a grid."""
    found = {}
    for name in NATIVE_CASES:
        detector, judged, (_, known, strange) = make_detector(name)
        if detector.grid:
            tuned = detector.tune(judged, [known[:16]], [strange[:16]])
            chosen = {key: tuned.arguments[key] for key in detector.grid}
            scores = tuned.score_images(judged, strange[16:24]).tolist()
            found[name] = {"settings": len(detector.settings), "chosen": chosen, "scores": scores}
    return plain(found)


# metrics -------------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Json:
    """Return a value as JSON gives it back: tuples are lists, keys are words."""
    return json.loads(json.dumps(value, default=lambda v: v.tolist()))


def score_sets() -> dict[str, tuple[Any, Any]]:
    """Return pairs of ID and OOD scores: without ties, with many, with nothing else, apart, in float32, few."""
    random = np.random.Generator(np.random.Philox(7))
    known, strange = random.normal(0, 1, 300), random.normal(1, 1.5, 211)
    return {
        "without ties": (known, strange),
        "with ties": (known.round(), strange.round()),
        "some ties": (known.round(1), strange.round(1)),
        "all equal": (np.zeros(20), np.zeros(30)),
        "apart": (known - 10, strange + 10),
        "turned": (strange, known),
        "float32": (known.astype(np.float32), strange.astype(np.float32)),
        "few": ([0.1, 0.2, 0.3], [0.3, 0.4]),
        "whole numbers": ([1, 2, 2, 5], [2, 3, 5, 8, 9]),
    }


def detection_metrics() -> Json:
    """Compute every metric of ID and OOD scores."""
    found: dict[str, Json] = {}
    for name, (known, strange) in score_sets().items():
        found[name] = {
            "auroc": metrics.auroc(known, strange),
            "aupr_in": metrics.aupr_in(known, strange),
            "aupr_out": metrics.aupr_out(known, strange),
            "accuracy_at_tpr": metrics.accuracy_at_tpr(known, strange),
            "accuracy_at_tpr 0.8": metrics.accuracy_at_tpr(known, strange, 0.8),
            "fpr_at_tpr": metrics.fpr_at_tpr(known, strange),
            "fpr_at_tpr 0.8": metrics.fpr_at_tpr(known, strange, 0.8),
            "fpr_at_tpr, ood": metrics.fpr_at_tpr(known, strange, positive="ood"),
            "detection_error": metrics.detection_error(known, strange),
            "all_metrics": metrics.all_metrics(known, strange),
            "roc_curve of 20 points": metrics.roc_curve(known, strange, 20),
            "bootstrap of auroc": metrics.bootstrap_interval(metrics.auroc, known, strange, 100, 0.9, 3),
            "bootstrap of aupr_in": metrics.bootstrap_interval(metrics.aupr_in, known, strange, 20),
        }
    found["some ties"]["roc_curve"] = metrics.roc_curve(*score_sets()["some ties"])
    found["higher is better"] = metrics.HIGHER_IS_BETTER
    return plain(found)


def confidence_metrics() -> Json:
    """Compute every metric of confidence, without and with ties."""
    random = np.random.Generator(np.random.Philox(11))
    sure = random.beta(4, 1, 300)
    right = random.uniform(size=300) < 0.9 * sure
    found = {}
    for name, values in {"without ties": sure, "with ties": sure.round(1)}.items():
        coverage, risk = metrics.risk_coverage(values, right)
        found[name] = {
            "ece": metrics.expected_calibration_error(values, right),
            "ece of 5 bins": metrics.expected_calibration_error(values, right, 5),
            "aurc": metrics.area_under_risk_coverage(values, right),
            "coverage": coverage[::10],
            "risk": risk[::10],
        }
    return plain(found)


# calibration ---------------------------------------------------------------------------------------------------------


def conformal_values() -> Json:
    """Compute p-values, thresholds and flag rates, over all images and per class, with and without ties."""
    random = np.random.Generator(np.random.Philox(13))
    scores, predicted = random.normal(0, 1, 251), random.integers(0, 4, 251)
    predicted[:12] = 4  # a class with too few images at 5 %
    new, of_class = random.normal(1, 2, 40), random.integers(0, 5, 40)
    alphas = (0.01, 0.05, 0.1, 0.5)
    found: dict[str, Json] = {
        "smallest_count": [conformal.smallest_count(a) for a in alphas],
        "allowed": [conformal.allowed(n, a) for a in alphas for n in (99, 100, 199, 1000)],
        "flag_rate": [_rate(conformal.flag_rate(n, a)) for a in alphas for n in (99, 100, 199, 1000)],
    }
    for name, digit in (("without ties", 15), ("with ties", 0)):
        own, other = scores.round(digit), new.round(digit)
        found[f"functions, {name}"] = {
            "p_values": conformal.p_values(calibration_scores=np.sort(own), scores=other),
            "thresholds": [conformal.threshold(np.sort(own), a) for a in alphas],
        }
        for alpha in alphas:
            made = Calibration.from_scores(own, predicted, 5, alpha)
            found[f"calibration, {name}, {alpha}"] = calibration_values(made, other, of_class)
    return plain(found)


def _rate(rate: Any) -> list[float] | None:
    return None if rate is None else [rate.mean, rate.low, rate.high]


def calibration_values(made: Calibration, scores: Any, predicted: Any) -> Json:
    """Compute all that a calibration says of scores and predicted classes."""
    return {
        "threshold": made.threshold(),
        "class_thresholds": made.class_thresholds(),
        "class_counts": made.class_counts(),
        "enough": made.enough(),
        "p_values": made.p_values(scores),
        "class_p_values": [None if math.isnan(p) else p for p in made.class_p_values(scores, predicted).tolist()],
        "flag_rate": _rate(made.flag_rate()),
        "class_flag_rates": [_rate(rate) for rate in made.class_flag_rates()],
    }


def _unseen() -> tuple[ImageSet, ImageSet]:
    """Return digits to calibrate on, and others."""
    rest = small_digits("test")
    return rest.subset(torch.arange(240)), rest.subset(torch.arange(240, len(rest)))


def _fitted(name: str, judged: str) -> Detector:
    return DETECTORS[name]().fit(network(judged), _digits_images()[0])


BUNDLES: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "cosine": ("digits-cosine", None, {}),
    "cosine per class": ("digits-cosine", None, {"per_class": True, "alpha": 0.1}),
    "two cosines": ("digits-cosine", "two-cosines", {"alpha": 0.1}),
    "knn": ("digits-cosine", "knn", {}),
    "mahalanobis, standard network": ("digits-linear", "mahalanobis", {}),
    "odin, standard network": ("digits-linear", "odin", {"alpha": 0.2}),
    "max-softmax, standard network": ("digits-linear", "max-softmax", {"per_class": True, "alpha": 0.2}),
    "ensemble": ("digits-ensemble", None, {}),
}
"""Name -> network, detector where it is not the usual one, and how it is calibrated."""


def calibrated() -> Json:
    """Compute what calibrating on images gives."""
    images, _ = _unseen()
    found = {}
    for name, (judged, detector, how) in BUNDLES.items():
        used = _fitted(detector, judged) if detector else None
        made = offaxis.calibrate(network(judged), images, digits_normalise(), used, **how)
        values = calibration_values(made, made.scores[::8] + 1e-3, made.predicted[::8])
        cosine = None if made.cosine is None else made.cosine[::8]
        found[name] = {"scores": made.scores[::8], "predicted": made.predicted[::8], "cosine": cosine, **values}
    return plain(found)


def bundles() -> Json:
    """Compute the answers of models that were saved and loaded: class, probability, score, p-values, verdict."""
    images, rest = _unseen()
    shown = torch.cat([rest.batch(torch.arange(8)), letters(8, 8).batch(torch.arange(8))])
    large = letters(4, 28).batch(torch.arange(4))  # they are made to fit
    found = {}
    for name, (judged, detector, how) in BUNDLES.items():
        model = Model.calibrated(
            network(judged),
            images,
            used=[small_digits("train")],
            detector=_fitted(detector, judged) if detector else None,
            preprocessing=Preprocessing((1, 8, 8), digits_normalise()),
            classes=list("0123456789"),
            **how,
        )
        with TemporaryDirectory() as folder:
            model.save(Path(folder) / "model.oax")
            again = offaxis.load(Path(folder) / "model.oax")
        answers = [*again.predict(shown), *again.predict(large)]
        found[name] = {
            "answers": [
                {
                    "class": said.class_name,
                    "index": said.class_index,
                    "probability": said.probability,
                    "cosine": said.cosine,
                    "score": said.score,
                    "p_value": said.p_value,
                    "class_p_value": said.class_p_value,
                    "verdict": said.verdict.value,
                    "nearest": said.nearest,
                }
                for said in answers
            ],
            "threshold": again.calibration.threshold(),
        }
    return plain(found)


# trainings -----------------------------------------------------------------------------------------------------------


def _wide(head: HeadLike) -> Classifier:
    return wide_resnet(depth=10, width=1, head=head, in_channels=1, stem_stride=2)


def _dense(head: HeadLike) -> Classifier:
    return densenet_bc(depth=10, growth=6, head=head, in_channels=1)


TRAININGS: dict[str, tuple[Callable[[HeadLike], Classifier], HeadLike, Callable[[], Recipe]]] = {
    "default, cosine": (_wide, "cosine", lambda: Recipe(epochs=2, batch_size=64)),
    "default, linear": (_wide, "linear", lambda: Recipe(epochs=2, batch_size=64)),
    "default, deconf-c": (_wide, "deconf-c", lambda: Recipe(epochs=2, batch_size=64)),
    "default, isomax": (_wide, "isomax", lambda: Recipe(epochs=2, batch_size=64)),
    "decayed head, norm clipped": (
        _wide, "cosine", lambda: Recipe(epochs=2, batch_size=64, clip=None, max_norm=1.0, decay_head=True, crop=1, flip=False)
    ),
    "laptop": (_wide, "cosine", lambda: RECIPES["laptop"]().replace(epochs=2)),
    "short": (_wide, "cosine", lambda: RECIPES["short"]().replace(epochs=2)),
    "paper-wide-resnet, cosine": (_wide, PAPER_HEAD, lambda: RECIPES["paper-wide-resnet"]().replace(epochs=2)),
    "paper-wide-resnet, linear": (_wide, "linear", lambda: RECIPES["paper-wide-resnet"]().replace(epochs=2)),
    "paper-densenet, cosine": (_dense, PAPER_HEAD, lambda: RECIPES["paper-densenet"]().replace(epochs=2)),
    "paper-densenet, linear": (_dense, "linear", lambda: RECIPES["paper-densenet"]().replace(epochs=2)),
}  # fmt: skip
"""Name -> network, head and recipe, cut to two epochs."""


def training(name: str) -> Json:
    """Compute a training on the 8x8 digits: checksums before and after, and what each epoch logged."""
    make, head, recipe = TRAININGS[name]
    return _trained(make, head, recipe(), small_digits("train"))


def large_digits_training() -> Json:
    """Compute a training on 512 MNIST digits."""
    data = digits("train")
    assert data.labels is not None
    few = TensorSet("few-digits", data.images[:512], data.labels[:512], data.classes)
    return _trained(_wide, "cosine", Recipe(epochs=2, batch_size=64, crop=2, flip=False), few)


def _trained(make: Callable[[HeadLike], Classifier], head: HeadLike, recipe: Recipe, data: ImageSet) -> Json:
    torch.manual_seed(0)
    made = make(head)
    first = checksum(made)
    done = offaxis.train(made, data, recipe, seed=0, quiet=True)
    epochs = [{key: e[key] for key in ("loss", "accuracy", "scale", "learning_rate")} for e in done.history]
    mean, std = done.normalise.mean, done.normalise.std
    return plain({"first": first, "last": checksum(done.classifier), "epochs": epochs, "mean": mean, "std": std})


def trainings() -> Json:
    """Compute every training."""
    return {**{name: training(name) for name in TRAININGS}, "digits": large_digits_training()}


def recipes() -> Json:
    """Compute the numbers of every recipe by name, and the learning rates of a hundred steps."""
    found = {}
    for name, make in RECIPES.items():
        rates = [make().learning_rate_at(step, 100) for step in range(100)]
        found[name] = {"recipe": make().to_json(), "learning_rates": rates}
    return plain(found)


def first_weights() -> Json:
    """Compute the checksum of the first weights of both kinds of networks with every head, and two of the paper's."""
    found = {}
    for head in HEADS:
        for name, make in (("wide_resnet", _wide), ("densenet_bc", _dense)):
            torch.manual_seed(5)
            found[f"{name}, {head}"] = checksum(make(head))
    for name, make in (("wide_resnet", _wide), ("densenet_bc", _dense)):
        torch.manual_seed(5)
        found[f"{name}, cosine, paper's start"] = checksum(make(PAPER_HEAD))
    torch.manual_seed(5)
    found["densenet_bc of the paper"] = checksum(densenet_bc(num_classes=100, head=PAPER_HEAD))
    torch.manual_seed(5)
    found["wide_resnet, colour, dropout"] = checksum(wide_resnet(16, 4, 100, "linear", dropout=0.3))
    return found


# texts ---------------------------------------------------------------------------------------------------------------


def study_names() -> list[str]:
    """Return the tables of the first study that the pages show, as ``NAME ID``."""
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    # not those with rows of the second study, which is still growing
    first = [found for found in BLOCK.finditer(text) if found[2] in FIRST_TABLES and found[2] != "five"]
    return sorted({f"{found[2]} {found[3]}" for found in first})


def study_table(name: str) -> str:
    """Compute the text of one table out of the study's results; the working folder must be the project's root."""
    return filled(f"<!-- table {name} -->\n<!-- end -->\n")


@cache
def study() -> dict[str, str]:
    """Compute every table of the study."""
    return {name: study_table(name) for name in study_names()}


PAPER_COMMANDS = (
    ("paper",),
    *(("paper", name) for name in PAPER_TABLES),
    *(("paper", name, "--csv") for name in PAPER_TABLES),
    ("paper", "one-vs-one", "--network", "wrn-28-10", "--id", "cifar100", "--metric", "auroc"),
    ("paper", "one-vs-one", "--network", "densenet-100-12", "--metric", "accuracy_at_tpr"),
    ("paper", "less-biased", "--id", "CIFAR-10", "--metric", "aupr_in"),
    ("paper", "ensembles", "--csv", "--id", "cifar10", "--metric", "aupr_in"),
)
REPRODUCE_COMMANDS = (
    ("reproduce",),
    *(("reproduce", item, "--scale", scale, "--list") for item in ITEMS for scale in ("paper", "laptop")),
    ("reproduce", "classification", "--id", "digits", "--seeds", "1", "--network", "wrn-10-1", "--epochs", "3", "--list"),
)  # fmt: skip
NO_TERMINAL = dict.fromkeys(("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "CLICOLOR_FORCE"))


def printed(words: Sequence[str]) -> str:
    """Compute what a command prints, 100 columns wide; what is long and for programs, as its hash."""
    settings = {**NO_TERMINAL, "COLUMNS": "100", "LINES": "40", "OFFAXIS_DATA": "/nowhere", "TERM": "dumb"}
    shown = CliRunner().invoke(app, list(words), env=settings, catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    if "--csv" in words:
        lines = shown.stdout.splitlines()
        return f"{lines[0]}\n{len(lines)} lines, {hashlib.sha256(shown.stdout.encode()).hexdigest()}\n"
    return "".join(f"{line.rstrip()}\n" for line in shown.stdout.splitlines())


@cache
def paper() -> dict[str, str]:
    """Compute what ``offaxis paper`` prints for every table and some filters."""
    return {" ".join(words): printed(words) for words in PAPER_COMMANDS}


def reproduce() -> dict[str, str]:
    """Compute the plan of every table and figure: the commands that ``offaxis reproduce --list`` prints."""
    return {" ".join(words): printed(words) for words in REPRODUCE_COMMANDS}


def numbers(text: str) -> list[str]:
    """Return the numbers of a text in their order, whatever the words around them."""
    return re.findall(r"(?<![\w.])[-+]?\d+\.\d+", text)


def text_numbers() -> Json:
    """Compute the decimal numbers of the study's and the paper's tables, apart from their words."""
    return {group: {name: numbers(text) for name, text in TEXT_GROUPS[group]().items()} for group in ("study", "paper")}


JSON_GROUPS: dict[str, Callable[[], Json]] = {
    "tuning": tuning, "detection-metrics": detection_metrics, "confidence-metrics": confidence_metrics,
    "conformal": conformal_values, "calibrated": calibrated, "bundles": bundles, "trainings": trainings,
    "recipes": recipes, "first-weights": first_weights, "text-numbers": text_numbers,
}  # fmt: skip
ARRAY_GROUPS: dict[str, Callable[[], Arrays]] = {"detectors": detectors}
TEXT_GROUPS: dict[str, Callable[[], dict[str, str]]] = {"study": study, "paper": paper, "reproduce": reproduce}
